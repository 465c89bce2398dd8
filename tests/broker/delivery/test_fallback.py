"""Fallback polls: when each key is polled, by timers that the test moves, and what holds under any order of events."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import settings as bounds
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from hark.broker.delivery.fallback import FallbackPolls
from hark.clock import MILLISECOND
from hark.settings import Fallback
from hark.testing.server import FakeTimers

EXACT = Fallback(tick_ms=1, jitter=0)


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


def test_polls_and_their_backoff_are_in_the_log_at_the_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "hark.broker.delivery.fallback")
    world = World(Fallback(tick_ms=1, jitter=0, threshold=1, initial_ms=100, multiplier=3))
    world.polls.watch("orders")
    world.wait(100)
    world.store["orders"] = 1
    world.wait(400)
    world.polls.reset("orders")
    assert caplog.messages[:2] == [
        "fallback poll of orders found nothing; backoff interval 300 ms",
        "fallback poll of orders found something; backoff interval 100 ms",
    ]
    assert "backoff of fallback polls of orders restarts" in caplog.messages


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


# Watching, resetting, answering and leaving keys --------------------------------------------------------------


def perform(world: World, step: str) -> None:
    """`watch:ab`, `wait:100` ms; `a@100,200`: when a was polled; `all:aba`: all polls; `keys=1`: a metric.

    After `hold`, polls end by `answer:a` or `found:a`; `stock:aa`: the next two polls of a find something.
    """
    word, sign, rest = re.fullmatch(r"(\w+)([:@=]?)([\w,]*)", step).groups()  # type: ignore[union-attr]  # it matches
    if sign == "@":
        assert world.times(word) == [float(time) for time in rest.split(",")]
    elif sign == "=":
        assert {**world.polls.metrics(), "armed": world.timers.armed}[word] == float(rest), step
    elif word == "all":
        assert world.keys == list(rest)
    elif word == "wait":
        world.wait(float(rest))
    elif word in ("hold", "release"):
        world.answering = word == "release"
    elif word == "slow":
        slowed(world)
    elif word == "close":
        world.polls.close()
    else:
        assert rest, step
        for key in rest:
            if word == "stock":
                world.store[key] = world.store.get(key, 0) + 1
            elif word == "unasked":
                world.polls.polled(key, found=True)
            elif word in ("answer", "found"):
                world.answer(key, word == "found")
            else:
                getattr(world.polls, word)(key)


LEFT_UNDER_WAY = "hold watch:a wait:100 unwatch:a polling=1 "
SCRIPTS = {  # They begin with the settings that are not those of EXACT.
    # Resets.
    "a reset brings the next poll near and the schedule starts over": (
        "slow wait:123 reset:a interval_ms_max=100 wait:10000 a@60223,60323,60423,60723,61623,64323,69323"
    ),
    "so does one while a poll is under way": (
        "slow hold wait:5000 reset:a interval_ms_max=100 answer:a release wait:10000"
        " a@64200,65100,65200,65300,65600,66500,69200,74200"
    ),
    "resets never put a poll off": (
        "watch:a " + "wait:10 reset:a " * 100 + "a@100,200,300,400,500,600,700,800,900,1000"
    ),
    "a poll that was to come before the first interval is over comes as it was to": (
        "slow wait:9160 reset:a watch:a wait:100 a@64200,69200"
    ),
    "also if its watcher left and came back": "slow wait:9160 unwatch:a reset:a watch:a wait:100 a@64200,69200",
    "a reset of a key that waits for its turn leaves it its place": (
        "concurrency~2 watch:abcd wait:100 hold wait:100 reset:c answer:a wait:1 answer:bd all:abcdabcd"
        " answer:c polling=0"
    ),
    # What a poll finds.
    "what no hint told of is found by a poll, and then it is polled again": (
        "watch:a wait:2000 stock:a wait:3000 a@100,200,300,600,1500,4200,4200,4300,4400,4500,4800"
    ),
    "without a poll it is not found": "wait:2000 stock:a wait:6000 all: armed=0",
    "after a find the key is polled at once until nothing is found": (
        "slow stock:aaa wait:5000 a@64200,64200,64200,64200,64300,64400,64500,64800"
    ),
    "a key with many finds does not keep the others from their turn": (
        "concurrency~1 hold watch:ab wait:100 found:aba all:abab"
    ),
    "an interval begins when the poll has ended, and an answer without a question changes nothing": (
        "unasked:a watch:a unasked:a polling=0 hold wait:1000 a@100 answer:a wait:150 a@100,1100"
    ),
    # Who waits.
    "a key that nobody waits for is not polled, and nothing is armed without any": (
        "armed=0 watch:ab wait:150 unwatch:aaz armed=1 wait:1000 a@100 b@100,200,300,600 unwatch:b armed=0"
    ),
    "who waits again takes up the backoff where it stands": (
        "slow unwatch:a wait:1000 watch:aa wait:10000 a@64200,69200"
    ),
    "a poll that fell due while nobody waited comes with the next tick": (
        "tick_ms~50 watch:a wait:10 unwatch:a wait:310 watch:a wait:100 a@350"
    ),
    "a key that is left and taken again and again is polled all the same": (
        "watch:a wait:7 reset:a unwatch:a wait:3 " * 100 + "a@100,200,300,400,500,600,700,800,900"
    ),
    "who goes while waiting for a turn is not polled": (
        "concurrency~1 hold watch:abc wait:100 unwatch:b answer:a all:ac"
    ),
    "who waits again while a poll is under way waits for its end": (
        LEFT_UNDER_WAY + "watch:a wait:1000 a@100 answer:a wait:100 a@100,1200"
    ),
    "and if that finds something for no longer": (
        LEFT_UNDER_WAY + "watch:a wait:1000 a@100 found:a wait:100 a@100,1100"
    ),
    **{
        f"one that was left under way ends alone: {ends}": (
            LEFT_UNDER_WAY + f"wait:1000 a@100 {ends}:a wait:60000 a@100 polling=0 keys_unwatched=1 armed=0"
        )
        for ends in ("answer", "found")
    },
    # State that nobody needs.
    "the state of a key that nobody waited for is dropped, and one that comes back too late starts over": (
        "cleanup_seconds~60 slow unwatch:a wait:59000 watch:b keys_unwatched=1 wait:1500 keys_unwatched=0 unwatch:b"
        " watch:a interval_ms_max=100"
    ),
    "keys that are watched or polled are never dropped": (
        "cleanup_seconds~0 hold watch:a wait:100 unwatch:a watch:b keys=1 keys_unwatched=1 answer:a keys=1"
        " keys_unwatched=0"
    ),
    "a key that was watched again is kept": (
        "cleanup_seconds~60 watch:a unwatch:a watch:a wait:70000 keys=1 interval_ms_max=5000"
    ),
    "nothing is left of a key that is forgotten, and the turn goes on": (
        "concurrency~1 hold watch:abc unwatch:c wait:100 forget:ca all:ab found:a forget:b answer:b forget:z wait:60000"
        " all:ab keys=0 keys_unwatched=0 keys_in_backoff=0 keys_due=0 polling=0 interval_ms_max=0 interval_ms_mean=0"
        " polls=2 empty_polls=0 armed=0"
    ),
    # Many keys, and the end.
    "no more keys than allowed are polled at once, and the others come in the order of their times": (
        "concurrency~2 hold watch:a wait:1 watch:b wait:1 watch:c wait:1 watch:d wait:1001 all:ab polling=2 keys_due=2"
        " answer:b all:abc wait:500 answer:c all:abcd answer:a all:abcdb"
    ),
    "after the end nothing is polled": (
        "concurrency~1 hold watch:ab wait:100 close found:a reset:b unwatch:b watch:c wait:60000 all:a armed=0"
    ),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_when_keys_are_polled(script: str) -> None:
    changed = {name: int(number) for name, number in re.findall(r"(\w+)~(\d+)", script)}
    world = World(replace(EXACT, **changed))
    for step in script.split():
        if "~" not in step:
            perform(world, step)


def test_resets_of_a_busy_key_compute_nothing_and_those_of_a_key_that_no_one_waits_for_start_nothing() -> None:
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


def test_keys_that_are_due_in_the_same_tick_are_polled_in_the_same_turn() -> None:
    world = World(Fallback(tick_ms=50, jitter=0))
    for key in "abcde":
        world.wait(9)
        world.polls.watch(key)
    before = world.timers.set
    world.wait(105)
    assert world.seen == [(150, key) for key in "abcde"]
    assert world.timers.set - before == 1


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
    def no_consumer_is_kept_waiting_while_there_is_room(self) -> None:
        if len(self.under_way) < SETTINGS.concurrency:
            for key, due in self.latest.items():
                assert self.timers.now() <= max(due, self.full_until), f"{key} was due"

    @invariant()
    def one_timer_at_most_and_none_without_a_consumer_to_poll(self) -> None:
        metrics = self.polls.metrics()
        to_come = metrics["keys"] - metrics["keys_due"] - len(self.watched.intersection(self.under_way))
        assert self.timers.armed == (1 if to_come else 0)

    @invariant()
    def the_keys_are_those_that_are_watched(self) -> None:
        assert self.polls.metrics()["keys"] == len(self.watched)


TestFallbackMachine = FallbackMachine.TestCase
TestFallbackMachine.settings = bounds(max_examples=150, stateful_step_count=60, deadline=None)
