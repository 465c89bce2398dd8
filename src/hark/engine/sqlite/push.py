"""The verb push: offsets, duplicates, capacity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hark.clock import MILLISECOND
from hark.engine.sqlite.places import Places, find_partitions
from hark.engine.sqlite.rows import Extra, encode_extra
from hark.engine.sqlite.state import Partition, Queue
from hark.engine.sqlite.store import rows_of, run, scalar
from hark.engine.sqlite.transaction import WriteTransaction
from hark.model import NewMessage, PushOutcome

_FIND_TRANSACTION_IDS = """
select wanted.value ->> 0, wanted.value ->> 1, message.offset
from json_each(?1) as wanted
cross join messages as message indexed by messages_transaction
where message.partition = wanted.value ->> 0 and message.transaction_id = wanted.value ->> 1
"""

# A group without a track in a partition has everything open there, unless it started after the partition's end.
_COUNT_OPEN = """
select groups.id, total(
    max(partition.tail, ifnull((select max(offset) from messages where messages.partition = partition.id), 0))
    - max(partition.floor, ifnull(track.cursor, 0))
    - ifnull((select sum(last - first + 1) from ranges
             where grp = groups.id and ranges.partition = partition.id
               and first > max(partition.floor, ifnull(track.cursor, 0))), 0)
    + (select count(*) from fronts where grp = groups.id and fronts.partition = partition.id))
from groups
join partitions as partition on partition.queue = ?1
left join tracks as track on track.grp = groups.id and track.partition = partition.id
where groups.queue = ?2
  and (track.cursor is not null or groups.since is null or partition.id > groups.highest_partition
       or ifnull((select created_at from messages where messages.partition = partition.id
                  order by offset desc limit 1), 0) > groups.since)
