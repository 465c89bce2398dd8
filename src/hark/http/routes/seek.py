"""Seek: move a consumer group of a queue to the end, to a time or to an offset."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.broker.broker import first
from hark.errors import InvalidInput, NotFound
from hark.http.answers.groups import SoughtPartition, SoughtQueue
from hark.http.checks import MAX_NUMBER, check_int, format_time_ms, parse_moment
from hark.http.routes.requests import NO_QUEUE, broker_of, name_in_path, read_optional_json, reply
from hark.http.routes.table import Failure, Reach, Table, write
from hark.model import Seek, SeekOutcome


class SeekBody(msgspec.Struct, rename="camel"):
    """The new position: exactly one of the fields."""

    to_end: bool | None = None
    timestamp: str | int | None = None
    offset: int | None = None


async def seek_queue(request: Request) -> Response:
    """Seek a consumer group in a queue.

    Moves the group to the end, to a time or to an offset, in all partitions of the queue. Its leases there end.
    """
    body = await read_optional_json(request, SeekBody, "seek")
    wish = _wish(request, body, None)
    outcome = await _seek(request, wish)
    answer: SoughtQueue = {
        "success": True,
        "consumerGroup": wish.group,
        "queueName": wish.queue,
        "seekToEnd": wish.to_end,
        "targetTimestamp": None if wish.timestamp is None else format_time_ms(wish.timestamp),
        "targetOffset": wish.offset,
        "partitionsUpdated": outcome.partitions,
    }
    return reply(answer)


async def seek_partition(request: Request) -> Response:
    """Seek a consumer group in a partition.

    Moves the group to the end, to a time or to an offset of the partition. An empty body moves it to the end. Its lease
    there ends.
    """
    body = await read_optional_json(request, SeekBody, "seek")
    if body == SeekBody():
        body = SeekBody(to_end=True)
    partition = name_in_path(request, "partition")
    wish = _wish(request, body, partition)
    outcome = await _seek(request, wish)
    answer: SoughtPartition = {
        "success": True,
        "consumerGroup": wish.group,
        "queueName": wish.queue,
        "partitionName": partition,
        "updated": outcome.partitions > 0,
        "cursorMovedTo": None if outcome.next_offset is None else outcome.next_offset - 1,
        "nextOffset": outcome.next_offset,
    }
    return reply(answer)


async def _seek(request: Request, wish: Seek) -> SeekOutcome:
    try:
        return first(await broker_of(request).engine.seek([wish]))
    except NotFound as error:
        # Clients may rely on these texts.
        what = "Partition" if error.code == "partition_not_found" else "Queue"
        raise NotFound(f"{what} not found", code=error.code) from error


def _wish(request: Request, body: SeekBody, partition: str | None) -> Seek:
    given = [body.to_end or None, body.timestamp, body.offset]
    if sum(value is not None for value in given) != 1:
        raise InvalidInput("expected exactly one of toEnd (true), timestamp and offset")
    return Seek(
        queue=name_in_path(request, "queue"),
        group=name_in_path(request, "group"),
        partition=partition,
        to_end=bool(body.to_end),
        timestamp=None if body.timestamp is None else parse_moment(body.timestamp, "timestamp"),
        offset=None if body.offset is None else check_int(body.offset, "offset", 1, MAX_NUMBER),
    )


_NO_PARTITION = Failure(404, "partition_not_found")

TABLE: Table = {
    "/api/v1/consumer-groups/{group}/queues/{queue}/seek": {
        "POST": write(seek_queue, Reach.PATH, body=SeekBody, body_optional=True, answer=SoughtQueue, errors=(NO_QUEUE,))
    },
    "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek": {
        "POST": write(
            seek_partition,
            Reach.PATH,
            body=SeekBody,
            body_optional=True,
            answer=SoughtPartition,
            errors=(NO_QUEUE, _NO_PARTITION),
        )
    },
}
