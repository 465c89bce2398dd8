"""What every engine tells its server: numbers of the store, the survey of what waits, the totals, words for peers."""

from __future__ import annotations

import math
from typing import get_args

import pytest

from hark.broker.survey import Counting, SurveyTotals
from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.engine.s3 import S3Engine
from hark.http.metrics import ELSEWHERE, STORE
from hark.model import QUEUE_MODE, Depth, GroupMode, Hint, MessageFilter, MessageState, QueueFilter, Subscription

from .driver import Driver, settlement


async def test_a_store_has_numbers_whose_names_stay_and_which_have_a_metric_each(q: Driver) -> None:
    numbers = await q.engine.store_metrics()
    assert numbers
    assert [name for name, number in numbers.items() if not (math.isfinite(number) and number >= 0)] == []
    assert set(numbers) <= {*STORE, *ELSEWHERE}
    await q.push("orders", "p", *range(100))
    assert set(await q.engine.store_metrics()) == set(numbers)


@pytest.mark.parametrize(
    ("mode", "batch", "dead_lettered"), [("ordered", 1, 1), ("ordered", 2, 0), ("shared", 1, 1), ("shared", 2, 2)]
)
async def test_leases_that_run_out_and_what_dies_of_them_are_counted(
    q: Driver, mode: GroupMode, batch: int, dead_lettered: int
) -> None:
    await q.configure("orders", lease_time=10, retry_limit=0)
    await q.push("orders", "p", 1, 2)
    before = await q.engine.store_metrics()
    assert len(await q.pop("orders", group="g", group_mode=mode, batch=batch)) == batch
    q.clock.advance(11)
    await q.engine.expire()
    after = await q.engine.store_metrics()
    assert len(await q.dead_letters("orders", "g")) == dead_lettered
    assert [after[name] - before[name] for name in ("leases_expired", "expiries_dead_lettered")] == [1, dead_lettered]


async def test_a_durable_store_reports_how_large_it_is(q: Driver) -> None:
    async def size() -> float:
        numbers = await q.engine.store_metrics()
        return sum(number for name, number in numbers.items() if name.endswith("_bytes"))

    empty = await size()
    await q.push("orders", "p", *("x" * 1000 for _ in range(1000)))
    assert await size() >= empty + 500_000


# Surveys and the totals ------------------------------------------------------------------------------------


async def surveyed(engine: Engine, limit: int) -> list[Depth]:
    """All steps of a survey."""
    depths: list[Depth] = []
    after: tuple[int, str] | None = (0, "")
    while after is not None:
        step = await engine.survey(after, limit)
        depths += step.depths
        after = step.next
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


async def test_a_survey_does_not_mention_what_is_deleted_and_positions_that_a_group_started_after(
    q: Driver, engine: Engine
) -> None:
    assert await surveyed(engine, 10) == []
    await q.push("orders", "p1", 1)
    q.clock.advance(1)
    await q.pop("orders", group="late", subscription=Subscription("new"))
    assert summed(await surveyed(engine, 10)) == {("orders", None): (1, 1, None)}
    await engine.delete_queues(["orders"])
    assert await surveyed(engine, 10) == []


async def counting(engine: Engine, clock: FakeClock, most: int = 0) -> Counting:
    """Counts after a survey. By default every queue is a large one."""
    survey_totals = SurveyTotals(await engine.totals(), clock.now())
    survey_totals.add(await surveyed(engine, 2))
    depths = survey_totals.finish(clock.now())
    return Counting(engine, lambda: depths, lambda: None, most)


@pytest.fixture
async def busy(q: Driver, clock: FakeClock, mode: GroupMode) -> Driver:
    """Queues with all kinds of messages, and groups with all kinds of starts."""
    await q.configure("orders", retry_limit=0)
    for number in range(5):
        await q.push("orders", f"p{number}", 1, 2, 3, 4, 5)
        clock.advance(10)
        if number == 2:
            await q.pop("orders", group="late", subscription=Subscription("new"))
            await q.pop("orders", group="since", subscription=Subscription("timestamp", clock.now() - 15 * SECOND))
    await q.push("orders", "p1", 6, delay_ms=60_000)
    await q.push("orders", "p2", 6, priority=3)
    await q.push("orders", "p3", 6, 7)
    for group in ("g", QUEUE_MODE):
        first, *_ = await q.pop("orders", "p0", group=group, batch=3, group_mode=mode)
        await q.settle(settlement(first, "failed"))
        await q.pop("orders", "p4", group=group, batch=5, auto_ack=True, group_mode=mode)
    await q.push("bills", "p", 1, 2)
    await q.push("bills", "p", 3, delay_ms=60_000)
    await q.pop("empty", group="g")
    return q


async def test_what_a_survey_found_of_large_queues_are_their_counts(
    busy: Driver, engine: Engine, clock: FakeClock
) -> None:
    counts = await counting(engine, clock)
    assert await counts.queue_stats(QueueFilter()) == await engine.queue_stats(QueueFilter())
    assert await counts.group_stats() == await engine.group_stats()
    assert counts.age(None, ["orders"], clock.now()) == 0
    oldest = min(group.oldest_waiting or clock.now() for group in await engine.group_stats(queue="orders"))
    assert (counts.caught_up(oldest - 1), counts.caught_up(oldest)) == ({"orders"}, set())
    clock.advance(7)
    await busy.push("orders", "p9", 1)
    [before] = (await counts.queue_stats(QueueFilter(names=["orders"]))).items
    assert (before.partitions, before.counts.total) == (6, 29), "as the survey found"
    assert counts.age(None, ["bills", "orders"], clock.now()) == 7
    assert (counts.age(None, ["other"], clock.now()), counts.age(["other"], ["other"], clock.now())) == (0, 0)
    [after] = (await (await counting(engine, clock)).queue_stats(QueueFilter(names=["orders"]))).items
    assert (after.partitions, after.counts.total) == (7, 30)


