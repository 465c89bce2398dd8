"""Rules 16 and 17 in shared groups: a lease that expires costs each of its messages an attempt."""

from __future__ import annotations

from hark.clock import SECOND
from hark.engine.api import Engine

from .driver import Driver
from .workers import Workers, attempts

# Expiry ----------------------------------------------------------------------------------------------------


async def test_rule_16_each_message_of_a_batch_costs_an_attempt(q: Driver, workers: Workers) -> None:
    await q.configure("orders", retry_delay=60_000)
    await q.push("orders", "p1", 1)
    await q.push("orders", "p1", 2, 3, 4, backoff_ms=(60_000,))
    got = await workers.take(3)
    await q.ack(got[1])
    q.clock.advance(300)
    assert attempts(await workers.take(10)) == [(4, 1), (1, 2), (3, 2)], "and they come together, without a backoff"


async def test_rule_16_exhausted_by_expiry_it_is_a_dead_letter_once(q: Driver, workers: Workers) -> None:
    await q.configure("orders", lease_time=10, retry_limit=1)
    await q.push("orders", "p1", "poison", "fine")
    start = q.clock.now()
    for _ in range(2):
        await workers.take(2)
        q.clock.advance(10)
    for _ in range(3):
        await q.engine.expire()
        assert await workers.take() == []
    letters = await q.dead_letters("orders", "workers")
    assert sorted(bytes(one.payload) for one in letters) == [b'"fine"', b'"poison"']
    assert {(one.attempts, one.failed_at) for one in letters} == {(2, start + 20 * SECOND)}
    assert all(one.error for one in letters)
    assert (await workers.stats()).lag == 0


# Renewal ---------------------------------------------------------------------------------------------------


# Release ---------------------------------------------------------------------------------------------------


async def test_a_deleted_message_is_stepped_over_and_a_lease_is_over_when_all_it_held_was_deleted(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    ids = [one.message_id or "" for one in await q.push("orders", "p1", 1, 2, 3, 4)]
    got = await workers.take(3)
    await q.retry(got[1], delay_ms=1000)
    assert await engine.delete_messages(ids[:1]) == [True]
    assert await engine.lease_ends([got.lease]) == [got.expires_at]
    assert await engine.delete_messages([ids[1], ids[2], ids[0]]) == [True, True, False]
    assert await engine.lease_ends([got.lease]) == [None]
    assert (await workers.stats()).in_flight == 0
    assert not (await q.fail(got[0])).success
    q.clock.advance(1000)
    assert await workers.drain() == [4]
    assert (await workers.stats()).lag == 0
