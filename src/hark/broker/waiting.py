"""Pops that wait: who is to look again, when a hint arrives or when none has arrived for long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from hark.broker.backoff import Backoff
from hark.clock import SECOND, Clock
from hark.errors import Overloaded
from hark.model import Hint, PopRequest
from hark.settings import Fallback


class Line:
    """Pops that wait for the same thing, in the order in which they came.

    If hints may be missed, one of them looks at the times of the backoff, for all. When it finds something the next one
    looks at once, and so on until one finds nothing.
    """

    def __init__(self, backoff: Backoff, clock: Clock) -> None:
        self._backoff = backoff
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[Waiter, None] = {}
        self._looking: Waiter | None = None
        """Whose turn it is to look for all."""
        self._timer: asyncio.Handle | None = None
        self._rings_at = 0.0
        self._patrolled = False

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def join(self, waiter: Waiter) -> None:
        """Come last."""
        self._waiters[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        """Wait no longer; whoever had the turn passes it on."""
        del self._waiters[waiter]
        if not self._waiters:
            self._disarm()
        elif self._looking is waiter:
            self._looking = None
            self._arm()

    def patrol(self) -> None:
        """From now on somebody looks even if there is no hint."""
        if not self._patrolled:
            self._patrolled = True
            self._backoff.reset()
            self._arm()

    def hint(self) -> None:
        """Let everybody look; more may follow soon."""
        self.wake()
        if self._patrolled:
            self._backoff.reset()
            self._arm()

    def wake(self) -> None:
        """Let everybody look."""
        for waiter in self._waiters:
            waiter.wake()

    def looked(self, waiter: Waiter, found: bool) -> None:
        """Note what somebody's look came to."""
        if not self._patrolled:
            return
        had_turn = self._looking is waiter
        if had_turn:
            self._looking = None
        if found:
            self._backoff.reset()
        elif had_turn:
            self._backoff.missed()
        if found and had_turn:
            # No hint told of this, so there may be more that nobody was told of.
            self._take_turn(after=waiter)
        else:
            self._arm()

    def _take_turn(self, after: Waiter | None = None) -> None:
        """Let the one who has waited longest look."""
        self._looking = next((waiter for waiter in self._waiters if waiter is not after), None)
        if self._looking is not None:
            self._looking.wake()

    def _arm(self) -> None:
        """See to it that somebody looks when the backoff says, unless somebody is at it."""
        if self._looking is not None:
            return
        when = self._loop.time() + (self._backoff.due - self._clock.now()) / SECOND
        if self._timer is not None:
            if self._rings_at <= when:
                return  # It rings early enough, and is set again then.
            self._disarm()
        self._timer = self._loop.call_at(when, self._ring)
        self._rings_at = when

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        if self._backoff.due > self._clock.now():
            self._arm()
        elif self._looking is None:
            self._take_turn()


class Waiter:
    """One waiting pop. A hint that arrives while it looks is not lost: the next wait returns at once."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Say that there may be something."""
        self._woken.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for a hint or for the turn to look; False when the time was up first."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    def looked(self, found: bool) -> None:
        """Say what a look came to."""
        self._line.looked(self, found)

    def failed(self) -> None:
        """Say that a look failed: nobody may tell when the next one would not."""
        self._line.patrol()
        self._line.looked(self, found=False)


class Key(NamedTuple):
    """What a pop waits for."""

    queue: str | None
    group: str
    partition: str | None
    namespace: str | None
    task: str | None


class WaitingRoom:
    """All waiting pops of this server, found by queue and group.

    `patrolled`: whether hints may be missed, so that those who wait also look on their own.
    """

    def __init__(self, max_waiting: int, fallback: Fallback, clock: Clock, *, patrolled: bool) -> None:
        self._max_waiting = max_waiting
        self._fallback = fallback
        self._clock = clock
        self._patrolled = patrolled
        self._lines: dict[Key, Line] = {}
        self._by_queue: dict[str, dict[str, set[Line]]] = {}
        self._by_label: set[Line] = set()
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
        key = Key(request.queue, request.group, request.partition, request.namespace, request.task)
        line = self._lines.get(key) or self._open(key)
        waiter = Waiter(line)
        line.join(waiter)
        self._count += 1
        try:
            yield waiter
        finally:
            self._count -= 1
            line.leave(waiter)
            if not line:
                self._close(key, line)

    def hint(self, hints: Sequence[Hint]) -> None:
        """Wake those whom the hints concern."""
        if not self._count:
            return
        for hint in hints:
            groups = self._by_queue.get(hint.queue)
            if not groups:
                continue
            for lines in groups.values() if hint.group is None else (groups.get(hint.group, ()),):
                for line in lines:
                    line.hint()
        if hints:
            for line in self._by_label:
                line.hint()

    def close(self) -> None:
        """Wake everybody for the last time."""
        self._closed = True
        self.wake_all()

    def wake_all(self) -> None:
        """Let everybody look again."""
        for line in self._lines.values():
            line.wake()

    def _open(self, key: Key) -> Line:
        line = self._lines[key] = Line(Backoff(self._fallback, self._clock), self._clock)
        if self._patrolled:
            line.patrol()
        if key.queue is None:
            self._by_label.add(line)
        else:
            self._by_queue.setdefault(key.queue, {}).setdefault(key.group, set()).add(line)
        return line

    def _close(self, key: Key, line: Line) -> None:
        del self._lines[key]
        if key.queue is None:
            self._by_label.remove(line)
            return
        groups = self._by_queue[key.queue]
        groups[key.group].remove(line)
        if not groups[key.group]:
            del groups[key.group]
        if not groups:
            del self._by_queue[key.queue]
