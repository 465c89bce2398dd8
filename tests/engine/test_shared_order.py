"""Shared groups: requeued ones first, then priority, then the time a message became available, then its offset."""

from __future__ import annotations

import pytest

from hark.clock import FakeClock
from hark.engine.api import Engine

from .driver import Driver, message, payloads
from .workers import Workers


async def test_higher_priorities_come_first_and_equal_ones_by_offset(q: Driver, workers: Workers) -> None:
    await q.push_messages(*(message("orders", "p1", n, priority=n % 10) for n in (0, 9, 3, 10, 5, 19, 1)))
    assert payloads(await workers.take(10)) == [9, 19, 5, 3, 1, 0, 10]


async def test_all_ten_priorities(q: Driver, workers: Workers) -> None:
    await q.push_messages(*(message("orders", "p1", n, priority=n) for n in range(10)))
    assert await workers.drain() == list(range(9, -1, -1))


@pytest.mark.parametrize("batch", [1, 2, 3])
async def test_a_batch_takes_the_first_of_that_order(q: Driver, workers: Workers, batch: int) -> None:
    await q.push_messages(*(message("orders", "p1", n, priority=n) for n in (0, 5, 0, 9, 5)))
    taken = []
    while got := await workers.take(batch):
        taken += payloads(got)
    assert taken == [9, 5, 5, 0, 0]


