"""The verbs about groups (creation, seek, deletion) and dead letters (requeue, import, deletion)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from hark import model
from hark.engine.api import Answers
from hark.engine.core.loader import adopt_group, make_group
from hark.engine.core.position import Position
from hark.engine.core.push import extra_text, find_message, find_partitions, note_largest
from hark.engine.core.queues import drop_leases, leave_gap, look_again, move
from hark.engine.core.schema import LAST_CREATED
from hark.engine.core.state import Group, Label, Partition, Queue
from hark.engine.core.store import Value, encode_extra, extra_of, rows_of, run, scalar, set_locations
from hark.engine.core.transaction import WriteTransaction
from hark.errors import Conflict, HarkError, NotFound
from hark.ids import IdCodec

_encode_limits = msgspec.json.Encoder().encode


class Contact(NamedTuple):
    """A group to create for a queue, at the first pop: its mode and its start."""

    queue: str | None
    """None: the namespace and task themselves, whose queues may be created later."""
    group: str
    mode: model.GroupMode = "ordered"
    subscription: model.Subscription = model.Subscription()
    label: Label | None = None
    """The namespace and task of the pop, if any: the group started when it first popped by these."""


def first_contact(transaction: WriteTransaction, contacts: Iterable[Contact]) -> None:
    """Create groups with their start (rule 20), also if the queue does not exist yet."""
    state, connection, now = transaction.state, transaction.connection, transaction.now
    for queue_name, name, mode, subscription, label in contacts:
        if queue_name is None:
            _first_label_contact(transaction, label, subscription)
            continue
        transaction.loader.groups(queue_name)
        if (queue_name, name) in state.groups:
            continue
        if label is None:
            since = _newest(transaction, queue_name) if subscription.mode == "new" else subscription.since
            highest = _highest_partition(transaction)
        else:
            subscription, highest = state.labels[label]
            since = subscription.since
        row = (queue_name, name, mode, subscription.mode, since, highest, 0, now, now)
        connection.execute(
            "insert into groups (queue, name, mode, subscription, since, highest_partition, paused, created_at,"
            " last_seen) values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )
        group = make_group((connection.last_insert_rowid(), *row, "{}"))
        group.pending = True
        transaction.on_commit(lambda group=group: setattr(group, "pending", False))  # type: ignore[misc]
        adopt_group(state, group)
        queue = state.queues.get(queue_name)
        if queue is not None:
            queue.open = None
            if subscription.mode == "new" and since is not None:
                # Messages that are pushed from now on, even in this microsecond, are new to the group.
                queue.created_floor = max(queue.created_floor, since + 1)


def _first_label_contact(transaction: WriteTransaction, label: Label | None, wanted: model.Subscription) -> None:
    if label is None or label in transaction.state.labels or transaction.loader.label(label):
        return
    start = wanted
    if wanted.mode == "new":
        names = [
            queue.name
            for queue in transaction.state.queues.values()
            if label[1] in (None, queue.info.namespace) and label[2] in (None, queue.info.task)
        ]
        start = model.Subscription("new", max((_newest(transaction, name) for name in names), default=transaction.now))
    highest = _highest_partition(transaction)
    transaction.connection.execute(
        "insert into labels (grp, namespace, task, subscription, since, highest_partition) values (?, ?, ?, ?, ?, ?)",
        (*label, start.mode, start.since, highest),
    )
    transaction.state.labels[label] = start, highest


def _newest(transaction: WriteTransaction, queue_name: str) -> int:
    """Now, or the creation time of the newest message of the queue, which can be later."""
    queue = transaction.state.queues.get(queue_name)
    if queue is None:
        return transaction.now
    newest = f"select max({LAST_CREATED}) from partitions as partition where queue = ?1"
    stored = scalar(transaction.connection, newest, queue.id)
    pushed = [partition.last_created for partition in transaction.pushed if partition.queue is queue]
    return max(transaction.now, stored or 0, *pushed)


def _highest_partition(transaction: WriteTransaction) -> int:
    return int(scalar(transaction.connection, "select ifnull(max(id), 0) from partitions"))


def seek(transaction: WriteTransaction, requests: Sequence[model.Seek]) -> list[model.SeekOutcome | HarkError]:
    """Move the cursors of groups (rule 21)."""
    answers: list[model.SeekOutcome | HarkError] = []
    for request in requests:
        try:
            answers.append(_seek(transaction, request))
        except HarkError as error:
            answers.append(error)
    return answers


def _seek(transaction: WriteTransaction, request: model.Seek) -> model.SeekOutcome:
    queue = transaction.state.queues.get(request.queue)
    if queue is None:
        raise NotFound(f"queue {request.queue!r} does not exist", code="queue_not_found")
    first_contact(transaction, [Contact(queue.name, request.group)])
    group = transaction.state.groups[queue.name, request.group]
    positions = _positions(transaction, queue, group, request.partition)
    cursor = None
    for position in positions:
        cursor = _target(transaction, request, position)
        move(transaction, position, cursor)
    transaction.settled_many(queue)
    transaction.on_commit(lambda: transaction.state.forget_endings(group.id))
    return model.SeekOutcome(len(positions), None if cursor is None else cursor + 1)


def _positions(transaction: WriteTransaction, queue: Queue, group: Group, partition: str | None) -> list[Position]:
    if partition is not None:
        transaction.loader.partitions([(queue, partition)])
        found = queue.partitions.get(partition)
        if found is None:
            raise NotFound(f"queue {queue.name!r} has no partition {partition!r}", code="partition_not_found")
        ids = [found.id]
    else:
        rows = rows_of(transaction.connection, "select id from partitions where queue = ?1", queue.id)
        ids = [row[0] for row in rows]
    transaction.loader.positions(group, ids)
    return [group.positions[partition_id] for partition_id in ids]


def _target(transaction: WriteTransaction, request: model.Seek, position: Position) -> int:
    partition = position.partition
    if request.to_end:
        return partition.next_tail
    if request.timestamp is not None:
        return transaction.loader.last_offset_at(partition, request.timestamp)
    return min(max((request.offset or 1) - 1, partition.floor), partition.next_tail)


def limit_group(transaction: WriteTransaction, queue: str, group: str, limits: model.Limits) -> bool:
    """Set the limits of a group."""
    found = transaction.loader.group(queue, group)
    if found is None:
        return False
    sql = "update groups set limits = ?1 where id = ?2"
    run(transaction.connection, sql, _encode_limits(limits).decode(), found.id)
    transaction.on_commit(partial(_limit, transaction, found, limits))
    transaction.hints.add(queue, group, None)
    return True


def _limit(transaction: WriteTransaction, group: Group, limits: model.Limits) -> None:
    group.bounds.set(limits)
    queue = transaction.state.queues.get(group.queue_name)
    if queue is not None:  # Else its creation applies the limits.
        group.limit(queue)
    look_again(group, transaction.now)


def delete_group(
    transaction: WriteTransaction, group: str, queue: str | None, forget_subscription: bool
) -> model.GroupDeletion:
    """Delete the positions of a group in one queue or in all, and its subscription if requested."""
    connection = transaction.connection
    rows = rows_of(
        connection, "select id, queue from groups where name = ?1 and (?2 is null or queue = ?2)", group, queue
    )
    if forget_subscription and queue is None:
        run(connection, "delete from labels where grp = ?1", group)
        transaction.on_commit(transaction.state.labels.clear)  # Loaded again at the next use.
    partitions = 0
    for group_id, queue_name in rows:
        partitions += int(scalar(connection, "select count(*) from positions where grp = ?1", group_id))
        for table in ("positions", "ranges", "retries", "requeued", "lanes", "outstanding", "completions"):
            run(connection, f"delete from {table} where grp = ?1", group_id)
        if forget_subscription:
            run(connection, "delete from groups where id = ?1", group_id)
        found = transaction.state.groups.get((queue_name, group))
        if found is not None:
            transaction.discard(found)
        transaction.on_commit(partial(_forget, transaction, (queue_name, group)))
        transaction.hints.add(queue_name, group, None)
        queue_of = transaction.state.queues.get(queue_name)
        if queue_of is not None:
            transaction.settled_many(queue_of)
    return model.GroupDeletion(partitions, len(rows) if forget_subscription else 0)


def _forget(transaction: WriteTransaction, key: tuple[str, str]) -> None:
    """Drop a group from memory. It is loaded again at the next use."""
    state = transaction.state
    group = state.groups.pop(key, None)
    queue = state.queues.get(key[0])
    if queue is not None:
        queue.groups.pop(key[1], None)
        queue.open = None
    if group is not None:
        drop_leases(transaction, group)
        state.forget_endings(group.id)


def resubscribe(transaction: WriteTransaction, group: str, since: int) -> int:
    """Change where a group starts in partitions without a position."""
    connection = transaction.connection
    rows = rows_of(connection, "select id, queue from groups where name = ?1", group)
    highest = _highest_partition(transaction)
    sql = "update groups set subscription = 'timestamp', since = ?1, highest_partition = ?2 where name = ?3"
    run(connection, sql, since, highest, group)
    for group_id, queue_name in rows:
        found = transaction.state.groups.get((queue_name, group))
        transaction.hints.add(queue_name, group, None)
        if found is not None:
            stored = rows_of(connection, "select partition from positions where grp = ?1", group_id)
            _restart(transaction, found, model.Subscription("timestamp", since), highest, {row[0] for row in stored})
    return len(rows)


def _restart(
    transaction: WriteTransaction, group: Group, subscription: model.Subscription, highest: int, stored: set[int]
) -> None:
    """Drop positions of a group that are neither stored nor leased, so that it starts again."""

    def restart() -> None:
        group.subscription, group.highest_partition, group.discovered = subscription, highest, False
        for partition_id, position in list(group.positions.items()):
            if partition_id not in stored and not position.leases():
                del group.positions[partition_id]
        look_again(group, transaction.now)

    transaction.on_commit(restart)


_BY_ID = """id in (
    select letter.id from json_each(?) as wanted cross join dead_letters as letter on letter.uid = wanted.value
    union
    select letter.id from json_each(?) as address cross join dead_letters as letter
        on letter.partition = address.value ->> 0 and letter.offset = address.value ->> 1
)"""
_STORE = """
insert into messages (partition, offset, created_at, priority, owner, transaction_id, extra, payload)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
"""
_IMPORT = """
insert into dead_letters (partition, offset, created_at, priority, transaction_id, extra, payload, uid, queue,
    partition_name, grp, attempts, error, failed_at)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (partition, offset, grp) do nothing
