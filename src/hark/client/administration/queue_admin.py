"""Administration of one queue: configure, inspect, pause, purge, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, Unpack, cast

import msgspec

from hark.client.administration.results import (
    ConfiguredQueue,
    Depth,
    PartitionSummary,
    QueueStats,
    WorkSettings,
    WorkStats,
)
from hark.client.calling import Caller, path
from hark.errors import InvalidInput
from hark.model import Limits, QueueOptions

_WORK = "/keyval/api/queue"


class QueueOptionsGiven(TypedDict, total=False):
    """The options of a queue, for `configure` and `change`. None is the same as not given."""

    lease_time: int | None
    """Seconds that a consumer holds messages after a pop. The default is 300."""
    retry_limit: int | None
    """Number of retries after the first attempt, before a message is dead-lettered. The default is 3."""
    retry_delay: int | None
    """Milliseconds before the first retry. The default is 0."""
    retry_multiplier: float | None
    """Factor by which each further retry delay grows. The default is 1."""
    retry_max_delay: int | None
    """Longest retry delay in milliseconds. The default is 3,600,000."""
    delayed_processing: int | None
    """Age in seconds that a message must have before it is delivered. The default is 0."""
    window_buffer: int | None
    """Deliver a partition after this many seconds without a push, after 10 times as many at the latest. The default
    is 0."""
    priority: int | None
    """Priority of the queue in pops over several queues; higher priorities are served first. The default is 0."""
    max_size: int | None
    """Maximum number of messages that the slowest group has not settled. Further pushes are rejected. 0, the
    default: no limit."""
    ttl: int | None
    """Seconds after which a message that was not delivered expires. 0, the default: never."""
    dead_letter_queue: bool | None
    """False: the queue keeps no dead letters at all. The default is True."""
    dlq_after_max_retries: bool | None
    """False: messages are dropped and counted after the last retry, not dead-lettered. The default is True."""
    retention_enabled: bool | None
    """Whether `retention_seconds` and `completed_retention_seconds` apply. The default is False."""
    retention_seconds: int | None
    """Age in seconds at which messages are removed, settled or not. 0, the default: never."""
    completed_retention_seconds: int | None
    """Age in seconds at which messages are removed that every group has settled. 0, the default: the server's
    setting."""
    max_wait_time_seconds: int | None
    """Age in seconds at which messages are removed that some group has not settled. 0, the default: never."""
    encryption_enabled: bool | None
    """Encrypt payloads at rest. The server needs an encryption key. The default is False."""
    max_in_flight: int | None
    """Maximum number of messages in flight, over all groups. 0, the default: no limit."""
    rate_limit: float | None
    """Maximum number of deliveries per second, over all groups. 0, the default: no limit."""
    rate_burst: int | None
    """Number of messages that can be delivered together after a pause. 0, the default: the number that `rate_limit`
    allows per second, at least 1."""
    drop_settled: bool | None
    """Remove messages as soon as every group has settled them. The default is False."""
    lock_duration: int | None
    """Milliseconds that a consumer of the key-value API holds a message. 0, the default: the server's setting."""


_WIRE_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(QueueOptions)}


