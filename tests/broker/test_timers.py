"""Timers: never early by the clock that counts, and only once; and backoffs: when to look next."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

import pytest

from hark.broker.timers import Backoff, LoopTimers
from hark.clock import MILLISECOND, SECOND, FakeClock, SystemClock
from hark.settings import Fallback
from hark.testing.server import FakeTimers


async def test_a_timer_of_the_loop_never_rings_early() -> None:
    clock = SystemClock()
    timers = LoopTimers(clock)
    rung: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

    def ring(due: int) -> None:
        rung.put_nowait((due, clock.now()))

    for wait in range(0, 20 * MILLISECOND, 700):
        due = timers.now() + wait
        timers.at(due, partial(ring, due))
    for _ in range(0, 20 * MILLISECOND, 700):
        due, at = await rung.get()
        assert at >= due
    assert rung.empty()


async def test_a_timer_is_set_again_when_the_clock_stood_still() -> None:
    class Slow(FakeClock):
        """A clock that moves by a millisecond each time it is read."""

        def now(self) -> int:
            return self.advance(0.001)

    clock = Slow()
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    due = clock.now() + 5 * MILLISECOND
    LoopTimers(clock).at(due, lambda: done.set_result(clock.now()))
    assert await done >= due


async def test_what_is_overdue_comes_soon_but_not_within_the_call_and_a_cancelled_timer_does_not_ring() -> None:
    timers = LoopTimers(SystemClock())
    rung = []
    overdue, after = asyncio.Event(), asyncio.Event()
    timers.at(0, overdue.set)
    assert not overdue.is_set()
    due = timers.now() + MILLISECOND
    timers.at(due, lambda: rung.append(1)).cancel()
    timers.at(due + MILLISECOND, after.set)
    await overdue.wait()
    await after.wait()
    assert rung == []


def test_fake_timers_ring_in_order_each_at_its_own_time() -> None:
    timers = FakeTimers()
    start = timers.now()
    rung: list[tuple[str, int]] = []

    def ring(name: str) -> None:
        rung.append((name, timers.now() - start))

    def set_another() -> None:
        timers.at(start + SECOND, lambda: ring("from a timer"))

    timers.at(start + 2 * SECOND, lambda: ring("later"))
    timers.at(start + SECOND, set_another)
    timers.at(start + SECOND, lambda: ring("never")).cancel()
    assert timers.armed == 2
    timers.advance(1.5)
    assert rung == [("from a timer", SECOND)]
    assert timers.now() == start + 1_500_000
    timers.advance(10)
    assert rung[1:] == [("later", 2 * SECOND)]
    assert timers.armed == 0


# The backoff: when to look next, by a clock that the test moves --------------------------------------------


def middle() -> float:
    """The random number at which the jitter is nothing."""
    return 0.5


def waits(backoff: Backoff, clock: FakeClock, number: int) -> list[float]:
    """The milliseconds before each of the next looks, if none of them finds anything."""
    found = []
    for _ in range(number):
        wait = (backoff.due - clock.now()) / MILLISECOND
        found.append(wait)
        clock.advance(wait / 1000)
        backoff.missed()
    return found


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_the_first_looks_come_quickly_then_fewer_and_fewer_down_to_the_longest_wait(clock: FakeClock) -> None:
    backoff = Backoff(Fallback(jitter=0), clock, middle)
    for _ in range(2):
        assert waits(backoff, clock, 8) == [100, 100, 100, 300, 900, 2700, 5000, 5000]
        backoff.reset()
    clock.advance(0.06)
    backoff.missed()
    assert backoff.due - clock.now() == 100 * MILLISECOND, "from the last look, not from when it was due"


def test_it_says_how_far_it_has_slowed_down() -> None:
    backoff = Backoff(Fallback(threshold=2), FakeClock(), middle)
    seen = []
    for _ in range(4):
        seen.append((backoff.at_start, backoff.slowed, backoff.interval_ms))
        backoff.missed()
    assert seen == [(True, False, 100), (False, False, 100), (False, True, 300), (False, True, 900)]


def test_the_jitter_is_a_tenth_of_the_interval_or_what_the_settings_say(clock: FakeClock) -> None:
    assert waits(Backoff(Fallback(), clock, lambda: 0.0), clock, 5) == [90, 90, 90, 270, 810]
    assert waits(Backoff(Fallback(), clock, lambda: 1.0), clock, 5) == [110, 110, 110, 330, 990]
    assert waits(Backoff(Fallback(jitter=0), clock, lambda: 0.0), clock, 1) == [100]
    assert waits(Backoff(Fallback(jitter=0.5), clock, lambda: 0.0), clock, 1) == [50]


def test_those_who_look_seldom_meet_at_quarters_of_a_second_within_the_jitter_after_the_cap(clock: FakeClock) -> None:
    backoff = Backoff(Fallback(), clock, Random(1).random)
    waits(backoff, clock, 10)
    assert backoff.interval_ms == 5000
    slow = []
    for _ in range(200):
        slow += waits(backoff, clock, 1)
        assert clock.now() % (250 * MILLISECOND) == 0
    assert min(slow) == 4500
    assert max(slow) == 5500
    assert len(set(slow)) >= 5, "they stray: those who began together do not go on all together"


@pytest.mark.parametrize(("multiplier", "longest"), [(1, 100), (1000, 5000)])
def test_a_very_long_wait_changes_nothing(clock: FakeClock, multiplier: float, longest: float) -> None:
    backoff = Backoff(Fallback(multiplier=multiplier), clock, middle)
    for _ in range(10_000):
        backoff.missed()
    assert backoff.interval_ms == longest
