"""Finds the queues and partitions that messages name, and makes those that are missing."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hark.engine.sqlite.loader import adopt_group, adopt_partition
from hark.engine.sqlite.state import Partition, Queue
from hark.engine.sqlite.store import rows_of, run
from hark.engine.sqlite.track import Stored
from hark.engine.sqlite.transaction import WriteTransaction
from hark.model import QueueInfo, QueueSpec

Places = dict[tuple[str, str], Partition]
"""Partitions by the name of their queue and their own."""

encode_options = msgspec.json.Encoder().encode


def find_partitions(transaction: WriteTransaction, names: Iterable[tuple[str, str]], *, make: bool = True) -> Places:
    """The partitions with these names (of a queue, of a partition); with `make`, made where they are missing."""
    places: Places = {}
    missing: dict[tuple[str, str], Queue] = {}
    queues = transaction.state.queues
    for key in names:
        if key in places or key in missing:
            continue
        queue = queues.get(key[0])
        if queue is None:
            if not make:
                continue
            queue = make_queue(transaction, key[0])
        partition = queue.partitions.get(key[1])
        if partition is None:
            missing[key] = queue
        else:
            places[key] = partition
    if missing:
        transaction.loader.partitions([(queue, name) for (_, name), queue in missing.items()])
        for key, queue in missing.items():
            partition = queue.partitions.get(key[1])
            if partition is None and make:
                partition = make_partition(transaction, queue, key[1])
            if partition is not None:
                places[key] = partition
    return places


def make_partition(transaction: WriteTransaction, queue: Queue, name: str) -> Partition:
    """A new partition. It may be seen before the commit: it has no messages until then."""
    connection, now = transaction.connection, transaction.now
    run(
        connection,
        "insert into partitions (queue, name, created_at) values (?1, ?2, ?3)",
        queue.id,
        name,
        now,
    )
    row = (connection.last_insert_rowid(), name, now, 0, 0, 0)
    partition = Partition(row, queue, transaction.state.codec)
    adopt_partition(transaction.state, partition)
    return partition


def make_queue(transaction: WriteTransaction, name: str) -> Queue:
    """The queue that a first push makes: `a.b.c` has namespace `a` and task `b` (rule 2)."""
    labels = name.split(".", 2)
    task = labels[1] if len(labels) > 2 else ""
    return insert_queue(transaction, QueueSpec(name=name, namespace=labels[0], task=task))


def insert_queue(transaction: WriteTransaction, spec: QueueSpec) -> Queue:
    """A new queue; groups that met its name before are its groups now."""
    info = QueueInfo(
        id=transaction.ids.new(),
        name=spec.name,
        namespace=spec.namespace,
        task=spec.task,
        options=spec.options,
        created_at=transaction.now,
        paused=False,
    )
    run(
        transaction.connection,
        "insert into queues (uid, name, namespace, task, options, created_at) values (?1, ?2, ?3, ?4, ?5, ?6)",
        info.id,
        info.name,
        info.namespace,
        info.task,
        encode_options(info.options).decode(),
        info.created_at,
    )
    queue = Queue(transaction.connection.last_insert_rowid(), info)
    queue.created_floor = transaction.loader.created_floor(spec.name)
    transaction.state.queues[spec.name] = queue
    transaction.loader.groups(spec.name)
    for (queue_name, _), group in list(transaction.state.groups.items()):
        if queue_name == spec.name:
            adopt_group(transaction.state, group)
    return queue


_FIND = "select partition, offset, priority, deliver_at, owner from messages where partition = ?1 and "


def find_message(transaction: WriteTransaction, partition: int, transaction_id: str) -> Stored | None:
    """A stored message of a partition by its transaction id or by its own id."""
    for row in rows_of(transaction.connection, f"{_FIND} transaction_id = ?2", partition, transaction_id):
        return Stored(*row)
    place = transaction.state.codec.decode(transaction_id)
    return None if place is None or place.partition != partition else stored_at(transaction, partition, place.offset)


def stored_at(transaction: WriteTransaction, partition: int, offset: int) -> Stored | None:
    """The message at an offset, if it is stored."""
    for row in rows_of(transaction.connection, f"{_FIND} offset = ?2", partition, offset):
        return Stored(*row)
    return None
