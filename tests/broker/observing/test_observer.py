"""The observer: a sample a second, an hour of history, and those who watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from hark.broker.observing.observer import Observer
from hark.broker.observing.samples import Standing
from hark.broker.tallies import Tallies
from hark.clock import SECOND
from hark.errors import Overloaded, Unavailable
from hark.model import Depth
from hark.testing.timers import FakeTimers

from .stores import SlowStore, tally
from .test_surveyor import settle

STANDING = Standing(pops=1, streams=2, browsers=3, push_maintenance=False, pop_maintenance=True)


class Bench:
    """An observer of a store that does not move by itself."""

    def __init__(self) -> None:
        self.timers = FakeTimers()
        self.tallies = Tallies(self.timers)
        self.store = SlowStore(self.timers.clock)
        self.observer = Observer(self.store.engine(), self.tallies, self.timers, lambda: STANDING, max_watchers=2)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    bench.store.depths = [Depth("orders", None, 4, 9, None), Depth("orders", "g", 4, 5, bench.timers.now() - SECOND)]
    bench.observer.start()
    await settle()
    yield bench
    await bench.observer.close()
    assert bench.timers.armed == 0


async def test_a_sample_says_what_happened_in_its_second(bench: Bench) -> None:
    watcher = bench.observer.watch()
    tally(bench.tallies, "orders", pushed=7, delivered=3)
    bench.timers.advance(1)
    sample = await watcher.next()
    assert sample is not None
    assert (sample.point.rates.pushed, sample.point.rates.delivered) == (7, 3)
    assert (sample.changed, sample.more, sample.standing) == (("orders",), False, STANDING)
    assert [one.queue for one in sample.busiest] == ["orders"]
    assert sample.point.depths is not None
    assert (sample.point.depths.backlog, sample.point.depths.partitions) == (5, 4)
    assert sample.point.oldest_waiting_seconds == 2
    bench.timers.advance(1)
    sample = await watcher.next()
    assert sample is not None
    assert (sample.point.rates.pushed, sample.changed) == (0, ())


async def test_no_more_than_a_hundred_changed_queues_are_named(bench: Bench) -> None:
    for number, named, more in ((100, 100, False), (101, 100, True), (0, 0, False)):
        for one in range(number):
            bench.tallies.touched.add(f"q{one:03}")
        bench.timers.advance(1)
        sample = bench.observer.latest
        assert sample is not None
        assert (len(sample.changed), sample.more) == (named, more)


async def test_who_begins_to_watch_gets_the_last_sample_at_once(bench: Bench) -> None:
    bench.timers.advance(1)
    watcher = bench.observer.watch()
    assert await watcher.next() is bench.observer.latest


async def test_who_is_slow_gets_the_latest_and_hears_that_something_was_missed(bench: Bench) -> None:
    slow, quick = bench.observer.watch(), bench.observer.watch()
    bench.timers.advance(1)
    assert await quick.next() is bench.observer.latest
    tally(bench.tallies, "orders", pushed=1)
    bench.timers.advance(1)
    sample, latest = await slow.next(), bench.observer.latest
    assert sample is not None
    assert latest is not None
    assert (sample.point, sample.more, latest.more) == (latest.point, True, False)
    assert await quick.next() is latest


async def test_so_many_may_watch_and_no_more(bench: Bench) -> None:
    first, _ = bench.observer.watch(), bench.observer.watch()
    with pytest.raises(Overloaded) as refused:
        bench.observer.watch()
    assert refused.value.code == "too_many_streams"
    first.close()
    assert await first.next() is None
    bench.observer.watch()


async def test_those_who_watch_are_told_when_the_server_stops(bench: Bench) -> None:
    watcher = bench.observer.watch()
    waiting = asyncio.create_task(watcher.next())
    await asyncio.sleep(0)
    bench.observer.stop_watching()
    assert await waiting is None
    with pytest.raises(Unavailable):
        bench.observer.watch()


async def test_the_history_has_a_point_every_ten_seconds_for_an_hour(bench: Bench) -> None:
    start = bench.timers.now()
    for second in range(4000):
        tally(bench.tallies, "orders", pushed=second)
        bench.timers.advance(1)
    points = bench.observer.history(3600)
    assert len(points) == 360
    assert [(point.at - start) // SECOND for point in points] == list(range(410, 4010, 10))
    assert points[-1].rates.pushed == sum(range(3990, 4000)) / 10
    assert [point.at for point in bench.observer.history(30)] == [point.at for point in points[-3:]]


async def test_backlogs_are_those_of_the_last_survey(bench: Bench) -> None:
    assert bench.observer.backlogs == {"orders": 5}
    bench.store.depths = [Depth("orders", None, 4, 9, None), Depth("bills", None, 1, 3, None)]
    bench.timers.advance(2)
    await settle()
    assert bench.observer.backlogs == {"orders": 9, "bills": 3}


async def test_whoever_asks_keeps_the_numbers_fresh_for_a_while(bench: Bench) -> None:
    start = bench.timers.now()
    bench.observer.attend()
    for _ in range(60):
        bench.timers.advance(1)
        await settle()
    assert [(at - start) // SECOND for at in bench.store.looked] == [*range(0, 30, 2), 38, 48, 58]
