"""What every engine tells its server: numbers of the store, the survey of what waits, the census, words for peers."""

from __future__ import annotations

import math

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.engine.s3 import S3Engine
from hark.http.metrics.store import ELSEWHERE, STORE
from hark.model import QUEUE_MODE, Depth, GroupMode, Hint, Subscription

from .driver import Driver


async def test_a_store_has_numbers_whose_names_stay_and_which_have_a_metric_each(q: Driver) -> None:
    numbers = await q.engine.store_metrics()
    assert numbers
    assert [name for name, number in numbers.items() if not (math.isfinite(number) and number >= 0)] == []
    assert set(numbers) <= {*STORE, *ELSEWHERE}
    await q.push("orders", "p", *range(100))
    assert set(await q.engine.store_metrics()) == set(numbers)


@pytest.mark.parametrize(
    ("mode", "batch", "buried"), [("ordered", 1, 1), ("ordered", 2, 0), ("shared", 1, 1), ("shared", 2, 2)]
)
async def test_leases_that_run_out_and_what_dies_of_them_are_counted(
    q: Driver, mode: GroupMode, batch: int, buried: int
) -> None:
    await q.configure("orders", lease_time=10, retry_limit=0)
    await q.push("orders", "p", 1, 2)
    before = await q.engine.store_metrics()
    assert len(await q.pop("orders", group="g", group_mode=mode, batch=batch)) == batch
    q.clock.advance(11)
    await q.engine.expire()
    after = await q.engine.store_metrics()
    assert len(await q.dead_letters("orders", "g")) == buried
    assert [after[name] - before[name] for name in ("leases_expired", "expiries_buried")] == [1, buried]


async def test_a_durable_store_tells_how_large_it_is(q: Driver) -> None:
    async def size() -> float:
        numbers = await q.engine.store_metrics()
        return sum(number for name, number in numbers.items() if name.endswith("_bytes"))

    empty = await size()
    await q.push("orders", "p", *("x" * 1000 for _ in range(1000)))
    assert await size() >= empty + 500_000


# Surveys and the census ------------------------------------------------------------------------------------


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


async def test_a_survey_does_not_mention_what_is_deleted_and_places_that_a_group_started_after(
    q: Driver, engine: Engine
) -> None:
    assert await surveyed(engine, 10) == []
    await q.push("orders", "p1", 1)
    q.clock.advance(1)
    await q.pop("orders", group="late", subscription=Subscription("new"))
    assert summed(await surveyed(engine, 10)) == {("orders", None): (1, 1, None)}
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


# Peers -----------------------------------------------------------------------------------------------------


async def test_who_shares_no_store_has_nobody_to_hear(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    hints = [Hint("orders", None, ("p1",), "message"), Hint("orders", "g", None)]
    # A store in a bucket has its news in the log: what others say makes it look there.
    assert bool(q.engine.hear(hints)) == (q.engine.shared and not isinstance(q.engine, S3Engine))


async def test_the_secret_of_peers_has_32_bytes_and_stays(q: Driver) -> None:
    secret = await q.engine.peer_secret()
    assert len(secret) == 32
    assert await q.engine.peer_secret() == secret