async def test_a_later_message_of_a_higher_priority_overtakes(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", "low 1", "low 2", "low 3")
    assert payloads(await workers.take()) == ["low 1"]
    await q.push("orders", "p1", "high", priority=7)
    assert payloads(await workers.take(10)) == ["high", "low 2", "low 3"]


async def test_a_lower_priority_is_not_forgotten_when_higher_ones_went_past_it(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", "low", priority=0)
    for number in range(5):
        await q.push("orders", "p1", number, priority=9)
        assert payloads(await workers.take()) == [number]
    await q.push("orders", "p1", "middle", priority=4)
    assert payloads(await workers.take(10)) == ["middle", "low"]


async def test_the_partition_with_the_highest_priority_ready_comes_first(q: Driver, workers: Workers) -> None:
    await q.push_messages(
        message("orders", "p1", "a"),
        message("orders", "p2", "b", priority=2),
        message("orders", "p3", "c", priority=9),
        message("orders", "p3", "d"),
    )
    assert [payloads(await workers.take())[0] for _ in range(4)] == ["c", "b", "a", "d"]


async def test_among_partitions_of_one_priority_the_one_served_longest_ago_comes_first(
    q: Driver, workers: Workers
) -> None:
    await q.push_messages(*(message("orders", name, name, priority=3) for name in ("p1", "p2", "p3") for _ in range(2)))
    assert [payloads(await workers.take())[0] for _ in range(6)] == ["p1", "p2", "p3"] * 2


async def test_what_is_delayed_or_held_lends_its_priority_to_nobody(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push_messages(
        message("orders", "p1", "later", priority=9, delay_ms=1000),
        message("orders", "p1", "low"),
        message("orders", "p2", "middle", priority=5),
    )
    assert payloads(await workers.take()) == ["middle"]
    clock.advance(1)
    await q.push("orders", "p2", "middle 2", priority=5)
    assert [payloads(await workers.take())[0] for _ in range(3)] == ["later", "middle 2", "low"]


async def test_what_was_cancelled_or_deleted_lends_its_priority_to_nobody(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    await workers.take(1, "nowhere")
    await q.push("orders", "p1", "low")
    await q.push("orders", "p2", "middle", priority=5)
    ids = [await q.push_id("orders", "p1", "high", priority=9) for _ in range(2)]
    assert await engine.cancel(ids[:1]) == ["cancelled"]
    assert await engine.delete_messages(ids[1:]) == [True]
    assert [payloads(await workers.take())[0] for _ in range(2)] == ["middle", "low"]


async def test_a_retry_that_falls_due_brings_its_priority(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", "high", priority=9)
    [held] = await workers.take()
    await q.retry(held, delay_ms=1000)
    await q.push("orders", "p1", "low")
    await q.push("orders", "p2", "middle", priority=5)
    clock.advance(1)
    assert [payloads(await workers.take())[0] for _ in range(3)] == ["high", "middle", "low"]


async def test_the_priority_of_the_queue_goes_before_that_of_messages(q: Driver) -> None:
    await q.configure("urgent", namespace="ns", priority=1)
    await q.configure("normal", namespace="ns")
    await q.push("normal", "p1", "normal", priority=9)
    await q.push("urgent", "p1", "urgent")
    order = [await q.pop(namespace="ns", group="w", group_mode="shared") for _ in range(2)]
    assert [payloads(one) for one in order] == [["urgent"], ["normal"]]


async def test_a_retry_that_fell_due_before_a_newer_message_goes_first(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push("orders", "p1", "old")
    [held] = await workers.take()
    await q.fail(held, delay_ms=1000)
    clock.advance(2)
    await q.push("orders", "p1", "new")
    assert payloads(await workers.take(10)) == ["old", "new"]


async def test_a_retry_that_falls_due_after_a_newer_message_goes_behind_it(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push("orders", "p1", "old")
    [held] = await workers.take()
    await q.fail(held, delay_ms=3000)
    clock.advance(2)
    await q.push("orders", "p1", "new")
    clock.advance(2)
    assert payloads(await workers.take(10)) == ["new", "old"]


async def test_what_failed_goes_behind_what_has_been_available_longer(q: Driver, workers: Workers) -> None:
    q.clock.advance(1)
    await q.push("orders", "p1", 1, 2, 3)
    q.clock.advance(1)
    [held] = await workers.take()
    await q.fail(held)
    assert payloads(await workers.take(10)) == [2, 3, 1]


async def test_a_retry_keeps_its_priority(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", "high", priority=9)
    [held] = await workers.take()
    await q.push("orders", "p1", "low")
    clock.advance(1)
    await q.fail(held)
    assert payloads(await workers.take(10)) == ["high", "low"]


async def test_what_expired_is_available_since_the_time_of_expiry(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", "expires")
    await workers.take()
    clock.advance(9)
    await q.push("orders", "p1", "before")
    clock.advance(2)
    await q.push("orders", "p1", "after")
    assert payloads(await workers.take(10)) == ["before", "expires", "after"]


async def test_what_was_released_is_where_it_was_before(
    q: Driver, workers: Workers, engine: Engine, clock: FakeClock
) -> None:
    await q.push("orders", "p1", 1)
    clock.advance(1)
    await q.push("orders", "p1", 2, 3)
    got = await workers.take(2)
    clock.advance(5)
    await engine.release([got.lease])
    assert payloads(await workers.take(10)) == [1, 2, 3]


async def test_a_released_retry_is_where_it_was_before(
    q: Driver, workers: Workers, engine: Engine, clock: FakeClock
) -> None:
    await q.push("orders", "p1", "retried")
    [held] = await workers.take()
    await q.retry(held, delay_ms=2000)
    clock.advance(1)
    await q.push("orders", "p1", "before")
    clock.advance(2)
    await q.push("orders", "p1", "after")
    for _ in range(2):
        got = await workers.take(10)
        assert payloads(got) == ["before", "retried", "after"]
        await engine.release([got.lease])


async def test_ties_are_broken_by_offset(q: Driver, workers: Workers, clock: FakeClock) -> None:
    """A delayed, a retried and a plain message that became available in the same microsecond."""
    await q.push("orders", "p1", "delayed", delay_ms=2000)
    await q.push("orders", "p1", "retried")
    [held] = await workers.take()
    await q.retry(held, delay_ms=2000)
    clock.advance(2)
    await q.push("orders", "p1", "plain")
    assert payloads(await workers.take(10)) == ["delayed", "retried", "plain"]
