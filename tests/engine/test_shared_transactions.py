"""Rule 22 in shared groups: pushes and settlements, all or nothing."""

from __future__ import annotations

from hark.clock import FakeClock
from hark.engine.api import Engine

from .driver import NEVER_GIVEN, Driver, message, settlement
from .workers import Workers, attempts


async def test_rule_22_settle_and_push_together(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await workers.take(2)
    outcome = await q.transact(settlement(got[1]), message("bills", "p1", "new"))
    assert outcome.success
    assert (await workers.stats()).lag == 1
    assert await q.drain("bills") == ["new"]
    assert (await q.ack(got[0])).success


async def test_rule_22_any_name_of_the_message_will_do(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    outcome = await q.transact(
        settlement(got[0]), settlement(got[1], named="id"), settlement(got[2], named="id alone", lease=None)
    )
    assert outcome.success
    assert (await workers.stats()).lag == 0


async def test_rule_22_one_refused_settlement_refuses_all(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await workers.take(2)
    outcome = await q.transact(
        message("bills", "p1", 1), settlement(got[0], "failed"), settlement(got[1], lease=NEVER_GIVEN)
    )
    assert (outcome.success, outcome.failed_index) == (False, 2)
    assert await q.pop("bills") == []
    assert await workers.take() == [], "both are still held"
    clock.advance(300)
    assert attempts(await workers.take(10)) == [(1, 2), (2, 2)]


async def test_rule_22_an_expired_or_superseded_lease_refuses_all(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push("orders", "p1", 1)
    [old] = await workers.take()
    clock.advance(300)
    assert not (await q.transact(settlement(old), message("bills", "p1", 1))).success
    [new] = await workers.take()
    assert not (await q.transact(settlement(old), message("bills", "p1", 2))).success
    assert (await q.transact(settlement(new), message("bills", "p1", 3))).success
    assert await q.drain("bills") == [3]


async def test_rule_22_a_repeated_transaction_succeeds_and_changes_nothing(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    [held] = await workers.take()
    for _ in range(2):
        assert (await q.transact(settlement(held), message("bills", "p1", 2, transaction_id="t2"))).success
    assert await q.drain("bills") == [2]


async def test_rule_22_required_leases_allow_settlements_without_a_lease_id(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    mine, theirs = await workers.take(), await workers.take()
    other = settlement(theirs[0], lease=None)
    assert not (await q.transact(other, required_leases=[mine.lease])).success
    assert (await q.transact(settlement(mine[0], lease=None), required_leases=[mine.lease])).success
    assert not (await q.transact(other, required_leases=[mine.lease])).success, "that lease is over"
    assert (await q.transact(other, required_leases=[theirs.lease])).success


async def test_rule_22_failures_and_dead_letters_in_a_transaction(q: Driver, workers: Workers) -> None:
    await q.configure("orders", retry_limit=1)
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    outcome = await q.transact(
        settlement(got[0], "failed", "boom"), settlement(got[1], "dlq", "bad"), settlement(got[2], "retry")
    )
    assert outcome.success
    assert [one.error for one in await q.dead_letters("orders", "workers")] == ["bad"]
    assert attempts(await workers.take(10)) == [(1, 2), (3, 1)]


async def test_rule_22_a_full_queue_refuses_all(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.configure("bills", max_size=1)
    await q.push("bills", "p1", 1)
    await q.push("orders", "p1", 1)
    got = await workers.take()
    assert not (await q.transact(settlement(got[0]), message("bills", "p1", 2))).success
    assert await engine.lease_ends([got.lease]) == [got.expires_at]
    assert (await q.ack(got[0])).success


async def test_rule_22_a_message_may_go_back_to_the_queue_it_came_from(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    for number in range(2, 6):
        [held] = await workers.take()
        assert (await q.transact(settlement(held), message("orders", "p1", number))).success
    assert await workers.drain() == [5]


async def test_rule_22_a_transaction_over_a_shared_and_an_ordered_group(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    await q.push("bills", "p1", 2)
    [shared], [ordered] = await workers.take(), await q.pop("bills")
    assert not (await q.transact(settlement(shared), settlement(ordered, lease=NEVER_GIVEN))).success
    assert (await q.transact(settlement(shared), settlement(ordered))).success
    assert (await workers.stats()).lag == 0