async def test_a_list_counts_few_partitions_however_many_queues_share_them(
    q: Driver, engine: Engine, clock: FakeClock
) -> None:
    for queue in ("a", "b", "c"):
        for number in range(4):
            await q.push(queue, f"p{number}", 1)
        await q.pop(queue, group="g", auto_ack=True)
    counts = await counting(engine, clock, most=8)
    for queue in ("a", "b", "c"):
        await q.push(queue, "p0", 1)
    clock.advance(3)

    async def totals(*names: str) -> list[int]:
        page = await counts.queue_stats(QueueFilter(names=names or None, sort="name"))
        return [stats.counts.total for stats in page.items]

    assert sorted(await totals()) == [4, 5, 5], "one of the queues as the survey found it, two counted"
    assert await totals("a", "b") == [5, 5]
    assert sorted(stats.lag for stats in await counts.group_stats()) == [3, 4, 4]
    assert [stats.lag for stats in await counts.group_stats(queue="a")] == [4]
    assert counts.age(None, ["a", "b", "c"], clock.now()) == 3
    assert counts.age(["a", "b"], ["a", "b"], clock.now()) == 0


async def test_messages_of_a_state_are_those_that_show_it(busy: Driver, engine: Engine) -> None:
    [dead, *_] = await busy.dead_letters("orders", "g")
    await engine.requeue([dead.id])
    await busy.push("plain", "p", 1)
    views = await engine.messages(MessageFilter())
    assert len(views) == 34
    for state in get_args(MessageState):
        found = [view.id for view in await engine.messages(MessageFilter(state=state))]
        assert found == [view.id for view in views if view.state == state], state
        page = await engine.messages(MessageFilter(state=state, queue="orders", limit=2, offset=1))
        assert [view.id for view in page] == [
            view.id for view in views if view.state == state and view.queue == "orders"
        ][1:3]


async def test_what_was_made_since_the_survey_is_counted_however_large_it_is(
    busy: Driver, engine: Engine, clock: FakeClock
) -> None:
    counts = await counting(engine, clock)
    clock.advance(1)
    await busy.pop("orders", group="young")
    await engine.delete_queues(["bills"])
    await busy.push("bills", "p", 1)
    assert await counts.group_stats("young") == await engine.group_stats("young")
    assert await counts.queue_stats(QueueFilter(names=["bills"])) == await engine.queue_stats(
        QueueFilter(names=["bills"])
    )


async def test_the_partitions_of_uncounted_queues_are_not_looked_at(busy: Driver, engine: Engine) -> None:
    page = await engine.queue_stats(QueueFilter(uncounted=["orders"]))
    exact = {stats.info.name: stats for stats in (await busy.engine.queue_stats(QueueFilter())).items}
    for stats in page.items:
        if stats.info.name != "orders":
            assert stats == exact[stats.info.name]
            continue
        assert (stats.partitions, stats.counts.total, stats.counts.pending, stats.counts.scheduled) == (0, 0, 0, 0)
        assert (stats.info, stats.counts.dead_letter) == (exact["orders"].info, 2)
    with_counts = await engine.group_stats(queue="orders")
    for group, one in zip(await engine.group_stats(queue="orders", uncounted=["orders"]), with_counts, strict=True):
        assert (group.lag, group.scheduled, group.partitions_with_lag, group.oldest_waiting) == (0, 0, 0, None)
        assert (group.group, group.leases, group.in_flight) == (one.group, one.leases, one.in_flight)


async def test_a_survey_counts_queues_dead_letters_and_what_is_leased(q: Driver, engine: Engine) -> None:
    for queue in ("a", "b"):
        await q.push(queue, "p1", 1, 2, 3)
        await q.push(queue, "p2", 4)
    await q.pop("a", batch=2)
    await q.pop("a", "p2", group="shared", group_mode="shared")
    got = await q.pop("b", group="g")
    await q.kill(got[0])
    totals = await engine.totals()
    assert totals.queues == 2
    assert dict(totals.dead_letters) == {"b": 1}
    assert dict(totals.in_flight) == {("a", QUEUE_MODE): 2, ("a", "shared"): 1}


# Peers -----------------------------------------------------------------------------------------------------


async def test_who_shares_no_store_has_no_one_to_receive(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    hints = [Hint("orders", None, ("p1",), "message"), Hint("orders", "g", None)]
    # A store in a bucket has its news in the log: what others say makes it look there.
    assert bool(q.engine.on_hints(hints)) == (q.engine.shared and not isinstance(q.engine, S3Engine))


async def test_the_secret_of_peers_has_32_bytes_and_stays(q: Driver) -> None:
    secret = await q.engine.peer_secret()
    assert len(secret) == 32
    assert await q.engine.peer_secret() == secret
