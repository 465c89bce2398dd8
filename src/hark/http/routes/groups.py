"""Consumer groups: list, get, delete, resubscribe, limit and seek; and a group of one queue: pause, resume, purge."""

from __future__ import annotations

import msgspec

from hark.access.tokens import Identity
from hark.api import operations, types
from hark.broker.broker import first
from hark.clock import SECOND
from hark.errors import InvalidInput, NotFound
from hark.http import routing
from hark.http.admission import shown_lease
from hark.http.checks import MAX_NUMBER, check_int, parse_time, time_of
from hark.http.responses import answer_of
from hark.http.routes.queues import LimitsBody, age_seconds, groups_of, no_group, queues_of, read_limits, set_paused
from hark.http.routing import Call, bind, table
from hark.model import GroupStats, PositionStats, Seek, SeekOutcome

LAGGING_SECONDS = 300
DEAD_SECONDS = 86_400
"""Long, because engines record the last activity of a group only about once an hour."""

_PAGE = routing.paging(routing.MAX_LIST, routing.MAX_LIST)
_QUEUE = routing.NameParam("queue", "Return only consumer groups of this queue.")
_MIN_LAG = routing.IntParam(
    "minLagSeconds", "Minimum age of the oldest message that waits, in seconds.", 3600, 0, MAX_NUMBER // SECOND
)
_POSITIONS = routing.paging(1000, routing.MAX_LIST).limit
_FORGET = routing.BoolParam("deleteMetadata", "Also delete the stored start position of the group.", True)


async def list_groups(call: Call) -> list[types.groups.ListedGroup]:
    """List consumer groups. Returns one entry for each consumer group and queue."""
    page = _PAGE.of(call.query)
    groups = await groups_of(call, _QUEUE.of(call.query))
    moment = call.now()
    return [_group(stats, moment) for stats in groups[page.offset : page.offset + page.limit]]


async def list_lagging(call: Call) -> list[types.groups.LaggingPosition]:
    """List lagging consumer groups.

    Returns the partitions in which the oldest message that waits for a consumer group is older than `minLagSeconds`.
    """
    positions = await _positions(call, None, _MIN_LAG.of(call.query))
    moment = call.now()
    return [_lagging(position, moment, call.identity) for position in positions]


async def show_group(call: Call) -> dict[str, types.groups.ShownPositions]:
    """Get a consumer group. Returns the position of the group in each partition, by queue name."""
    group = call.name("group")
    moment = call.now()
    queues: dict[str, list[types.groups.ShownPosition]] = {}
    for position in await _positions(call, group):
        queues.setdefault(position.queue, []).append(_position(position, moment, call.identity))
    return {queue: types.groups.ShownPositions(tuple(found)) for queue, found in queues.items()}


async def _positions(call: Call, group: str | None, min_lag_seconds: int | None = None) -> list[PositionStats]:
    """Return positions of groups in partitions of permitted queues, up to the limit."""
    limit = _POSITIONS.of(call.query)
    broker, queues = call.broker, await queues_of(call)
    before = None if min_lag_seconds is None else call.now() - min_lag_seconds * SECOND
    if before is not None and (skipped := broker.observed.counts.caught_up(before)):
        names = [info.name for info in await broker.engine.queue_infos(queues)]
        queues = [name for name in names if name not in skipped]
    return await broker.engine.position_stats(group, min_lag_seconds=min_lag_seconds, limit=limit, queues=queues)


async def delete_group(call: Call) -> types.groups.DeletedGroup:
    """Delete a consumer group in all queues. If the group consumes again, it starts as a new group."""
    return await _delete(call, call.name("group"), None)


async def delete_group_of_queue(call: Call) -> types.groups.DeletedGroup:
    """Delete a consumer group of a queue. If the group consumes again, it starts as a new group."""
    return await _delete(call, call.name("group"), call.name("queue"))


async def _delete(call: Call, group: str, queue: str | None) -> types.groups.DeletedGroup:
    forget = _FORGET.of(call.query)
    deleted = await call.engine.delete_group(group, queue, forget)
    return types.groups.DeletedGroup(True, group, deleted.partitions, metadata_deleted=forget, queue_name=queue)


