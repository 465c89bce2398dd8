"""A queue as lines of JSON, for another store: what is in it at the beginning, read in steps beside all other work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import msgspec

from hark.engine.api import Engine
from hark.errors import HarkError, NotFound
from hark.model import (
    GroupStats,
    Limits,
    Position,
    QueueFilter,
    QueueOptions,
    QueueStats,
    Read,
    ReadResult,
    StoredMessage,
    TrackStats,
)
from hark.model.export import FORMAT, EndLine, GroupLine, MessageLine, PositionLine, QueueLine
from hark.model.trace_context import parted

Open = Callable[[str, msgspec.Raw], msgspec.Raw]
"""Makes a sealed payload of a queue readable."""

_PARTITIONS = 64
"""Read in one call, as most have few messages."""
_MESSAGES = 1000
_ALL = 2**31 - 1
_encode = msgspec.json.Encoder().encode


async def export_queue(engine: Engine, open_sealed: Open, name: str) -> AsyncIterator[bytes]:
    """The lines of a queue, in parts. Messages that are pushed after the call are not included.

    The positions of groups are read before the messages: a message that is settled meanwhile is at worst redelivered.
    """
    found = (await engine.queue_stats(QueueFilter(names=[name]))).items
    if not found:
        raise NotFound("Queue not found", code="queue_not_found")
    groups = await engine.group_stats(queue=name)
    places = {one.partition: one.offset for one in await engine.positions(name, "head")}
    ends = {one.partition: one.offset for one in await engine.positions(name, "tail")}
    yield _lines([_queue_line(found[0]), *map(_group_line, groups)])
    standings = {group.group: await _standings(engine, name, group) for group in groups}
    count = 0
    names = [one for one in places if one in ends]
    for start in range(0, len(names), _PARTITIONS):
        chunk = names[start : start + _PARTITIONS]
        answers = await engine.read([_wish(name, one, places[one]) for one in chunk])
        for partition, answer in zip(chunk, answers, strict=True):
            end = ends[partition]
            yield _lines(
                [
                    PositionLine(group=group, partition=partition, offset=known.get(partition, end))
                    for group, known in standings.items()
                ]
            )
            async for messages in _messages(engine, name, partition, answer, end):
                count += len(messages)
                yield _lines([_message_line(message, open_sealed) for message in messages])
    yield _lines([EndLine(messages=count)])


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
        [answer] = await engine.read([_wish(queue, partition, answer.next_offset)])


def _wish(queue: str, partition: str, offset: int) -> Read:
    return Read(queue=queue, partition=partition, offset=offset, limit=_MESSAGES)


async def _standings(engine: Engine, queue: str, group: GroupStats) -> dict[str, int]:
    """By partition, the first offset that a group may not be done with; where it is done with all there is nothing."""
    standings = {}
    for track in await engine.track_stats(group.group, queue, limit=_ALL):
        if track.lag:
            standings[track.partition] = track.cursor + 1
            if group.mode == "shared":
                standings[track.partition] = await _first_open(engine, track)
    return standings


async def _first_open(engine: Engine, track: TrackStats) -> int:
    """A shared group has no cursor that moves: the first message as old as the oldest open one."""
    if track.oldest_waiting is None:
        return track.cursor + 1
    found: list[Position] = await engine.positions(track.queue, track.oldest_waiting - 1, track.partition)
    return max(track.cursor + 1, *(one.offset for one in found))


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


def _message_line(message: StoredMessage, open_sealed: Open) -> MessageLine:
    traceparent, tracestate = (None, None) if message.trace_context is None else parted(message.trace_context)
    return MessageLine(
        partition=message.partition,
        offset=message.offset,
        transaction_id=message.transaction_id,
        payload=open_sealed(message.queue, message.payload) if message.sealed else message.payload,
        created_at=message.created_at,
        trace_id=message.trace_id,
        producer_sub=message.producer,
        priority=message.priority,
        deliver_at=message.deliver_at,
        expires_at=message.expires_at,
        backoff_schedule=message.backoff_ms,
        keys_if_undelivered=message.undelivered_keys,
        traceparent=traceparent,
        tracestate=tracestate,
    )


def _lines(lines: Sequence[msgspec.Struct]) -> bytes:
    return b"".join(_line(line) for line in lines)


def _line(line: msgspec.Struct) -> bytes:
    """One line. Payloads are kept as they were sent: a line break in them is mere space, but would begin a new line."""
    text: bytes = _encode(line)
    if b"\n" in text or b"\r" in text:
        text = text.replace(b"\n", b" ").replace(b"\r", b" ")
    return text + b"\n"
