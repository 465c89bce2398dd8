"""Shared groups: a delayed message comes at its time, never before, and holds nobody up."""

from __future__ import annotations

import pytest

from hark.clock import MILLISECOND, SECOND, FakeClock
from hark.engine.api import Engine
from hark.model import MessageFilter

from .driver import NEW, Driver, message, payloads
from .workers import Workers

# The moment ------------------------------------------------------------------------------------------------


async def test_a_delay_ends_at_its_microsecond(q: Driver, workers: Workers, clock: FakeClock) -> None:
    due = clock.now() + 2500 * MILLISECOND
    await q.push("orders", "p1", 1, delay_ms=2500)
    empty = await workers.take(1, "p1")
    assert (empty.reason, empty.look_again_at) == ("waiting", due)
    assert (await workers.take()).look_again_at == due
    assert payloads(await workers.arrive_at(due)) == [1]


async def test_a_delivery_time_counts_to_the_microsecond(q: Driver, workers: Workers, clock: FakeClock) -> None:
    due = clock.now() + 1_234_567
    await q.push("orders", "p1", 1, deliver_at=due)
    assert payloads(await workers.arrive_at(due)) == [1]


@pytest.mark.parametrize("early", [0, 1, SECOND])
async def test_a_delivery_time_that_is_not_later_is_no_delay(
    q: Driver, workers: Workers, clock: FakeClock, early: int
) -> None:
    """Else a time in the past would jump the queue."""
    clock.advance(10)
    await q.push("orders", "p1", 1, 2)
    await q.push("orders", "p1", 3, deliver_at=clock.now() - early)
    assert payloads(await workers.take(10)) == [1, 2, 3]
    [view] = [one for one in await q.engine.messages(_all("orders")) if one.offset == 3]
    assert view.deliver_at is None