async def resubscribe(call: Call) -> types.groups.Resubscribed:
    """Change the start position of a consumer group.

    Applies to partitions from which the group has not received messages yet. Existing positions do not change; use a
    seek to move them.
    """
    group = call.name("group")
    body = await call.json(types.groups.SubscriptionBody, "subscription")
    if body.value is None:
        raise InvalidInput("subscriptionTimestamp is required")
    since = parse_time(body.value, "subscriptionTimestamp")
    updated = await call.engine.resubscribe(group, since)
    return types.groups.Resubscribed(True, group, new_timestamp=time_of(since), rows_updated=updated)


async def pause_group(call: Call) -> types.queues.OfQueue[bool]:
    """Pause a consumer group of a queue. The group receives no messages of the queue until it is resumed."""
    return await set_paused(call, True)


async def resume_group(call: Call) -> types.queues.OfQueue[bool]:
    """Resume a consumer group of a queue. Deliveries to the group continue."""
    return await set_paused(call, False)


async def purge_group(call: Call) -> types.queues.OfQueue[int]:
    """Purge a consumer group of a queue.

    Settles all messages of the queue for this group, including leased messages. Other groups are not affected.
    """
    queue, group = call.name("queue"), call.name("group")
    if not await call.engine.group_stats(group, queue, uncounted=[queue]):
        raise no_group()
    purged = await call.engine.purge(queue, group)
    return types.queues.Purged(True, queue, purged, group)


def _group(stats: GroupStats, moment: int) -> types.groups.ListedGroup:
    age = age_seconds(stats.oldest_waiting, moment)
    # Messages are pending, none is leased, and no consumer was active for a day: the group has no consumers.
    idle = age_seconds(stats.last_seen, moment) > DEAD_SECONDS
    dead = stats.lag > 0 and stats.leases == 0 and idle
    return answer_of(
        types.groups.ListedGroup,
        stats,
        name=stats.group,
        topics=(stats.queue,),
        members=stats.leases,
        total_lag=stats.lag,
        max_time_lag=int(age),
        state="Dead" if dead else "Lagging" if age > LAGGING_SECONDS else "Stable",
        subscription_mode=stats.subscription.mode,
        subscription_timestamp=time_of(stats.subscription.since),
        subscription_created_at=time_of(stats.created_at),
        group_mode=stats.mode,
        last_seen_at=time_of(stats.last_seen),
    )


def _lagging(position: PositionStats, moment: int, identity: Identity) -> types.groups.LaggingPosition:
    age = age_seconds(position.oldest_waiting, moment)
    return answer_of(
        types.groups.LaggingPosition,
        position,
        consumer_group=position.group,
        queue_name=position.queue,
        partition_name=position.partition,
        worker_id=shown_lease(identity, position.lease_id),
        offset_lag=position.lag,
        time_lag_seconds=int(age),
        lag_hours=round(age / 3600, 2),
        oldest_unconsumed_at=time_of(position.oldest_waiting),
        last_consumed_at=time_of(position.last_settled),
    )


def _position(position: PositionStats, moment: int, identity: Identity) -> types.groups.ShownPosition:
    return answer_of(
        types.groups.ShownPosition,
        position,
        worker_id=shown_lease(identity, position.lease_id),
        last_consumed_at=time_of(position.last_settled),
        total_consumed=position.cursor,
        offset_lag=position.lag,
        time_lag_seconds=int(age_seconds(position.oldest_waiting, moment)),
        lease_active=position.lease_id is not None,
    )


# Limits ------------------------------------------------------------------------------------------------------


async def show_limits(call: Call) -> types.groups.ShownLimits:
    """Get the limits of a consumer group of a queue. A limit of 0 means no limit."""
    group, queue = call.name("group"), call.name("queue")
    found = await call.engine.group_stats(group, queue, uncounted=[queue])
    if not found:
        raise no_group()
    return types.groups.ShownLimits(True, group, queue, found[0].limits)


async def limit_group(call: Call) -> types.groups.ShownLimits:
    """Set the limits of a consumer group of a queue. Replaces all limits; an absent limit becomes 0 (no limit)."""
    group, queue = call.name("group"), call.name("queue")
    limits = read_limits(await call.json(dict[str, msgspec.Raw], "limits"))
    if not await call.engine.limit_group(queue, group, limits):
        raise no_group()
    return types.groups.ShownLimits(True, group, queue, limits)


