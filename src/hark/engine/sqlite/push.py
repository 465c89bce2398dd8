"""The verb push: offsets, duplicates, capacity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice

import msgspec

from hark.clock import MILLISECOND
from hark.engine.sqlite.places import find_partitions
from hark.engine.sqlite.rows import NO_EXTRA, Extra, encode_extra
from hark.engine.sqlite.sql import OPEN, WANTS_PLACE
from hark.engine.sqlite.state import Partition, Queue
from hark.engine.sqlite.store import rows_of, run, scalar
from hark.engine.sqlite.transaction import WriteTransaction
from hark.keys import encode_key
from hark.model import NewMessage, PushOutcome

_FIND_TRANSACTION_IDS = """
select wanted.value ->> 0, wanted.value ->> 1, message.offset
from json_each(?1) as wanted
cross join messages as message indexed by messages_transaction
where message.partition = wanted.value ->> 0 and message.transaction_id = wanted.value ->> 1
"""

_COUNT_OPEN = f"""
select groups.id, total({OPEN})
from groups
join partitions as place on place.queue = ?1
left join tracks as track on track.grp = groups.id and track.partition = place.id
where groups.queue = ?2 and {WANTS_PLACE}
group by groups.id
"""
_COUNT_RETAINED = """
select count(*) from partitions as place
join messages on messages.partition = place.id and messages.offset > place.floor
where place.queue = ?1
"""
NO_GROUP = 0

Known = dict[tuple[int, str], int]
"""Offsets of messages by the number of their partition and their transaction id."""


def push(transaction: WriteTransaction, requests: Sequence[Sequence[NewMessage]]) -> list[list[PushOutcome]]:
    """Append the messages of all requests."""
    items = requests[0] if len(requests) == 1 else [item for request in requests for item in request]
    places = _places(transaction, items)
    known = find_duplicates(transaction, items, places)
    outcomes = push_all(transaction, items, places, known)
    if len(requests) == 1:
        return [outcomes]
    answered = iter(outcomes)
    return [list(islice(answered, len(request))) for request in requests]


def _places(transaction: WriteTransaction, items: Sequence[NewMessage]) -> list[Partition]:
    """The partition of each message."""
    queues = transaction.state.queues
    try:
        return [queues[item.queue].partitions[item.partition] for item in items]
    except KeyError:  # Some are new, or were not touched since the start.
        names = [(item.queue, item.partition) for item in items]
        found = find_partitions(transaction, names)
        return [found[name] for name in names]


def find_duplicates(transaction: WriteTransaction, items: Iterable[NewMessage], places: Iterable[Partition]) -> Known:
    """Offsets of retained messages whose transaction ids are used again."""
    given = [
        (place.id, item.transaction_id)
        for item, place in zip(items, places, strict=True)
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
        else:  # Purged, but its row is still there and would stand in the way of the new one.
            transaction.save_dead_letters()
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


def push_all(
    transaction: WriteTransaction, items: Sequence[NewMessage], places: Sequence[Partition], known: Known
) -> list[PushOutcome]:
    """Append messages, or say why not. Every line of the loop is paid for by every message."""
    rows, pushed = transaction.messages, transaction.pushed
    message_id_of = transaction.state.codec.with_prefix
    outcomes: list[PushOutcome] = []
    for item, partition in zip(items, places, strict=True):
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
            rows += (
                partition.id,
                offset,
                partition.last_created,
                item.priority,
                deliver_at,
                transaction_id,
                extra,
                payload,
            )
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
    """The outcome of a message that is not appended: known already, no room, wrongly sealed."""
    transaction_id, queue = item.transaction_id, partition.queue
    options = queue.info.options
    if transaction_id is not None:
        key = (partition.id, transaction_id)
        earlier = known.get(key) or transaction.new_transaction_ids.get(key)
        if earlier is not None:
            message_id = transaction.state.codec.with_prefix(partition.prefix, earlier)
            return PushOutcome("duplicate", transaction_id, message_id, partition.uid)
    if item.sealed is not options.encryption_enabled:
        text = f"the encryption of queue {queue.name!r} was changed during the push; retry"
        return PushOutcome("failed", transaction_id, None, partition.uid, "sealing_mismatch", text)
    if options.max_size:
        if room_left(transaction, queue) <= 0:
            text = (
                f"queue {queue.name!r} is full: {options.max_size} messages are not settled (maxSize); "
                "retry later or raise maxSize"
            )
            return PushOutcome("failed", transaction_id, None, partition.uid, "queue_full", text)
        transaction.pushed_count[queue] = transaction.pushed_count.get(queue, 0) + 1
    return None


def _options(transaction: WriteTransaction, item: NewMessage, partition: Partition) -> tuple[int | None, str | None]:
    """The time of delivery, if that is later than the creation, and the column for what few messages have."""
    created_at = partition.last_created
    if item.ttl_ms is not None:
        transaction.want_sweep()
    deliver_at = item.deliver_at or 0
    if item.delay_ms:
        deliver_at = max(deliver_at, transaction.now + item.delay_ms * MILLISECOND)
    delayed = deliver_at > created_at
    if delayed or item.priority:
        transaction.note_lane(partition, item.priority, deliver_at if delayed else None)
    extra = Extra(
        t=item.trace_id,
        u=item.producer,
        s=item.sealed,
        b=item.backoff_ms,
        x=0 if item.ttl_ms is None else created_at + item.ttl_ms * MILLISECOND,
        k=tuple(encode_key(key).hex() for key in item.undelivered_keys),
        c=item.trace_context,
    )
    text = None if extra == NO_EXTRA else encode_extra(extra).decode()
    return deliver_at if delayed else None, text


@lru_cache(maxsize=4096)
def _only_producer(producer: str) -> str:
    """The column of messages that have nothing else in it: few tokens push many of them."""
    return encode_extra(Extra(u=producer)).decode()


def note_largest(transaction: WriteTransaction, size: int) -> None:
    """Remember (in powers of two) how large payloads get: pops bound by it how much they read at once."""
    rounded = 1 << size.bit_length()
    transaction.state.largest_payload = rounded
    run(transaction.connection, "insert or replace into meta values ('largest_payload', ?1)", rounded)


def room_left(transaction: WriteTransaction, queue: Queue) -> int:
    """How many messages a bounded queue still takes, by its slowest group (rule 7)."""
    if queue.open is None:
        connection = transaction.connection
        groups = rows_of(connection, "select id from groups where queue = ?1", queue.name)
        queue.open = {group_id: 0 for (group_id,) in groups}
        queue.open |= {
            group_id: int(open_) for group_id, open_ in rows_of(connection, _COUNT_OPEN, queue.id, queue.name)
        }
        if not groups:
            queue.open = {NO_GROUP: int(scalar(connection, _COUNT_RETAINED, queue.id))}
    settled = transaction.settled_by_group()
    still_open = (open_ - settled.get(group_id, 0) for group_id, open_ in queue.open.items())
    waiting = max(still_open, default=0) + transaction.pushed_count.get(queue, 0)
    return queue.info.options.max_size - waiting
