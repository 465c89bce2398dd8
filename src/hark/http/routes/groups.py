"""Consumer groups: list, show, delete, resubscribe, and a group of one queue: pause, resume, purge."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.clock import SECOND
from hark.errors import InvalidInput, NotFound
from hark.http.checks import MAX_NUMBER, bool_param, format_time_ms, int_param, name_param, parse_moment
from hark.http.routes.requests import MAX_LIST, broker_of, name_in_path, now, page_params, query_of, read_json, reply
from hark.http.routes.table import Table
from hark.model import GroupStats, TrackStats

LAGGING_SECONDS = 300
DEAD_SECONDS = 86_400
"""Engines note only about once an hour that a group was seen."""


async def list_groups(request: Request) -> Response:
    """One entry per group and queue."""
    query = query_of(request)
    limit, offset = page_params(query, MAX_LIST, MAX_LIST)
    groups = await broker_of(request).engine.group_stats(queue=name_param(query, "queue"))
    moment = now()
    return reply([_group(stats, moment) for stats in groups[offset : offset + limit]])


async def list_lagging(request: Request) -> Response:
    """Places of groups in partitions where a message has waited long."""
    query = query_of(request)
    seconds = int_param(query, "minLagSeconds", 3600, 0, MAX_NUMBER // SECOND)
    limit, _ = page_params(query, 1000, MAX_LIST)
    tracks = await broker_of(request).engine.track_stats(min_lag_seconds=seconds, limit=limit)
    moment = now()
    return reply([_lagging(track, moment) for track in tracks])


async def show_group(request: Request) -> Response:
    """A group's place in every partition, by queue."""
    group = name_in_path(request, "group")
    limit, _ = page_params(query_of(request), 1000, MAX_LIST)
    moment = now()
    queues: dict[str, dict[str, list[object]]] = {}
    for track in await broker_of(request).engine.track_stats(group, limit=limit):
        queues.setdefault(track.queue, {"partitions": []})["partitions"].append(_track(track, moment))
    return reply(queues)


async def delete_group(request: Request) -> Response:
    """Forget a group in all queues."""
    group = name_in_path(request, "group")
    forget = bool_param(query_of(request), "deleteMetadata", True)
    deleted = await broker_of(request).engine.delete_group(group, None, forget)
    return reply(
        {
            "success": True,
            "consumerGroup": group,
            "deletedPartitions": deleted.partitions,
            "metadataDeleted": forget,
        }
    )


async def delete_group_of_queue(request: Request) -> Response:
    """Forget a group in one queue."""
    group, queue = name_in_path(request, "group"), name_in_path(request, "queue")
    forget = bool_param(query_of(request), "deleteMetadata", True)
    deleted = await broker_of(request).engine.delete_group(group, queue, forget)
    return reply(
        {
            "success": True,
            "consumerGroup": group,
            "queueName": queue,
            "deletedPartitions": deleted.partitions,
            "metadataDeleted": forget,
        }
    )


class SubscriptionBody(msgspec.Struct, rename="camel"):
    """Where a group is to start in partitions that it has not touched yet."""

    subscription_timestamp: str | int | None = None


async def resubscribe(request: Request) -> Response:
    """Change the stored start of a group; places that it has already stay."""
    group = name_in_path(request, "group")
    body = await read_json(request, SubscriptionBody, "subscription")
    if body.subscription_timestamp is None:
        raise InvalidInput("subscriptionTimestamp is required")
    since = parse_moment(body.subscription_timestamp, "subscriptionTimestamp")
    updated = await broker_of(request).engine.resubscribe(group, since)
    return reply(
        {
            "success": True,
            "consumerGroup": group,
            "newTimestamp": format_time_ms(since),
            "rowsUpdated": updated,
        }
    )


async def pause_group(request: Request) -> Response:
    """Stop deliveries of a queue to one group."""
    return await _set_paused(request, True)


async def resume_group(request: Request) -> Response:
    """Let deliveries of a queue to one group go on."""
    return await _set_paused(request, False)


async def _set_paused(request: Request, paused: bool) -> Response:
    queue, group = name_in_path(request, "queue"), name_in_path(request, "group")
    if not await broker_of(request).engine.pause(queue, group, paused):
        raise NotFound("Consumer group not found", code="group_not_found")
    return reply({"success": True, "queue": queue, "consumerGroup": group, "paused": paused})


async def purge_group(request: Request) -> Response:
    """Settle everything that a group has open in a queue; other groups keep it."""
    queue, group = name_in_path(request, "queue"), name_in_path(request, "group")
    engine = broker_of(request).engine
    if not await engine.group_stats(group, queue):
        raise NotFound("Consumer group not found", code="group_not_found")
    purged = await engine.purge(queue, group)
    return reply({"success": True, "queue": queue, "consumerGroup": group, "purged": purged})


def _age_seconds(since: int | None, moment: int) -> float:
    return 0 if since is None else max(0, moment - since) / SECOND


def _group(stats: GroupStats, moment: int) -> dict[str, object]:
    age = _age_seconds(stats.oldest_waiting, moment)
    since = stats.subscription.since
    # Messages wait, nobody holds any, and nobody came for long: the group has no consumers any more.
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


def _lagging(track: TrackStats, moment: int) -> dict[str, object]:
    age = _age_seconds(track.oldest_waiting, moment)
    return {
        "consumer_group": track.group,
        "queue_name": track.queue,
        "partition_name": track.partition,
        "partition_id": track.partition_id,
        "worker_id": track.lease_id,
        "offset_lag": track.lag,
        "time_lag_seconds": int(age),
        "lag_hours": round(age / 3600, 2),
        "oldest_unconsumed_at": None if track.oldest_waiting is None else format_time_ms(track.oldest_waiting),
        "last_consumed_at": None if track.last_settled is None else format_time_ms(track.last_settled),
    }


def _track(track: TrackStats, moment: int) -> dict[str, object]:
    return {
        "partition": track.partition,
        "partitionId": track.partition_id,
        "workerId": track.lease_id,
        "lastConsumedAt": None if track.last_settled is None else format_time_ms(track.last_settled),
        "totalConsumed": track.cursor,
        "offsetLag": track.lag,
        "timeLagSeconds": int(_age_seconds(track.oldest_waiting, moment)),
        "leaseActive": track.lease_id is not None,
    }


TABLE: Table = {
    "/api/v1/consumer-groups": {"GET": list_groups},
    "/api/v1/consumer-groups/lagging": {"GET": list_lagging},
    "/api/v1/consumer-groups/{group}": {"GET": show_group, "DELETE": delete_group},
    "/api/v1/consumer-groups/{group}/subscription": {"POST": resubscribe},
    "/api/v1/consumer-groups/{group}/queues/{queue}": {"DELETE": delete_group_of_queue},
    "/api/v1/resources/queues/{queue}/groups/{group}/pause": {"POST": pause_group},
    "/api/v1/resources/queues/{queue}/groups/{group}/resume": {"POST": resume_group},
    "/api/v1/resources/queues/{queue}/groups/{group}/purge": {"POST": purge_group},
}