class QueueAdmin:
    """Administration of one queue, `client.queue("orders").admin`."""

    def __init__(self, caller: Caller, name: str) -> None:
        if not name:
            raise InvalidInput("queue: must not be empty")
        self._caller = caller
        self.name = name

    # Options -----------------------------------------------------------------------------------------------

    async def configure(
        self, *, namespace: str | None = None, task: str | None = None, **options: Unpack[QueueOptionsGiven]
    ) -> ConfiguredQueue:
        """Create the queue, or replace its labels and all of its options.

        Options that you do not give get their default.
        """
        return await self._configure(namespace, task, wire_options(options))

    async def change(self, **options: Unpack[QueueOptionsGiven]) -> ConfiguredQueue:
        """Change these options and keep all others.

        Of two concurrent changes, one can overwrite the other.
        """
        given = wire_options(options)
        stats = await self.stats(limit=1)
        kept = cast(dict[str, object], msgspec.to_builtins(stats.options))
        return await self._configure(stats.namespace, stats.task, kept | given)

    async def limits(self) -> Limits:
        """The limits that all groups of the queue share. 0 means no limit."""
        options = (await self.stats(limit=1)).options
        return Limits(max_in_flight=options.max_in_flight, rate_limit=options.rate_limit, rate_burst=options.rate_burst)

    async def set_limits(
        self, *, max_in_flight: int | None = None, rate_limit: float | None = None, rate_burst: int | None = None
    ) -> Limits:
        """Change the given limits and keep all other options. 0 means no limit."""
        if rate_limit == 0 and rate_burst is None:
            rate_burst = 0  # A burst without a rate has no meaning, and the server rejects it.
        named = {"max_in_flight": max_in_flight, "rate_limit": rate_limit, "rate_burst": rate_burst}
        given = {name: value for name, value in named.items() if value is not None}
        options = (await self.change(**cast(QueueOptionsGiven, given))).options
        return Limits(max_in_flight=options.max_in_flight, rate_limit=options.rate_limit, rate_burst=options.rate_burst)

    async def _configure(
        self, namespace: str | None, task: str | None, options: Mapping[str, object]
    ) -> ConfiguredQueue:
        body = {"queue": self.name, "namespace": namespace, "task": task, "options": options}
        return await self._caller.read(ConfiguredQueue, "POST", path("configure"), body=body, safe=True)

    # Inspection --------------------------------------------------------------------------------------------

    async def stats(self, *, limit: int = 1000, offset: int = 0, search: str | None = None) -> QueueStats:
        """The queue with its message counts and options, and a page of its partitions."""
        query = {"limit": limit, "offset": offset, "search": search}
        return await self._caller.read(QueueStats, "GET", self._path(), query=query)

    async def partitions(
        self, *, limit: int = 1000, offset: int = 0, search: str | None = None
    ) -> tuple[PartitionSummary, ...]:
        """A page of the partitions of the queue. `search` matches a part of their names."""
        return (await self.stats(limit=limit, offset=offset, search=search)).partitions

    async def depth(self, group: str | None = None, *, limit: int = 10_000) -> Depth:
        """The backlog of a group. Without a group: of the group that is furthest behind."""
        query = {"group": group, "limit": limit}
        return await self._caller.read(Depth, "GET", self._path("depth"), query=query)

    # Actions -----------------------------------------------------------------------------------------------

    async def delete(self) -> bool:
        """Delete the queue with its messages, groups and dead letters. Returns whether the queue existed."""
        return (await self._caller.read(_Deleted, "DELETE", self._path())).existed

    async def pause(self) -> None:
        """Stop deliveries from the queue. Pushes and settlements still work."""
        await self._caller.call("POST", self._path("pause"), safe=True)

    async def resume(self) -> None:
        """Start deliveries from the queue again."""
        await self._caller.call("POST", self._path("resume"), safe=True)

    async def purge(self) -> int:
        """Remove all messages, also messages in flight. Returns their number. Dead letters stay.

        If the request is repeated after a lost reply, the number is that of the second request.
        """
        return (await self._caller.read(Purged, "POST", self._path("purge"), safe=True)).purged

    # The key-value API -------------------------------------------------------------------------------------

    async def work_stats(self) -> WorkStats:
        """Message counts of the default group, by state."""
        return await self._caller.read(WorkStats, "GET", f"{_WORK}/stats", query={"queue": self.name})

    async def work_settings(self) -> WorkSettings:
        """How long consumers of the key-value API hold a message."""
        return await self._caller.read(WorkSettings, "GET", f"{_WORK}/settings", query={"queue": self.name})

    async def set_lock_duration(self, milliseconds: int) -> WorkSettings:
        """Set how long consumers of the key-value API hold a message, in milliseconds. 0: the server's setting."""
        return await self._caller.read(
            WorkSettings,
            "PUT",
            f"{_WORK}/settings",
            query={"queue": self.name},
            body={"lockDuration": milliseconds},
        )

    def _path(self, *more: str) -> str:
        return path("resources", "queues", self.name, *more)


class Purged(msgspec.Struct):
    """Number of messages that were removed or settled."""

    purged: int


class _Deleted(msgspec.Struct):
    existed: bool


def wire_options(given: Mapping[str, object]) -> dict[str, object]:
    """Options by their API names. Unknown options are rejected, because the server would ignore them."""
    unknown = [name for name in given if name not in _WIRE_NAMES]
    if unknown:
        raise InvalidInput(f"{unknown[0]}: unknown queue option; expected one of {', '.join(_WIRE_NAMES)}")
    return {_WIRE_NAMES[name]: value for name, value in given.items() if value is not None}
