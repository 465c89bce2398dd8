"""Background tasks of a server: expiry, retention, cleanup, inbox, maintenance flags and readiness."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from hark.broker.tallies import EngineCalls, Operations
from hark.clock import SECOND, Clock
from hark.engine.api import Engine, Inbox, NoteMoved, Seal
from hark.errors import HarkError
from hark.model import DeadLetterFilter
from hark.prometheus import CALL_SECONDS, Histogram
from hark.settings import Settings

log = logging.getLogger(__name__)

_STEP = 1000
_LONGEST_SLEEP = 1.0
_INBOX_PAUSE = 1.0
_FLAGS_INTERVAL = 1.0
_LATENESS_INTERVAL = 0.5
DEAD_LETTERS_AT_ONCE = 500
"""Maximum number of dead letters that one step of retention deletes, because pushes wait for it."""


async def keep_cleaning(engine: Engine, interval: float, operations: Operations) -> None:
    """Remove expired locks and keys every interval, in small steps. They have no effect after their expiry."""
    while True:
        await asyncio.sleep(interval)
        try:
            with operations.measure("cleanup"):
                while (await engine.expire(_STEP)).leases >= _STEP:
                    pass
                while await engine.sweep_keys(_STEP) >= _STEP:
                    pass
        except HarkError as error:
            log.error("cannot remove expired locks and keys; retrying in %s s: %s", interval, error)


async def keep_expiring(engine: Engine, clock: Clock) -> None:
    """Expire leases. A lease that is made during a pause is noticed within a second, or by the next call to it."""
    while True:
        sleep = _LONGEST_SLEEP
        try:
            expired = await engine.expire()
            if expired.next_due is not None:
                sleep = min(sleep, max(0.0, (expired.next_due - clock.now()) / SECOND))
        except HarkError as error:
            log.log(level_of(error), "cannot expire leases; retrying every second: %s", error)
        await asyncio.sleep(sleep)


def level_of(error: HarkError) -> int:
    """The level at which to log a failure that is tried again. The log has a failure of the store already."""
    return logging.DEBUG if error.code == "store_unavailable" else logging.ERROR


async def keep_moving(
    inbox: Inbox, seal: Seal, note: NoteMoved, learn: Callable[[], Awaitable[None]], is_stopped: Callable[[], bool]
) -> None:
    """Move messages from the inbox of the store as they are committed. `learn` reads which queues are encrypted."""
    async with inbox.listening():
        while True:
            await inbox.wait()
            try:
                if is_stopped():
                    await asyncio.sleep(_INBOX_PAUSE)
                elif await inbox.move(seal, note):
                    await learn()
            except HarkError as error:
                log.log(level_of(error), "cannot move messages from the inbox; retrying every second: %s", error)
                await asyncio.sleep(_INBOX_PAUSE)


async def keep_learning(refresh: Callable[[], Awaitable[None]]) -> None:
    """Read the flags once a second. While the store is unavailable they keep their values."""
    while True:
        await asyncio.sleep(_FLAGS_INTERVAL)
        try:
            await refresh()
        except HarkError as error:
            log.debug("cannot read the maintenance flags; retrying: %s", error)


async def keep_measuring(lateness: Histogram, clock: Clock) -> None:
    """Sleep for a known time, repeatedly, and record how much longer it took."""
    while True:
        started = clock.now()
        await asyncio.sleep(_LATENESS_INTERVAL)
        lateness.add(max(0.0, (clock.now() - started) / SECOND - _LATENESS_INTERVAL))


async def remove_dead_letters(engine: Engine, now: int) -> int:
    """Remove dead letters after the retention time of their queue. Returns their number."""
    removed = 0
    for queue in await engine.queue_infos():
        if kept := queue.options.dead_letter_retention_seconds:
            old = DeadLetterFilter(queue=queue.name, until=now - kept * SECOND)
            while step := await engine.delete_dead_letters(old, DEAD_LETTERS_AT_ONCE):
                removed += step
    return removed


async def keep_collecting(
    engine: Engine, interval: float, clock: Clock, clean_unique: Callable[[], Awaitable[object]]
) -> None:
    """Run retention every interval, in small steps, so that requests can run between them.

    `clean_unique` removes the records of unique keys that are free.
    """
    while True:
        await asyncio.sleep(interval)
        removed = dead = 0
        try:
            dead = await remove_dead_letters(engine, clock.now())
            more = True
            while more:
                step = await engine.collect()
                removed += step.removed
                more = step.more
            await clean_unique()
        except HarkError as error:
            log.error("retention failed; retrying in %s s: %s", interval, error)
        if dead:
            log.info("retention removed %d dead letters", dead, extra={"fields": {"removed": dead}})
        if removed:
            log.info("retention removed %d messages", removed, extra={"fields": {"removed": removed}})


LATELY_SECONDS = 5.0
"""Maximum age of a response that still counts."""
PING_SECONDS = 5.0


class Readiness:
    """Knows when the store last responded, and pings it only if that is too long ago."""

    def __init__(self, engine: Engine, calls: EngineCalls) -> None:
        self._engine = engine
        self._calls = calls
        self._check: asyncio.Task[str | None] | None = None
        self.stopping = False
        """The server is shutting down: clients should use another server if they can."""

    async def problem(self) -> str | None:
        """Why this server should get no requests now, or None if it is ready."""
        if self.stopping:
            return "the server is shutting down"
        answered = self._calls.answered_at
        if answered is not None and self._calls.timer() - answered <= LATELY_SECONDS:
            return None
        return await self.reach()

    async def reach(self) -> str | None:
        """Ping the store regardless of its last response. Returns why it cannot be reached, or None."""
        if self._check is None or self._check.done():
            # All callers share one ping: health checks need no token and must not overload a store in trouble.
            self._check = asyncio.create_task(self._ask())
        return await asyncio.shield(self._check)

    async def _ask(self) -> str | None:
        try:
            async with asyncio.timeout(PING_SECONDS):
                await self._engine.ping()
        except TimeoutError:
            return f"the store did not respond within {PING_SECONDS:g} seconds"
        except HarkError as error:
            return error.text
        return None


class Duties:
    """The background tasks of a server."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self.lateness = Histogram(CALL_SECONDS)
        """Seconds that the event loop was late."""

    def begin(
        self,
        engine: Engine,
        settings: Settings,
        clock: Clock,
        operations: Operations,
        refresh_flags: Callable[[], Awaitable[None]],
        clean_unique: Callable[[], Awaitable[object]],
    ) -> None:
        """Start the tasks that the settings and the store need."""
        duties = {
            "expiry": keep_expiring(engine, clock),
            "retention": keep_collecting(engine, settings.retention.interval_ms / 1000, clock, clean_unique),
            "lateness": keep_measuring(self.lateness, clock),
        }
        if settings.queue.cleanup_interval:
            duties["cleanup"] = keep_cleaning(engine, settings.queue.cleanup_interval / 1000, operations)
        if engine.shared:
            duties["flags"] = keep_learning(refresh_flags)
        self._tasks = [asyncio.create_task(duty, name=name) for name, duty in duties.items()]

    def add(self, name: str, duty: Coroutine[Any, Any, None]) -> None:
        """Start one more task."""
        self._tasks.append(asyncio.create_task(duty, name=name))

    async def end(self) -> None:
        """Stop the tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