# Seek --------------------------------------------------------------------------------------------------------


async def seek_queue(call: Call) -> types.groups.SoughtQueue:
    """Seek a consumer group in a queue.

    Moves the group to the end, to a time or to an offset, in all partitions of the queue. Its leases there end.
    """
    target = _target(call, await call.optional_json(types.groups.SeekBody, "seek"), None)
    outcome = await _seek(call, target)
    return types.groups.SoughtQueue(
        success=True,
        consumer_group=target.group,
        queue_name=target.queue,
        seek_to_end=target.to_end,
        target_timestamp=time_of(target.timestamp),
        target_offset=target.offset,
        partitions_updated=outcome.partitions,
    )


async def seek_partition(call: Call) -> types.groups.SoughtPartition:
    """Seek a consumer group in a partition.

    Moves the group to the end, to a time or to an offset of the partition. An empty body moves it to the end. Its lease
    there ends.
    """
    body = await call.optional_json(types.groups.SeekBody, "seek")
    if body == types.groups.SeekBody():
        body.to_end = True
    partition = call.name("partition")
    target = _target(call, body, partition)
    outcome = await _seek(call, target)
    return types.groups.SoughtPartition(
        success=True,
        consumer_group=target.group,
        queue_name=target.queue,
        partition_name=partition,
        updated=outcome.partitions > 0,
        cursor_moved_to=None if outcome.next_offset is None else outcome.next_offset - 1,
        next_offset=outcome.next_offset,
    )


async def _seek(call: Call, target: Seek) -> SeekOutcome:
    try:
        return first(await call.engine.seek([target]))
    except NotFound as error:
        # Clients may rely on these texts.
        what = "Partition" if error.code == "partition_not_found" else "Queue"
        raise NotFound(f"{what} not found", code=error.code) from error


def _target(call: Call, body: types.groups.SeekBody, partition: str | None) -> Seek:
    given = [body.to_end or None, body.timestamp, body.offset]
    if sum(value is not None for value in given) != 1:
        raise InvalidInput("expected exactly one of toEnd (true), timestamp and offset")
    return Seek(
        queue=call.name("queue"),
        group=call.name("group"),
        partition=partition,
        to_end=bool(body.to_end),
        timestamp=None if body.timestamp is None else parse_time(body.timestamp, "timestamp"),
        offset=None if body.offset is None else check_int(body.offset, "offset", 1, MAX_NUMBER),
    )


_NO_PARTITION = routing.Failure(404, "partition_not_found")


TABLE = table(
    bind(operations.LIST_GROUPS, list_groups, query=(*_PAGE, _QUEUE)),
    bind(operations.LIST_LAGGING, list_lagging, query=(_MIN_LAG, _POSITIONS)),
    bind(operations.SHOW_GROUP, show_group, query=(_POSITIONS,)),
    bind(operations.DELETE_GROUP, delete_group, query=(_FORGET,)),
    bind(operations.RESUBSCRIBE, resubscribe, body=types.groups.SubscriptionBody),
    bind(operations.DELETE_GROUP_OF_QUEUE, delete_group_of_queue, query=(_FORGET,)),
    bind(operations.PAUSE_GROUP, pause_group, errors=(routing.NO_GROUP,)),
    bind(operations.RESUME_GROUP, resume_group, errors=(routing.NO_GROUP,)),
    bind(operations.PURGE_GROUP, purge_group, errors=(routing.NO_GROUP,)),
    bind(operations.SHOW_LIMITS, show_limits, errors=(routing.NO_GROUP,)),
    bind(operations.LIMIT_GROUP, limit_group, body=LimitsBody, errors=(routing.NO_GROUP,)),
    bind(operations.SEEK_QUEUE, seek_queue, body=types.groups.SeekBody, body_optional=True, errors=(routing.NO_QUEUE,)),
    bind(
        operations.SEEK_PARTITION,
        seek_partition,
        body=types.groups.SeekBody,
        body_optional=True,
        errors=(routing.NO_QUEUE, _NO_PARTITION),
    ),
)