group by groups.id
"""
_COUNT_RETAINED = """
select count(*) from partitions as place
join messages on messages.partition = place.id and messages.offset > place.floor
where place.queue = ?1
"""
NO_GROUP = 0


def push(transaction: WriteTransaction, requests: Sequence[Sequence[NewMessage]]) -> list[list[PushOutcome]]:
    """Append the messages of all requests."""
    items = [item for request in requests for item in request]
    places = find_partitions(transaction, [(item.queue, item.partition) for item in items])
    known = find_duplicates(transaction, items, places)
    return [[push_one(transaction, item, places, known) for item in request] for request in requests]


def find_duplicates(
    transaction: WriteTransaction, items: Iterable[NewMessage], places: Places
) -> dict[tuple[int, str], int]:
    """Offsets of retained messages whose transaction ids are used again."""
    given = [
        (places[item.queue, item.partition].id, item.transaction_id)
        for item in items
        if item.transaction_id is not None
    ]
    if not given:
        return {}
    found: dict[tuple[int, str], int] = {}
    for partition_id, transaction_id, offset in rows_of(
        transaction.connection, _FIND_TRANSACTION_IDS, msgspec.json.encode(given).decode()
    ):
        partition = transaction.state.partitions[partition_id]
        if offset > partition.floor:
            found[partition_id, transaction_id] = offset
        else:  # Purged, but its row is still there and would stand in the way of the new one.
            run(
                transaction.connection,
                "delete from messages where partition = ?1 and offset = ?2",
                partition_id,
                offset,
            )
    for partition_id, transaction_id in given:
        # A producer may use the id of a message that had no transaction id as one.
        place = transaction.state.codec.decode(transaction_id)
        if place is None or place.partition != partition_id or not place.offset:
            continue
        partition = transaction.state.partitions[partition_id]
        in_this_transaction = partition.tail < place.offset <= partition.next_tail
        if in_this_transaction or (partition.floor < place.offset <= partition.tail and _exists(transaction, place)):
            found[partition_id, transaction_id] = place.offset
    return found


def _exists(transaction: WriteTransaction, place: tuple[int, int]) -> bool:
    sql = "select 1 from messages where partition = ?1 and offset = ?2"
    return scalar(transaction.connection, sql, *place) is not None


def push_one(
    transaction: WriteTransaction, item: NewMessage, places: Places, known: dict[tuple[int, str], int]
) -> PushOutcome:
    """Append one message, or say why not."""
    partition = places[item.queue, item.partition]
    queue = partition.queue
    options = queue.info.options
    transaction_id = item.transaction_id
    codec = transaction.state.codec
    if transaction_id is not None:
        key = (partition.id, transaction_id)
        earlier = known.get(key) or transaction.new_transaction_ids.get(key)
        if earlier is not None:
            message_id = codec.with_prefix(partition.prefix, earlier)
            return PushOutcome("duplicate", transaction_id, message_id, partition.uid)
    if item.sealed is not options.encryption_enabled:
        return PushOutcome(
            "failed",
            transaction_id,
            None,
            partition.uid,
            "sealing_mismatch",
            "the queue's encryption was changed",
        )
    if options.max_size and room_left(transaction, queue) <= 0:
        text = f"queue {queue.name!r} is full: {options.max_size} messages wait to be settled (maxSize)"
        return PushOutcome("failed", transaction_id, None, partition.uid, "queue_full", text)
    offset = append(transaction, partition, item)
    if transaction_id is not None:
        transaction.new_transaction_ids[partition.id, transaction_id] = offset
        message_id = codec.with_prefix(partition.prefix, offset)
        return PushOutcome("queued", transaction_id, message_id, partition.uid)
    message_id = codec.with_prefix(partition.prefix, offset)
    return PushOutcome("queued", message_id, message_id, partition.uid)


def append(transaction: WriteTransaction, partition: Partition, item: NewMessage) -> int:
    """Give a message its place."""
    offset = partition.next_tail = partition.next_tail + 1
    queue = partition.queue
    created_at = partition.last_created = max(transaction.now, partition.last_created, queue.created_floor)
    transaction.messages += (
        partition.id,
        offset,
        created_at,
        item.payload,
        item.transaction_id,
        extra_of(item, created_at),
    )
    transaction.pushed[partition] = None
    transaction.pushed_count[queue] = transaction.pushed_count.get(queue, 0) + 1
    if item.ttl_ms is not None:
        transaction.want_sweep()
    if len(item.payload) > transaction.state.largest_payload:
        note_largest(transaction, len(item.payload))
    return offset


def extra_of(item: NewMessage, created_at: int) -> str | None:
    """The column for what few messages have; None for most."""
    if not (item.trace_id or item.producer or item.sealed or item.priority or item.delay_ms or item.deliver_at) and (
        item.backoff_ms is None and item.ttl_ms is None
    ):
        return None
    deliver_at = item.deliver_at or 0
    if item.delay_ms:
        deliver_at = max(deliver_at, created_at + item.delay_ms * MILLISECOND)
    extra = Extra(
        t=item.trace_id,
        u=item.producer,
        s=item.sealed,
        p=item.priority,
        d=deliver_at,
        b=item.backoff_ms,
        x=0 if item.ttl_ms is None else created_at + item.ttl_ms * MILLISECOND,
    )
    return encode_extra(extra).decode()


def note_largest(transaction: WriteTransaction, size: int) -> None:
    """Remember (in powers of two) how large payloads get: pops bound by it how much they read at once."""
    rounded = 1 << size.bit_length()
    transaction.state.largest_payload = rounded
    run(transaction.connection, "insert or replace into meta values ('largest_payload', ?1)", rounded)


def room_left(transaction: WriteTransaction, queue: Queue) -> int:
    """How many messages a bounded queue still takes, by its slowest group (rule 7)."""
    if queue.open is None:
        rows = rows_of(transaction.connection, _COUNT_OPEN, queue.id, queue.name)
        retained = scalar(transaction.connection, _COUNT_RETAINED, queue.id)
        queue.open = {group_id: int(open_) for group_id, open_ in rows} or {NO_GROUP: int(retained)}
    waiting = max(queue.open.values(), default=0) + transaction.pushed_count.get(queue, 0)
    return queue.info.options.max_size - waiting
