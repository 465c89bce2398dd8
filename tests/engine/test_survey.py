"""The look at all partitions in steps, and the census: what waits where, and what is held or dead."""

from __future__ import annotations

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.model import QUEUE_MODE, Depth, GroupMode, Subscription

from .driver import Driver


async def surveyed(engine: Engine, limit: int) -> list[Depth]:
    """All steps of a survey."""
    depths: list[Depth] = []
    place: tuple[int, str] | None = (0, "")
    while place is not None:
        step = await engine.survey(place, limit)
        depths += step.depths
        place = step.next
    return depths


def summed(depths: list[Depth]) -> dict[tuple[str, str | None], tuple[int, int, int | None]]:
    """What the steps say of each queue and group together."""
    sums: dict[tuple[str, str | None], tuple[int, int, int | None]] = {}
    for one in depths:
        partitions, messages, oldest = sums.get((one.queue, one.group), (0, 0, None))
        times = [time for time in (oldest, one.oldest) if time is not None]
        sums[one.queue, one.group] = (partitions + one.partitions, messages + one.messages, min(times, default=None))
    return sums


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_a_survey_says_what_waits_in_every_queue_whatever_its_steps(
    q: Driver, engine: Engine, clock: FakeClock, limit: int, mode: GroupMode
) -> None:
    start = clock.now()
    for name in ("p1", "p2", "p3"):
        await q.push("orders", name, 1, 2)
        clock.advance(10)
    await q.push("bills", "p1", 3)
    await q.pop("orders", "p1", group="g", batch=2, auto_ack=True, group_mode=mode)
    await q.pop("orders", "p2", group="g", batch=1, auto_ack=True, group_mode=mode)
    depths = await surveyed(engine, limit)
    assert summed(depths) == {
        ("orders", None): (3, 6, None),
        ("orders", "g"): (3, 3, start + 10 * SECOND),
        ("bills", None): (1, 1, start + 30 * SECOND),
    }
    queues = [one.queue for one in depths]
    assert sorted(queues, key=queues.index) == queues, "entries of a queue follow each other"


async def test_a_survey_does_not_mention_places_that_a_group_started_after(
    q: Driver, engine: Engine, clock: FakeClock
) -> None:
    await q.push("orders", "p1", 1)
    clock.advance(1)
    await q.pop("orders", group="late", subscription=Subscription("new"))
    assert summed(await surveyed(engine, 10)) == {("orders", None): (1, 1, None)}


async def test_a_survey_of_nothing_and_of_what_was_deleted(q: Driver, engine: Engine) -> None:
    assert await surveyed(engine, 10) == []
    await q.push("orders", "p1", 1)
    await engine.delete_queues(["orders"])
    assert await surveyed(engine, 10) == []


async def test_a_census_counts_queues_dead_letters_and_what_is_held(q: Driver, engine: Engine) -> None:
    for queue in ("a", "b"):
        await q.push(queue, "p1", 1, 2, 3)
        await q.push(queue, "p2", 4)
    await q.pop("a", batch=2)
    await q.pop("a", "p2", group="shared", group_mode="shared")
    got = await q.pop("b", group="g")
    await q.kill(got[0])
    census = await engine.census()
    assert census.queues == 2
    assert dict(census.dead_letters) == {"b": 1}
    assert dict(census.in_flight) == {("a", QUEUE_MODE): 2, ("a", "shared"): 1}
