"""Administration of one queue: configure, inspect, pause, purge, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, Unpack, cast

import msgspec

from hark.api import operations
from hark.api.options import limits_of
from hark.api.types.keys import WorkSettings, WorkStats
from hark.api.types.queues import ConfiguredQueue, Depth, ShownPartition, ShownQueue
from hark.client.calling import Caller
from hark.errors import InvalidInput, did_you_mean
from hark.model import Limits, QueueOptions


class QueueOptionsGiven(TypedDict, total=False):
    """The options of a queue, for `configure` and `change`. None is the same as not given.

    `hark.api.options.QueueOptions` says what they mean, their defaults and their bounds.
    """

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
    dead_letter_retention_seconds: int | None
    encryption_enabled: bool | None
    max_in_flight: int | None
    rate_limit: float | None
    rate_burst: int | None
    drop_settled: bool | None
    lock_duration: int | None


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
        return limits_of(options)

    async def set_limits(
        self, *, max_in_flight: int | None = None, rate_limit: float | None = None, rate_burst: int | None = None
    ) -> Limits:
        """Change the given limits and keep all other options. 0 means no limit."""
        if rate_limit == 0 and rate_burst is None:
            rate_burst = 0  # A burst without a rate has no meaning, and the server rejects it.
        named = {"max_in_flight": max_in_flight, "rate_limit": rate_limit, "rate_burst": rate_burst}
        given = {name: value for name, value in named.items() if value is not None}
        options = (await self.change(**cast(QueueOptionsGiven, given))).options
        return limits_of(options)

    async def _configure(
        self, namespace: str | None, task: str | None, options: Mapping[str, object]
    ) -> ConfiguredQueue:
        body = {"queue": self.name, "namespace": namespace, "task": task, "options": options}
        configured = await self._caller.ask(operations.CONFIGURE, body=body, safe=True)
        if configured.ignored_options:
            names = ", ".join(configured.ignored_options)
            text = f"the server does not know these options and configured the queue without them: {names}"
            raise InvalidInput(f"{text}; leave them out or update the server")
        return configured

    # Inspection --------------------------------------------------------------------------------------------

    async def stats(self, *, limit: int = 1000, offset: int = 0, search: str | None = None) -> ShownQueue:
        """The queue with its message counts and options, and a page of its partitions."""
        query = {"limit": limit, "offset": offset, "search": search}
        return await self._caller.ask(operations.SHOW_QUEUE, self.name, query=query)

    async def partitions(
        self, *, limit: int = 1000, offset: int = 0, search: str | None = None
    ) -> tuple[ShownPartition, ...]:
        """A page of the partitions of the queue. `search` matches a part of their names."""
        return (await self.stats(limit=limit, offset=offset, search=search)).partitions

    async def depth(self, group: str | None = None, *, limit: int = 10_000) -> Depth:
        """The backlog of a group. Without a group: of the group that is furthest behind."""
        query = {"group": group, "limit": limit}
        return await self._caller.ask(operations.SHOW_DEPTH, self.name, query=query)

    # Actions -----------------------------------------------------------------------------------------------

    async def delete(self) -> bool:
        """Delete the queue with its messages, groups and dead letters. Returns whether the queue existed."""
        return (await self._caller.ask(operations.DELETE_QUEUE, self.name)).existed

    async def pause(self) -> None:
        """Stop deliveries from the queue. Pushes and settlements still work."""
        await self._caller.send(operations.PAUSE_QUEUE, self.name, safe=True)

    async def resume(self) -> None:
        """Start deliveries from the queue again."""
        await self._caller.send(operations.RESUME_QUEUE, self.name, safe=True)

    async def purge(self) -> int:
        """Remove all messages, also messages in flight. Returns their number. Dead letters stay.

        If the request is repeated after a lost reply, the number is that of the second request.
        """
        return (await self._caller.ask(operations.PURGE_QUEUE, self.name, safe=True)).purged

    # The key-value API -------------------------------------------------------------------------------------

    async def work_stats(self) -> WorkStats:
        """Message counts of the default group, by state."""
        return await self._caller.ask(operations.KEYVAL_SHOW_STATS, query={"queue": self.name})

    async def work_settings(self) -> WorkSettings:
        """How long consumers of the key-value API hold a message."""
        return await self._caller.ask(operations.KEYVAL_SHOW_SETTINGS, query={"queue": self.name})

    async def set_lock_duration(self, milliseconds: int) -> WorkSettings:
        """Set how long consumers of the key-value API hold a message, in milliseconds. 0: the server's setting."""
        return await self._caller.ask(
            operations.KEYVAL_CHANGE_SETTINGS, query={"queue": self.name}, body={"lockDuration": milliseconds}
        )


def wire_options(given: Mapping[str, object]) -> dict[str, object]:
    """Options by their API names. Unknown options are rejected, because the server would ignore them."""
    unknown = [name for name in given if name not in _WIRE_NAMES]
    if unknown:
        hint = did_you_mean(unknown[0], _WIRE_NAMES) or f"; expected one of {', '.join(_WIRE_NAMES)}"
        raise InvalidInput(f"{unknown[0]}: unknown queue option{hint}")
    return {_WIRE_NAMES[name]: value for name, value in given.items() if value is not None}
