"""Timers, and fallback polls: waiting consumers poll periodically, because a hint can be lost."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar

import msgspec

from hark.clock import MILLISECOND, SECOND, Clock
from hark.settings import Fallback

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call. Has no effect after it."""


class Timers(Clock, Protocol):
    """A clock with calls at its times, so that tests need not wait."""

    def at(self, due: int, callback: Callable[[], None]) -> Timer:
        """Call a function once when the clock reaches `due`: never earlier, and not within this call."""


class LoopTimers:
    """Timers of the running event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now = clock.now

    def at(self, due: int, callback: Callable[[], None]) -> Timer:
        return _LoopTimer(self._clock, due, callback)


class _LoopTimer:
    """One call. The clock of the loop differs from Hark's, so a call that comes early is scheduled again."""

    __slots__ = ("_callback", "_clock", "_due", "_handle")

    def __init__(self, clock: Clock, due: int, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._due = due
        self._callback = callback
        self._set()

    def cancel(self) -> None:
        self._handle.cancel()

    def _set(self) -> None:
        # Rounded up to a millisecond, the unit of uvloop: rounded down it would come early again and again.
        wait_ms = -(-(self._due - self._clock.now()) // MILLISECOND)
        self._handle = asyncio.get_running_loop().call_later(max(0, wait_ms) / 1000, self._ring)

    def _ring(self) -> None:
        if self._clock.now() < self._due:
            self._set()
        else:
            self._callback()


class Wakeup:
    """One timer, set to the earliest of the times that are requested."""

    __slots__ = ("_callback", "_timer", "_timers", "due")

    def __init__(self, timers: Timers, callback: Callable[[], None]) -> None:
        self._timers = timers
        self._callback = callback
        self._timer: Timer | None = None
        self.due = 0
        """The time of the call, while one is scheduled."""

    def __bool__(self) -> bool:
        """Whether a call is scheduled."""
        return self._timer is not None

    def set(self, due: int) -> None:
        """Call at a time, unless an earlier call is scheduled."""
        if self._timer is not None:
            if self.due <= due:
                return
            self._timer.cancel()
        self.due = due
        self._timer = self._timers.at(due, self._ring)

    def cancel(self) -> None:
        """Cancel the scheduled call, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._callback()


class TickQueue(Generic[K]):
    """Keys by due time, rounded up to a tick.

    The heap contains each tick once, so moving a key costs only dictionary operations.
    """

    def __init__(self, tick: int) -> None:
        self._tick = tick
        """The length of a tick in microseconds."""
        self._keys: dict[int, dict[K, None]] = {}
        """By tick, in the order of their calls of `put`."""
        self._ticks: list[int] = []
        """A heap. A tick without keys stays until it is the first."""
        self._tick_of: dict[K, int] = {}

    def put(self, key: K, due: int) -> None:
        """Add a key, or move it to another tick."""
        tick = -(-due // self._tick) * self._tick
        if self._tick_of.get(key) == tick:
            return
        self.remove(key)
        if tick not in self._keys:
            self._keys[tick] = {}
            heappush(self._ticks, tick)
        self._keys[tick][key] = None
        self._tick_of[key] = tick

    def remove(self, key: K) -> None:
        """Remove a key, if it is present."""
        tick = self._tick_of.pop(key, None)
        if tick is not None:
            del self._keys[tick][key]

    def next_due(self) -> int | None:
        """The time of the first tick with a key; None without keys."""
        while self._ticks and not self._keys[self._ticks[0]]:
            del self._keys[heappop(self._ticks)]
        return self._ticks[0] if self._ticks else None

    def take(self, now: int) -> list[K]:
        """Remove the due keys and return them."""
        taken: list[K] = []
        while self._ticks and self._ticks[0] <= now:
            taken += self._keys.pop(heappop(self._ticks))
        for key in taken:
            del self._tick_of[key]
        return taken


_MEETING = 250 * MILLISECOND


class Backoff:
    """The time of the next poll: soon at first, then later and later, and soon again after a message or a hint.

    With the defaults the polls are 100, 100, 100, 300, 900, 2700, 5000, 5000 ... ms apart, each by up to a tenth more
    or less, so that polls that began together spread out. `random` returns numbers from 0 to below 1.
    """

    __slots__ = ("_clock", "_look", "_random", "_settings", "due", "interval_ms")

    due: int
    """When to poll, by the clock."""
    interval_ms: float
    """The milliseconds before the next poll, without the jitter."""

    def __init__(self, settings: Fallback, clock: Clock, random: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._random = random
        self.reset()

    @property
    def at_start(self) -> bool:
        """Whether no poll was empty since the start or the last reset."""
        return self._look == 1

    @property
    def slowed(self) -> bool:
        """Whether the interval has grown beyond the initial one."""
        return self._look > max(1, self._settings.threshold)

    def reset(self) -> None:
        """Restart after a message or a hint: more may follow soon."""
        self._look = 1
        self.interval_ms = float(self._settings.initial_ms)
        self._schedule()

    def missed(self) -> None:
        """Note an empty poll."""
        self._look += 1
        self._schedule()

    def _schedule(self) -> None:
        settings = self._settings
        if self._look > settings.threshold:
            # Step by step: a power of a large number of polls would overflow.
            self.interval_ms = min(self.interval_ms * settings.multiplier, settings.max_ms)
        wait = self.interval_ms * MILLISECOND
        least, most = wait * (1 - settings.jitter), wait * (1 + settings.jitter)
        now = self._clock.now()
        self.due = now + round(least + (most - least) * self._random())
        if most - least >= 2 * _MEETING:
            # Rare polls run at full quarters of a second, within the jitter, so that many share a call.
            self.due = round(self.due / _MEETING) * _MEETING
            if self.due > now + most:
                self.due -= _MEETING
            elif self.due < now + least:
                self.due += _MEETING


class _State(msgspec.Struct, eq=False):
    backoff: Backoff
    due: int
    """When to poll. A reset can only make it earlier: otherwise a key with a hint every 50 ms would never be polled,
    and the work of a lost hint would wait until the other hints stop."""
    watched: bool = False
    left_at: int = 0
    """When the last waiting consumer left."""
    polling: bool = False
    starts_over: bool = False
    """A hint arrived during the poll, so the backoff restarts whatever the poll finds."""


class FallbackPolls(Generic[K]):
    """Polls each key that has waiting consumers, with a separate backoff for each key.

    `poll` starts a poll without waiting for it; `polled` reports its result. Until then the key is not polled again.
    Keys that are due in the same tick are polled in the same turn of the event loop, so that they can share one engine
    call. At most `concurrency` polls run at a time; other due keys wait in the order of their times.
    """

    def __init__(
        self, settings: Fallback, timers: Timers, poll: Callable[[K], None], random: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._timers = timers
        self._poll = poll
        self._random = random
        self._states: dict[K, _State] = {}
        self._tick_queue: TickQueue[K] = TickQueue(settings.tick_ms * MILLISECOND)
        self._ready: OrderedDict[K, _State] = OrderedDict()
        """Due keys that wait for a free poll."""
        self._unwatched: OrderedDict[K, _State] = OrderedDict()
        """Keys without waiting consumers and without a running poll, the oldest first."""
        self._wakeup = Wakeup(timers, self._ring)
        self._polling = 0
        self._starting = False
        self._closed = False
        self._polls = 0
        self._empty_polls = 0

    def watch(self, key: K) -> None:
        """Start to poll a key, with the backoff of an earlier watch."""
        if self._closed:
            return
        self._forget_old()
        state = self._states.get(key)
        if state is None:
            backoff = Backoff(self._settings, self._timers, self._random)
            state = self._states[key] = _State(backoff, backoff.due)
        if state.watched:
            return
        state.watched = True
        self._unwatched.pop(key, None)
        if not state.polling:
            self._schedule(key, state)

    def unwatch(self, key: K) -> None:
        """Stop polling a key without waiting consumers. Its state is kept for a while."""
        state = self._states.get(key)
        if state is None or not state.watched:
            return
        state.watched = False
        self._tick_queue.remove(key)
        self._ready.pop(key, None)
        if not state.polling:
            self._keep(key, state)
        self._arm()

    def forget(self, key: K) -> None:
        """Remove a key that will never be used again. The result of a running poll is ignored."""
        self.unwatch(key)
        self._unwatched.pop(key, None)
        state = self._states.pop(key, None)
        if state is not None and state.polling:
            self._polling -= 1
            self._start_polls()

    def reset(self, key: K) -> None:
        """Restart the backoff after a message or a hint. The next poll comes no later than that."""
        state = self._states.get(key)
        if state is None:
            return
        if state.polling:
            state.starts_over = True
        # At its start the next poll is already near. Busy keys take this path, so it must be cheap.
        if state.backoff.at_start:
            return
        log.debug("backoff of fallback polls of %s restarts", key)
        state.backoff.reset()
        state.due = min(state.due, state.backoff.due)
        if state.watched and not state.polling and key not in self._ready:
            self._schedule(key, state)

    def polled(self, key: K, found: bool) -> None:
        """Record the result of a poll. If it found work, poll again immediately, because more hints may be lost."""
        state = self._states.get(key)
        if state is None or not state.polling:
            return
        state.polling = False
        self._polling -= 1
        if not found:
            self._empty_polls += 1
        if found or state.starts_over:
            state.backoff.reset()
        else:
            state.backoff.missed()
        # The poll after a successful one is extra, so it does not count as the first poll of the backoff.
        state.starts_over = found
        state.due = self._timers.now() if found else state.backoff.due
        what = "something" if found else "nothing"
        log.debug("fallback poll of %s found %s; backoff interval %g ms", key, what, state.backoff.interval_ms)
        if not state.watched:
            self._keep(key, state)
        elif found:
            self._ready[key] = state
        else:
            self._schedule(key, state)
        self._start_polls()

    def close(self) -> None:
        """Stop all polls."""
        self._closed = True
        self._states.clear()
        self._unwatched.clear()
        self._ready.clear()
        self._tick_queue = TickQueue(self._settings.tick_ms * MILLISECOND)
        self._polling = 0
        self._arm()

    def metrics(self) -> dict[str, float]:
        """Metrics of keys and polls. Intervals are those of keys with waiting consumers, without jitter."""
        watched = [state.backoff for state in self._states.values() if state.watched]
        intervals = [backoff.interval_ms for backoff in watched]
        return {
            "keys": len(watched),
            "keys_unwatched": len(self._states) - len(watched),
            "keys_in_backoff": sum(backoff.slowed for backoff in watched),
            "keys_due": len(self._ready),
            "polling": self._polling,
            "interval_ms_max": max(intervals, default=0.0),
            "interval_ms_mean": sum(intervals) / len(intervals) if intervals else 0.0,
            "polls": self._polls,
            "empty_polls": self._empty_polls,
        }

    def _schedule(self, key: K, state: _State) -> None:
        """Schedule the next poll. An overdue poll runs with the next tick."""
        self._tick_queue.put(key, max(state.due, self._timers.now()))
        self._arm()

    def _arm(self) -> None:
        """Set the alarm to the next tick with a key, or cancel it without keys."""
        due = self._tick_queue.next_due()
        if due is None:
            self._wakeup.cancel()
        else:
            self._wakeup.set(due)

    def _ring(self) -> None:
        for key in self._tick_queue.take(self._timers.now()):
            self._ready[key] = self._states[key]
        self._arm()
        self._forget_old()
        self._start_polls()

    def _start_polls(self) -> None:
        """Start due polls, up to `concurrency`."""
        if self._starting:
            return  # A caller further up the stack continues.
        self._starting = True
        try:
            while self._ready and self._polling < self._settings.concurrency:
                key, state = self._ready.popitem(last=False)
                state.polling = True
                self._polling += 1
                self._polls += 1
                self._poll(key)
        finally:
            self._starting = False

    def _keep(self, key: K, state: _State) -> None:
        """Keep the state of a key without waiting consumers."""
        state.left_at = self._timers.now()
        self._unwatched[key] = state
        self._forget_old()

    def _forget_old(self) -> None:
        """Remove states that are older than `cleanup_seconds`. A reset does not renew them."""
        if not self._unwatched:
            return
        horizon = self._timers.now() - self._settings.cleanup_seconds * SECOND
        while self._unwatched:
            key, state = next(iter(self._unwatched.items()))
            if state.left_at > horizon:
                return
            del self._unwatched[key], self._states[key]
