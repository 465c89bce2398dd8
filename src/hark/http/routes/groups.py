"""Consumer groups: list, get, delete, resubscribe; and a group of one queue: pause, resume, purge."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.access.identity import Identity
from hark.clock import SECOND
from hark.errors import InvalidInput, NotFound
from hark.http.answers.groups import (
    DeletedGroup,
    DeletedGroupOfQueue,
    LaggingTrack,
    ListedGroup,
    PausedGroup,
    PurgedGroup,
    Resubscribed,
    ShownTrack,
    ShownTracks,
)
from hark.http.checks import MAX_NUMBER, format_time_ms, parse_moment
from hark.http.edge.identities import identity_of, shown_lease
from hark.http.params import MAX_LIST, BoolParam, IntParam, NameParam, paging
from hark.http.routes.requests import NO_GROUP, broker_of, name_in_path, now, query_of, read_json, reply
from hark.http.routes.table import Reach, Table, admin, read, write
from hark.model import GroupStats, TrackStats

LAGGING_SECONDS = 300
DEAD_SECONDS = 86_400
"""Long, because engines record the last activity of a group only about once an hour."""

_PAGE = paging(MAX_LIST, MAX_LIST)
_QUEUE = NameParam("queue", "Return only consumer groups of this queue.")
_MIN_LAG = IntParam(
    "minLagSeconds", "Minimum age of the oldest unsettled message, in seconds.", 3600, 0, MAX_NUMBER // SECOND
)
_TRACKS = paging(1000, MAX_LIST).limit
_FORGET = BoolParam("deleteMetadata", "Also delete the stored start position of the group.", True)


async def list_groups(request: Request) -> Response:
    """List consumer groups. Returns one entry for each consumer group and queue."""
    query = query_of(request)
    limit, offset = _PAGE.of(query)
    groups = await broker_of(request).engine.group_stats(queue=_QUEUE.of(query))
    groups = [stats for stats in groups if identity_of(request).may_use(stats.queue)]
    moment = now()
    return reply([_group(stats, moment) for stats in groups[offset : offset + limit]])


async def list_lagging(request: Request) -> Response:
    """List lagging consumer groups.

    Returns the partitions in which the oldest unsettled message of a consumer group is older than `minLagSeconds`.
    """
    query = query_of(request)
    tracks = await _tracks(request, None, _MIN_LAG.of(query))
    moment = now()
    return reply([_lagging(track, moment, identity_of(request)) for track in tracks])


async def show_group(request: Request) -> Response:
    """Get a consumer group. Returns the position of the group in each partition, by queue name."""
    group = name_in_path(request, "group")
    moment = now()
    queues: dict[str, ShownTracks] = {}
    for track in await _tracks(request, group):
        shown = _track(track, moment, identity_of(request))
        queues.setdefault(track.queue, {"partitions": []})["partitions"].append(shown)
    return reply(queues)


async def _tracks(request: Request, group: str | None, min_lag_seconds: int = 0) -> list[TrackStats]:
    """Return positions of groups in partitions of permitted queues, up to the limit."""
    limit, identity = _TRACKS.of(query_of(request)), identity_of(request)
    # The store does not know permissions, so it is asked for more entries if some are left out afterwards.
    most = MAX_LIST if identity.restricted else limit
    tracks = await broker_of(request).engine.track_stats(group, min_lag_seconds=min_lag_seconds, limit=most)
    return [track for track in tracks if identity.may_use(track.queue)][:limit]


async def delete_group(request: Request) -> Response:
    """Delete a consumer group in all queues. If the group consumes again, it starts as a new group."""
    group = name_in_path(request, "group")
    forget = _FORGET.of(query_of(request))
    deleted = await broker_of(request).engine.delete_group(group, None, forget)
    answer: DeletedGroup = {
        "success": True,
        "consumerGroup": group,
        "deletedPartitions": deleted.partitions,
        "metadataDeleted": forget,
    }
    return reply(answer)


async def delete_group_of_queue(request: Request) -> Response:
    """Delete a consumer group of a queue. If the group consumes again, it starts as a new group."""
    group, queue = name_in_path(request, "group"), name_in_path(request, "queue")
    forget = _FORGET.of(query_of(request))
    deleted = await broker_of(request).engine.delete_group(group, queue, forget)
    answer: DeletedGroupOfQueue = {
        "success": True,
        "consumerGroup": group,
        "queueName": queue,
        "deletedPartitions": deleted.partitions,
        "metadataDeleted": forget,
    }
    return reply(answer)


class SubscriptionBody(msgspec.Struct, rename="camel"):
    """The new start position of a consumer group."""

    subscription_timestamp: str | int | None = None


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
    answer: Resubscribed = {
        "success": True,
        "consumerGroup": group,
        "newTimestamp": format_time_ms(since),
        "rowsUpdated": updated,
    }
    return reply(answer)


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
    answer: PausedGroup = {"success": True, "queue": queue, "consumerGroup": group, "paused": paused}
    return reply(answer)


async def purge_group(request: Request) -> Response:
    """Purge a consumer group of a queue.

    Settles all messages of the queue for this group, including leased messages. Other groups are not affected.
    """
    queue, group = name_in_path(request, "queue"), name_in_path(request, "group")
    engine = broker_of(request).engine
    if not await engine.group_stats(group, queue):
        raise NotFound("Consumer group not found", code="group_not_found")
    purged = await engine.purge(queue, group)
    answer: PurgedGroup = {"success": True, "queue": queue, "consumerGroup": group, "purged": purged}
    return reply(answer)


def _age_seconds(since: int | None, moment: int) -> float:
    return 0 if since is None else max(0, moment - since) / SECOND


def _group(stats: GroupStats, moment: int) -> ListedGroup:
    age = _age_seconds(stats.oldest_waiting, moment)
    since = stats.subscription.since
    # Messages are pending, none is leased, and no consumer was active for a day: the group has no consumers.
    idle = _age_seconds(stats.last_seen, moment) > DEAD_SECONDS
    dead = stats.lag > 0 and stats.leases == 0 and idle
    return {
        "name": stats.group,
        "topics": [stats.queue],
        "queueName": stats.queue,
        "members": stats.leases,
        "inFlight": stats.in_flight,
        "partitionsWithLag": stats.partitions_with_lag,
        "totalLag": stats.lag,
        "maxTimeLag": int(age),
        "state": "Dead" if dead else "Lagging" if age > LAGGING_SECONDS else "Stable",
        "subscriptionMode": stats.subscription.mode,
        "subscriptionTimestamp": None if since is None else format_time_ms(since),
        "subscriptionCreatedAt": format_time_ms(stats.created_at),
        "groupMode": stats.mode,
        "paused": stats.paused,
        "limits": stats.limits,
        "lastSeenAt": format_time_ms(stats.last_seen),
    }


def _lagging(track: TrackStats, moment: int, identity: Identity) -> LaggingTrack:
    age = _age_seconds(track.oldest_waiting, moment)
    return {
        "consumer_group": track.group,
        "queue_name": track.queue,
        "partition_name": track.partition,
        "partition_id": track.partition_id,
        "worker_id": shown_lease(identity, track.lease_id),
        "offset_lag": track.lag,
        "time_lag_seconds": int(age),
        "lag_hours": round(age / 3600, 2),
        "oldest_unconsumed_at": None if track.oldest_waiting is None else format_time_ms(track.oldest_waiting),
        "last_consumed_at": None if track.last_settled is None else format_time_ms(track.last_settled),
    }


def _track(track: TrackStats, moment: int, identity: Identity) -> ShownTrack:
    return {
        "partition": track.partition,
        "partitionId": track.partition_id,
        "workerId": shown_lease(identity, track.lease_id),
        "lastConsumedAt": None if track.last_settled is None else format_time_ms(track.last_settled),
        "totalConsumed": track.cursor,
        "offsetLag": track.lag,
        "timeLagSeconds": int(_age_seconds(track.oldest_waiting, moment)),
        "leaseActive": track.lease_id is not None,
    }


TABLE: Table = {
    "/api/v1/consumer-groups": {
        "GET": read(list_groups, Reach.LISTED, query=(*_PAGE, _QUEUE), answer=list[ListedGroup])
    },
    "/api/v1/consumer-groups/lagging": {
        "GET": read(list_lagging, Reach.LISTED, query=(_MIN_LAG, _TRACKS), answer=list[LaggingTrack])
    },
    "/api/v1/consumer-groups/{group}": {
        "GET": read(show_group, Reach.LISTED, query=(_TRACKS,), answer=dict[str, ShownTracks]),
        "DELETE": admin(delete_group, Reach.SERVER, query=(_FORGET,), answer=DeletedGroup),
    },
    "/api/v1/consumer-groups/{group}/subscription": {
        "POST": write(resubscribe, Reach.SERVER, body=SubscriptionBody, answer=Resubscribed)
    },
    "/api/v1/consumer-groups/{group}/queues/{queue}": {
        "DELETE": admin(delete_group_of_queue, Reach.PATH, query=(_FORGET,), answer=DeletedGroupOfQueue)
    },
    "/api/v1/resources/queues/{queue}/groups/{group}/pause": {
        "POST": write(pause_group, Reach.PATH, answer=PausedGroup, errors=(NO_GROUP,))
    },
    "/api/v1/resources/queues/{queue}/groups/{group}/resume": {
        "POST": write(resume_group, Reach.PATH, answer=PausedGroup, errors=(NO_GROUP,))
    },
    "/api/v1/resources/queues/{queue}/groups/{group}/purge": {
        "POST": write(purge_group, Reach.PATH, answer=PurgedGroup, errors=(NO_GROUP,))
    },
}
