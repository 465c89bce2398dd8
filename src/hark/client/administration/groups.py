"""Administration of consumer groups: list, inspect, seek, pause, limit, delete."""

from __future__ import annotations

from datetime import datetime

import msgspec

from hark.client.administration.queue_admin import Purged
from hark.client.administration.results import (
    GroupDeleted,
    GroupPlace,
    GroupSummary,
    LaggingPlace,
    Sought,
    SubscriptionMoved,
)
from hark.client.calling import Caller, path
from hark.client.parameters import moment
from hark.errors import InvalidInput
from hark.model import Limits


class Groups:
    """Administration of consumer groups, `client.groups`. The name of the default group is `hark.model.QUEUE_MODE`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # Inspection --------------------------------------------------------------------------------------------

    async def list(self, queue: str | None = None, *, limit: int = 10_000, offset: int = 0) -> list[GroupSummary]:
        """List groups, one entry per group and queue."""
        query = {"queue": queue, "limit": limit, "offset": offset}
        return await self._caller.read(list[GroupSummary], "GET", path("consumer-groups"), query=query)

    async def get(self, name: str, *, limit: int = 1000) -> dict[str, tuple[GroupPlace, ...]]:
        """The position of a group in each partition, by queue. Empty for an unknown group."""
        route = path("consumer-groups", name)
        queues = await self._caller.read(dict[str, _Places], "GET", route, query={"limit": limit})
        return {queue: places.partitions for queue, places in queues.items()}

    async def lagging(self, *, min_lag_seconds: int = 3600, limit: int = 1000) -> tuple[LaggingPlace, ...]:
        """Partitions in which a message has waited at least this many seconds for a group."""
        query = {"minLagSeconds": min_lag_seconds, "limit": limit}
        return await self._caller.read(tuple[LaggingPlace, ...], "GET", path("consumer-groups", "lagging"), query=query)

    # Positions ---------------------------------------------------------------------------------------------

    async def seek(
        self,
        name: str,
        queue: str,
        *,
        to_end: bool = False,
        timestamp: datetime | None = None,
        offset: int | None = None,
        partition: str | None = None,
    ) -> Sought:
        """Move the position of a group in a queue, or in one of its partitions. Its leases there become invalid.

        Give exactly one of `to_end=True` (skip all messages), `timestamp` (continue after this time) and `offset`
        (deliver this message next).
        """
        if sum((to_end, timestamp is not None, offset is not None)) != 1:
            raise InvalidInput("seek: expected exactly one of to_end, timestamp, offset")
        body: dict[str, object] = {"toEnd": True} if to_end else {"offset": offset}
        if timestamp is not None:
            body = {"timestamp": moment(timestamp, "timestamp")}
        place = () if partition is None else ("partitions", partition)
        route = path("consumer-groups", name, "queues", queue, *place, "seek")
        moved = await self._caller.read(_Sought, "POST", route, body=body, safe=True)
        return Sought(partitions=moved.partitions_updated or int(moved.updated), next_offset=moved.next_offset)

    async def set_subscription(self, name: str, timestamp: datetime) -> SubscriptionMoved:
        """Set where the group starts in partitions that it has not consumed from yet."""
        return await self._caller.read(
            SubscriptionMoved,
            "POST",
            path("consumer-groups", name, "subscription"),
            body={"subscriptionTimestamp": moment(timestamp, "timestamp")},
            safe=True,
        )

    async def delete(self, name: str, queue: str | None = None, *, delete_metadata: bool = True) -> GroupDeleted:
        """Delete the positions of a group and invalidate its leases, in one queue or in all queues.

        `delete_metadata=False` keeps where the group started.
        """
        place = () if queue is None else ("queues", queue)
        return await self._caller.read(
            GroupDeleted,
            "DELETE",
            path("consumer-groups", name, *place),
            query={"deleteMetadata": delete_metadata},
        )

    # A group in one queue ----------------------------------------------------------------------------------

    async def pause(self, name: str, queue: str) -> None:
        """Stop deliveries from the queue to this group."""
        await self._caller.call("POST", _of_queue(name, queue, "pause"), safe=True)

    async def resume(self, name: str, queue: str) -> None:
        """Start deliveries from the queue to this group again."""
        await self._caller.call("POST", _of_queue(name, queue, "resume"), safe=True)

    async def purge(self, name: str, queue: str) -> int:
        """Settle all open messages of the group in this queue. Returns their number. Other groups keep the messages."""
        return (await self._caller.read(Purged, "POST", _of_queue(name, queue, "purge"), safe=True)).purged

    async def limits(self, name: str, queue: str) -> Limits:
        """The limits of the group in this queue. 0 means no limit."""
        return (await self._caller.read(_Limited, "GET", _limits(name, queue))).limits

    async def set_limits(
        self,
        name: str,
        queue: str,
        *,
        max_in_flight: int | None = None,
        rate_limit: float | None = None,
        rate_burst: int | None = None,
    ) -> Limits:
        """Replace all three limits. A limit that you do not give is removed."""
        body = {"maxInFlight": max_in_flight, "rateLimit": rate_limit, "rateBurst": rate_burst}
        return (await self._caller.read(_Limited, "PUT", _limits(name, queue), body=body)).limits


def _of_queue(name: str, queue: str, verb: str) -> str:
    return path("resources", "queues", queue, "groups", name, verb)


def _limits(name: str, queue: str) -> str:
    return path("consumer-groups", name, "queues", queue, "limits")


class _Places(msgspec.Struct):
    partitions: tuple[GroupPlace, ...]


class _Limited(msgspec.Struct):
    limits: Limits


class _Sought(msgspec.Struct, rename="camel"):
    """The response to a seek in a queue or in a partition."""

    partitions_updated: int = 0
    updated: bool = False
    next_offset: int | None = None
