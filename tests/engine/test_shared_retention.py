"""Rule 23 in shared groups: what leaves by itself, and what never does."""

from __future__ import annotations

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import MessageFilter

from .driver import Driver, message, payloads
from .workers import TICK, Workers, attempts

HOUR = 3600
DAY = 86400


async def stored(q: Driver, queue: str = "orders") -> int:
    """How many messages of a queue are in the store."""
    return len(await q.engine.messages(MessageFilter(queue=queue, limit=10_000)))


async def test_rule_23_a_time_to_live_ends_exactly(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.configure("orders", ttl=10)
    await q.push("orders", "p1", 1, 2)
    clock.advance(10 - TICK)
    assert payloads(await workers.take()) == [1]
    clock.advance(TICK)
    assert await workers.take() == []


async def test_rule_23_what_expired_is_stepped_over_and_counted(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push_messages(
        message("orders", "p1", 1),
        message("orders", "p1", 2, ttl_ms=1000, priority=9),
        message("orders", "p1", 3, ttl_ms=1000),
        message("orders", "p1", 4),
    )
    clock.advance(1)
    assert payloads(await workers.take(10, auto_ack=True)) == [1, 4]
    await q.collect()
    assert (await q.stats("orders")).expired == 2
    assert await q.dead_letters() == []
    assert (await workers.stats()).lag == 0


async def test_rule_23_what_is_held_does_not_expire(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.configure("orders", ttl=10, lease_time=60)
    await q.push("orders", "p1", 1)
    [held] = await workers.take()
    clock.advance(11)
    assert (await q.ack(held)).success


async def test_rule_23_a_retry_whose_time_to_live_is_over_does_not_come(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push("orders", "p1", 1, ttl_ms=2000)
    await q.push("orders", "p1", 2)
    [held] = await workers.take()
    await q.fail(held, delay_ms=3000)
    clock.advance(3)
    assert await workers.drain() == [2]
    assert await workers.take() == []


async def test_rule_23_unsettled_messages_are_never_removed_by_default(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.configure("orders", lease_time=100 * DAY)
    await q.push("orders", "p1", 1, 2, 3, 4)
    await q.push("orders", "p1", 5, delay_ms=1000 * DAY)
    got = await workers.take(3)
    await q.ack(got[1])
    await q.retry(got[2], delay_ms=1000 * 20 * DAY)
    clock.advance(20 * DAY)
    assert await q.collect() == 1
    assert sorted(map(str, await workers.drain())) == ["3", "4", "5"]
    assert (await q.ack(got[0])).success


async def test_rule_23_settled_messages_are_kept_seven_days(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2)
    await workers.drain()
    clock.advance(7 * DAY - 1)
    assert await q.collect() == 0
    assert await Workers(q, group="late").drain() == [1, 2]
    clock.advance(2)
    assert await q.collect() == 2
    assert await stored(q) == 0


async def test_rule_23_kept_until_every_group_has_settled_it(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await q.drain("orders", group="ordered")
    got = await workers.take(3)
    await q.ack(got[1])
    await q.engine.release([got.lease])
    clock.advance(8 * DAY)
    await q.collect()
    assert await workers.drain() == [1, 3]


async def test_rule_23_retention_by_age_removes_what_nobody_holds(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.configure("orders", retention_enabled=True, retention_seconds=HOUR, lease_time=100 * DAY)
    await q.push("orders", "p1", 1, 2)
    await q.push("orders", "p1", 3, delay_ms=1000 * DAY)
    [held] = await workers.take()
    clock.advance(HOUR + 1)
    await q.push("orders", "p1", 4)
    await q.collect()
    clock.advance(DAY)
    assert payloads(await workers.take(10)) == [4]
    await q.fail(held)
    assert attempts(await workers.take(10)) == [(1, 2)], "never a leased message"


async def test_rule_23_max_wait_time_removes_what_was_not_settled(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.configure("orders", max_wait_time_seconds=HOUR)
    await q.push("orders", "p1", 1, 2, 3)
    await workers.take(auto_ack=True)
    [held] = await workers.take()
    await q.retry(held, delay_ms=1000 * DAY)
    clock.advance(HOUR + 1)
    assert await q.collect() == 2
    clock.advance(DAY)
    assert await workers.take() == []
    assert (await workers.stats()).lag == 0


async def test_rule_23_an_idle_group_no_longer_holds_retention(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    await Workers(q, group="idle").take(1, "nowhere")
    await workers.drain()
    clock.advance(31 * DAY)
    await workers.take()
    assert await q.collect() == 1


async def test_a_deleted_message_is_stepped_over_held_or_not(
    q: Driver, workers: Workers, engine: Engine, clock: FakeClock
) -> None:
    ids = [one.message_id or "" for one in await q.push("orders", "p1", 1, 2, 3, 4)]
    got = await workers.take(2)
    await q.retry(got[1], delay_ms=1000)
    assert await engine.delete_messages([*ids[:3], ids[0]]) == [True, True, True, False]
    assert not (await q.fail(got[0])).success
    clock.advance(1000)
    assert await workers.drain() == [4]
    assert (await workers.stats()).lag == 0


async def test_a_lease_is_over_when_all_it_held_was_deleted(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await workers.take(2)
    await engine.delete_messages([got[0].message.id])
    assert await engine.lease_ends([got.lease]) == [got.expires_at]
    await engine.delete_messages([got[1].message.id])
    assert await engine.lease_ends([got.lease]) == [None]
    assert (await workers.stats()).in_flight == 0
