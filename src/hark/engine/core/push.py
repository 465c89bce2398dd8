"""The verb push: queues, partitions, offsets, duplicates and capacity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice

import msgspec

from hark.clock import MILLISECOND
from hark.engine.api import Answers
from hark.engine.core.loader import adopt_group, adopt_partition
from hark.engine.core.position import Stored
from hark.engine.core.schema import OPEN, POSITION, WANTS_PARTITION
from hark.engine.core.state import Partition, Queue
from hark.engine.core.store import NO_EXTRA, Extra, encode_extra, rows_of, run, scalar
from hark.engine.core.transaction import WriteTransaction
from hark.engine.hints import refusal_of
from hark.keys import encode_key
from hark.model import NewMessage, PushOutcome, QueueInfo, QueueSpec
from hark.model.admin import labels_of
from hark.model.messages import RESERVED

PartitionsByName = dict[tuple[str, str], Partition]
"""Partitions by queue name and partition name."""

encode_options = msgspec.json.Encoder().encode


def find_partitions(
    transaction: WriteTransaction,
    names: Iterable[tuple[str, str]],
    *,
    make: bool = True,
    messages: Sequence[NewMessage] = (),
) -> PartitionsByName:
    """The partitions with these names (queue, partition). With `make`, missing ones are created.

    A new queue gets the labels of the first of its messages, else those of its name.
    """
    partitions: PartitionsByName = {}
    missing: dict[tuple[str, str], Queue] = {}
    queues = transaction.state.queues
    for key in names:
        if key in partitions or key in missing:
            continue
        queue = queues.get(key[0])
        if queue is None:
            if not make:
                continue
            labels = next((message.labels for message in messages if message.queue == key[0]), None)
            namespace, task = labels or labels_of(key[0])  # Rule 2.
            queue = insert_queue(transaction, QueueSpec(name=key[0], namespace=namespace, task=task))
        partition = queue.partitions.get(key[1])
        if partition is None:
            missing[key] = queue
        else:
            partitions[key] = partition
    if missing:
        transaction.loader.partitions([(queue, name) for (_, name), queue in missing.items()])
        for key, queue in missing.items():
            partition = queue.partitions.get(key[1])
            if partition is None and make:
                # It is visible before the commit, but without messages.
                connection, now = transaction.connection, transaction.now
                sql = "insert into partitions (queue, name, created_at) values (?, ?, ?)"
                run(connection, sql, queue.id, key[1], now)
                partition = adopt_partition(transaction.state, queue, connection.last_insert_rowid(), key[1], now)
            if partition is not None:
                partitions[key] = partition
    return partitions


def insert_queue(transaction: WriteTransaction, spec: QueueSpec) -> Queue:
    """Create a queue. Groups that popped from its name before become its groups."""
    info = QueueInfo(
        id=transaction.ids.new(),
        name=spec.name,
        namespace=spec.namespace,
        task=spec.task,
        options=spec.options,
        created_at=transaction.now,
        paused=False,
    )
    sql = "insert into queues (uid, name, namespace, task, options, created_at) values (?1, ?2, ?3, ?4, ?5, ?6)"
    options = encode_options(info.options).decode()
    run(transaction.connection, sql, info.id, info.name, info.namespace, info.task, options, info.created_at)
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
    """A stored message by transaction id or message id."""
    for row in rows_of(transaction.connection, f"{_FIND} transaction_id = ?2", partition, transaction_id):
        return Stored(*row)
    address = transaction.state.codec.decode(transaction_id)
    return (
        None if address is None or address.partition != partition else stored_at(transaction, partition, address.offset)
    )


def stored_at(transaction: WriteTransaction, partition: int, offset: int) -> Stored | None:
    """The stored message at an offset."""
    for row in rows_of(transaction.connection, f"{_FIND} offset = ?2", partition, offset):
        return Stored(*row)
    return None


_FIND_TRANSACTION_IDS = """
select wanted.value ->> 0, wanted.value ->> 1, message.offset
from json_each(?1) as wanted
cross join messages as message indexed by messages_transaction
where message.partition = wanted.value ->> 0 and message.transaction_id = wanted.value ->> 1
"""

_COUNT_OPEN = f"""
with at as materialized (
    select {POSITION} from groups
    join partitions as partition on partition.queue = ?1
    left join positions as position on position.grp = groups.id and position.partition = partition.id
    where groups.queue = ?2 and {WANTS_PARTITION})
