"""Fallback polls: when each key is polled, by timers that the test moves, and what holds under any order of events."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import settings as bounds
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hark.broker.delivery.fallback import FallbackPolls
from hark.clock import MILLISECOND
from hark.settings import Fallback
from hark.testing.timers import FakeTimers

EXACT = Fallback(tick_ms=1, jitter=0)
ONE_AT_A_TIME = Fallback(tick_ms=1, jitter=0, concurrency=1)


class World:
    """Polls of keys that are texts, what they were and when, in milliseconds since the start."""

    def __init__(self, settings: Fallback = EXACT, random: Callable[[], float] = lambda: 0.5) -> None:
        self.timers = FakeTimers()
        self.start = self.timers.now()
        self.polls: FallbackPolls[str] = FallbackPolls(settings, self.timers, self._poll, random)
        self.seen: list[tuple[float, str]] = []
        self.under_way: list[str] = []
        self.answering = True
        """Whether a poll is answered at once, with what is in `store`; else the test does it."""
        self.store: dict[str, int] = {}
        """How many polls of a key find something."""

    @property
    def now(self) -> float:
        """Milliseconds since the start."""
        return (self.timers.now() - self.start) / MILLISECOND

    @property
    def keys(self) -> list[str]:
        """The keys that were polled."""
        return [key for _, key in self.seen]

    def times(self, key: str = "a") -> list[float]:
        """When a key was polled."""
        return [time for time, polled in self.seen if polled == key]

    def metric(self, name: str) -> float:
        """One of the metrics."""
        return self.polls.metrics()[name]

    def wait(self, milliseconds: float) -> None:
        """Let time go by."""
        self.timers.advance(milliseconds / 1000)

    def answer(self, key: str, found: bool = False) -> None:
        """Let a poll come to its end."""
        self.under_way.remove(key)
        self.polls.polled(key, found)

    def _poll(self, key: str) -> None:
        assert key not in self.under_way, "polled twice at once"
        self.seen.append((self.now, key))
        self.under_way.append(key)
        if self.answering:
            found = self.store.get(key, 0) > 0
            if found:
                self.store[key] -= 1
            self.answer(key, found)


@pytest.fixture
def world() -> World:
    return World()


def slowed(world: World, key: str = "a") -> None:
    """Watch a key until its interval is the longest, then forget its polls."""
    world.polls.watch(key)
    world.wait(60_000)
    world.seen.clear()
    assert world.metric("interval_ms_max") == 5000


# The schedule ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (EXACT, [100, 200, 300, 600, 1500, 4200, 9200, 14_200]),
        (Fallback(tick_ms=1, jitter=0, threshold=0), [300, 1200, 3900]),
        (Fallback(tick_ms=1, jitter=0, threshold=5), [100, 200, 300, 400, 500, 800]),
        (Fallback(tick_ms=1, jitter=0, threshold=1, multiplier=2), [100, 300, 700]),
        (Fallback(tick_ms=1, jitter=0, threshold=1, multiplier=1), [100, 200, 300]),
        (Fallback(tick_ms=1, jitter=0, max_ms=250), [100, 200, 300, 550, 800]),
        (Fallback(tick_ms=1, jitter=0, initial_ms=7), [7, 14, 21, 42]),
    ],
)
def test_a_key_is_polled_at_the_times_of_the_table_and_each_setting_has_its_effect(
    settings: Fallback, expected: list[float]
) -> None:
    world = World(settings)
    world.polls.watch("a")
    world.wait(expected[-1])
    assert world.times() == expected


def test_intervals_stray_by_a_tenth_and_not_more() -> None:
    world = World(Fallback(tick_ms=1, multiplier=1), Random(1).random)
    world.polls.watch("a")
    world.wait(20_000)
    times = world.times()
    intervals = [later - earlier for earlier, later in pairwise(times)]
    # Up to the next whole millisecond.
    assert min(intervals) >= 90
    assert max(intervals) <= 111
    assert min(intervals) < 93
    assert max(intervals) > 107


def test_what_no_hint_told_of_is_found_by_a_poll_and_by_nothing_else() -> None:
    world, without = World(), World()
    world.polls.watch("a")
    for each in (world, without):
        each.wait(2000)
        each.store["a"] = 1
        each.wait(6000)
    assert world.store == {"a": 0}
    assert world.times()[5:7] == [4200, 4200], "found, so polled again"
    assert (without.store, without.seen) == ({"a": 1}, [])


# Reset -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("under_way", [False, True])
def test_a_reset_brings_the_next_poll_near_and_the_schedule_starts_over(world: World, under_way: bool) -> None:
    slowed(world)
    world.answering = not under_way
    world.wait(5000 if under_way else 123)
    world.seen.clear()
    at = world.now
    world.polls.reset("a")
    assert world.metric("interval_ms_max") == 100
    if under_way:
        world.answer("a")
    world.answering = True
    world.wait(10_000)
    assert [time - at for time in world.times()] == [100, 200, 300, 600, 1500, 4200, 9200]


def test_resets_never_put_a_poll_off(world: World) -> None:
    world.polls.watch("a")
    for _ in range(100):
        world.wait(10)
        world.polls.reset("a")
    assert world.times() == [100 * n for n in range(1, 11)]


@pytest.mark.parametrize("leaves", [False, True])
def test_a_poll_that_was_to_come_before_the_first_interval_is_over_comes_as_it_was_to(leaves: bool) -> None:
    world = World()
    slowed(world)
    world.wait(5000)
    [last] = world.times()
    world.wait(last + 4960 - world.now)
    if leaves:
        world.polls.unwatch("a")
    world.polls.reset("a")
    world.polls.watch("a")
    world.wait(100)
    assert world.times() == [last, last + 5000]


def test_a_reset_of_a_key_that_waits_for_its_turn_leaves_it_its_place() -> None:
    world = World(Fallback(tick_ms=1, jitter=0, concurrency=2))
    for key in "abcd":
        world.polls.watch(key)
    world.wait(100)
    world.answering = False
    world.wait(100)
    world.polls.reset("c")
    world.answer("a")
    world.wait(1)
    world.answer("b")
    world.answer("d")
    assert world.keys == list("abcdabcd")
    assert world.under_way == ["c"]


def test_resets_of_a_busy_key_compute_nothing_and_those_of_a_key_that_nobody_waits_for_start_nothing() -> None:
    drawn: list[float] = []

    def random() -> float:
        drawn.append(0.5)
        return 0.5

    world = World(random=random)
    world.polls.reset("a")
    assert world.metric("keys_unwatched") == 0
    slowed(world)
    world.polls.reset("a")
    before = (world.timers.set, len(drawn))
    for _ in range(1000):
        world.polls.reset("a")
    assert (world.timers.set, len(drawn)) == before
    world.polls.unwatch("a")
    world.polls.reset("a")
    world.wait(60_000)
    assert world.seen == []
    assert world.timers.armed == 0


# What a poll finds -----------------------------------------------------------------------------------------


def test_after_a_find_the_key_is_polled_at_once_until_nothing_is_found(world: World) -> None:
    slowed(world)
    world.store["a"] = 3
    world.wait(6000)
    at = world.times()[0]
    assert [time - at for time in world.times()][:8] == [0, 0, 0, 0, 100, 200, 300, 600]


def test_a_key_with_many_finds_does_not_keep_the_others_from_their_turn() -> None:
    world = World(ONE_AT_A_TIME)
    world.answering = False
    world.polls.watch("a")
    world.polls.watch("b")
    world.wait(100)
    world.answer("a", found=True)
    world.answer("b", found=True)
    world.answer("a", found=True)
    assert world.keys == ["a", "b", "a", "b"]


def test_an_interval_begins_when_the_poll_has_ended_and_an_answer_without_a_question_changes_nothing(
    world: World,
) -> None:
    world.polls.polled("a", found=True)
    world.polls.watch("a")
    world.polls.polled("a", found=True)
    assert world.metric("polling") == 0
    world.answering = False
    world.wait(1000)
    assert world.times() == [100]
    world.answer("a")
    world.wait(150)
    assert world.times() == [100, 1100]


# Who waits -------------------------------------------------------------------------------------------------


def test_a_key_that_nobody_waits_for_is_not_polled_and_nothing_is_armed_without_any(world: World) -> None:
    assert world.timers.armed == 0
    world.polls.watch("a")
    world.polls.watch("b")
    world.wait(150)
    world.polls.unwatch("a")
    world.polls.unwatch("a")
    world.polls.unwatch("never watched")
    assert world.timers.armed == 1
    world.wait(1000)
    assert world.times("a") == [100]
    assert world.times("b") == [100, 200, 300, 600]
    world.polls.unwatch("b")
    assert world.timers.armed == 0


def test_who_waits_again_takes_up_the_backoff_where_it_stands(world: World) -> None:
    slowed(world)
    world.polls.unwatch("a")
    world.wait(1000)
    world.polls.watch("a")
    world.polls.watch("a")
    world.wait(10_000)
    [first, second] = world.times()
    assert second - first == 5000


def test_a_poll_that_fell_due_while_nobody_waited_comes_with_the_next_tick() -> None:
    world = World(Fallback(tick_ms=50, jitter=0))
    world.polls.watch("a")
    world.wait(10)
    world.polls.unwatch("a")
    world.wait(310)
    world.polls.watch("a")
    world.wait(100)
    assert world.times() == [350]


def test_a_key_that_is_left_and_taken_again_and_again_is_polled_all_the_same(world: World) -> None:
    for _ in range(100):
        world.polls.watch("a")
        world.wait(7)
        world.polls.reset("a")
        world.polls.unwatch("a")
        world.wait(3)
    assert len(world.seen) >= 8


def test_who_goes_while_waiting_for_a_turn_is_not_polled() -> None:
    world = World(ONE_AT_A_TIME)
    world.answering = False
    for key in ("a", "b", "c"):
        world.polls.watch(key)
    world.wait(100)
    world.polls.unwatch("b")
    world.answer("a")
    assert world.keys == ["a", "c"]


@pytest.mark.parametrize("found", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_who_waits_again_while_a_poll_is_under_way_waits_for_its_end(world: World, found: bool, again: bool) -> None:
    world.answering = False
    world.polls.watch("a")
    world.wait(100)
    world.polls.unwatch("a")
    assert world.metric("polling") == 1
    if again:
        world.polls.watch("a")
    world.wait(1000)
    assert world.times() == [100]
    world.answer("a", found)
    world.wait(100 if again else 60_000)
    if again:
        assert world.times() == [100, 1100 if found else 1200]
    else:
        assert world.times() == [100]
        assert (world.metric("polling"), world.metric("keys_unwatched"), world.timers.armed) == (0, 1, 0)


# State that nobody needs -----------------------------------------------------------------------------------


def test_the_state_of_a_key_that_nobody_waited_for_is_dropped_and_one_that_comes_back_too_late_starts_over() -> None:
    world = World(Fallback(tick_ms=1, jitter=0, cleanup_seconds=60))
    slowed(world)
    world.polls.unwatch("a")
    world.wait(59_000)
    world.polls.watch("b")
    assert world.metric("keys_unwatched") == 1
    world.wait(1500)
    assert world.metric("keys_unwatched") == 0
    world.polls.unwatch("b")
    world.polls.watch("a")
    assert world.metric("interval_ms_max") == 100


def test_keys_that_are_watched_or_polled_are_never_dropped() -> None:
    world = World(Fallback(tick_ms=1, jitter=0, cleanup_seconds=0))
    world.answering = False
    world.polls.watch("a")
    world.wait(100)
    world.polls.unwatch("a")
    world.polls.watch("b")
    assert (world.metric("keys"), world.metric("keys_unwatched")) == (1, 1)
    world.answer("a")
    assert (world.metric("keys"), world.metric("keys_unwatched")) == (1, 0)


def test_a_key_that_somebody_came_back_to_is_kept() -> None:
    world = World(Fallback(tick_ms=1, jitter=0, cleanup_seconds=60))
    world.polls.watch("a")
    world.polls.unwatch("a")
    world.polls.watch("a")
    world.wait(70_000)
    assert (world.metric("keys"), world.metric("interval_ms_max")) == (1, 5000)


def test_nothing_is_left_of_a_key_that_is_forgotten() -> None:
    world = World(ONE_AT_A_TIME)
    world.answering = False
    for key in ("a", "b", "c"):
        world.polls.watch(key)
    world.polls.unwatch("c")
    world.wait(100)
    for key in ("c", "a"):
        world.polls.forget(key)
    assert world.keys == ["a", "b"], "the turn goes on"
    world.answer("a", found=True)
    world.polls.forget("b")
    world.answer("b")
    world.polls.forget("never watched")
    world.wait(60_000)
    assert world.keys == ["a", "b"]
    assert world.polls.metrics() == {**World().polls.metrics(), "polls": 2}
    assert world.timers.armed == 0


# Many keys -------------------------------------------------------------------------------------------------


def test_keys_that_are_due_in_the_same_tick_are_polled_in_the_same_turn() -> None:
    world = World(Fallback(tick_ms=50, jitter=0))
    for key in "abcde":
        world.wait(9)
        world.polls.watch(key)
    before = world.timers.set
    world.wait(105)
    assert world.seen == [(150, key) for key in "abcde"]
    assert world.timers.set - before == 1


def test_no_more_keys_than_allowed_are_polled_at_once_and_the_others_come_in_the_order_of_their_times() -> None:
    world = World(Fallback(tick_ms=1, jitter=0, concurrency=2))
    world.answering = False
    for key in "abcd":
        world.polls.watch(key)
        world.wait(1)
    world.wait(1000)
    assert world.keys == ["a", "b"]
    assert (world.metric("polling"), world.metric("keys_due")) == (2, 2)
    world.answer("b")
    assert world.keys == ["a", "b", "c"]
    world.wait(500)
    world.answer("c")
    assert world.keys == ["a", "b", "c", "d"], "b fell due again, but after d"
    world.answer("a")
    assert world.keys == ["a", "b", "c", "d", "b"]


def test_ten_thousand_idle_keys_take_one_timer_and_are_all_polled() -> None:
    world = World(Fallback(), Random(1).random)
    keys = [f"queue-{number}" for number in range(10_000)]
    for key in keys:
        world.polls.watch(key)
    assert world.timers.armed == 1
    world.wait(20_000)
    assert world.timers.armed == 1
    world.seen.clear()
    before = world.timers.set
    world.wait(5600)
    assert set(world.keys) == set(keys)
    assert world.timers.set - before <= 5600 / 50, "one per tick at most"
    assert world.metric("keys_in_backoff") == 10_000


def test_the_metrics_say_how_it_stands(world: World) -> None:
    slowed(world)
    world.polls.watch("b")
    world.polls.watch("c")
    world.polls.unwatch("c")
    before = world.polls.metrics()
    assert before | {"polls": 0, "empty_polls": 0} == {
        "keys": 2,
        "keys_unwatched": 1,
        "keys_in_backoff": 1,
        "keys_due": 0,
        "polling": 0,
        "interval_ms_max": 5000,
        "interval_ms_mean": 2550,
        "polls": 0,
        "empty_polls": 0,
    }
    world.store["b"] = 1
    world.wait(100)
    assert world.metric("polls") - before["polls"] == 2
    assert world.metric("empty_polls") - before["empty_polls"] == 1


def test_after_the_end_nothing_is_polled() -> None:
    world = World(ONE_AT_A_TIME)
    world.answering = False
    world.polls.watch("a")
    world.polls.watch("b")
    world.wait(100)
    world.polls.close()
    world.answer("a", found=True)
    world.polls.reset("b")
    world.polls.unwatch("b")
    world.polls.watch("c")
    world.wait(60_000)
    assert world.keys == ["a"]
    assert world.timers.armed == 0


# Any order of events ---------------------------------------------------------------------------------------


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