async def test_messages_come_in_the_order_of_their_times(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push_messages(*(message("orders", "p1", n, delay_ms=n * 1000) for n in (5, 1, 3, 2, 4)))
    start = clock.now()
    for number in range(1, 6):
        assert payloads(await workers.arrive_at(start + number * SECOND)) == [number]


async def test_those_that_fell_due_together_are_sorted_by_their_times(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push_messages(*(message("orders", "p1", n, delay_ms=n * 1000) for n in (5, 1, 3, 3, 2)))
    clock.advance(10)
    assert payloads(await workers.take(10)) == [1, 2, 3, 3, 5]


async def test_an_empty_pop_knows_the_earliest_time(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push_messages(
        message("orders", "p1", 1, delay_ms=9000),
        message("orders", "p1", 2, delay_ms=4000, priority=5),
        message("orders", "p2", 3, delay_ms=6000),
    )
    assert (await workers.take()).look_again_at == clock.now() + 4 * SECOND
    assert (await workers.take(1, "p2")).look_again_at == clock.now() + 6 * SECOND


# Beside others ---------------------------------------------------------------------------------------------


async def test_a_delayed_message_holds_nobody_up(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push_messages(
        message("orders", "p1", "later", delay_ms=1000), message("orders", "p1", 1), message("orders", "p1", 2)
    )
    got = await workers.take(10)
    assert payloads(got) == [1, 2]
    await q.ack_all(got)
    assert payloads(await workers.arrive_at(clock.now() + SECOND)) == ["later"]


async def test_what_everybody_went_past_still_comes(q: Driver, workers: Workers, clock: FakeClock) -> None:
    for number in range(5):
        await q.push("orders", "p1", f"later {number}", delay_ms=1000 + number)
        await q.push("orders", "p1", number)
        assert payloads(await workers.take(10)) == [number]
    clock.advance(2)
    assert await workers.drain() == [f"later {number}" for number in range(5)]


async def test_available_since_its_time_it_goes_before_what_came_later(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push("orders", "p1", "delayed", delay_ms=2000)
    clock.advance(1)
    await q.push("orders", "p1", "before")
    clock.advance(2)
    await q.push("orders", "p1", "after")
    assert payloads(await workers.take(10)) == ["before", "delayed", "after"]


async def test_a_delayed_message_of_a_high_priority_goes_first_once_it_is_due(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push_messages(
        message("orders", "p1", 1),
        message("orders", "p1", "high", priority=9, delay_ms=1000),
        message("orders", "p1", "low", delay_ms=1000),
        message("orders", "p1", 2),
    )
    assert payloads(await workers.take()) == [1]
    clock.advance(1)
    assert payloads(await workers.take(10)) == ["high", 2, "low"]


async def test_a_shorter_delay_pushed_later_comes_earlier(q: Driver, workers: Workers, clock: FakeClock) -> None:
    start = clock.now()
    await q.push("orders", "p1", "long", delay_ms=10_000)
    assert (await workers.take()).look_again_at == start + 10 * SECOND
    clock.advance(1)
    await q.push("orders", "p1", "short", delay_ms=2000)
    assert (await workers.take()).look_again_at == start + 3 * SECOND
    assert payloads(await workers.arrive_at(start + 3 * SECOND)) == ["short"]
    assert payloads(await workers.arrive_at(start + 10 * SECOND)) == ["long"]


async def test_a_push_whose_time_has_come_when_others_of_that_time_are_gone(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    """Several with the same time, the last of them pushed when the first was already taken."""
    due = clock.now() + SECOND
    await q.push("orders", "p1", 1, deliver_at=due)
    clock.advance(1 - 0.000_001)
    await q.push("orders", "p1", 2, deliver_at=due)
    clock.advance(0.000_001)
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
    assert (await workers.stats()).lag == 1002, "1000 that wait and 2 that are held"


async def test_a_batch_mixes_what_is_due_and_leaves_what_is_not(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push_messages(*(message("orders", "p1", n, delay_ms=n * 1000) for n in range(6)))
    clock.advance(3)
    assert payloads(await workers.take(10)) == [0, 1, 2, 3]
    assert (await workers.take()).look_again_at == clock.now() + SECOND


# Groups, settlements, time to live -------------------------------------------------------------------------


async def test_each_group_gets_it_at_its_time(q: Driver, workers: Workers, clock: FakeClock) -> None:
    other = Workers(q, group="others")
    await q.push("orders", "p1", "delayed", delay_ms=1000)
    await q.push("orders", "p1", "plain")
    assert await workers.drain() == ["plain"]
    clock.advance(1)
    assert await other.drain() == ["plain", "delayed"]
    assert await workers.drain() == ["delayed"]


async def test_a_new_group_gets_what_was_delayed_before_it_came_only_if_it_starts_at_all(
    q: Driver, clock: FakeClock
) -> None:
    await q.push("orders", "p1", "old", delay_ms=1000)
    everything, fresh = Workers(q, group="everything"), Workers(q, group="fresh")
    assert await everything.take() == []
    assert await fresh.take(subscription=NEW) == []
    await q.push("orders", "p1", "new", delay_ms=1000)
    clock.advance(1)
    assert await everything.drain() == ["old", "new"]
    assert await fresh.drain() == ["new"]


async def test_what_was_delayed_before_a_group_that_wants_only_new_messages_does_not_exist_for_it(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push("orders", "p1", "old", delay_ms=1000)
    for moment in range(3):
        empty = await workers.take(1, "p1", subscription=NEW)
        assert (payloads(empty), empty.reason, empty.look_again_at) == ([], "nothing_ready", None), moment
        clock.advance(1)
    assert (await workers.stats()).lag == 0


async def test_a_delayed_message_that_failed_waits_for_its_backoff(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push("orders", "p1", 1, delay_ms=1000, backoff_ms=(5000,))
    [held] = await workers.arrive_at(clock.now() + SECOND)
    await q.fail(held)
    [held] = await workers.arrive_at(clock.now() + 5 * SECOND)
    assert held.message.attempt == 2


async def test_a_delay_longer_than_its_time_to_live_is_never_delivered(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push("orders", "p1", 1, delay_ms=5000, ttl_ms=2000)
    await q.push("orders", "p1", 2, delay_ms=6000)
    clock.advance(5)
    assert await workers.take() == []
    clock.advance(1)
    assert payloads(await workers.take(10)) == [2]


async def test_a_deleted_delayed_message_never_comes(
    q: Driver, workers: Workers, engine: Engine, clock: FakeClock
) -> None:
    first = await q.push_id("orders", "p1", 1, delay_ms=1000)
    await q.push("orders", "p1", 2, delay_ms=2000)
    assert await workers.take() == []
    assert await engine.delete_messages([first]) == [True]
    clock.advance(1)
    assert await workers.take() == []
    clock.advance(1)
    assert await workers.drain() == [2]


async def test_delayed_messages_survive_a_restart(durable: Driver, clock: FakeClock) -> None:
    q, workers = durable, Workers(durable)
    due = clock.now() + 5 * SECOND
    await q.push("orders", "p1", "delayed", delay_ms=5000)
    await q.push("orders", "p1", "plain")
    assert await workers.drain() == ["plain"]
    await q.reopen()
    assert payloads(await workers.arrive_at(due)) == ["delayed"]
    await q.reopen()
    clock.advance(1000)
    assert await workers.drain() == ["delayed"]


async def test_a_clock_that_stepped_back_loses_no_delayed_message(durable: Driver, clock: FakeClock) -> None:
    """After a restart with an earlier clock messages may be due before others that were already delivered."""
    q, workers = durable, Workers(durable)
    await q.push("orders", "p1", 1, delay_ms=60_000)
    clock.advance(60)
    await q.ack_all(await workers.take())
    clock.advance(-50)
    await q.reopen()
    await q.push("orders", "p1", 2, delay_ms=1000)
    await q.push("orders", "p1", 3)
    clock.advance(120)
    assert sorted(map(str, await workers.drain())) == ["2", "3"]


def _all(queue: str) -> MessageFilter:
    return MessageFilter(queue=queue, limit=1000)
