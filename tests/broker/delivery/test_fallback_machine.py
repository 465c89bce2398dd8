"""Fallback polls under any order of events: what must hold after each of them."""

from __future__ import annotations

from hypothesis import settings as bounds
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hark.broker.delivery.fallback import FallbackPolls
from hark.clock import MILLISECOND
from hark.settings import Fallback
from hark.testing.timers import FakeTimers

SETTINGS = Fallback(tick_ms=50, concurrency=2, cleanup_seconds=10, max_ms=2000)
LONGEST = round(2000 * 1.1 + 50) * MILLISECOND
SOON = round(100 * 1.1 + 50) * MILLISECOND
KEYS = st.sampled_from("abcdef")


class FallbackMachine(RuleBasedStateMachine):
    """Keys are watched, left, reset and answered while time goes by."""

    def __init__(self) -> None:
        super().__init__()
        self.timers = FakeTimers()
        self.polls: FallbackPolls[str] = FallbackPolls(SETTINGS, self.timers, self._poll, self._random)
        self.jitter = 0.5
        self.watched: set[str] = set()
        self.under_way: list[str] = []
        self.latest: dict[str, int] = {}
        """When a watched key must have been polled, if there was always room."""
        self.full_until = 0

    def _random(self) -> float:
        return self.jitter

    def _poll(self, key: str) -> None:
        assert key in self.watched, "polled, though nobody waits"
        assert key not in self.under_way, "polled twice at once"
        self.under_way.append(key)
        self.latest.pop(key, None)

    def _expect(self, key: str, within: int) -> None:
        if key in self.watched and key not in self.under_way:
            due = self.timers.now() + within
            self.latest[key] = min(due, self.latest.get(key, due))

    @rule(key=KEYS)
    def watch(self, key: str) -> None:
        self.watched.add(key)
        self.polls.watch(key)
        self._expect(key, LONGEST)

    @rule(key=KEYS)
    def unwatch(self, key: str) -> None:
        self.watched.discard(key)
        self.latest.pop(key, None)
        self.polls.unwatch(key)

    @rule(key=KEYS)
    def reset(self, key: str) -> None:
        self.polls.reset(key)
        self._expect(key, SOON)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), found=st.booleans())
    def answer(self, data: st.DataObject, found: bool) -> None:
        key = data.draw(st.sampled_from(self.under_way))
        self._note_full()
        self.under_way.remove(key)
        self._expect(key, 0 if found else LONGEST)
        self.polls.polled(key, found)

    @rule(milliseconds=st.sampled_from([1, 10, 49, 50, 100, 333, 2000, 11_000]), jitter=st.floats(0, 0.999))
    def go_on(self, milliseconds: int, jitter: float) -> None:
        self.jitter = jitter
        self.timers.advance(milliseconds / 1000)
        self._note_full()

    def _note_full(self) -> None:
        if len(self.under_way) == SETTINGS.concurrency:
            self.full_until = self.timers.now()

    @invariant()
    def no_more_than_allowed_are_polled(self) -> None:
        assert len(self.under_way) <= SETTINGS.concurrency
        assert self.polls.metrics()["polling"] == len(self.under_way)

    @invariant()
    def nobody_is_kept_waiting_while_there_is_room(self) -> None:
        if len(self.under_way) < SETTINGS.concurrency:
            for key, due in self.latest.items():
                assert self.timers.now() <= max(due, self.full_until), f"{key} was due"

    @invariant()
    def one_timer_at_most_and_none_without_anybody_to_poll(self) -> None:
        metrics = self.polls.metrics()
        to_come = metrics["keys"] - metrics["keys_due"] - len(self.watched.intersection(self.under_way))
        assert self.timers.armed == (1 if to_come else 0)

    @invariant()
    def the_keys_are_those_that_are_watched(self) -> None:
        assert self.polls.metrics()["keys"] == len(self.watched)


TestFallbackMachine = FallbackMachine.TestCase
TestFallbackMachine.settings = bounds(max_examples=150, stateful_step_count=60, deadline=None)
