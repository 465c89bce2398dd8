"""Shared groups: priority, then the time a message became available, then offset; a delay holds up no other message."""

from __future__ import annotations

import pytest

from hark.clock import SECOND, FakeClock

from .driver import NEW, Driver, message, payloads, settlement
from .workers import Workers


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
async def test_higher_priorities_come_first_and_equal_ones_by_offset(q: Driver, workers: Workers, batch: int) -> None:
    await q.push_messages(
        *(message("orders", "p1", n, priority=n % 10) for n in (0, 9, 3, 10, 5, 19, 1, 8, 2, 7, 6, 4))
    )
    taken = []
    while got := await workers.take(batch):
        taken += payloads(got)
    assert taken == [9, 19, 8, 7, 6, 5, 4, 3, 2, 1, 0, 10]


async def test_a_lower_priority_is_not_forgotten_when_higher_ones_went_past_it(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", "low 1", "low 2", "low 3")
    assert payloads(await workers.take()) == ["low 1"]
    for number in range(5):
        await q.push("orders", "p1", number, priority=9)
        assert payloads(await workers.take()) == [number]
    await q.push("orders", "p1", "middle", priority=4)
    assert payloads(await workers.take(10)) == ["middle", "low 2", "low 3"]


async def test_the_partition_with_the_highest_priority_ready_comes_first(q: Driver, workers: Workers) -> None:
    await q.push_messages(
        message("orders", "p1", "a"),
        message("orders", "p2", "b", priority=2),
        message("orders", "p3", "c", priority=9),
        message("orders", "p3", "d"),
    )
    assert [payloads(await workers.take())[0] for _ in range(4)] == ["c", "b", "a", "d"]


@pytest.mark.parametrize("how", ["delayed", "retried"])
async def test_what_waits_or_is_leased_lends_its_priority_to_no_other(q: Driver, workers: Workers, how: str) -> None:
    await q.push("orders", "p1", "later", priority=9, delay_ms=1000 if how == "delayed" else 0)
    for leased in await workers.take():
        await q.retry(leased, delay_ms=1000)
    await q.push("orders", "p1", "low")
    await q.push("orders", "p2", "middle", priority=5)
    assert payloads(await workers.take()) == ["middle"]
    q.clock.advance(1)
    await q.push("orders", "p2", "middle 2", priority=5)
    assert [payloads(await workers.take())[0] for _ in range(3)] == ["later", "middle 2", "low"]


async def test_what_was_cancelled_or_deleted_lends_its_priority_to_no_one(q: Driver, workers: Workers) -> None:
    await workers.take(1, "nowhere")
    await q.push("orders", "p1", "low")
    await q.push("orders", "p2", "middle", priority=5)
    ids = [await q.push_id("orders", "p1", "high", priority=9) for _ in range(2)]
    assert await q.engine.cancel(ids[:1]) == ["cancelled"]
    assert await q.engine.delete_messages(ids[1:]) == [True]
    assert [payloads(await workers.take())[0] for _ in range(2)] == ["middle", "low"]


async def test_the_priority_of_the_queue_goes_before_that_of_messages(q: Driver) -> None:
    await q.configure("urgent", namespace="ns", priority=1)
    await q.configure("normal", namespace="ns")
    await q.push("normal", "p1", "normal", priority=9)
    await q.push("urgent", "p1", "urgent")
    order = [await q.pop(namespace="ns", group="w", group_mode="shared") for _ in range(2)]
    assert [payloads(one) for one in order] == [["urgent"], ["normal"]]
    got = await q.pop(namespace="ns", group="other", group_mode="shared", batch=10, partitions=2)
    assert payloads(got) == ["urgent", "normal"]
    await q.ack_all(got)


@pytest.mark.parametrize("how", ["delayed", "failed", "retried", "expired"])
async def test_what_waited_goes_behind_what_was_available_before_its_time_and_before_the_rest(
    q: Driver, workers: Workers, how: str
) -> None:
    """Available since the time at which it fell due or its lease expired, also after a release."""
    await q.configure("orders", lease_time=2)
    await q.push("orders", "p1", "waited", delay_ms=2000 if how == "delayed" else 0)
    for leased in await workers.take():
        if how != "expired":
            await q.settle(settlement(leased, "failed" if how == "failed" else "retry", delay_ms=2000))
    q.clock.advance(1)
    await q.push("orders", "p1", "before")
    q.clock.advance(2)
    await q.push("orders", "p1", "after")
    for number in (2, 1, 3):
        got = await workers.take(number)
        assert payloads(got) == ["before", "waited", "after"][:number]
        q.clock.advance(1)
        await q.engine.release([got.lease])


async def test_what_failed_goes_behind_what_its_priority_has_had_available_longer(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", "high", priority=9)
    await q.push("orders", "p1", 1, 2, 3)
    q.clock.advance(1)
    for leased in await workers.take(2):
        await q.fail(leased)
    assert payloads(await workers.take(10)) == ["high", 2, 3, 1]


async def test_ties_are_broken_by_offset(q: Driver, workers: Workers, clock: FakeClock) -> None:
    """A delayed, a retried and a plain message that became available in the same microsecond."""
    await q.push("orders", "p1", "delayed", delay_ms=2000)
    await q.push("orders", "p1", "retried")
    [leased] = await workers.take()
    await q.retry(leased, delay_ms=2000)
    clock.advance(2)
    await q.push("orders", "p1", "plain")
    assert payloads(await workers.take(10)) == ["delayed", "retried", "plain"]


# Delays ----------------------------------------------------------------------------------------------------


async def test_messages_come_in_the_order_of_their_times(q: Driver, workers: Workers) -> None:
    start = q.clock.now()
    await q.push_messages(*(message("orders", "p1", n, delay_ms=n * 1000) for n in (5, 1, 3, 2, 4)))
    for number in range(1, 6):
        assert payloads(await workers.arrive_at(start + number * SECOND)) == [number]
    await q.push_messages(*(message("orders", "p1", n, delay_ms=n * 1000) for n in (5, 0, 1, 3, 3, 2)))
    q.clock.advance(3)
    assert payloads(await workers.take(10)) == [0, 1, 2, 3, 3], "those that fell due together too"
    assert (await workers.take()).look_again_at == q.clock.now() + 2 * SECOND


async def test_an_empty_pop_knows_the_earliest_time(q: Driver, workers: Workers) -> None:
    start = q.clock.now()
    await q.push("orders", "p1", "long", delay_ms=10_000)
    await q.push("orders", "p2", "other", delay_ms=6000)
    assert (await workers.take()).look_again_at == start + 6 * SECOND
    assert (await workers.take(1, "p1")).look_again_at == start + 10 * SECOND
    q.clock.advance(1)
    await q.push("orders", "p1", "short", delay_ms=2000, priority=5)
    for payload, seconds in (("short", 3), ("other", 6), ("long", 10)):
        due = start + seconds * SECOND
        assert (await workers.take()).look_again_at == due
        got = await workers.arrive_at(due)
        assert payloads(got) == [payload]
        await q.ack_all(got)


async def test_a_delayed_message_holds_no_one_up(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push_messages(
        message("orders", "p1", "later", delay_ms=1000), message("orders", "p1", 1), message("orders", "p1", 2)
    )
    got = await workers.take(10)
    assert payloads(got) == [1, 2]
    await q.ack_all(got)
    assert payloads(await workers.arrive_at(clock.now() + SECOND)) == ["later"]


async def test_what_everyone_went_past_still_comes(q: Driver, workers: Workers, clock: FakeClock) -> None:
    for number in range(5):
        await q.push("orders", "p1", f"later {number}", delay_ms=1000 + number)
        await q.push("orders", "p1", number)
        assert payloads(await workers.take(10)) == [number]
    clock.advance(2)
    assert await workers.drain() == [f"later {number}" for number in range(5)]


async def test_a_delayed_message_of_a_high_priority_goes_first_once_it_is_due(q: Driver, workers: Workers) -> None:
    await q.push_messages(
        message("orders", "p1", 1),
        message("orders", "p1", "high", priority=9, delay_ms=1000),
        message("orders", "p1", "low", delay_ms=1000),
        message("orders", "p1", 2),
    )
    assert payloads(await workers.take()) == [1]
    q.clock.advance(1)
    assert payloads(await workers.take(10)) == ["high", 2, "low"]


async def test_a_push_whose_time_has_come_when_others_of_that_time_are_gone(q: Driver, workers: Workers) -> None:
    """Several with the same time, the last of them pushed when the first was already taken."""
    due = q.clock.now() + SECOND
    await q.push("orders", "p1", 1, deliver_at=due)
    q.clock.advance(1 - 0.000_001)
    await q.push("orders", "p1", 2, deliver_at=due)
    q.clock.advance(0.000_001)
    assert payloads(await workers.take()) == [1]
    await q.push("orders", "p1", 3, deliver_at=due + 1)
    assert payloads(await workers.take()) == [2]
    assert payloads(await workers.arrive_at(due + 1)) == [3]


async def test_a_thousand_delayed_ones_behind_and_before(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push_messages(*(message("orders", "p1", n, delay_ms=60_000 + n) for n in range(1000)))
    await q.push("orders", "p1", "now 1")
    await q.push_messages(*(message("orders", "p1", 1000 + n, delay_ms=120_000 + n) for n in range(1000)))
    await q.push("orders", "p1", "now 2")
    assert payloads(await workers.take(10)) == ["now 1", "now 2"]
    assert await workers.take(10) == []
    clock.advance(61)
    taken: list[object] = []
    while got := await workers.take(100):
        taken += payloads(got)
        await q.ack_all(got)
    assert taken == list(range(1000))
    stats = await workers.stats()
    assert (stats.in_flight, stats.lag, stats.scheduled) == (2, 0, 1000), "1000 are not due"


async def test_each_group_gets_it_at_its_time_unless_it_starts_after_it(q: Driver) -> None:
    everything, fresh, late = (Workers(q, group=name) for name in ("everything", "fresh", "late"))
    await q.push("orders", "p1", "old", delay_ms=1000)
    assert await everything.take() == []
    assert await fresh.take(subscription=NEW) == []
    await q.push("orders", "p1", "new", delay_ms=1000)
    await q.push("orders", "p1", "plain")
    assert (await everything.drain(), await fresh.drain()) == (["plain"], ["plain"])
    q.clock.advance(1)
    assert await late.drain() == ["plain", "old", "new"]
    assert (await everything.drain(), await fresh.drain()) == (["old", "new"], ["new"])


async def test_what_was_delayed_before_a_group_that_wants_only_new_messages_does_not_exist_for_it(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push("orders", "p1", "old", delay_ms=1000)
    for moment in range(3):
        empty = await workers.take(1, "p1", subscription=NEW)
        assert (payloads(empty), empty.reason, empty.look_again_at) == ([], "nothing_ready", None), moment
        clock.advance(1)
    assert (await workers.stats()).lag == 0


async def test_a_delayed_message_that_is_deleted_or_outlives_its_time_to_live_never_comes(
    q: Driver, workers: Workers
) -> None:
    await q.push("orders", "p1", 1, delay_ms=5000, ttl_ms=2000)
    deleted = await q.push_id("orders", "p1", 2, delay_ms=5000)
    await q.push("orders", "p1", 3, delay_ms=6000)
    assert await workers.take() == []
    assert await q.engine.delete_messages([deleted]) == [True]
    q.clock.advance(5)
    assert await workers.take() == []
    q.clock.advance(1)
    assert await workers.drain() == [3]


async def test_delayed_messages_survive_a_restart(q: Driver, workers: Workers, clock: FakeClock) -> None:
    due = clock.now() + 5 * SECOND
    await q.push("orders", "p1", "delayed", delay_ms=5000)
    await q.push("orders", "p1", "plain")
    assert await workers.drain() == ["plain"]
    await q.reopen()
    assert payloads(await workers.arrive_at(due)) == ["delayed"]
    await q.reopen()
    clock.advance(1000)
    assert await workers.drain() == ["delayed"]


async def test_a_clock_that_stepped_back_loses_no_delayed_message(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    """After a restart with an earlier clock messages may be due before others that were already delivered."""
    await q.push("orders", "p1", 1, delay_ms=60_000)
    clock.advance(60)
    await q.ack_all(await workers.take())
    clock.advance(-50)
    await q.reopen()
    await q.push("orders", "p1", 2, delay_ms=1000)
    await q.push("orders", "p1", 3)
    clock.advance(120)
    assert sorted(map(str, await workers.drain())) == ["2", "3"]