select grp, total({OPEN}) from at group by grp
"""
_COUNT_RETAINED = """
select count(*) from partitions as partition
join messages on messages.partition = partition.id and messages.offset > partition.floor
where partition.queue = ?1
"""
NO_GROUP = 0
NOT_YET = -1
"""In place of an offset: the transaction id is the id of a later message."""

Known = dict[tuple[int, str], int]
"""Offsets of messages by partition number and transaction id."""


def push(transaction: WriteTransaction, requests: Sequence[Sequence[NewMessage]]) -> Answers[list[PushOutcome]]:
    """Append the messages of all requests, unless nothing may be added to the store."""
    refused = transaction.state.refusal()
    if refused is not None:
        return [refused] * len(requests)
    items = requests[0] if len(requests) == 1 else [item for request in requests for item in request]
    queues = transaction.state.queues
    try:
        partitions = [queues[item.queue].partitions[item.partition] for item in items]
    except KeyError:  # Some are new, or not loaded yet.
        names = [(item.queue, item.partition) for item in items]
        found = find_partitions(transaction, names, messages=items)
        partitions = [found[name] for name in names]
    named = any(item.transaction_id is not None for item in items)
    known = find_duplicates(transaction, items, partitions) if named else {}
    outcomes = push_all(transaction, items, partitions, known)
    if len(requests) == 1:
        return [outcomes]
    answered = iter(outcomes)
    return [list(islice(answered, len(request))) for request in requests]


def find_duplicates(
    transaction: WriteTransaction, items: Iterable[NewMessage], partitions: Iterable[Partition]
) -> Known:
    """Offsets of stored messages with the same transaction ids, or `NOT_YET`."""
    given = [
        (partition.id, item.transaction_id)
        for item, partition in zip(items, partitions, strict=True)
        if item.transaction_id is not None
    ]
    if not given:
        return {}
    found: Known = {}
    for partition_id, transaction_id, offset in rows_of(
        transaction.connection, _FIND_TRANSACTION_IDS, msgspec.json.encode(given).decode()
    ):
        partition = transaction.state.partitions[partition_id]
        if offset > partition.floor:
            found[partition_id, transaction_id] = offset
        else:  # It was purged, but its row would conflict with the new one.
            transaction.save_dead_letters()
            sql = "delete from messages where partition = ?1 and offset = ?2"
            run(transaction.connection, sql, partition_id, offset)
    for partition_id, transaction_id in given:
        # A producer may use the message id of a message without a transaction id.
        address = transaction.state.codec.decode(transaction_id)
        if address is None or address.partition != partition_id or not address.offset:
            continue
        partition = transaction.state.partitions[partition_id]
        if address.offset > partition.next_tail:
            found[partition_id, transaction_id] = NOT_YET
        in_this_transaction = partition.tail < address.offset <= partition.next_tail
        if in_this_transaction or (
            partition.floor < address.offset <= partition.tail and stored_at(transaction, *address) is not None
        ):
            found[partition_id, transaction_id] = address.offset
    return found


def is_of_new_partition(transaction: WriteTransaction, transaction_id: str) -> bool:
    """Whether a transaction id is a message id in a partition that does not exist yet."""
    address = transaction.state.codec.decode(transaction_id)
    if address is None:
        return False
    made = scalar(transaction.connection, "select seq from sqlite_sequence where name = 'partitions'")
    return address.partition > (made or 0)


def push_all(
    transaction: WriteTransaction, items: Sequence[NewMessage], partitions: Sequence[Partition], known: Known
) -> list[PushOutcome]:
    """Append messages. The loop runs for every message, so each line of it costs throughput."""
    rows, pushed = transaction.messages, transaction.pushed
    message_id_of = transaction.state.codec.with_prefix
    outcomes: list[PushOutcome] = []
    for item, partition in zip(items, partitions, strict=True):
        transaction_id = item.transaction_id
        if transaction_id is not None or item.sealed or not partition.queue.plain:
            refusal = _refuse(transaction, item, partition, known)
            if refusal is not None:
                outcomes.append(refusal)
                continue
        offset = partition.next_tail = partition.next_tail + 1
        if partition not in pushed:
            pushed[partition] = None
            partition.last_created = max(transaction.now, partition.last_created, partition.queue.created_floor)
        payload = item.payload
        if item.has_options:
            deliver_at, extra = _options(transaction, item, partition)
            created_at, priority = partition.last_created, item.priority
            rows += (partition.id, offset, created_at, priority, deliver_at, transaction_id, extra, payload)
        else:
            extra = None if item.producer is None else _only_producer(item.producer)
            rows += (partition.id, offset, partition.last_created, 0, None, transaction_id, extra, payload)
        if len(payload) > transaction.state.largest_payload:
            note_largest(transaction, len(payload))
        message_id = message_id_of(partition.prefix, offset)
        if transaction_id is None:
            transaction_id = message_id
        else:
            transaction.new_transaction_ids[partition.id, transaction_id] = offset
        outcomes.append(PushOutcome("queued", transaction_id, message_id, partition.uid))
    return outcomes


def _refuse(transaction: WriteTransaction, item: NewMessage, partition: Partition, known: Known) -> PushOutcome | None:
    """The outcome of a message that is not appended: duplicate, queue full, wrong encryption."""
    transaction_id, queue = item.transaction_id, partition.queue
    options = queue.info.options
    if transaction_id is not None:
        key = (partition.id, transaction_id)
        earlier = known.get(key) or transaction.new_transaction_ids.get(key)
        if earlier == NOT_YET:
            return PushOutcome("failed", transaction_id, None, partition.uid, *refusal_of(RESERVED, queue.name))
        if earlier is not None:
            message_id = transaction.state.codec.with_prefix(partition.prefix, earlier)
            return PushOutcome("duplicate", transaction_id, message_id, partition.uid)
    if item.sealed is not options.encryption_enabled:
        refusal = refusal_of("sealing_mismatch", queue.name)
        return PushOutcome("failed", transaction_id, None, partition.uid, *refusal)
    if options.max_size:
        if room_left(transaction, queue) <= 0:
            return PushOutcome("failed", transaction_id, None, partition.uid, *refusal_of("queue_full", queue.name))
        transaction.pushed_count[queue] = transaction.pushed_count.get(queue, 0) + 1
    return None


def _options(transaction: WriteTransaction, item: NewMessage, partition: Partition) -> tuple[int | None, str | None]:
    """The delivery time, if it is later than the creation, and the column `extra`."""
    created_at = partition.last_created
    deliver_at = 0 if item.deliver_at is None else item.deliver_at + transaction.state.ahead
    if item.delay_ms:
        deliver_at = max(deliver_at, transaction.now + item.delay_ms * MILLISECOND)
    delayed = deliver_at > created_at
    if delayed or item.priority:
        transaction.note_lane(partition, item.priority, deliver_at if delayed else None)
    expires_at = 0 if item.ttl_ms is None else created_at + item.ttl_ms * MILLISECOND
    due_at = (item.deliver_at or 0) if delayed and not item.delay_ms else 0
    return deliver_at if delayed else None, extra_text(item, expires_at, due_at)


def extra_text(item: NewMessage, expires_at: int = 0, due_at: int = 0) -> str | None:
    """The column `extra`; `due_at` is the delivery time that the producer gave."""
    extra = Extra(
        t=item.trace_id,
        u=item.producer,
        s=item.sealed,
        b=item.backoff_ms,
        x=expires_at,
        k=tuple(encode_key(key).hex() for key in item.undelivered_keys),
        c=item.trace_context,
        a=due_at,
    )
    return None if extra == NO_EXTRA else encode_extra(extra).decode()


@lru_cache(maxsize=4096)
def _only_producer(producer: str) -> str:
    """The column `extra` with a producer only. It is cached, because few tokens push most messages."""
    return encode_extra(Extra(u=producer)).decode()


def note_largest(transaction: WriteTransaction, size: int) -> None:
    """Store the largest payload size, rounded up to a power of two. It bounds what pops read at once."""
    rounded = 1 << size.bit_length()
    transaction.state.largest_payload = rounded
    run(transaction.connection, "insert or replace into meta values ('largest_payload', ?1)", rounded)


def room_left(transaction: WriteTransaction, queue: Queue) -> int:
    """Number of messages that a queue with `max_size` still accepts, by its slowest group (rule 7)."""
    if queue.open is None:
        connection = transaction.connection
        groups = rows_of(connection, "select id from groups where queue = ?1", queue.name)
        queue.open = {group_id: 0 for (group_id,) in groups}
        queue.open |= {
            group_id: int(open_) for group_id, open_ in rows_of(connection, _COUNT_OPEN, queue.id, queue.name)
        }
        if not groups:
            queue.open = {NO_GROUP: int(scalar(connection, _COUNT_RETAINED, queue.id))}
    settled = {group.id: number for group, number in transaction.settled_count.items()}
    still_open = (open_ - settled.get(group_id, 0) for group_id, open_ in queue.open.items())
    waiting = max(still_open, default=0) + transaction.pushed_count.get(queue, 0)
    return queue.info.options.max_size - waiting
