"""Fallback polls: look now and then where somebody waits, because the hint that there is work may have been lost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from hark.broker.backoff import Backoff
from hark.broker.delivery.agenda import Agenda
from hark.broker.timers import Timer, Timers
from hark.clock import MILLISECOND, SECOND
from hark.settings import Fallback

K = TypeVar("K", bound=Hashable)


class _State:
    """What is known of one key."""

    __slots__ = ("backoff", "due", "left_at", "polling", "starts_over", "watched")

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.due = backoff.due
        """When to poll. A reset makes it earlier and never later: else a key with a hint every 50 ms would never be
        polled, and what a lost hint was about would wait for as long as the others go on."""
        self.watched = False
        self.left_at = 0
        """When the last one who waited went."""
        self.polling = False
        self.starts_over = False
        """Something came while it was polled, so the backoff starts over whatever the poll finds."""


class FallbackPolls(Generic[K]):
    """Polls each key for which somebody waits, at the times of its own backoff.

    `poll` starts a look and does not wait for it; `polled` tells what it came to. Until then the key is not polled
    again. Keys that are due in the same tick are polled in the same turn of the loop, so that they can share one call
    of the engine. At most `concurrency` are being polled; the others take their turn in the order of their times.
    """

    def __init__(
        self, settings: Fallback, timers: Timers, poll: Callable[[K], None], random: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._timers = timers
        self._poll = poll
        self._random = random
        self._states: dict[K, _State] = {}
        self._agenda: Agenda[K] = Agenda(settings.tick_ms * MILLISECOND)
        self._ready: OrderedDict[K, _State] = OrderedDict()
        """Keys that are due and wait for their turn."""
        self._unwatched: OrderedDict[K, _State] = OrderedDict()
        """Keys that nobody waits for and that are not being polled, the one left longest ago first."""
        self._timer: Timer | None = None
        self._rings_at = 0
        self._polling = 0
        self._starting = False
        self._closed = False
        self._polls = 0
        self._empty_polls = 0

    def watch(self, key: K) -> None:
        """Somebody waits for this key: poll it, from where the backoff of an earlier watch stands."""
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
        """Nobody waits for this key any more: do not poll it; its state is kept for a while."""
        state = self._states.get(key)
        if state is None or not state.watched:
            return
        state.watched = False
        self._agenda.remove(key)
        self._ready.pop(key, None)
        if not state.polling:
            self._keep(key, state)
        self._arm()

    def forget(self, key: K) -> None:
        """Nobody will ever wait for this key again: keep nothing of it; how a poll under way ends is not asked."""
        self.unwatch(key)
        self._unwatched.pop(key, None)
        state = self._states.pop(key, None)
        if state is not None and state.polling:
            self._polling -= 1
            self._start_polls()

    def reset(self, key: K) -> None:
        """A message or a hint came: the backoff starts over, and the next poll comes no later than that."""
        state = self._states.get(key)
        if state is None:
            return
        if state.polling:
            state.starts_over = True
        # At its start the next poll is near already. This is the way of a busy key: it must cost nothing.
        if state.backoff.at_start:
            return
        state.backoff.reset()
        state.due = min(state.due, state.backoff.due)
        if state.watched and not state.polling and key not in self._ready:
            self._schedule(key, state)

    def polled(self, key: K, found: bool) -> None:
        """Take what a poll came to; if it found something there may be more that nobody told of: poll again at once."""
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
        # The poll after a find is one more than the backoff has, so it is not counted as the first of its looks.
        state.starts_over = found
        state.due = self._timers.now() if found else state.backoff.due
        if not state.watched:
            self._keep(key, state)
        elif found:
            self._ready[key] = state
        else:
            self._schedule(key, state)
        self._start_polls()

    def close(self) -> None:
        """Poll nothing any more."""
        self._closed = True
        self._states.clear()
        self._unwatched.clear()
        self._ready.clear()
        self._agenda = Agenda(self._settings.tick_ms * MILLISECOND)
        self._polling = 0
        self._arm()

    def metrics(self) -> dict[str, float]:
        """Count keys and polls; intervals are those of keys that somebody waits for, without jitter."""
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
        """Note when to poll; what is overdue comes with the next tick."""
        self._agenda.put(key, max(state.due, self._timers.now()))
        self._arm()

    def _arm(self) -> None:
        """See to it that the timer rings at the next tick with a key, and that there is none without keys."""
        due = self._agenda.next_due()
        if self._timer is not None:
            if due is not None and self._rings_at <= due:
                return  # It rings early enough, and is set again then.
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._timers.at(due, self._ring)
            self._rings_at = due

    def _ring(self) -> None:
        self._timer = None
        for key in self._agenda.take(self._timers.now()):
            self._ready[key] = self._states[key]
        self._arm()
        self._forget_old()
        self._start_polls()

    def _start_polls(self) -> None:
        """Poll what is due, as far as the bound allows."""
        if self._starting:
            return  # Somebody up the stack is at it, and goes on.
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
        """Remember a key that nobody waits for."""
        state.left_at = self._timers.now()
        self._unwatched[key] = state
        self._forget_old()

    def _forget_old(self) -> None:
        """Drop what was left long ago; a reset since then does not count, for it left nothing to remember."""
        if not self._unwatched:
            return
        horizon = self._timers.now() - self._settings.cleanup_seconds * SECOND
        while self._unwatched:
            key, state = next(iter(self._unwatched.items()))
            if state.left_at > horizon:
                return
            del self._unwatched[key], self._states[key]
