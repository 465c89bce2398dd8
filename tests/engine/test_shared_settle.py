"""Rules 12, 13 and 22 in shared groups: whose settlements count, how they name a message, alone and in transactions."""

from __future__ import annotations

import random

import pytest

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import Settlement, Status

from .driver import NEVER_GIVEN, Driver, Named, message, payloads, settlement
from .workers import Workers, attempts

STALE = {"lease_expired", "lease_invalid", "not_leased"}
STATUSES: list[Status] = ["completed", "failed", "retry", "dlq"]
NAMES: list[Named] = ["key", "id", "id alone"]


# In any order ----------------------------------------------------------------------------------------------


async def test_rule_13_settled_in_any_order_by_anybody(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", *range(20))
    held = [one for got in await workers.take_together(*[4] * 5) for one in got]
    random.Random(7).shuffle(held)
    for count, one in enumerate(held, start=1):
        assert (await q.ack(one)).success
        assert (await workers.stats()).lag == 20 - count
    assert await workers.take() == []


async def test_the_lease_is_released_with_the_last_of_its_messages(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    assert not (await q.fail(got[0])).lease_released
    assert attempts(await workers.take(10)) == [(1, 2)], "the others are still held"
    assert not (await q.ack(got[2])).lease_released
    assert await engine.lease_ends([got.lease]) == [got.expires_at]
    assert (await q.ack(got[1])).lease_released
    assert await engine.lease_ends([got.lease]) == [None]


# Whose settlement ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", STATUSES)
async def test_rule_12_an_expired_or_superseded_lease_settles_nothing(
    q: Driver, workers: Workers, status: Status
) -> None:
    await q.configure("orders", lease_time=10, retry_limit=5)
    for partition in ("expired", "superseded"):
        await q.push("orders", partition, 1)
        [old] = await workers.take()
        q.clock.advance(10)
        new = await workers.take() if partition == "superseded" else []
        [outcome] = await q.settle(settlement(old, status))
        assert (outcome.success, outcome.lease_id) == (False, None)
        assert outcome.code in STALE and outcome.error
        assert await q.dead_letters() == []
        new = new or await workers.take()
        assert attempts(new) == [(1, 2)]
        assert await workers.take() == [], "the new lease still holds"
        await q.ack_all(new)


@pytest.mark.parametrize("status", STATUSES)
async def test_rule_12_a_foreign_lease_or_one_that_gave_the_message_back_settles_nothing(
    q: Driver, workers: Workers, status: Status
) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    mine, theirs = await workers.take(2), await workers.take()
    for lease in (NEVER_GIVEN, theirs.lease, "no uuid at all"):
        [outcome] = await q.settle(settlement(mine[0], status, lease=lease))
        assert not outcome.success and outcome.code in STALE, lease
    assert (await q.retry(mine[0], delay_ms=1000)).success
    [outcome] = await q.settle(settlement(mine[0], status))
    # Unlike in an ordered group: it is in no hands until it is taken again.
    assert not outcome.success and outcome.code in STALE
    await q.ack_all([mine[1], *theirs])


@pytest.mark.parametrize("status", STATUSES)
async def test_rule_12_what_was_never_delivered_can_not_be_settled(q: Driver, workers: Workers, status: Status) -> None:
    _, second, delayed = [*await q.push("orders", "p1", 1, 2), *await q.push("orders", "p1", 3, delay_ms=60_000)]
    got = await workers.take()
    for outcome in (second, delayed):
        for lease in (got.lease, NEVER_GIVEN, None):
            name, place = outcome.transaction_id or "", outcome.partition_id or ""
            [answer] = await q.settle(Settlement(name, place, status, lease, group="workers"))
            assert not answer.success and answer.code in STALE
    assert payloads(await workers.take(10)) == [2]


async def test_rule_12_another_group_s_lease_does_not_help(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    [mine] = await workers.take()
    [theirs] = await Workers(q, group="others").take()
    for lease in (mine.lease, None):
        [outcome] = await q.settle(settlement(mine, lease=lease, group="nobody"))
        assert not outcome.success
    [outcome] = await q.settle(settlement(mine, group="others"))
    assert not outcome.success
    assert (await q.ack(mine)).success
    assert (await q.ack(theirs)).success


async def test_rule_12_without_a_lease_id_it_counts_while_the_group_holds_the_message(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2)
    got = await workers.take(2)
    [outcome] = await q.settle(settlement(got[0], lease=None))
    assert (outcome.success, outcome.lease_id) == (True, got.lease)
    clock.advance(10)
    [outcome] = await q.settle(settlement(got[1], lease=None))
    assert (outcome.success, outcome.code) == (False, "not_leased")
    assert attempts(await workers.take()) == [(2, 2)]


async def test_rule_12_all_items_are_judged_by_the_leases_before_the_request(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    twice = [settlement(got[0], "failed"), settlement(got[0])]
    refused = [settlement(got[1], lease=NEVER_GIVEN), Settlement("unknown", "unknown")]
    first, _, *others = await q.settle(*twice, *refused, settlement(got[2]))
    assert first.success
    assert [one.success for one in others] == [False, False, True], "a refused item does not disturb its neighbours"
    assert attempts(await workers.take(10)) == [(1, 2)], "of two things said of one message the first counts"
    assert (await q.ack(got[1])).success


# Completed of completed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", NAMES)
async def test_rule_12_completed_of_what_is_completed_is_a_success(q: Driver, workers: Workers, named: Named) -> None:
    await q.push("orders", "p1", 1, transaction_id="t1")
    await q.push("orders", "p1", 2, 3)
    got = await workers.take(2)
    await q.ack(got[0])
    for lease in (got.lease, None, NEVER_GIVEN):
        [outcome] = await q.settle(settlement(got[0], lease=lease, named=named))
        assert (outcome.success, outcome.lease_id, outcome.lease_released) == (True, None, False)
    await q.ack(got[1])
    assert (await q.ack(got[1])).success
    assert await workers.drain() == [3]


async def test_rule_12_completed_of_what_was_removed_since_is_a_success_but_not_of_a_dead_letter(
    q: Driver, workers: Workers
) -> None:
    await q.push("orders", "p1", 1, 2)
    done, dead = await workers.take(2)
    await q.ack(done)
    await q.kill(dead)
    assert (await q.ack(dead)).code == "dead_lettered"
    await q.engine.delete_messages([done.message.id, dead.message.id])
    for named in NAMES[1:]:
        [outcome] = await q.settle(settlement(done, named=named))
        assert outcome.success
    assert (await q.ack(dead)).code == "dead_lettered"
    assert len(await q.dead_letters()) == 1


async def test_rule_12_what_is_completed_can_not_be_undone(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await workers.take(2)
    await q.ack(got[0])
    for status in STATUSES[1:]:
        [outcome] = await q.settle(settlement(got[0], status))
        assert not outcome.success, status
    assert await q.dead_letters() == []
    assert await workers.take() == []
    assert (await q.ack(got[1])).success


# Names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", STATUSES)
async def test_a_settlement_names_its_message_in_three_ways(q: Driver, workers: Workers, status: Status) -> None:
    for key in ("t1", "t2", "t3", "t4"):
        await q.push("orders", "p1", 1, transaction_id=key)
    *named, last = got = await workers.take(4)
    items = [settlement(held, status, named=name) for held, name in zip(named, NAMES, strict=True)]
    for item in (*items, settlement(last, status, lease=None)):
        [outcome] = await q.settle(item)
        assert (outcome.success, outcome.queue, outcome.partition) == (True, "orders", "p1")
        assert outcome.lease_id == got.lease


async def test_what_does_not_exist_is_not_found(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, transaction_id="t1")
    [held] = await workers.take()
    names = [("no such message", held.message.partition_id), ("t1", NEVER_GIVEN), ("t1", "")]
    names += [("nonsense", ""), (NEVER_GIVEN, ""), ("", "")]
    outcomes = await q.settle(*(Settlement(name, place, lease_id=held.lease, group="workers") for name, place in names))
    assert [(one.success, one.code) for one in outcomes] == [(False, "not_found")] * 6
    assert (await q.ack(held)).success


# Over a restart --------------------------------------------------------------------------------------------


async def test_what_was_settled_out_of_order_stays_settled_over_a_restart(durable: Driver) -> None:
    q, workers = durable, Workers(durable)
    await q.push("orders", "p1", *range(1, 21))
    got = await workers.take(20)
    await q.settle(*(settlement(one) for one in got[1::2]))
    await q.reopen()
    assert (await workers.stats()).lag == 10
    q.clock.advance(300)
    assert sorted(map(int, map(str, await workers.drain()))) == list(range(1, 21, 2))


# Transactions ----------------------------------------------------------------------------------------------


async def test_rule_22_settle_by_any_name_and_push_together(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    first, *got = await workers.take(4)
    items = [settlement(got[0]), settlement(got[1], named="id"), settlement(got[2], named="id alone", lease=None)]
    assert (await q.transact(*items, message("bills", "p1", "new"))).success
    assert (await workers.stats()).lag == 1
    assert await q.drain("bills") == ["new"]
    assert (await q.ack(first)).success


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


async def test_rule_22_an_expired_or_superseded_lease_refuses_all(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    [old] = await workers.take()
    q.clock.advance(300)
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
