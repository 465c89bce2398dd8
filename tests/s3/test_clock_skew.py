"""Processes whose clocks are wrong: the dates of the store's answers tell them, and they agree to about a second.

A date is cut to whole seconds, so the time of a process is up to one second off.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.s3.log import record
from tests.engine.driver import payloads
from tests.s3.processes import Process, running
from tests.s3.stub.store import StubStore

SKEWS = {"ahead": 5.0, "behind": -5.0}
WRONG_BY = 1.0
MARGIN = 0.5


class World:
    """The time as it is, a store that knows it, and processes that do not."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = StubStore(self.clock)
        self.clocks = {name: FakeClock(self.clock.now() + round(skew * SECOND)) for name, skew in SKEWS.items()}
        self.processes: dict[str, Process] = {}

    def wait(self, seconds: float) -> None:
        """Time passes for all."""
        for clock in (self.clock, *self.clocks.values()):
            clock.advance(seconds)

    async def wait_in_steps(self, seconds: float) -> None:
        """The same, while the processes talk to the store, as they do."""
        for _ in range(10):
            self.wait(seconds / 10)
            for process in self.processes.values():
                await process.engine.ping()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Two processes, one ahead and one behind."""
    world = World()
    async with AsyncExitStack() as stack:
        for name, clock in world.clocks.items():
            margin = round(MARGIN * 1000)
            process = await stack.enter_async_context(running(world.store, clock, skew_margin_ms=margin))
            world.processes[name] = process
        yield world


BOTH_WAYS = pytest.mark.parametrize(("first", "second"), [("ahead", "behind"), ("behind", "ahead")])


@BOTH_WAYS
async def test_a_delay_is_over_for_both_at_about_the_same_time(world: World, first: str, second: str) -> None:
    await world.processes[first].push("orders", "p", 1, delay_ms=20_000)
    await world.wait_in_steps(20 - 2 * WRONG_BY)
    assert await world.processes[second].pop("orders") == []
    world.wait(4 * WRONG_BY)
    assert payloads(await world.processes[second].pop("orders")) == [1]


@BOTH_WAYS
async def test_a_lease_is_taken_over_when_it_is_over_for_both(world: World, first: str, second: str) -> None:
    await world.processes[first].push("orders", "p", 1)
    [held] = await world.processes[first].pop("orders", lease_ms=20_000)
    await world.wait_in_steps(20 - 2 * WRONG_BY)
    assert await world.processes[second].pop("orders") == []
    assert (await world.processes[first].renew(held.lease, 20)).error is None
    await world.wait_in_steps(20 - 2 * WRONG_BY)
    assert await world.processes[second].pop("orders") == []
    world.wait(4 * WRONG_BY + MARGIN)
    assert payloads(await world.processes[second].pop("orders")) == [1]


async def test_leases_of_another_process_last_longer_by_the_margin() -> None:
    """Clocks that are the same to all that the dates say may still differ: the margin is for that."""
    clock = FakeClock()
    store = StubStore(clock)
    async with (
        running(store, clock, skew_margin_ms=3000) as owner,
        running(store, clock, skew_margin_ms=3000) as other,
    ):
        await owner.push("orders", "p", 1)
        await owner.pop("orders", lease_ms=10_000)
        clock.advance(12.9)
        assert await other.pop("orders") == []
        clock.advance(0.2)
        assert payloads(await other.pop("orders", lease_ms=10_000)) == [1]
        clock.advance(12.9)
        assert await owner.pop("orders") == []
        # The lease is its own, so it needs no margin.
        assert payloads(await other.pop("orders")) == [1]


async def test_the_time_of_records_never_goes_back(world: World) -> None:
    for number in range(12):
        name = ("ahead", "behind")[number % 2]
        await world.processes[name].push("orders", "p", number)
        world.wait(0.3 * (number % 3))
    records = [record.decode(world.store.read(key) or b"", int(key[4:])) for key in world.store.keys("log/")]
    times = [one.time for one in records]
    assert len({one.writer for one in records}) == 2
    assert times == sorted(times)
    assert abs(times[-1] - world.clock.now()) <= 2 * WRONG_BY * SECOND


async def test_a_lease_that_was_renewed_elsewhere_lasts_as_long_as_was_said_there() -> None:
    clock = FakeClock()
    store = StubStore(clock)
    async with (
        running(store, clock, skew_margin_ms=3000) as owner,
        running(store, clock, skew_margin_ms=3000) as other,
    ):
        await owner.push("orders", "p", 1)
        [held] = await owner.pop("orders", lease_ms=10_000)
        clock.advance(9)
        # No later than what the other process allows the lease anyway, but later than its owner does.
        renewed = await other.renew(held.lease, 3)
        assert renewed.expires_at is not None
        clock.advance(2.9)
        assert await owner.pop("orders") == []
        assert (await other.ack(held)).success
