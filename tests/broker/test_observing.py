"""What is observed: surveys of the store, samples and history, rates, and lists of queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from hark.api.types.server import BusyQueue, Stopped, Waiting
from hark.broker.observer import BusyQueues, Meter, Observer, percentiles
from hark.broker.survey import Counting, Depths, QueueDepth, Surveyor, SurveyTotals, list_queues
from hark.broker.tallies import Tallies
from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.engine.sqlite import SqliteEngine
from hark.errors import EngineFailure, Overloaded, Unavailable
from hark.model import Depth, QueueFilter, QueuePage, QueueSpec, Survey, Totals
from hark.testing.server import FakeTimers


class SlowStore:
    """A store of so many steps, each of which takes so many seconds."""

    def __init__(self, clock: FakeClock, steps: int = 1, step_seconds: float = 0.0) -> None:
        self._clock = clock
        self._steps = steps
        self._step_seconds = step_seconds
        self.depths: list[Depth] = []
        self.looked: list[int] = []
        """When each step began."""
        self.busy = 0.0
        self.fails = False

    async def totals(self) -> Totals:
        """Takes no time."""
        if self.fails:
            raise EngineFailure("away")
        return Totals(len({depth.queue for depth in self.depths}), {}, {})

    async def survey(self, after: tuple[int, str], limit: int) -> Survey:  # noqa: ARG002  # as the engines have it
        """The next step."""
        self.looked.append(self._clock.now())
        self._clock.advance(self._step_seconds)
        self.busy += self._step_seconds
        number = after[0] + 1
        return Survey(self.depths if number == 1 else [], None if number >= self._steps else (number, ""))

    def engine(self) -> Engine:
        """It, as far as an observer uses one."""
        return cast(Engine, self)


def tally(tallies: Tallies, queue: str, *, pushed: int = 0, delivered: int = 0, completed: int = 0) -> None:
    """Something happens to a queue."""
    for one in (tallies.of(queue), tallies.total):
        one.pushed += pushed
        one.delivered += delivered
        one.completed += completed


# Surveys: what they find, and how little of the time they take ---------------------------------------------


@pytest.fixture
def timers() -> FakeTimers:
    return FakeTimers()


@pytest.fixture
def store(timers: FakeTimers) -> SlowStore:
    """A store that answers at once."""
    return SlowStore(timers.clock)


@asynccontextmanager
async def surveying(
    timers: FakeTimers, store: SlowStore, is_watched: Callable[[], bool]
) -> AsyncIterator[tuple[Surveyor, list[Depths]]]:
    """A surveyor at work, and what it has found."""
    found: list[Depths] = []
    surveyor = Surveyor(store.engine(), timers, is_watched, found.append)
    task = asyncio.create_task(surveyor.run())
    await settle()
    yield surveyor, found
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def settle() -> None:
    """Let the surveyor go on until it rests."""
    for _ in range(20):
        await asyncio.sleep(0)


async def pass_time(timers: FakeTimers, seconds: float) -> None:
    """Ring what is due, one timer at a time, so that what follows from it happens at its time."""
    end = timers.now() + round(seconds * SECOND)
    while (due := timers.next_due()) is not None and due <= end:
        timers.advance(max(0, due - timers.now()) / SECOND)
        await settle()
    timers.advance(max(0, end - timers.now()) / SECOND)


@pytest.mark.parametrize(("watched", "seconds"), [(True, 2), (False, 10)], ids=["watched", "unwatched"])
async def test_a_store_that_answers_at_once_is_surveyed_more_often_while_it_is_watched(
    store: SlowStore, timers: FakeTimers, watched: bool, seconds: int
) -> None:
    start = timers.now()
    async with surveying(timers, store, lambda: watched):
        await pass_time(timers, 5 * seconds)
    assert [(at - start) / SECOND for at in store.looked] == [seconds * number for number in range(6)]


@pytest.mark.parametrize(("watched", "share"), [(True, 20), (False, 100)], ids=["watched", "unwatched"])
@pytest.mark.parametrize(("steps", "seconds"), [(1, 0.4), (50, 0.01), (7, 0.3)], ids=["one", "many", "some"])
async def test_surveys_take_no_more_than_their_share_of_the_time(
    timers: FakeTimers, watched: bool, share: int, steps: int, seconds: float
) -> None:
    store = SlowStore(timers.clock, steps, seconds)
    async with surveying(timers, store, lambda: watched) as (_, found):
        while not found:
            await pass_time(timers, seconds)
        first = [after - before for before, after in zip(store.looked, store.looked[1:], strict=False)]
        assert min(first, default=0) in (0, round(2 * seconds * SECOND)), "until something is known it rests less"
        start = timers.now()
        store.busy = 0.0
        store.looked.clear()
        await pass_time(timers, 600)
    assert len(found) > 1
    assert store.busy <= (timers.now() - start) / SECOND / share + seconds
    gaps = [after - before for before, after in zip(store.looked, store.looked[1:], strict=False)]
    assert min(gaps) >= share * seconds * SECOND, "after each step it rests"


async def test_a_rest_is_never_longer_than_a_minute_and_a_store_that_is_away_is_requested_again(
    timers: FakeTimers,
) -> None:
    store = SlowStore(timers.clock, 3, 10.0)
    store.fails = True
    async with surveying(timers, store, lambda: False) as (_, found):
        await pass_time(timers, 10)
        assert not found
        store.fails = False
        await pass_time(timers, 300)
    assert found
    gaps = [after - before for before, after in zip(store.looked, store.looked[1:], strict=False)]
    assert {gap / SECOND for gap in gaps} == {20, 70}, "as long as a step at first"


async def test_who_begins_to_watch_need_not_wait_as_long_as_no_one_would(store: SlowStore, timers: FakeTimers) -> None:
    watched = False
    async with surveying(timers, store, lambda: watched) as (surveyor, _):
        await pass_time(timers, 5)
        assert len(store.looked) == 1
        watched = True
        surveyor.attend()
        await settle()
        assert len(store.looked) == 2
        surveyor.attend()
        await settle()
        assert len(store.looked) == 2, "but no more often than every two seconds"


def folded(totals: Totals, *steps: list[Depth], most_queues: int = 100) -> Depths:
    """What the steps of a survey come to."""
    survey_totals = SurveyTotals(totals, 5, most_queues)
    for step in steps:
        survey_totals.add(step)
    return survey_totals.finish(7)


def test_the_backlog_of_a_queue_is_what_its_slowest_group_waits_for() -> None:
    totals = Totals(2, {"orders": 3, "gone": 1}, {("orders", "slow"): 2, ("orders", "fast"): 5})
    depths = folded(
        totals,
        [Depth("orders", None, 2, 10, None), Depth("orders", "slow", 2, 6, 500), Depth("orders", "fast", 2, 5, 900)],
        [Depth("orders", None, 1, 5, None), Depth("orders", "slow", 1, 3, 400, 8), Depth("quiet", None, 1, 4, 300, 1)],
    )
    assert depths.by_queue == {"orders": QueueDepth(3, 9, 7, 400, 3, 8), "quiet": QueueDepth(1, 3, 0, 300, 0, 1)}
    assert (depths.began, depths.at) == (5, 7)
    assert (depths.queues, depths.partitions, depths.backlog, depths.scheduled) == (2, 4, 9 + 3, 8 + 1)
    assert (depths.in_flight, depths.oldest_waiting, depths.dead_letters) == (7, 300, 4)
    entries = [Depth(f"q{number:03}", None, 1, number, None) for number in range(100)]
    depths = folded(Totals(100, {}, {}), entries, most_queues=10)
    assert set(depths.by_queue) == {f"q{number:03}" for number in range(90, 100)}, "the longest are remembered"
    assert depths.backlog == sum(range(100)), "all of them count"


# The observer: a sample a second, an hour of history, and those who watch ----------------------------------


STANDING = Waiting(pops=1, streams=2, browsers=3), Stopped(push=False, pop=True)


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


async def test_a_sample_says_what_happened_in_its_second_and_backlogs_are_those_of_the_last_survey(
    bench: Bench,
) -> None:
    watcher = bench.observer.watch()
    tally(bench.tallies, "orders", pushed=7, delivered=3)
    bench.timers.advance(1)
    sample = await watcher.next()
    assert sample is not None
    assert (sample.point.rates.pushed, sample.point.rates.delivered) == (7, 3)
    assert (sample.changed, sample.more, (sample.waiting, sample.maintenance)) == (("orders",), False, STANDING)
    assert [one.queue for one in sample.busiest] == ["orders"]
    assert sample.point.depths is not None
    assert (sample.point.depths.backlog, sample.point.depths.partitions) == (5, 4)
    assert sample.point.oldest_waiting_seconds == 2
    assert bench.observer.backlogs == {"orders": 5}
    bench.store.depths = [Depth("orders", None, 4, 9, None), Depth("bills", None, 1, 3, None)]
    bench.timers.advance(1)
    sample = await watcher.next()
    assert sample is not None
    assert (sample.point.rates.pushed, sample.changed) == (0, ())
    await settle()
    assert bench.observer.backlogs == {"orders": 9, "bills": 3}, "those of the last survey"


async def test_no_more_than_a_hundred_changed_queues_are_named(bench: Bench) -> None:
    for number, named, more in ((100, 100, False), (101, 100, True), (0, 0, False)):
        for one in range(number):
            bench.tallies.changed_queues.add(f"q{one:03}")
        bench.timers.advance(1)
        sample = bench.observer.latest
        assert sample is not None
        assert (len(sample.changed), sample.more) == (named, more)


async def test_who_is_slow_gets_the_latest_and_receives_that_something_was_missed(bench: Bench) -> None:
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
    quick.close()
    assert await bench.observer.watch().next() is latest, "who begins to watch gets the last sample at once"


async def test_so_many_may_watch_and_no_more_and_none_when_the_server_stops(bench: Bench) -> None:
    first, _ = bench.observer.watch(), bench.observer.watch()
    with pytest.raises(Overloaded) as refused:
        bench.observer.watch()
    assert refused.value.code == "too_many_streams"
    first.close()
    assert await first.next() is None
    waiting = asyncio.create_task(bench.observer.watch().next())
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


async def test_the_one_that_asks_keeps_the_numbers_fresh_for_a_while(bench: Bench) -> None:
    start = bench.timers.now()
    bench.observer.attend()
    for _ in range(60):
        bench.timers.advance(1)
        await settle()
    assert [(at - start) // SECOND for at in bench.store.looked] == [*range(0, 30, 2), 38, 48, 58]


# Rates, latencies and the busiest queues -------------------------------------------------------------------


def test_rates_and_latencies_are_those_since_the_last_reading() -> None:
    clock = FakeClock()
    tallies = Tallies(clock)
    tally(tallies, "orders", pushed=1000)
    tallies.ages[30] += 1000
    meter = Meter(tallies, clock.now())
    tally(tallies, "orders", pushed=30, delivered=20, completed=10)
    tallies.total.failed += 4
    tallies.total.dead_lettered += 2
    rates, _ = meter.read(clock.advance(2))
    assert (rates.pushed, rates.delivered, rates.settled) == (15, 10, 8)
    assert (rates.failed, rates.dead_lettered) == (2, 1)
    tallies.ages[11] += 98  # From 1,024 to 2,048 microseconds.
    tallies.ages[21] += 2  # From 1,048,576 to 2,097,152.
    rates, latency = meter.read(clock.advance(1))
    assert (rates.pushed, rates.settled) == (0, 0)
    assert latency is not None
    assert 1.024 < latency.p50 < 2.048
    assert 1048.576 < latency.p99 < 2097.152
    assert meter.read(clock.advance(1))[1] is None
    assert meter.read(clock.now())[0].pushed == 0, "a reading at once after another divides by no zero"


@pytest.mark.parametrize("bits", [0, 1, 10, 63])
def test_percentiles_of_one_bucket_are_inside_of_it(bits: int) -> None:
    ages = [0] * 64
    ages[bits] = 7
    latency = percentiles(ages)
    assert latency is not None
    assert (1 << bits) >> 1 <= latency.p50 * 1000 <= latency.p99 * 1000 <= 1 << bits


def test_the_busiest_queues_come_first_over_ten_seconds() -> None:
    tallies, busy = Tallies(FakeClock()), BusyQueues()
    for second in range(10):
        tally(tallies, "steady", pushed=2, delivered=1)
        if second == 0:
            tally(tallies, "once", pushed=25)
        busy.note(tallies, tallies.changed_queues)
        tallies.changed_queues = set()
    first, second_one = busy.busiest()
    assert first == BusyQueue("steady", 2, 1, 0)
    assert (second_one.queue, second_one.pushed_per_second) == ("once", 2.5)
    tally(tallies, "steady", pushed=1)
    busy.note(tallies, tallies.changed_queues)
    assert [one.queue for one in busy.busiest()] == ["steady"], "ten seconds later it is forgotten"
    for number in range(500):
        tally(tallies, f"q{number:03}", pushed=100 + number)
    busy.note(tallies, tallies.changed_queues)
    assert [one.queue for one in busy.busiest()] == [f"q{number}" for number in range(499, 479, -1)], "twenty of them"


def test_a_queue_that_was_forgotten_and_came_back_has_no_negative_rate() -> None:
    tallies, busy = Tallies(FakeClock(), most_queues=1), BusyQueues()
    tally(tallies, "a", pushed=100)
    busy.note(tallies, ["a"])
    tally(tallies, "b", pushed=1)
    tally(tallies, "a", pushed=5)
    busy.note(tallies, ["a", "b"])
    [found] = busy.busiest()
    assert (found.queue, found.pushed_per_second) == ("a", (100 + 5) / 2)


@pytest.fixture
async def engine() -> AsyncIterator[SqliteEngine]:
    clock = FakeClock()
    engine = SqliteEngine(":memory:", clock=clock)
    await engine.start(lambda _: None)
    for name in ("b", "a", "secret", "c"):
        await engine.configure([QueueSpec(name=name, namespace="n" if name != "c" else "")])
        clock.advance(1)
    yield engine
    await engine.close()


def named(page: QueuePage) -> tuple[list[str], int]:
    """The names on a page, and the total."""
    return [stats.info.name for stats in page.items], page.total


def public(queue: str) -> bool:
    """Whether somebody may see a queue."""
    return queue != "secret"


@pytest.fixture
def counts(engine: SqliteEngine) -> Counting:
    """Counts of a store that has not been surveyed."""
    return Counting(engine, lambda: None, lambda: None)


async def test_the_longest_backlogs_come_first_and_the_others_by_name(counts: Counting) -> None:
    backlogs = {"c": 5, "a": 9, "gone": 100}
    assert named(await list_queues(counts, QueueFilter(), backlogs=backlogs)) == (["a", "c", "b", "secret"], 4)
    page = QueueFilter(limit=2, offset=1)
    assert named(await list_queues(counts, page, backlogs=backlogs)) == (["c", "b"], 4)


@pytest.mark.parametrize(
    ("where", "names", "total"),
    [
        (QueueFilter(), ["c", "a", "b"], 3),
        (QueueFilter(sort="name"), ["a", "b", "c"], 3),
        (QueueFilter(sort="name", limit=1, offset=1), ["b"], 3),
        (QueueFilter(namespace="n"), ["a", "b"], 2),
        (QueueFilter(task="t"), [], 0),
        (QueueFilter(search="e"), [], 0),
        (QueueFilter(names=["secret", "a"]), ["a"], 1),
    ],
    ids=["newest", "name", "page", "namespace", "task", "search", "names"],
)
async def test_what_may_not_be_seen_is_not_listed_and_not_counted(
    counts: Counting, where: QueueFilter, names: list[str], total: int
) -> None:
    assert named(await list_queues(counts, where, visible=public)) == (names, total)
