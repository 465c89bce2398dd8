"""Shared groups as an administrator sees them: states of messages, lag, what is in flight."""

from __future__ import annotations

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.model import MessageFilter, MessageState

from .driver import Driver, message
from .workers import Workers


async def test_lag_is_what_was_not_settled(q: Driver, workers: Workers, clock: FakeClock) -> None:
    start = clock.now()
    await q.push("orders", "p1", 1, 2, 3, 4)
    clock.advance(10)
    await q.push("orders", "p2", 5, delay_ms=60_000)
    got = await workers.take(3, "p1")
    await q.ack(got[0])
    await q.kill(got[1])
    stats = await workers.stats()
    assert (stats.mode, stats.lag, stats.partitions_with_lag) == ("shared", 3, 2)
    assert stats.oldest_waiting == start
    assert (await workers.track("p1")).lag == 2


async def test_in_flight_counts_messages_and_leases_count_pops(
    q: Driver, workers: Workers, engine: Engine, clock: FakeClock
) -> None:
    await q.push("orders", "p1", *range(10))
    first, second = await workers.take(3), await workers.take(2)
    stats = await workers.stats()
    assert (stats.in_flight, stats.leases) == (5, 2)
    await q.ack(first[0])
    await q.fail(first[1])
    await engine.release([second.lease])
    stats = await workers.stats()
    assert (stats.in_flight, stats.leases) == (1, 1)
    clock.advance(300)
    assert (await workers.stats()).in_flight == 0


async def test_ordered_groups_have_an_in_flight_count_too(q: Driver, engine: Engine) -> None:
    await q.push_messages(*(message("orders", name, n) for name in ("p1", "p2") for n in range(3)))
    got = await q.pop("orders", group="g", batch=5, partitions=2)
    [stats] = await engine.group_stats("g")
    assert stats.in_flight == 5
    await q.ack(got[0])
    [stats] = await engine.group_stats("g")
    assert stats.in_flight == 4


async def test_messages_by_state(q: Driver, workers: Workers, engine: Engine) -> None:
    for number in range(1, 8):
        await q.push("orders", "p1", number, transaction_id=f"t{number}", delay_ms=60_000 if number == 7 else 0)
    got = await workers.take(5)
    await q.ack(got[1])
    await q.kill(got[2])
    await q.fail(got[3])
    expected: dict[MessageState, list[str]] = {
        "completed": ["t2"],
        "dead_letter": ["t3"],
        "processing": ["t5", "t1"],
        "pending": ["t7", "t6", "t4"],
    }
    for state, wanted in expected.items():
        views = await engine.messages(MessageFilter(queue="orders", state=state))
        assert [one.transaction_id for one in views] == wanted, state
        assert {one.state for one in views} == {state}


async def test_counts_of_a_queue(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.push("orders", "p1", *range(7))
    got = await workers.take(4)
    await q.ack(got[2])
    await q.kill(got[3])
    counts = (await q.stats("orders")).counts
    assert (counts.total, counts.pending, counts.processing) == (7, 3, 2)
    assert (counts.completed, counts.dead_letter) == (1, 1)
    [partition] = [one for one in await engine.partition_stats("orders") if one.name == "p1"]
    assert (partition.counts.pending, partition.counts.processing, partition.counts.completed) == (3, 2, 1)


async def test_a_message_with_what_each_group_did(
    q: Driver, workers: Workers, engine: Engine, clock: FakeClock
) -> None:
    [outcome] = await q.push("orders", "p1", {"n": 1}, transaction_id="t1", priority=5)
    for name in ("done", "failed", "dead", "fresh"):
        group = Workers(q, group=name)
        got = await group.take(1, "p1" if name != "fresh" else "nowhere")
        if name == "done":
            await q.ack(got[0])
        elif name == "failed":
            await q.fail(got[0], "boom")
        elif name == "dead":
            await q.kill(got[0])
    await workers.take()
    view = await engine.message(outcome.partition_id or "", "t1")
    assert view is not None and view.payload is not None
    assert (bytes(view.payload), view.priority) == (b'{"n":1}', 5)
    groups = {one.group: one for one in view.groups}
    assert {name: one.state for name, one in groups.items()} == {
        "done": "completed",
        "failed": "pending",
        "dead": "dead_letter",
        "fresh": "pending",
        "workers": "processing",
    }
    assert (groups["failed"].attempts, groups["failed"].error) == (1, "boom")
    assert groups["workers"].lease_expires_at == clock.now() + 300 * SECOND


async def test_what_a_new_group_skipped_is_not_its_lag(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await workers.drain()
    await q.seek("orders", group="workers", offset=3)
    assert (await workers.stats()).lag == 1


async def test_track_stats_of_those_that_lag(q: Driver, workers: Workers, engine: Engine, clock: FakeClock) -> None:
    await q.push_messages(*(message("orders", name, 1) for name in ("p1", "p2")))
    await workers.take(1, "p1", auto_ack=True)
    await workers.take(1, "p2")
    clock.advance(60)
    lagging = await engine.track_stats(group="workers", min_lag_seconds=60)
    assert [(one.partition, one.lag) for one in lagging] == [("p2", 1)]
    assert await engine.track_stats(group="workers", min_lag_seconds=61) == []
