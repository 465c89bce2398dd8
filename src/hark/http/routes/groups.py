"""Consumer groups: list, get, delete, resubscribe, limit and seek; and a group of one queue: pause, resume, purge."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.access.identity import Identity
from hark.api import operations
from hark.api.types.groups import (
    DeletedGroup,
    LaggingPosition,
    ListedGroup,
    Resubscribed,
    SeekBody,
    ShownLimits,
    ShownPosition,
    ShownPositions,
    SoughtPartition,
    SoughtQueue,
    SubscriptionBody,
)
from hark.api.types.queues import Paused, Purged
from hark.broker.broker import first
from hark.clock import SECOND
from hark.errors import InvalidInput, NotFound
from hark.http.admission import identity_of, shown_lease
from hark.http.checks import MAX_NUMBER, check_int, parse_moment, time_of
from hark.http.routes.queues import LimitsBody, groups_of, queues_of, read_limits
from hark.http.routes.requests import (
    NO_GROUP,
    NO_QUEUE,
    broker_of,
    name_in_path,
    now,
    query_of,
    read_json,
    read_optional_json,
    reply,
)
from hark.http.routes.table import MAX_LIST, BoolParam, Failure, IntParam, NameParam, Table, bind, paging, table
from hark.model import GroupStats, Limits, PositionStats, Seek, SeekOutcome

LAGGING_SECONDS = 300
DEAD_SECONDS = 86_400
"""Long, because engines record the last activity of a group only about once an hour."""

_PAGE = paging(MAX_LIST, MAX_LIST)
_QUEUE = NameParam("queue", "Return only consumer groups of this queue.")
_MIN_LAG = IntParam(
    "minLagSeconds", "Minimum age of the oldest unsettled message, in seconds.", 3600, 0, MAX_NUMBER // SECOND
)
_POSITIONS = paging(1000, MAX_LIST).limit
_FORGET = BoolParam("deleteMetadata", "Also delete the stored start position of the group.", True)


async def list_groups(request: Request) -> Response:
    """List consumer groups. Returns one entry for each consumer group and queue."""
    query = query_of(request)
    limit, offset = _PAGE.of(query)
    groups = await groups_of(request, _QUEUE.of(query))
    moment = now(request)
    return reply([_group(stats, moment) for stats in groups[offset : offset + limit]])


async def list_lagging(request: Request) -> Response:
    """List lagging consumer groups.

    Returns the partitions in which the oldest unsettled message of a consumer group is older than `minLagSeconds`.
    """
    query = query_of(request)
    positions = await _positions(request, None, _MIN_LAG.of(query))
    moment = now(request)
    return reply([_lagging(position, moment, identity_of(request)) for position in positions])


async def show_group(request: Request) -> Response:
    """Get a consumer group. Returns the position of the group in each partition, by queue name."""
    group = name_in_path(request, "group")
    moment = now(request)
    queues: dict[str, list[ShownPosition]] = {}
    for position in await _positions(request, group):
        shown = _position(position, moment, identity_of(request))
        queues.setdefault(position.queue, []).append(shown)
    return reply({queue: ShownPositions(tuple(found)) for queue, found in queues.items()})


async def _positions(request: Request, group: str | None, min_lag_seconds: int | None = None) -> list[PositionStats]:
    """Return positions of groups in partitions of permitted queues, up to the limit."""
    limit = _POSITIONS.of(query_of(request))
    broker, queues = broker_of(request), await queues_of(request)
    before = None if min_lag_seconds is None else now(request) - min_lag_seconds * SECOND
    if before is not None and (skipped := broker.observed.counts.caught_up(before)):
        names = [info.name for info in await broker.engine.queue_infos(queues)]
        queues = [name for name in names if name not in skipped]
    return await broker.engine.position_stats(group, min_lag_seconds=min_lag_seconds, limit=limit, queues=queues)


async def delete_group(request: Request) -> Response:
    """Delete a consumer group in all queues. If the group consumes again, it starts as a new group."""
    group = name_in_path(request, "group")
    forget = _FORGET.of(query_of(request))
    deleted = await broker_of(request).engine.delete_group(group, None, forget)
    return reply(
        DeletedGroup(success=True, consumer_group=group, deleted_partitions=deleted.partitions, metadata_deleted=forget)
    )


async def delete_group_of_queue(request: Request) -> Response:
    """Delete a consumer group of a queue. If the group consumes again, it starts as a new group."""
    group, queue = name_in_path(request, "group"), name_in_path(request, "queue")
    forget = _FORGET.of(query_of(request))
    deleted = await broker_of(request).engine.delete_group(group, queue, forget)
    return reply(
        DeletedGroup(
            success=True,
            consumer_group=group,
            queue_name=queue,
            deleted_partitions=deleted.partitions,
            metadata_deleted=forget,
        )
    )


async def resubscribe(request: Request) -> Response:
    """Change the start position of a consumer group.

    Applies to partitions from which the group has not received messages yet. Existing positions do not change; use a
    seek to move them.
    """
    group = name_in_path(request, "group")
    body = await read_json(request, SubscriptionBody, "subscription")
    if body.subscription_timestamp is None:
        raise InvalidInput("subscriptionTimestamp is required")
    since = parse_moment(body.subscription_timestamp, "subscriptionTimestamp")
    updated = await broker_of(request).engine.resubscribe(group, since)
    return reply(Resubscribed(success=True, consumer_group=group, new_timestamp=time_of(since), rows_updated=updated))


async def pause_group(request: Request) -> Response:
    """Pause a consumer group of a queue. The group receives no messages of the queue until it is resumed."""
    return await _set_paused(request, True)


async def resume_group(request: Request) -> Response:
    """Resume a consumer group of a queue. Deliveries to the group continue."""
    return await _set_paused(request, False)


async def _set_paused(request: Request, paused: bool) -> Response:
    queue, group = name_in_path(request, "queue"), name_in_path(request, "group")
    if not await broker_of(request).engine.pause(queue, group, paused):
        raise NotFound("Consumer group not found", code="group_not_found")
    return reply(Paused(success=True, queue=queue, consumer_group=group, paused=paused))


async def purge_group(request: Request) -> Response:
    """Purge a consumer group of a queue.

    Settles all messages of the queue for this group, including leased messages. Other groups are not affected.
    """
    queue, group = name_in_path(request, "queue"), name_in_path(request, "group")
    engine = broker_of(request).engine
    if not await engine.group_stats(group, queue, uncounted=[queue]):
        raise NotFound("Consumer group not found", code="group_not_found")
    purged = await engine.purge(queue, group)
    return reply(Purged(success=True, queue=queue, consumer_group=group, purged=purged))


def _age_seconds(since: int | None, moment: int) -> float:
    return 0 if since is None else max(0, moment - since) / SECOND


def _group(stats: GroupStats, moment: int) -> ListedGroup:
    age = _age_seconds(stats.oldest_waiting, moment)
    since = stats.subscription.since
    # Messages are pending, none is leased, and no consumer was active for a day: the group has no consumers.
    idle = _age_seconds(stats.last_seen, moment) > DEAD_SECONDS
    dead = stats.lag > 0 and stats.leases == 0 and idle
    return ListedGroup(
        name=stats.group,
        topics=(stats.queue,),
        queue=stats.queue,
        members=stats.leases,
        in_flight=stats.in_flight,
        partitions_with_lag=stats.partitions_with_lag,
        total_lag=stats.lag,
        scheduled=stats.scheduled,
        max_time_lag=int(age),
        state="Dead" if dead else "Lagging" if age > LAGGING_SECONDS else "Stable",
        subscription_mode=stats.subscription.mode,
        subscription_timestamp=time_of(since),
        subscription_created_at=time_of(stats.created_at),
        group_mode=stats.mode,
        paused=stats.paused,
        limits=stats.limits,
        last_seen_at=time_of(stats.last_seen),
    )


def _lagging(position: PositionStats, moment: int, identity: Identity) -> LaggingPosition:
    age = _age_seconds(position.oldest_waiting, moment)
    return LaggingPosition(
        consumer_group=position.group,
        queue_name=position.queue,
        partition_name=position.partition,
        partition_id=position.partition_id,
        worker_id=shown_lease(identity, position.lease_id),
        offset_lag=position.lag,
        scheduled=position.scheduled,
        time_lag_seconds=int(age),
        lag_hours=round(age / 3600, 2),
        oldest_unconsumed_at=time_of(position.oldest_waiting),
        last_consumed_at=time_of(position.last_settled),
    )


def _position(position: PositionStats, moment: int, identity: Identity) -> ShownPosition:
    return ShownPosition(
        partition=position.partition,
        partition_id=position.partition_id,
        worker_id=shown_lease(identity, position.lease_id),
        last_consumed_at=time_of(position.last_settled),
        total_consumed=position.cursor,
        offset_lag=position.lag,
        scheduled=position.scheduled,
        time_lag_seconds=int(_age_seconds(position.oldest_waiting, moment)),
        lease_active=position.lease_id is not None,
    )


# Limits ------------------------------------------------------------------------------------------------------


async def show_limits(request: Request) -> Response:
    """Get the limits of a consumer group of a queue. A limit of 0 means no limit."""
    group, queue = name_in_path(request, "group"), name_in_path(request, "queue")
    found = await broker_of(request).engine.group_stats(group, queue, uncounted=[queue])
    if not found:
        raise _no_group()
    return _answer(group, queue, found[0].limits)


async def limit_group(request: Request) -> Response:
    """Set the limits of a consumer group of a queue. Replaces all limits; an absent limit becomes 0 (no limit)."""
    group, queue = name_in_path(request, "group"), name_in_path(request, "queue")
    limits = read_limits(await read_json(request, dict[str, msgspec.Raw], "limits"))
    if not await broker_of(request).engine.limit_group(queue, group, limits):
        raise _no_group()
    return _answer(group, queue, limits)


def _no_group() -> NotFound:
    return NotFound("Consumer group not found", code="group_not_found")


def _answer(group: str, queue: str, limits: Limits) -> Response:
    return reply(ShownLimits(success=True, consumer_group=group, queue_name=queue, limits=limits))


# Seek --------------------------------------------------------------------------------------------------------


async def seek_queue(request: Request) -> Response:
    """Seek a consumer group in a queue.

    Moves the group to the end, to a time or to an offset, in all partitions of the queue. Its leases there end.
    """
    body = await read_optional_json(request, SeekBody, "seek")
    target = _target(request, body, None)
    outcome = await _seek(request, target)
    return reply(
        SoughtQueue(
            success=True,
            consumer_group=target.group,
            queue_name=target.queue,
            seek_to_end=target.to_end,
            target_timestamp=time_of(target.timestamp),
            target_offset=target.offset,
            partitions_updated=outcome.partitions,
        )
    )


async def seek_partition(request: Request) -> Response:
    """Seek a consumer group in a partition.

    Moves the group to the end, to a time or to an offset of the partition. An empty body moves it to the end. Its lease
    there ends.
    """
    body = await read_optional_json(request, SeekBody, "seek")
    if body == SeekBody():
        body = SeekBody(to_end=True)
    partition = name_in_path(request, "partition")
    target = _target(request, body, partition)
    outcome = await _seek(request, target)
    return reply(
        SoughtPartition(
            success=True,
            consumer_group=target.group,
            queue_name=target.queue,
            partition_name=partition,
            updated=outcome.partitions > 0,
            cursor_moved_to=None if outcome.next_offset is None else outcome.next_offset - 1,
            next_offset=outcome.next_offset,
        )
    )


async def _seek(request: Request, target: Seek) -> SeekOutcome:
    try:
        return first(await broker_of(request).engine.seek([target]))
    except NotFound as error:
        # Clients may rely on these texts.
        what = "Partition" if error.code == "partition_not_found" else "Queue"
        raise NotFound(f"{what} not found", code=error.code) from error


def _target(request: Request, body: SeekBody, partition: str | None) -> Seek:
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


TABLE: Table = table(
    bind(operations.LIST_GROUPS, list_groups, query=(*_PAGE, _QUEUE)),
    bind(operations.LIST_LAGGING, list_lagging, query=(_MIN_LAG, _POSITIONS)),
    bind(operations.SHOW_GROUP, show_group, query=(_POSITIONS,)),
    bind(operations.DELETE_GROUP, delete_group, query=(_FORGET,)),
    bind(operations.RESUBSCRIBE, resubscribe, body=SubscriptionBody),
    bind(operations.DELETE_GROUP_OF_QUEUE, delete_group_of_queue, query=(_FORGET,)),
    bind(operations.PAUSE_GROUP, pause_group, errors=(NO_GROUP,)),
    bind(operations.RESUME_GROUP, resume_group, errors=(NO_GROUP,)),
    bind(operations.PURGE_GROUP, purge_group, errors=(NO_GROUP,)),
    bind(operations.SHOW_LIMITS, show_limits, errors=(NO_GROUP,)),
    bind(operations.LIMIT_GROUP, limit_group, body=LimitsBody, errors=(NO_GROUP,)),
    bind(operations.SEEK_QUEUE, seek_queue, body=SeekBody, body_optional=True, errors=(NO_QUEUE,)),
    bind(
        operations.SEEK_PARTITION, seek_partition, body=SeekBody, body_optional=True, errors=(NO_QUEUE, _NO_PARTITION)
    ),
)
