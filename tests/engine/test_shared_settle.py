"""Rules 12 and 13 in shared groups: whose settlements count, how they name a message, in any order."""

from __future__ import annotations

import random

import pytest

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import Settlement, Status

from .driver import NEVER_GIVEN, Driver, Named, payloads, settlement
from .workers import Workers, attempts

STALE = {"lease_expired", "lease_invalid", "not_leased"}
STATUSES: list[Status] = ["completed", "failed", "retry", "dlq"]
NAMES: list[Named] = ["key", "id", "id alone"]

# In any order ----------------------------------------------------------------------------------------------


async def test_rule_13_settled_in_any_order_by_anybody(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", *range(40))
    held = [one for got in await workers.take_together(*[4] * 10) for one in got]
    random.Random(7).shuffle(held)
    for count, one in enumerate(held, start=1):
        assert (await q.ack(one)).success
        assert (await workers.stats()).lag == 40 - count
    assert await workers.take() == []


async def test_rule_13_nobody_waits_for_anybody(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    first, second = await workers.take(), await workers.take()
    assert (await q.ack(second[0])).success
    assert payloads(await workers.take()) == [3]
    assert (await q.ack(first[0])).success


async def test_the_lease_is_released_with_the_last_of_its_messages(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    released = [(await q.ack(got[index])).lease_released for index in (2, 0, 1)]
    assert released == [False, False, True]
    assert await engine.lease_ends([got.lease]) == [None]


async def test_a_failure_does_not_release_the_others(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    assert not (await q.fail(got[0])).lease_released
    assert await engine.lease_ends([got.lease]) == [got.expires_at]
    assert attempts(await workers.take(10)) == [(1, 2)], "the others are still held"
    await q.ack_all(got[1:])


async def test_an_outcome_names_the_lease_and_the_place(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await workers.take(4)
    for held, status in zip(got, STATUSES, strict=True):
        [outcome] = await q.settle(settlement(held, status, lease=None))
        assert (outcome.success, outcome.queue, outcome.partition) == (True, "orders", "p1")
        assert outcome.lease_id == got.lease


# Whose settlement ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", STATUSES)
async def test_rule_12_a_superseded_lease_settles_nothing(
    q: Driver, workers: Workers, clock: FakeClock, status: Status
) -> None:
    await q.configure("orders", lease_time=10, retry_limit=5)
    await q.push("orders", "p1", 1)
    [old] = await workers.take()
    clock.advance(10)
    [new] = await workers.take()
    [outcome] = await q.settle(settlement(old, status))
    assert (outcome.success, outcome.lease_id) == (False, None)
    assert outcome.code in STALE and outcome.error
    assert await q.dead_letters() == []
    assert await workers.take() == [], "the new lease still holds"
    assert (await q.ack(new)).success


@pytest.mark.parametrize("status", STATUSES)
async def test_rule_12_an_expired_lease_settles_nothing(
    q: Driver, workers: Workers, clock: FakeClock, status: Status
) -> None:
    await q.configure("orders", lease_time=10, retry_limit=5)
    await q.push("orders", "p1", 1)
    [held] = await workers.take()
    clock.advance(10)
    [outcome] = await q.settle(settlement(held, status))
    assert not outcome.success and outcome.code in STALE
    assert attempts(await workers.take()) == [(1, 2)]


@pytest.mark.parametrize("status", STATUSES)
async def test_rule_12_a_lease_that_gave_the_message_back_settles_it_no_more(
    q: Driver, workers: Workers, status: Status
) -> None:
    """Unlike in an ordered group nobody has it until it is taken again."""
    await q.push("orders", "p1", 1, 2)
    got = await workers.take(2)
    await q.retry(got[0], delay_ms=1000)
    [outcome] = await q.settle(settlement(got[0], status))
    assert not outcome.success and outcome.code in STALE
    assert (await q.ack(got[1])).success


@pytest.mark.parametrize("status", STATUSES)
async def test_rule_12_a_foreign_lease_settles_nothing(q: Driver, workers: Workers, status: Status) -> None:
    await q.push("orders", "p1", 1, 2)
    mine, theirs = await workers.take(), await workers.take()
    for lease in (NEVER_GIVEN, theirs.lease, "no uuid at all"):
        [outcome] = await q.settle(settlement(mine[0], status, lease=lease))
        assert not outcome.success and outcome.code in STALE, lease
    assert (await q.ack(mine[0])).success
    assert (await q.ack(theirs[0])).success


@pytest.mark.parametrize("status", STATUSES)
async def test_rule_12_what_was_never_delivered_can_not_be_settled(q: Driver, workers: Workers, status: Status) -> None:
    _, second, delayed = [
        *await q.push("orders", "p1", 1, 2),
        *await q.push("orders", "p1", 3, delay_ms=60_000),
    ]
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
    await q.push("orders", "p1", 1, 2)
    got = await workers.take(2)
    outcomes = await q.settle(settlement(got[0], "failed"), settlement(got[0]), settlement(got[1]))
    assert (outcomes[0].success, outcomes[2].success) == (True, True)
    assert attempts(await workers.take(10)) == [(1, 2)], "of two things said of one message the first counts"


async def test_rule_12_a_refused_item_does_not_disturb_its_neighbours(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    outcomes = await q.settle(
        settlement(got[0]), settlement(got[1], lease=NEVER_GIVEN), Settlement("unknown", "unknown"), settlement(got[2])
    )
    assert [one.success for one in outcomes] == [True, False, False, True]
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


async def test_rule_12_completed_of_what_was_removed_since_is_a_success(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await workers.take(2)
    await q.ack_all(got)
    await engine.delete_messages([held.message.id for held in got])
    for named in NAMES[1:]:
        [outcome] = await q.settle(settlement(got[0], named=named))
        assert outcome.success


async def test_rule_12_completed_of_a_dead_letter_is_refused(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    [held] = await workers.take()
    await q.kill(held)
    assert (await q.ack(held)).code == "dead_lettered"
    await engine.delete_messages([held.message.id])
    assert (await q.ack(held)).code == "dead_lettered"
    assert len(await q.dead_letters()) == 1


@pytest.mark.parametrize("status", ["failed", "retry", "dlq"])
async def test_rule_12_what_is_completed_can_not_be_undone(q: Driver, workers: Workers, status: Status) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await workers.take(2)
    await q.ack(got[0])
    [outcome] = await q.settle(settlement(got[0], status))
    assert not outcome.success
    assert await q.dead_letters() == []
    assert await workers.take() == []
    assert (await q.ack(got[1])).success


# Names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("named", NAMES)
async def test_a_settlement_names_its_message_in_three_ways(
    q: Driver, workers: Workers, status: Status, named: Named
) -> None:
    await q.push("orders", "p1", 1, transaction_id="t1")
    [held] = await workers.take()
    [outcome] = await q.settle(settlement(held, status, named=named))
    assert (outcome.success, outcome.partition, outcome.lease_id) == (True, "p1", held.lease)


async def test_a_transaction_id_alone_says_nothing_about_where(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, transaction_id="t1")
    [held] = await workers.take()
    [outcome] = await q.settle(Settlement("t1", "", lease_id=held.lease, group="workers"))
    assert (outcome.success, outcome.code) == (False, "not_found")
    assert (await q.ack(held)).success


async def test_what_does_not_exist_is_not_found(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    [held] = await workers.take()
    names = [("no such message", held.message.partition_id), (held.message.transaction_id, NEVER_GIVEN)]
    names += [("nonsense", ""), (NEVER_GIVEN, ""), ("", "")]
    outcomes = await q.settle(*(Settlement(name, place, lease_id=held.lease, group="workers") for name, place in names))
    assert [one.code for one in outcomes] == ["not_found"] * 5
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
