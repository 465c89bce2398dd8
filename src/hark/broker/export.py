"""Exports of queues as JSON lines, read in steps so that other calls do not wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Literal

import msgspec

from hark import model
from hark.broker.sealing import SealedQueues, shown_dead_letters
from hark.engine.api import Engine
from hark.errors import HarkError, InvalidInput, NotFound
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
"""Number of partitions that one call reads, because most have few messages."""
_MESSAGES = 1000
_LETTERS = 100
"""Maximum number of dead letters in one call."""
_LETTER_BYTES = 1 << 20
"""Approximate number of bytes of dead letters in one call."""
_ALL = 2**31 - 1


async def export_queue(engine: Engine, sealed: SealedQueues, name: str) -> AsyncIterator[bytes]:
    """The lines of a queue, in parts, without messages that are pushed after the call.

    The positions of groups are read before the messages: a message that is settled meanwhile can be redelivered.
    """
    found = (await engine.queue_stats(model.QueueFilter(names=[name]))).items
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


async def _letters(engine: Engine, sealed: SealedQueues, queue: str) -> AsyncIterator[Sequence[model.DeadLetter]]:
    """Pages of the dead letters of a queue, the oldest failure first, up to their number at the start."""
    where = model.DeadLetterFilter(queue=queue, oldest_first=True, limit=1)
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
        try:
            page = await shown_dead_letters(engine, sealed, where)
        except InvalidInput:  # These are much larger than those before.
            where = msgspec.structs.replace(where, limit=1)
            page = await shown_dead_letters(engine, sealed, where)


async def _messages(
    engine: Engine, queue: str, partition: str, answer: model.ReadResult | HarkError, end: int
) -> AsyncIterator[Sequence[model.StoredMessage]]:
    """Pages of the messages of a partition before an offset."""
    while True:
        if isinstance(answer, HarkError):
            raise answer
        if wanted := [message for message in answer.messages if message.offset < end]:
            yield wanted
        if not answer.more or answer.next_offset >= end:
            return
        [answer] = await engine.read([_read_request(queue, partition, answer.next_offset)])


def _read_request(queue: str, partition: str, offset: int) -> model.Read:
    return model.Read(queue=queue, partition=partition, offset=offset, limit=_MESSAGES)


async def _standings(engine: Engine, queue: str, group: model.GroupStats) -> dict[str, int]:
    """By partition, the first offset with an unsettled message of a group. Settled partitions are left out."""
    standings = {}
    for position in await engine.position_stats(group.group, queue, limit=_ALL):
        if position.oldest_unsettled is not None:
            standings[position.partition] = position.cursor + 1
            if group.mode == "shared":
                standings[position.partition] = await _first_open(engine, position)
    return standings


async def _first_open(engine: Engine, position: model.PositionStats) -> int:
    """The first offset of a shared group that can be unsettled: that of the first message of the same age."""
    if position.oldest_unsettled is None:
        return position.cursor + 1
    found: list[model.PartitionOffset] = await engine.offsets(
        position.queue, position.oldest_unsettled - 1, position.partition
    )
    return max(position.cursor + 1, *(one.offset for one in found))


def _queue_line(stats: model.QueueStats) -> QueueLine:
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


def _unusual(options: model.QueueOptions) -> Iterator[tuple[str, object]]:
    for field in msgspec.structs.fields(model.QueueOptions):
        value = getattr(options, field.name)
        if value != field.default:
            yield field.encode_name, value


def _group_line(group: model.GroupStats) -> GroupLine:
    limits = group.limits if group.limits != model.Limits() else None
    return GroupLine(name=group.group, mode=group.mode, paused=group.paused, limits=limits)


def _message_line(message: model.StoredMessage, ahead: int) -> MessageLine | UnreadableLine:
    """The line of a message. Another store needs its times by the system clock."""
    if message.unreadable is not None:
        return _unreadable_line("message", message)
    return MessageLine(
        **_attributes(message),
        offset=message.offset,
        deliver_at=None if message.deliver_at is None else message.deliver_at - ahead,
        expires_at=None if message.expires_at is None else message.expires_at - ahead,
    )


def _letter_line(letter: model.DeadLetter) -> DeadLetterLine | UnreadableLine:
    if letter.unreadable is not None:
        return _unreadable_line("dead letter", letter)
    return DeadLetterLine(
        **_attributes(letter),
        id=letter.id,
        group=letter.group,
        attempts=letter.attempts,
        error=letter.error,
        failed_at=letter.failed_at,
    )


def _attributes(left: model.StoredMessage | model.DeadLetter) -> dict[str, Any]:
    """The fields that the lines of messages and of dead letters have in common."""
    traceparent, tracestate = (None, None) if left.trace_context is None else parted(left.trace_context)
    return {
        "partition": left.partition,
        "transaction_id": left.transaction_id,
        "payload": left.payload,
        "created_at": left.created_at,
        "trace_id": left.trace_id,
        "producer_sub": left.producer,
        "priority": left.priority,
        "backoff_schedule": left.backoff_ms,
        "keys_if_undelivered": left.undelivered_keys,
        "traceparent": traceparent,
        "tracestate": tracestate,
    }


def _unreadable_line(
    kind: Literal["message", "dead letter"], left: model.StoredMessage | model.DeadLetter
) -> UnreadableLine:
    return UnreadableLine(
        kind=kind, reason=left.unreadable or "", partition=left.partition, transaction_id=left.transaction_id
    )


def _lines(lines: Sequence[msgspec.Struct]) -> bytes:
    return b"".join(encode_line(line) for line in lines)
