"""A cache of the namespace and task of queues, for consumers that wait by label."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hark.broker.delivery.metrics import Source
from hark.broker.timers import Timer, Timers
from hark.clock import SECOND
from hark.engine.api import Engine
from hark.errors import HarkError
from hark.model import Hint

log = logging.getLogger(__name__)

_TRUSTED = 30 * SECOND
"""How long cached labels are valid on a shared store: another server can change them without a notification."""

_AGAIN = SECOND
"""Pause before an unavailable store is asked again."""


class Labels:
    """A cache of labels. A hint for a queue that is not in it waits until the store has answered."""

    def __init__(self, engine: Engine, timers: Timers, again: Callable[[Hint, Source], None]) -> None:
        self._engine = engine
        self._timers = timers
        self._again = again
        self._known: dict[str, tuple[str, str, int]] = {}
        self._asked: dict[str, list[tuple[Hint, Source]]] = {}
        self._changes = 0
        """Number of removals from the cache: a request from before a removal can be out of date."""
        self._task: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        """Rings when the store is asked again that was away."""

    def of(self, queue: str, hint: Hint, source: Source) -> tuple[str, str] | None:
        """The namespace and the task; None: they are asked for, and the hint is repeated when they are known."""
        known = self._known.get(queue)
        if known is not None and (not self._engine.shared or self._timers.now() < known[2]):
            return known[0], known[1]
        self._asked.setdefault(queue, []).append((hint, source))
        if self._task is None and self._timer is None:
            self._begin()
        return None

    def forget(self, queue: str) -> None:
        """They may have changed."""
        self._known.pop(queue, None)
        self._changes += 1

    async def close(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._ask())

    async def _ask(self) -> None:
        while self._asked:
            asked, changes = dict(self._asked), self._changes
            try:
                infos = await self._engine.queue_infos(list(asked))
            except HarkError as error:
                # Keep the hints: no other hint would notify the waiting consumers.
                log.warning("cannot read namespace and task of %d queues; retrying every second: %s", len(asked), error)
                self._timer = self._timers.at(self._timers.now() + _AGAIN, self._begin)
                break
            if changes != self._changes:
                continue
            for queue in asked:
                del self._asked[queue]
            until = self._timers.now() + _TRUSTED
            for info in infos:
                self._known[info.name] = info.namespace, info.task, until
                for hint, source in asked[info.name]:
                    self._again(hint, source)
        self._task = None
