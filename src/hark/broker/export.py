"""A queue as lines of JSON, for another store: what is in it at the beginning, read in steps beside all other work."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Literal

import msgspec

from hark.broker.sealing import SealedQueues
from hark.broker.work_queues import shown_dead_letters
from hark.engine.api import Engine
from hark.errors import HarkError, NotFound
from hark.model import (
    DeadLetter,
    DeadLetterFilter,
    GroupStats,
    Limits,
    PartitionOffset,
    PositionStats,
    QueueFilter,
    QueueOptions,
    QueueStats,
    Read,
    ReadResult,
    StoredMessage,
)
from hark.model.export import (
    FORMAT,
    DeadLetterLine,
    EndLine,
    GroupLine,
    MessageLine,
    PositionLine,
    QueueLine,
    UnreadableLine,
    encode_line,
)
from hark.model.messages import parted

_PARTITIONS = 64
"""Read in one call, as most have few messages."""
_MESSAGES = 1000
_LETTERS = 100
"""Dead letters that are read in one call at most."""
_LETTER_BYTES = 1 << 20
"""About how many bytes of dead letters are read in one call."""
_ALL = 2**31 - 1


async def export_queue(engine: Engine, sealed: SealedQueues, name: str) -> AsyncIterator[bytes]:
    """The lines of a queue, in parts. Messages that are pushed after the call are not included.

    The positions of groups are read before the messages: a message that is settled meanwhile is at worst redelivered.
    """
    found = (await engine.queue_stats(QueueFilter(names=[name]))).items
    if not found:
        raise NotFound("Queue not found", code="queue_not_found")
    groups = await engine.group_stats(queue=name)
    offsets = {one.partition: one.offset for one in await engine.offsets(name, "head")}
    ends = {one.partition: one.offset for one in await engine.offsets(name, "tail")}
    yield _lines([_queue_line(found[0]), *map(_group_line, groups)])
    standings = {group.group: await _standings(engine, name, group) for group in groups}
    counts: Counter[type[msgspec.Struct]] = Counter()
    names = [one for one in offsets if one in ends]
    for start in range(0, len(names), _PARTITIONS):
        chunk = names[start : start + _PARTITIONS]
        answers = await engine.read([_read_request(name, one, offsets[one]) for one in chunk])
        for partition, answer in zip(chunk, answers, strict=True):
            end = ends[partition]
            yield _lines(
                [
                    PositionLine(group=group, partition=partition, offset=known.get(partition, end))
                    for group, known in standings.items()
                ]
            )
            async for messages in _messages(engine, name, partition, answer, end):
                sealed.show_all(messages)
                lines = [_message_line(message, engine.ahead) for message in messages]
                counts.update(map(type, lines))
                yield _lines(lines)
    async for letters in _letters(engine, sealed, name):
        last = [_letter_line(letter) for letter in letters]
        counts.update(map(type, last))
        yield _lines(last)
    ending = EndLine(
        messages=counts[MessageLine], dead_letters=counts[DeadLetterLine], unreadable=counts[UnreadableLine]
    )
    yield _lines([ending])


async def _letters(engine: Engine, sealed: SealedQueues, queue: str) -> AsyncIterator[Sequence[DeadLetter]]:
    """The dead letters of a queue, page by page, from the oldest failure on; as many as there are at the beginning."""
    where = DeadLetterFilter(queue=queue, oldest_first=True, limit=1)
    page = await shown_dead_letters(engine, sealed, where)
    left = page.total
    while page.items and left > 0:
        yield page.items
        left -= len(page.items)
        latest = page.items[-1].failed_at
        seen = sum(letter.failed_at == latest for letter in page.items)
        size = sum(len(memoryview(letter.payload)) for letter in page.items) // len(page.items) + 1
        where = msgspec.structs.replace(
            where,
            since=latest,
            offset=seen + (where.offset if where.since == latest else 0),
            limit=max(1, min(2 * where.limit, _LETTERS, _LETTER_BYTES // size)),
        )
        page = await shown_dead_letters(engine, sealed, where)


async def _messages(
    engine: Engine, queue: str, partition: str, answer: ReadResult | HarkError, end: int
) -> AsyncIterator[Sequence[StoredMessage]]:
    """The messages of a partition before an offset, page by page."""
    while True:
        if isinstance(answer, HarkError):
            raise answer
        if wanted := [message for message in answer.messages if message.offset < end]:
            yield wanted
        if not answer.more or answer.next_offset >= end:
            return
        [answer] = await engine.read([_read_request(queue, partition, answer.next_offset)])


def _read_request(queue: str, partition: str, offset: int) -> Read:
    return Read(queue=queue, partition=partition, offset=offset, limit=_MESSAGES)


async def _standings(engine: Engine, queue: str, group: GroupStats) -> dict[str, int]:
    """By partition, the first offset that a group may not be done with; where it is done with all there is nothing."""
    standings = {}
    for position in await engine.position_stats(group.group, queue, limit=_ALL):
        if position.lag or position.scheduled:
            standings[position.partition] = position.cursor + 1
            if group.mode == "shared":
                standings[position.partition] = await _first_open(engine, position)
    return standings


async def _first_open(engine: Engine, position: PositionStats) -> int:
    """A shared group has no cursor that moves: the first message as old as the oldest open one."""
    if position.oldest_unsettled is None:
        return position.cursor + 1
    found: list[PartitionOffset] = await engine.offsets(
        position.queue, position.oldest_unsettled - 1, position.partition
    )
    return max(position.cursor + 1, *(one.offset for one in found))


def _queue_line(stats: QueueStats) -> QueueLine:
    info = stats.info
    return QueueLine(
        format=FORMAT,
        name=info.name,
        namespace=info.namespace,
        task=info.task,
        paused=info.paused,
        options=dict(_unusual(info.options)),
        messages=stats.counts.total,
        dead_letters=stats.counts.dead_letter,
    )


def _unusual(options: QueueOptions) -> Iterator[tuple[str, object]]:
    for field in msgspec.structs.fields(QueueOptions):
        value = getattr(options, field.name)
        if value != field.default:
            yield field.encode_name, value


def _group_line(group: GroupStats) -> GroupLine:
    limits = group.limits if group.limits != Limits() else None
    return GroupLine(name=group.group, mode=group.mode, paused=group.paused, limits=limits)


def _message_line(message: StoredMessage, ahead: int) -> MessageLine | UnreadableLine:
    """A message; another store needs its end and its time of delivery by the system clock."""
    if message.unreadable is not None:
        return _unreadable_line("message", message)
    traceparent, tracestate = (None, None) if message.trace_context is None else parted(message.trace_context)
    return MessageLine(
        partition=message.partition,
        offset=message.offset,
        transaction_id=message.transaction_id,
        payload=message.payload,
        created_at=message.created_at,
        trace_id=message.trace_id,
        producer_sub=message.producer,
        priority=message.priority,
        deliver_at=None if message.deliver_at is None else message.deliver_at - ahead,
        expires_at=None if message.expires_at is None else message.expires_at - ahead,
        backoff_schedule=message.backoff_ms,
        keys_if_undelivered=message.undelivered_keys,
        traceparent=traceparent,
        tracestate=tracestate,
    )


def _letter_line(letter: DeadLetter) -> DeadLetterLine | UnreadableLine:
    if letter.unreadable is not None:
        return _unreadable_line("dead letter", letter)
    traceparent, tracestate = (None, None) if letter.trace_context is None else parted(letter.trace_context)
    return DeadLetterLine(
        id=letter.id,
        partition=letter.partition,
        group=letter.group,
        transaction_id=letter.transaction_id,
        payload=letter.payload,
        attempts=letter.attempts,
        error=letter.error,
        created_at=letter.created_at,
        failed_at=letter.failed_at,
        trace_id=letter.trace_id,
        producer_sub=letter.producer,
        priority=letter.priority,
        backoff_schedule=letter.backoff_ms,
        keys_if_undelivered=letter.undelivered_keys,
        traceparent=traceparent,
        tracestate=tracestate,
    )


def _unreadable_line(kind: Literal["message", "dead letter"], left: StoredMessage | DeadLetter) -> UnreadableLine:
    return UnreadableLine(
        kind=kind, reason=left.unreadable or "", partition=left.partition, transaction_id=left.transaction_id
    )


def _lines(lines: Sequence[msgspec.Struct]) -> bytes:
    return b"".join(encode_line(line) for line in lines)
