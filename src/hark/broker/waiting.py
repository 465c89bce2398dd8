"""Pops that wait: who is to look again when a hint arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hark.errors import Overloaded
from hark.model import Hint, PopRequest


class Waiter:
    """One waiting pop. A hint that arrives while it looks is not lost: the next wait returns at once."""

    def __init__(self) -> None:
        self._hinted = asyncio.Event()

    def wake(self) -> None:
        """Say that there may be something."""
        self._hinted.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for a hint; False when the time was up first."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._hinted.wait()
        except TimeoutError:
            return False
        self._hinted.clear()
        return True


class WaitingRoom:
    """All waiting pops of this server, found by queue and group."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._by_queue: dict[str, dict[str, set[Waiter]]] = {}
        self._by_label: set[Waiter] = set()
        self._count = 0
        self._closed = False

    def __len__(self) -> int:
        return self._count

    @property
    def closed(self) -> bool:
        """Whether nobody may wait any longer."""
        return self._closed

    @contextmanager
    def enter(self, request: PopRequest) -> Iterator[Waiter]:
        """Register a waiter before its first look, so that no hint can fall between look and wait."""
        if self._count >= self._max_waiting:
            raise Overloaded(
                f"{self._count} pops are waiting already; try again shortly or raise limits.max_waiting",
                code="too_many_waiting",
            )
        waiter = Waiter()
        self._count += 1
        if request.queue is None:
            self._by_label.add(waiter)
        else:
            self._by_queue.setdefault(request.queue, {}).setdefault(request.group, set()).add(waiter)
        try:
            yield waiter
        finally:
            self._count -= 1
            self._leave(request, waiter)

    def _leave(self, request: PopRequest, waiter: Waiter) -> None:
        if request.queue is None:
            self._by_label.discard(waiter)
            return
        groups = self._by_queue[request.queue]
        groups[request.group].discard(waiter)
        if not groups[request.group]:
            del groups[request.group]
        if not groups:
            del self._by_queue[request.queue]

    def hint(self, hints: Sequence[Hint]) -> None:
        """Wake those whom the hints concern."""
        if not self._count:
            return
        for hint in hints:
            groups = self._by_queue.get(hint.queue)
            if not groups:
                continue
            if hint.group is None:
                for waiters in groups.values():
                    _wake(waiters)
            else:
                _wake(groups.get(hint.group, ()))
        if hints:
            _wake(self._by_label)

    def close(self) -> None:
        """Wake everybody for the last time."""
        self._closed = True
        self.wake_all()

    def wake_all(self) -> None:
        """Let everybody look again."""
        _wake(self._by_label)
        for groups in self._by_queue.values():
            for waiters in groups.values():
                _wake(waiters)


def _wake(waiters: set[Waiter] | tuple[()]) -> None:
    for waiter in waiters:
        waiter.wake()
