"""Fallback polls: poll periodically for waiting consumers, because a hint can be lost."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from hark.broker.timers import TickQueue, Timer, Timers
from hark.clock import MILLISECOND, SECOND, Clock
from hark.settings import Fallback

_MEETING = 250 * MILLISECOND


class Backoff:
    """The time of the next look: soon for the first few, then later and later, and soon again when something came.

    With the defaults the looks are 100, 100, 100, 300, 900, 2700, 5000, 5000 ... ms apart, each by up to a tenth more
    or less, so that those who began together do not go on looking all together. `random` gives numbers from 0 to below
    1.
    """

    __slots__ = ("_clock", "_due", "_interval_ms", "_look", "_random", "_settings")

    def __init__(self, settings: Fallback, clock: Clock, random: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._random = random
        self.reset()

    @property
    def due(self) -> int:
        """When to look, by the clock."""
        return self._due

    @property
    def interval_ms(self) -> float:
        """The milliseconds before the next look, without the jitter."""
        return self._interval_ms

    @property
    def at_start(self) -> bool:
        """Whether no look has been missed since the start or the last reset."""
        return self._look == 1

    @property
    def slowed(self) -> bool:
        """Whether the interval has grown beyond the initial one."""
        return self._look > max(1, self._settings.threshold)

    def reset(self) -> None:
        """Something came: more may follow soon."""
        self._look = 1
        self._interval_ms = float(self._settings.initial_ms)
        self._schedule()

    def missed(self) -> None:
        """A look found nothing."""
        self._look += 1
        self._schedule()

    def _schedule(self) -> None:
        settings = self._settings
        if self._look > settings.threshold:
            # Step by step: a power of a large number of looks would overflow.
            self._interval_ms = min(self._interval_ms * settings.multiplier, settings.max_ms)
        wait = self._interval_ms * MILLISECOND
        least, most = wait * (1 - settings.jitter), wait * (1 + settings.jitter)
        now = self._clock.now()
        self._due = now + round(least + (most - least) * self._random())
        if most - least >= 2 * _MEETING:
            # Those who look seldom look at full quarters of a second, within the jitter: many of them share a call.
            self._due = round(self._due / _MEETING) * _MEETING
            if self._due > now + most:
                self._due -= _MEETING
            elif self._due < now + least:
                self._due += _MEETING


log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)


class _State:
    """The state of one key."""

    __slots__ = ("backoff", "due", "left_at", "polling", "starts_over", "watched")

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.due = backoff.due
        """When to poll. A reset can only make it earlier: otherwise a key with a hint every 50 ms would never be
        polled, and the work of a lost hint would wait until the other hints stop."""
        self.watched = False
        self.left_at = 0
        """When the last waiting consumer left."""
        self.polling = False
        self.starts_over = False
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
        self._timer: Timer | None = None
        self._rings_at = 0
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
            state = self._states[key] = _State(Backoff(self._settings, self._timers, self._random))
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
        log.debug(
            "fallback poll of %s found %s; backoff interval %g ms",
            key,
            "something" if found else "nothing",
            state.backoff.interval_ms,
        )
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
        """Set the timer to the next tick with a key, or cancel it without keys."""
        due = self._tick_queue.next_due()
        if self._timer is not None:
            if due is not None and self._rings_at <= due:
                return  # It fires early enough, and is then set again.
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._timers.at(due, self._ring)
            self._rings_at = due

    def _ring(self) -> None:
        self._timer = None
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
