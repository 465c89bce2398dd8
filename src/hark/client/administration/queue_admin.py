"""One queue as an administrator handles it: configure, look, pause, purge, delete."""

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
    """The options of a queue; `hark.model.QueueOptions` says what each means and what its unit is."""

    lease_time: int | None
    retry_limit: int | None
    retry_delay: int | None
    retry_multiplier: float | None
    retry_max_delay: int | None
    delayed_processing: int | None
    window_buffer: int | None
    priority: int | None
    max_size: int | None
    ttl: int | None
    dead_letter_queue: bool | None
    dlq_after_max_retries: bool | None
    retention_enabled: bool | None
    retention_seconds: int | None
    completed_retention_seconds: int | None
    max_wait_time_seconds: int | None
    encryption_enabled: bool | None
    max_in_flight: int | None
    rate_limit: float | None
    rate_burst: int | None
    drop_settled: bool | None
    lock_duration: int | None


_WIRE_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(QueueOptions)}


class QueueAdmin:
    """The verbs about one queue as a whole."""

    def __init__(self, caller: Caller, name: str) -> None:
        if not name:
            raise InvalidInput("queue: must not be empty")
        self._caller = caller
        self.name = name

    # Options -----------------------------------------------------------------------------------------------

    async def configure(
        self, *, namespace: str | None = None, task: str | None = None, **options: Unpack[QueueOptionsGiven]
    ) -> ConfiguredQueue:
        """Make the queue, or replace its labels and all its options: what is not given gets its default."""
        return await self._configure(namespace, task, wire_options(options))

    async def change(self, **options: Unpack[QueueOptionsGiven]) -> ConfiguredQueue:
        """Change these options and keep all else. Of two who do so at once, one may undo the other's change."""
        given = wire_options(options)
        stats = await self.stats(limit=1)
        kept = cast(dict[str, object], msgspec.to_builtins(stats.options))
        return await self._configure(stats.namespace, stats.task, kept | given)

    async def limits(self) -> Limits:
        """How much all groups of the queue together may take; 0: no bound."""
        options = (await self.stats(limit=1)).options
        return Limits(max_in_flight=options.max_in_flight, rate_limit=options.rate_limit, rate_burst=options.rate_burst)

    async def set_limits(
        self, *, max_in_flight: int | None = None, rate_limit: float | None = None, rate_burst: int | None = None
    ) -> Limits:
        """Change what is given of the limits, and keep all other options; 0: no bound."""
        if rate_limit == 0 and rate_burst is None:
            rate_burst = 0  # One that was set before has no meaning without a rate, and the server refuses it.
        named = {"max_in_flight": max_in_flight, "rate_limit": rate_limit, "rate_burst": rate_burst}
        given = {name: value for name, value in named.items() if value is not None}
        options = (await self.change(**cast(QueueOptionsGiven, given))).options
        return Limits(max_in_flight=options.max_in_flight, rate_limit=options.rate_limit, rate_burst=options.rate_burst)

    async def _configure(
        self, namespace: str | None, task: str | None, options: Mapping[str, object]
    ) -> ConfiguredQueue:
        body = {"queue": self.name, "namespace": namespace, "task": task, "options": options}
        return await self._caller.read(ConfiguredQueue, "POST", path("configure"), body=body, safe=True)

    # Looking -----------------------------------------------------------------------------------------------

    async def stats(self, *, limit: int = 1000, offset: int = 0, search: str | None = None) -> QueueStats:
        """The queue with its counts and options, and a page of its partitions."""
        query = {"limit": limit, "offset": offset, "search": search}
        return await self._caller.read(QueueStats, "GET", self._path(), query=query)

    async def partitions(
        self, *, limit: int = 1000, offset: int = 0, search: str | None = None
    ) -> tuple[PartitionSummary, ...]:
        """A page of its partitions; `search` is a part of their names."""
        return (await self.stats(limit=limit, offset=offset, search=search)).partitions

    async def depth(self, group: str | None = None, *, limit: int = 10_000) -> Depth:
        """What a group, or the one that is furthest behind, has left to do."""
        query = {"group": group, "limit": limit}
        return await self._caller.read(Depth, "GET", self._path("depth"), query=query)

    # Doing -------------------------------------------------------------------------------------------------

    async def delete(self) -> bool:
        """Remove the queue with messages, groups and dead letters; whether it was there."""
        return (await self._caller.read(_Deleted, "DELETE", self._path())).existed

    async def pause(self) -> None:
        """Stop deliveries; pushes and settlements go on."""
        await self._caller.call("POST", self._path("pause"), safe=True)

    async def resume(self) -> None:
        """Let deliveries go on."""
        await self._caller.call("POST", self._path("resume"), safe=True)

    async def purge(self) -> int:
        """Remove all messages, held ones too, and say how many; dead letters stay.

        Sent again after a lost reply it counts what the second one removed.
        """
        return (await self._caller.read(Purged, "POST", self._path("purge"), safe=True)).purged

    # As the key-value API sees it --------------------------------------------------------------------------

    async def work_stats(self) -> WorkStats:
        """How many messages of the default group are in which state."""
        return await self._caller.read(WorkStats, "GET", f"{_WORK}/stats", query={"queue": self.name})

    async def work_settings(self) -> WorkSettings:
        """How long consumers of the key-value API hold a message."""
        return await self._caller.read(WorkSettings, "GET", f"{_WORK}/settings", query={"queue": self.name})

    async def set_lock_duration(self, milliseconds: int) -> WorkSettings:
        """Say how long consumers of the key-value API hold a message from now on; 0: as the server says."""
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
    """How many messages were removed or settled."""

    purged: int


class _Deleted(msgspec.Struct):
    existed: bool


def wire_options(given: Mapping[str, object]) -> dict[str, object]:
    """Options by the names of the wire. An unknown one is refused: a server would ignore it."""
    unknown = [name for name in given if name not in _WIRE_NAMES]
    if unknown:
        raise InvalidInput(f"{unknown[0]}: no such queue option; there are {', '.join(_WIRE_NAMES)}")
    return {_WIRE_NAMES[name]: value for name, value in given.items() if value is not None}
