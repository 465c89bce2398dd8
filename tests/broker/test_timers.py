"""Timers: never early by the clock that counts, and only once."""

from __future__ import annotations

import asyncio
from functools import partial

from hark.broker.timers import LoopTimers
from hark.clock import MILLISECOND, SECOND, FakeClock, SystemClock
from hark.testing.timers import FakeTimers


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


async def test_what_is_overdue_comes_soon_but_not_within_the_call() -> None:
    called = asyncio.Event()
    LoopTimers(FakeClock()).at(0, called.set)
    assert not called.is_set()
    await called.wait()


async def test_a_cancelled_timer_does_not_ring() -> None:
    timers = LoopTimers(SystemClock())
    rung = []
    after = asyncio.Event()
    due = timers.now() + MILLISECOND
    timers.at(due, lambda: rung.append(1)).cancel()
    timers.at(due + MILLISECOND, after.set)
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
