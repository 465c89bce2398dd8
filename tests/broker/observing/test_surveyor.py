"""Surveys: what they find, and how little of the time they take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from hark.broker.observing.folding import Fold
from hark.broker.observing.samples import Depths, QueueDepth
from hark.broker.observing.surveyor import Surveyor
from hark.clock import SECOND
from hark.model import Census, Depth
from hark.testing.timers import FakeTimers

from .stores import SlowStore


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


async def test_a_store_that_answers_at_once_is_surveyed_every_two_seconds_while_somebody_watches() -> None:
    timers = FakeTimers()
    store = SlowStore(timers.clock)
    start = timers.now()
    async with surveying(timers, store, lambda: True):
        await pass_time(timers, 10)
    assert [(at - start) / SECOND for at in store.looked] == [0, 2, 4, 6, 8, 10]


async def test_it_is_surveyed_every_ten_seconds_while_nobody_watches() -> None:
    timers = FakeTimers()
    store = SlowStore(timers.clock)
    async with surveying(timers, store, lambda: False):
        await pass_time(timers, 60)
    assert len(store.looked) == 7


@pytest.mark.parametrize(("watched", "share"), [(True, 20), (False, 100)], ids=["watched", "unwatched"])
@pytest.mark.parametrize(("steps", "seconds"), [(1, 0.4), (50, 0.01), (7, 0.3)], ids=["one", "many", "some"])
async def test_surveys_take_no_more_than_their_share_of_the_time(
    watched: bool, share: int, steps: int, seconds: float
) -> None:
    timers = FakeTimers()
    store = SlowStore(timers.clock, steps, seconds)
    start = timers.now()
    async with surveying(timers, store, lambda: watched) as (_, found):
        await pass_time(timers, 600)
    assert found
    assert store.busy <= (timers.now() - start) / SECOND / share + seconds
    gaps = [after - before for before, after in zip(store.looked, store.looked[1:], strict=False)]
    assert min(gaps) >= share * seconds * SECOND, "after each step it rests"


async def test_a_rest_is_never_longer_than_a_minute() -> None:
    timers = FakeTimers()
    store = SlowStore(timers.clock, 3, 10.0)
    async with surveying(timers, store, lambda: False):
        await pass_time(timers, 300)
    gaps = [after - before for before, after in zip(store.looked, store.looked[1:], strict=False)]
    assert {gap / SECOND for gap in gaps} == {70}


async def test_who_begins_to_watch_need_not_wait_as_long_as_nobody_would() -> None:
    timers = FakeTimers()
    store = SlowStore(timers.clock)
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


async def test_a_store_that_is_away_is_asked_again() -> None:
    timers = FakeTimers()
    store = SlowStore(timers.clock)
    store.fails = True
    async with surveying(timers, store, lambda: True) as (_, found):
        await pass_time(timers, 2)
        assert not found
        store.fails = False
        await pass_time(timers, 2)
        assert len(found) == 1


def folded(census: Census, *steps: list[Depth], most_queues: int = 100) -> Depths:
    """What the steps of a survey come to."""
    fold = Fold(census, most_queues)
    for step in steps:
        fold.add(step)
    return fold.finish(7)


def test_the_backlog_of_a_queue_is_what_its_slowest_group_waits_for() -> None:
    census = Census(2, {"orders": 3, "gone": 1}, {("orders", "slow"): 2, ("orders", "fast"): 5})
    depths = folded(
        census,
        [Depth("orders", None, 2, 10, None), Depth("orders", "slow", 2, 6, 500), Depth("orders", "fast", 2, 5, 900)],
        [Depth("orders", None, 1, 5, None), Depth("orders", "slow", 1, 3, 400), Depth("quiet", None, 1, 4, 300)],
    )
    assert depths.by_queue == {
        "orders": QueueDepth(3, 9 - 2, 7, 400, 3),
        "quiet": QueueDepth(1, 4, 0, 300, 0),
    }
    assert (depths.at, depths.queues, depths.partitions, depths.backlog) == (7, 2, 4, 7 + 4)
    assert (depths.in_flight, depths.oldest_waiting, depths.dead_letters) == (7, 300, 4)


def test_of_very_many_queues_those_with_the_longest_backlogs_are_remembered() -> None:
    entries = [Depth(f"q{number:03}", None, 1, number, None) for number in range(100)]
    depths = folded(Census(100, {}, {}), entries, most_queues=10)
    assert set(depths.by_queue) == {f"q{number:03}" for number in range(90, 100)}
    assert depths.backlog == sum(range(100)), "all of them count"
