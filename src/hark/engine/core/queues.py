"""The verbs that change queues and single messages, and traces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from hark.engine.api import Answers
from hark.engine.core.ordered import Draft, OrderedPosition
from hark.engine.core.position import Position
from hark.engine.core.push import encode_options, find_message, find_partitions, insert_queue, stored_at
from hark.engine.core.schema import SHARED_OPEN_HERE
from hark.engine.core.shared import SETTLED, Entry, SharedDraft
from hark.engine.core.state import Group, Partition, Queue
from hark.engine.core.store import delete_traces, rows_of, run, scalar
from hark.engine.core.transaction import WriteTransaction, dig
from hark.errors import HarkError, NotFound
from hark.ids import Address
from hark.model import DEFAULT_PARTITION, CancelOutcome, NewTrace, QueueInfo, QueueSpec

# Messages that were requeued for this group: they are in no lane.
_OWN = """
select message.offset, message.priority, message.created_at from gaps
join messages as message on message.partition = gaps.partition and message.offset = gaps.first
where gaps.partition = ?1 and gaps.owner = ?2 and gaps.first > ?3
"""


def move(transaction: WriteTransaction, position: Position, cursor: int) -> None:
    """Set a cursor. Settled ranges, retries and requeued messages beyond it are dropped, and leases become void."""
    draft, partition = transaction.draft(position), position.partition
    start = max(cursor, partition.floor)
    key = (position.group.id, partition.id)  # Completed messages may be delivered again, so their leases are void.
    transaction.kept = [one for one in transaction.kept if one[:2] != key]
    run(transaction.connection, "delete from completions where grp = ?1 and partition = ?2", *key)
    if isinstance(draft, SharedDraft):
        own = rows_of(transaction.connection, _OWN, partition.id, position.group.id, start)
        now = transaction.now
        draft.restart(start, [Entry(offset, level, created, min(created, now)) for offset, level, created in own])
    elif isinstance(draft, Draft):
        draft.wiped = True
        draft.cursor, draft.ranges, draft.probe = start, [], 0
        draft.retries.clear()
        draft.requeued.clear()
        for first, last in transaction.loader.gaps(position.group, partition):
            draft.finish(first, last)
    _void_leases(transaction, position)


def settle_all(transaction: WriteTransaction, position: Position) -> int:
    """Settle the backlog of a group in a partition. Returns the number of messages."""
    draft, partition = transaction.draft(position), position.partition
    settled = 0
    if isinstance(draft, SharedDraft):
        if not draft.voided:
            stored = int(scalar(transaction.connection, SHARED_OPEN_HERE, position.group.id, partition.id))
            drafted = sum(change is SETTLED for change in draft.changes.values())
            settled = stored + partition.next_tail - partition.tail - drafted
        draft.restart(partition.next_tail, ())
    elif isinstance(draft, Draft) and isinstance(position, OrderedPosition):
        settled = sum(last - first + 1 for first, last in position.open_intervals())
        draft.requeued.clear()
        draft.retries.clear()
        if partition.next_tail > draft.cursor:
            draft.finish(draft.cursor + 1, partition.next_tail)
    _void_leases(transaction, position)
    return settled


def _void_leases(transaction: WriteTransaction, position: Position) -> None:
    leases = position.leases()
    transaction.state.note_removed(position, [leased for lease in leases for leased in position.leased_by(lease)])
    transaction.draft(position).voided = True
    transaction.ended += [(lease, position) for lease in leases]


_COUNT = "select count(*) from messages where partition = ?1 and offset > ?2"


def configure(transaction: WriteTransaction, specs: Sequence[QueueSpec]) -> list[QueueInfo]:
    """Create queues, or replace all options of existing ones."""
    return [_configure(transaction, spec) for spec in specs]


def _configure(transaction: WriteTransaction, spec: QueueSpec) -> QueueInfo:
    queue = transaction.state.queues.get(spec.name)
    if queue is None:
        queue = insert_queue(transaction, spec)
    info = msgspec.structs.replace(queue.info, namespace=spec.namespace, task=spec.task, options=spec.options)
    sql = "update queues set namespace = ?1, task = ?2, options = ?3 where id = ?4"
    options = encode_options(info.options).decode()
    run(transaction.connection, sql, info.namespace, info.task, options, queue.id)
    changed = queue
    transaction.on_commit(lambda: reconfigure(changed, info, transaction.now))
    transaction.settled_many(queue)
    transaction.hints.add(spec.name, None, None)
    partitions = find_partitions(transaction, [(spec.name, DEFAULT_PARTITION)])
    return msgspec.structs.replace(info, partition_id=partitions[spec.name, DEFAULT_PARTITION].uid)


def make_queues(transaction: WriteTransaction, specs: Sequence[QueueSpec]) -> None:
    """Create the queues that do not exist."""
    for spec in specs:
        if spec.name not in transaction.state.queues:
            insert_queue(transaction, spec)


def _want_sweep(transaction: WriteTransaction) -> None:
    """Let `collect` look for messages that were purged, or whose queue was deleted."""
    sql = "insert into meta values ('sweep', 1) on conflict (key) do update set value = value + 1"
    run(transaction.connection, sql)


def reconfigure(queue: Queue, info: QueueInfo, now: int) -> None:
    """Replace options, and check the groups that waited because of the old ones."""
    queue.set_info(info)
    queue.open = None
    for group in queue.groups.values():
        look_again(group, now)


def look_again(group: Group, now: int) -> None:
    """Check all partitions again that a group waits for."""
    for partition_id in list(group.waking):
        group.reevaluate(partition_id, now)


def delete_queues(transaction: WriteTransaction, names: Sequence[str]) -> list[bool]:
    """Delete queues and their groups. `collect` removes the messages later."""
    return [_delete(transaction, name) for name in names]


def _delete(transaction: WriteTransaction, name: str) -> bool:
    state, connection = transaction.state, transaction.connection
    transaction.loader.groups(name)
    groups = [group for (queue_name, _), group in state.groups.items() if queue_name == name]
    queue = state.queues.get(name)
    if queue is not None:
        run(connection, "delete from queues where id = ?1", queue.id)
        run(connection, "delete from dead_letters where queue = ?1", name)
        # The names of partitions must stay unique in queue 0.
        run(connection, "update partitions set queue = 0, name = id where queue = ?1", queue.id)
        _want_sweep(transaction)
    run(connection, "delete from groups where queue = ?1", name)
    transaction.state.deleting.add(name)
    transaction.dead = [one for one in transaction.dead if one[1] != name]
    for group in groups:
        transaction.discard(group)
    # Memory is changed before the commit, so that later verbs of this transaction find nothing. A rollback reloads it.
    for group in groups:
        state.groups.pop((group.queue_name, group.name), None)
        drop_leases(transaction, group)
    if queue is not None:
        state.queues.pop(queue.name, None)
        for partition in queue.partitions.values():
            state.partitions.pop(partition.id, None)
            state.partitions_by_uid.pop(partition.uid, None)
    return queue is not None


def drop_leases(transaction: WriteTransaction, group: Group) -> None:
    """End the leases of a deleted group."""
    state = transaction.state
    for lease in list(state.leases.values()):
        for position in [position for position in lease.parts if position.group is group]:
            if state.detach(lease, position):
                transaction.hints.ended(group.queue_name, group.name, lease.id)


def pause(transaction: WriteTransaction, queue: str, group: str | None, paused: bool) -> bool:
    """Pause or resume deliveries."""
    connection, state = transaction.connection, transaction.state
    if group is None:
        found = state.queues.get(queue)
        if found is None:
            return False
        run(connection, "update queues set paused = ?1 where id = ?2", paused, found.id)
        info = msgspec.structs.replace(found.info, paused=paused)
        transaction.on_commit(partial(found.set_info, info))
    else:
        transaction.loader.groups(queue)
        known = state.groups.get((queue, group))
        if known is None:
            return False
        run(connection, "update groups set paused = ?1 where id = ?2", paused, known.id)
        transaction.on_commit(partial(setattr, known, "paused", paused))
    if not paused:
        transaction.hints.add(queue, group, None)
    return True


def purge(transaction: WriteTransaction, queue: str, group: str | None = None) -> int:
    """Remove all messages of a queue, or settle the backlog of a group."""
    found = transaction.state.queues.get(queue)
    if found is None:
        return 0
    transaction.loader.groups(queue)
    ids = [row[0] for row in rows_of(transaction.connection, "select id from partitions where queue = ?1", found.id)]
    transaction.loader.partitions_by_id(ids)
    transaction.settled_many(found)
    if group is not None:
        known = transaction.state.groups.get((queue, group))
        return 0 if known is None else _settle_all(transaction, known, ids)
    _want_sweep(transaction)
    for one in found.groups.values():
        _settle_all(transaction, one, list(one.positions))
    inside = "partition in (select id from partitions where queue = ?1)"
    for table in ("ranges", "retries", "requeued", "outstanding", "gaps"):
        run(transaction.connection, f"delete from {table} where {inside}", found.id)
    removed = 0
    for partition in [transaction.state.partitions[partition_id] for partition_id in ids]:
        stored = int(scalar(transaction.connection, _COUNT, partition.id, partition.floor))
        removed += partition.next_tail - partition.tail + stored
        partition.floor = partition.next_tail
        sql = "update partitions set floor = ?1, tail = ?1 where id = ?2"
        run(transaction.connection, sql, partition.floor, partition.id)
    return removed


def _settle_all(transaction: WriteTransaction, group: Group, ids: Sequence[int]) -> int:
    transaction.loader.positions(group, ids)
    return sum(settle_all(transaction, group.positions[partition_id]) for partition_id in ids)


def delete_messages(transaction: WriteTransaction, message_ids: Sequence[str]) -> list[bool]:
    """Remove messages. Deliveries skip them."""
    addresses = map(transaction.state.codec.decode, message_ids)
    return [address is not None and _delete_message(transaction, address) for address in addresses]


def cancel(transaction: WriteTransaction, message_ids: Sequence[str]) -> list[CancelOutcome]:
    """Remove messages that no consumer has received."""
    addresses = map(transaction.state.codec.decode, message_ids)
    return ["not_found" if address is None else _cancel(transaction, address) for address in addresses]


def _cancel(transaction: WriteTransaction, address: Address) -> CancelOutcome:
    partition = transaction.loader.partition(address.partition)
    message = None if partition is None else stored_at(transaction, *address)
    if partition is None or message is None or message.offset <= partition.floor:
        return "not_found"
    transaction.loader.groups(partition.queue.name)
    for group in partition.queue.groups.values():
        position = transaction.loader.position(group, partition.id)
        if position is None or message.owner not in (None, group.id):
            continue
        if position.is_settled(message):
            return "settled"
        if position.leased_at(address.offset) or ((retry := position.retry_of(address.offset)) and retry.attempts):
            return "leased"
    return "cancelled" if _delete_message(transaction, address) else "not_found"


def _delete_message(transaction: WriteTransaction, address: Address) -> bool:
    partition = transaction.loader.partition(address.partition)
    if partition is None or not partition.floor < address.offset <= partition.tail:
        return False
    connection = transaction.connection
    transaction.save_dead_letters()
    run(connection, "delete from messages where partition = ?1 and offset = ?2", *address)
    if not connection.changes():
        return False
    run(connection, "update partitions set tail = max(tail, ?1) where id = ?2", partition.tail, partition.id)
    delete_traces(connection, [address])
    leave_gap(transaction, partition, address.offset)
    transaction.settled_many(partition.queue)
    return True


def leave_gap(transaction: WriteTransaction, partition: Partition, offset: int, but_for: Group | None = None) -> None:
    """Note that an offset has no message, for all groups, also later ones, except `but_for`."""
    if but_for is None:
        dig(transaction.connection, partition.id, offset, offset)
    else:
        sql = "insert into gaps (partition, first, last, owner) values (?1, ?2, ?2, ?3)"
        run(transaction.connection, sql, partition.id, offset, but_for.id)
    transaction.thinned[partition] = None
    transaction.loader.groups(partition.queue.name)
    for group in list(partition.queue.groups.values()):
        position = None if group is but_for else transaction.loader.position(group, partition.id)
        if position is None:
            continue
        # Store the position: a start by time cannot be found without the message.
        draft = transaction.draft(position)
        if isinstance(draft, SharedDraft):
            draft.removes = True
        if position.keeps(offset):
            settle_removed(transaction, position, offset)


def settle_removed(transaction: WriteTransaction, position: Position, offset: int) -> None:
    """Settle a removed message for a group, and end the lease on it."""
    leased = position.leased_at(offset)
    transaction.settle(position, offset)
    if leased is not None:
        transaction.state.note_removed(position, [leased])
        transaction.draft(position).gone.add(leased[3])
        transaction.release(position, leased[1])


def trace(transaction: WriteTransaction, traces: Sequence[NewTrace]) -> Answers[str]:
    """Record trace events of messages. Returns their ids."""
    refusal = transaction.state.refusal()
    if refusal is not None:
        return [refusal] * len(traces)
    answers: list[str | HarkError] = []
    for item in traces:
        partition = transaction.state.codec.decode(item.partition_id)
        message = None if partition is None else find_message(transaction, partition.partition, item.transaction_id)
        if message is None:
            answers.append(NotFound("Message not found", code="message_not_found"))
            continue
        uid = transaction.ids.new()
        transaction.connection.execute(
            "insert into traces (uid, partition, offset, grp, event, data, created_at) values (?, ?, ?, ?, ?, ?, ?)",
            (uid, message.partition, message.offset, item.group, item.event, item.data, transaction.now),
        )
        trace_id = transaction.connection.last_insert_rowid()
        for name in dict.fromkeys(item.names):
            run(transaction.connection, "insert into trace_names (name, trace) values (?1, ?2)", name, trace_id)
        answers.append(uid)
    return answers
