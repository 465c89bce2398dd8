"""Rules 16 and 17 in shared groups: a lease that expires costs each of its messages an attempt."""

from __future__ import annotations

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.model import Expired

from .driver import NEVER_GIVEN, Driver, message, payloads, settlement
from .workers import TICK, Workers, attempts

# Expiry ----------------------------------------------------------------------------------------------------


async def test_rule_16_expiry_is_exact_to_the_microsecond(q: Driver, workers: Workers) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2)
    got = await workers.take(2)
    q.clock.advance(10 - TICK)
    assert (await q.ack(got[0])).success
    assert await workers.take() == []
    q.clock.advance(TICK)
    assert attempts(await workers.take(10)) == [(2, 2)]
    assert not (await q.ack(got[1])).success


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


async def test_rule_16_a_message_that_kills_its_consumers_ends_there_and_others_do_not(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.configure("orders", lease_time=10, retry_limit=2)
    await q.push("orders", "p1", 1, 2, "poison", 4)
    done: list[object] = []
    for _ in range(20):
        got = await workers.take()
        if payloads(got) == ["poison"]:
            clock.advance(10)
            continue
        await q.ack_all(got)
        done += payloads(got)
    assert done == [1, 2, 4]
    assert [bytes(one.payload) for one in await q.dead_letters()] == [b'"poison"']


@pytest.mark.parametrize("first", ["dead letters", "group", "queue", "settlement"])
async def test_rule_16_everybody_sees_it_at_the_moment_of_expiry(q: Driver, workers: Workers, first: str) -> None:
    """Each look applies what is due before it answers, without a call of `expire`."""
    await q.configure("orders", lease_time=10, retry_limit=0)
    await q.push("orders", "p1", 1, 2)
    got = await workers.take(2)
    assert (await workers.stats()).in_flight == 2
    q.clock.advance(10)
    if first == "group":
        stats = await workers.stats()
        assert (stats.in_flight, stats.leases, stats.lag) == (0, 0, 0)
    elif first == "queue":
        counts = (await q.stats("orders")).counts
        assert (counts.processing, counts.pending, counts.dead_letter) == (0, 0, 2)
    elif first == "settlement":
        assert not (await q.fail(got[0], "too late")).success
    letters = await q.dead_letters("orders")
    assert [one.failed_at for one in letters] == [q.clock.now()] * 2
    assert "too late" not in {one.error for one in letters}


async def test_rule_16_expire_says_how_many_and_when_to_come_again(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3)
    await workers.take(2)
    q.clock.advance(4)
    await workers.take()
    end = q.clock.now() + 6 * SECOND
    assert await engine.expire() == Expired(leases=0, next_due=end)
    q.clock.advance(6)
    assert await engine.expire() == Expired(leases=1, next_due=end + 4 * SECOND)
    q.clock.advance(4)
    assert await engine.expire() == Expired(leases=1, next_due=None)
    assert await engine.expire() == Expired(leases=0, next_due=None)


async def test_rule_16_expire_takes_a_limited_step(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.push("orders", "p1", *range(5))
    for _ in range(5):
        await workers.take()
    q.clock.advance(300)
    step = await engine.expire(limit=2)
    assert step.leases == 2
    assert step.next_due is not None and step.next_due <= q.clock.now()
    assert [(await engine.expire(limit=2)).leases for _ in range(3)] == [2, 1, 0]
    assert attempts(await workers.take(10)) == [(n, 2) for n in range(5)]


# Renewal ---------------------------------------------------------------------------------------------------


async def test_rule_17_renewal_holds_every_message_of_the_lease_longer(q: Driver, workers: Workers) -> None:
    await q.configure("orders", lease_time=10)
    await q.push_messages(*(message("orders", name, name) for name in ("p1", "p2")))
    got = await workers.take(10, partitions=2)
    assert (await q.renew(got.lease, 5)).expires_at == q.clock.now() + 10 * SECOND, "never shorter"
    q.clock.advance(9)
    outcome = await q.renew(got.lease, 30)
    assert (outcome.success, outcome.expires_at) == (True, q.clock.now() + 30 * SECOND)
    q.clock.advance(30 - TICK)
    assert await workers.take() == []
    await q.ack_all(got)


async def test_rule_17_renewal_of_one_lease_leaves_the_others_alone(q: Driver, workers: Workers) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2)
    first, second = await workers.take(), await workers.take()
    await q.renew(first.lease, 60)
    q.clock.advance(10)
    assert attempts(await workers.take(10)) == [(2, 2)]
    assert not (await q.ack(second[0])).success
    assert (await q.ack(first[0])).success


async def test_rule_17_what_is_over_can_not_be_renewed(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2)
    settled, expired = await workers.take(), await workers.take()
    await q.ack_all(settled)
    q.clock.advance(300)
    for lease in (settled.lease, expired.lease):
        assert not (await q.renew(lease)).success
    assert await engine.lease_ends([settled.lease, expired.lease]) == [None, None]


# Release ---------------------------------------------------------------------------------------------------


async def test_rule_17_release_gives_back_uncounted(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.configure("orders", retry_limit=0)
    await q.push("orders", "p1", 1, 2, 3)
    for _ in range(5):
        got = await workers.take(2)
        assert attempts(got) == [(1, 1), (2, 1)]
        await engine.release([got.lease, NEVER_GIVEN, ""])
    assert await q.dead_letters() == []


async def test_rule_17_release_voids_the_lease_and_keeps_what_was_settled_and_attempts(
    q: Driver, workers: Workers
) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await q.fail((await workers.take())[0])
    got = await workers.take(3)
    await q.ack(got[1])
    await q.engine.release([got.lease])
    outcomes = await q.settle(settlement(got[0]), settlement(got[2]))
    assert [one.success for one in outcomes] == [False, False]
    assert await q.engine.lease_ends([got.lease]) == [None]
    assert attempts(await workers.take(10)) == [(1, 2), (3, 1)]


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