"""


def conditions(where: model.DeadLetterFilter, codec: IdCodec) -> tuple[str, list[int | str]]:
    """The SQL condition of a filter, and its values. Absent fields are left out, so that indexes are used."""
    wanted: list[tuple[str, int | str | None]] = [
        ("queue = ?", where.queue),
        ("grp = ?", where.group),
        ("partition_name = ?", where.partition),
        ("failed_at >= ?", where.since),
        ("failed_at <= ?", where.until),
        ("instr(lower(error), lower(?)) > 0", where.search),
    ]
    matter = [(condition, value) for condition, value in wanted if value is not None]
    texts, values = [condition for condition, _ in matter], [value for _, value in matter]
    if where.ids is not None:
        addresses = [address for one in where.ids if (address := codec.decode(one)) is not None]
        texts.append(_BY_ID)
        values += (msgspec.json.encode(given).decode() for given in (where.ids, addresses))
    return " and ".join(texts) or "true", values


def requeue(transaction: WriteTransaction, ids: Sequence[str]) -> list[str | HarkError]:
    """Requeue dead letters. Returns the new message ids."""
    answers: list[str | HarkError] = []
    for dead_letter_id in ids:
        try:
            answers.append(_requeue(transaction, dead_letter_id))
        except HarkError as error:
            answers.append(error)
    return answers


def _requeue(transaction: WriteTransaction, dead_letter_id: str) -> str:
    connection, state = transaction.connection, transaction.state
    # A second requeue of the same dead letter must find nothing.
    matching, values = conditions(model.DeadLetterFilter(ids=(dead_letter_id,)), state.codec)
    columns = "id, queue, partition_name, grp, payload, transaction_id, extra, priority"
    rows = rows_of(connection, f"select {columns} from dead_letters where {matching}", *values)
    if not rows:
        raise NotFound(f"dead letter {dead_letter_id} does not exist", code="dead_letter_not_found")
    if len(rows) > 1:
        text = f"message {dead_letter_id} is a dead letter in {len(rows)} groups; pass the id of the dead letter"
        raise Conflict(text, code="ambiguous")
    row_id, queue_name, partition_name, group_name, payload, transaction_id, extra, priority = rows[0]
    names = (queue_name, partition_name)
    partition = find_partitions(transaction, [names])[names]
    first_contact(transaction, [Contact(queue_name, group_name)])
    group = state.groups[queue_name, group_name]
    position = transaction.loader.position(group, partition.id)
    assert position is not None
    offset = partition.next_tail = partition.next_tail + 1
    created_at = partition.last_created = max(transaction.now, partition.last_created, partition.queue.created_floor)
    options = msgspec.structs.replace(extra_of(extra), x=0, a=0)
    # The dead-lettered message keeps its transaction id if it is still stored, because the id is unique.
    taken = transaction_id is not None and _is_taken(transaction, partition.id, transaction_id)
    transaction_id = None if taken else transaction_id
    stored = (group.id, transaction_id, encode_extra(options).decode(), payload)
    run(connection, _STORE, partition.id, offset, created_at, priority, *stored)
    transaction.note_requeued(partition)
    leave_gap(transaction, partition, offset, but_for=group)
    transaction.draft(position).add_requeued(offset, priority, transaction.now)
    run(connection, "delete from dead_letters where id = ?1", row_id)
    transaction.settled_many(partition.queue)
    return state.codec.encode(partition.id, offset)


def _is_taken(transaction: WriteTransaction, partition: int, transaction_id: str) -> bool:
    if (partition, transaction_id) in transaction.new_transaction_ids:
        return True
    sql = "select 1 from messages where partition = ?1 and transaction_id = ?2"
    return scalar(transaction.connection, sql, partition, transaction_id) is not None


def import_letters(transaction: WriteTransaction, letters: Sequence[model.NewDeadLetter]) -> Answers[bool]:
    """Store dead letters of another store. False for one that exists."""
    refusal = transaction.state.refusal()
    if refusal is not None:
        return [refusal] * len(letters)
    transaction.save_dead_letters()
    return [_import(transaction, letter) for letter in letters]


def _import(transaction: WriteTransaction, letter: model.NewDeadLetter) -> bool | HarkError:
    connection, message = transaction.connection, letter.message
    queue = transaction.state.queues.get(message.queue)
    if queue is None:
        return NotFound("Queue not found", code="queue_not_found")
    if message.sealed != queue.info.options.encryption_enabled:
        return Conflict("the encryption of the queue was changed during this request; retry", code="sealing_mismatch")
    if scalar(connection, "select 1 from dead_letters where uid = ?1", letter.id) is not None:
        return False
    name = (message.queue, message.partition)
    partition = find_partitions(transaction, [name])[name]
    transaction_id = message.transaction_id
    offset = _offset_of(transaction, partition, transaction_id)
    if transaction_id == transaction.state.codec.encode(partition.id, offset):
        transaction_id = None
    row: list[Value] = [partition.id, offset, letter.created_at, message.priority, None, transaction_id]
    row += (extra_text(message), message.payload)
    if transaction.locate is not None:
        set_locations(row, transaction.locate)
    if len(message.payload) > transaction.state.largest_payload:
        note_largest(transaction, len(message.payload))
    rest = (letter.id, *name, letter.group, letter.attempts, letter.error, letter.failed_at)
    run(connection, _IMPORT, *row[:4], *row[5:], *rest)
    return connection.changes() > 0


def _offset_of(transaction: WriteTransaction, partition: Partition, transaction_id: str | None) -> int:
    """The offset of the stored message of a dead letter, or else a new offset without a message."""
    if transaction_id is not None:
        pushed = transaction.new_transaction_ids.get((partition.id, transaction_id))
        stored = find_message(transaction, partition.id, transaction_id)
        if pushed is not None or (stored is not None and stored.offset > partition.floor):
            return pushed or (0 if stored is None else stored.offset)
    offset = partition.next_tail = partition.next_tail + 1
    run(transaction.connection, "update partitions set tail = max(tail, ?1) where id = ?2", offset, partition.id)
    transaction.note_requeued(partition)
    leave_gap(transaction, partition, offset)
    return offset


def delete_dead_letters(transaction: WriteTransaction, where: model.DeadLetterFilter, limit: int | None = None) -> int:
    """Delete dead letters. Returns their number."""
    connection = transaction.connection
    matching, values = conditions(where, transaction.state.codec)
    found = f"select id from dead_letters where {matching} limit ?"
    run(connection, f"delete from dead_letters where id in ({found})", *values, -1 if limit is None else limit)
    return connection.changes()
