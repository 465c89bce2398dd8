"""The verbs that make, change, empty and remove queues."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hark.engine.sqlite.moving import settle_all
from hark.engine.sqlite.places import encode_options, find_partitions, insert_queue
from hark.engine.sqlite.state import Group, Queue
from hark.engine.sqlite.store import rows_of, run, scalar
from hark.engine.sqlite.transaction import WriteTransaction
from hark.model import DEFAULT_PARTITION, QueueInfo, QueueSpec

_COUNT = "select count(*) from messages where partition = ?1 and offset > ?2"


def configure(transaction: WriteTransaction, specs: Sequence[QueueSpec]) -> list[QueueInfo]:
    """Make queues, or replace all options of those that exist."""
    return [_configure(transaction, spec) for spec in specs]


def _configure(transaction: WriteTransaction, spec: QueueSpec) -> QueueInfo:
    queue = transaction.state.queues.get(spec.name)
    if queue is None:
        queue = insert_queue(transaction, spec)
    info = msgspec.structs.replace(queue.info, namespace=spec.namespace, task=spec.task, options=spec.options)
    run(
        transaction.connection,
        "update queues set namespace = ?1, task = ?2, options = ?3 where id = ?4",
        info.namespace,
        info.task,
        encode_options(info.options).decode(),
        queue.id,
    )
    changed = queue
    transaction.on_commit(lambda: reconfigure(changed, info, transaction.now))
    transaction.settled_many(queue)
    if info.options.drop_settled:
        transaction.want_sweep()  # For what was settled before.
    transaction.hints.add(spec.name, None, None)
    places = find_partitions(transaction, [(spec.name, DEFAULT_PARTITION)])
    return msgspec.structs.replace(info, partition_id=places[spec.name, DEFAULT_PARTITION].uid)


def make_queues(transaction: WriteTransaction, specs: Sequence[QueueSpec]) -> None:
    """Make those of these queues that do not exist."""
    for spec in specs:
        if spec.name not in transaction.state.queues:
            insert_queue(transaction, spec)


def reconfigure(queue: Queue, info: QueueInfo, now: int) -> None:
    """Take over options, and look again at what waited because of the old ones."""
    queue.set_info(info)
    queue.open = None
    for group in queue.groups.values():
        look_again(group, now)


def look_again(group: Group, now: int) -> None:
    """What a group waits for may have changed: nothing that waits is to be trusted."""
    for partition_id in list(group.waking):
        group.reconsider(partition_id, now)


def delete_queues(transaction: WriteTransaction, names: Sequence[str]) -> list[bool]:
    """Remove queues and their groups; the messages are removed later, step by step, by collect."""
    return [_delete(transaction, name) for name in names]


def _delete(transaction: WriteTransaction, name: str) -> bool:
    state, connection = transaction.state, transaction.connection
    transaction.loader.groups(name)
    groups = [group for (queue_name, _), group in state.groups.items() if queue_name == name]
    queue = state.queues.get(name)
    if queue is not None:
        run(connection, "delete from queues where id = ?1", queue.id)
        run(connection, "delete from dead_letters where queue = ?1", name)
        # Names must stay unique among what is waiting to be removed.
        run(connection, "update partitions set queue = 0, name = id where queue = ?1", queue.id)
        transaction.want_sweep()
    run(connection, "delete from groups where queue = ?1", name)
    transaction.state.deleting.add(name)
    transaction.discard_dead_letters(name)
    for group in groups:
        transaction.discard(group)
    # At once, so that what follows in this transaction finds nothing; a rollback forgets everything anyway.
    _forget(transaction, queue, groups)
    return queue is not None


def _forget(transaction: WriteTransaction, queue: Queue | None, groups: Sequence[Group]) -> None:
    state = transaction.state
    for group in groups:
        state.groups.pop((group.queue_name, group.name), None)
        drop_leases(transaction, group)
    if queue is not None:
        state.queues.pop(queue.name, None)
        for partition in queue.partitions.values():
            state.partitions.pop(partition.id, None)
            state.partitions_by_uid.pop(partition.uid, None)


def drop_leases(transaction: WriteTransaction, group: Group) -> None:
    """Forget what is leased of a group that is gone."""
    state = transaction.state
    for lease in list(state.leases.values()):
        for track in [track for track in lease.parts if track.group is group]:
            transaction.end_part(lease, track)


def pause(transaction: WriteTransaction, queue_name: str, group_name: str | None, paused: bool) -> bool:
    """Stop or resume deliveries."""
    queue = transaction.state.queues.get(queue_name)
    if group_name is None:
        if queue is None:
            return False
        run(transaction.connection, "update queues set paused = ?1 where id = ?2", paused, queue.id)
        info = msgspec.structs.replace(queue.info, paused=paused)
        transaction.on_commit(lambda: queue.set_info(info))
    else:
        transaction.loader.groups(queue_name)
        group = transaction.state.groups.get((queue_name, group_name))
        if group is None:
            return False
        run(transaction.connection, "update groups set paused = ?1 where id = ?2", paused, group.id)
        found = group
        transaction.on_commit(lambda: setattr(found, "paused", paused))
    if not paused:
        transaction.hints.add(queue_name, group_name, None)
    return True


def purge(transaction: WriteTransaction, queue_name: str, group_name: str | None) -> int:
    """Remove all messages of a queue, or settle all that a group has open."""
    queue = transaction.state.queues.get(queue_name)
    if queue is None:
        return 0
    transaction.loader.groups(queue_name)
    ids = [row[0] for row in rows_of(transaction.connection, "select id from partitions where queue = ?1", queue.id)]
    transaction.loader.partitions_by_id(ids)
    transaction.settled_many(queue)
    if group_name is not None:
        group = transaction.state.groups.get((queue_name, group_name))
        return 0 if group is None else _settle_all(transaction, group, ids)
    transaction.want_sweep()
    for group in queue.groups.values():
        _settle_all(transaction, group, list(group.tracks))
    inside = "partition in (select id from partitions where queue = ?1)"
    for table in ("ranges", "retries", "fronts", "exceptions", "holes"):
        run(transaction.connection, f"delete from {table} where {inside}", queue.id)
    removed = 0
    for partition in [transaction.state.partitions[partition_id] for partition_id in ids]:
        removed += (
            partition.next_tail
            - partition.tail
            + int(scalar(transaction.connection, _COUNT, partition.id, partition.floor))
        )
        partition.floor = partition.next_tail
        run(
            transaction.connection,
            "update partitions set floor = ?1, tail = ?1 where id = ?2",
            partition.floor,
            partition.id,
        )
    return removed


def _settle_all(transaction: WriteTransaction, group: Group, ids: Sequence[int]) -> int:
    transaction.loader.tracks(group, ids)
    return sum(settle_all(transaction, group.tracks[partition_id]) for partition_id in ids)
