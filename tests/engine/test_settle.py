"""Rules 12 and 13: whose settlements count, how they name a message, and what `completed` does."""

from __future__ import annotations

import random

import msgspec
import pytest

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import Settlement, Status

from .driver import NEVER_GIVEN, Driver, Named, given, offsets, payloads, settlement
from .workers import Workers, attempts

STALE = {"lease_expired", "lease_invalid", "not_leased"}
STATUSES: list[Status] = ["completed", "failed", "retry", "dlq"]
NAMES: list[Named] = ["key", "id", "id alone"]


async def test_rule_12_a_settlement_under_the_lease_counts(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, transaction_id="t1")
    [leased] = await either.take()
    outcome = await q.ack(leased)
    assert (outcome.success, outcome.code, outcome.error) == (True, None, None)
    assert (outcome.transaction_id, outcome.queue, outcome.partition) == ("t1", "orders", "p1")
    assert (outcome.lease_released, outcome.dead_lettered) == (True, False)


async def test_rule_12_an_expired_or_superseded_lease_settles_nothing(q: Driver, either: Workers) -> None:
    await q.configure("orders", lease_time=10, retry_limit=5)
    await q.push("orders", "p1", 1)
    [old] = await either.take()
    q.clock.advance(10)
    refused = [await q.settle(settlement(old, status)) for status in STATUSES]
    new = await either.take()
    assert attempts(new) == [(1, 2)]
    refused += [await q.settle(settlement(old, status)) for status in STATUSES]
    for [outcome] in refused:
        assert (outcome.success, outcome.lease_id) == (False, None)
        assert outcome.code in STALE and outcome.error
    assert await q.dead_letters() == []
    position = await either.position()
    assert (position.cursor, await either.unsettled()) == (0, 1)
    assert await either.take() == [], "the new lease still holds"
    await q.ack_all(new)


@pytest.mark.parametrize("status", STATUSES)
async def test_rule_12_a_unrelated_lease_settles_nothing(q: Driver, either: Workers, status: Status) -> None:
    _, second = await q.push("orders", "p1", 1, 2)
    [delayed] = await q.push("orders", "p1", 3, delay_ms=60_000)
    await q.push("orders", "p2", 4)
    mine, theirs = await either.take(), await either.take()
    items = [settlement(mine[0], status, lease=lease) for lease in (NEVER_GIVEN, theirs.lease, "no uuid at all")]
    # What was never delivered can't be settled under any lease.
    for one in (second, delayed):
        waits = Settlement(one.transaction_id or "", one.partition_id or "", status, group="workers")
        items += [msgspec.structs.replace(waits, lease_id=lease) for lease in (mine.lease, NEVER_GIVEN, None)]
    for item in items:
        [outcome] = await q.settle(item)
        assert (outcome.success, outcome.code in STALE) == (False, True), item
    await q.ack_all([*mine, *theirs])
    assert payloads(await either.take(10)) == [2]


@pytest.mark.parametrize("status", STATUSES)
async def test_rule_12_in_a_shared_group_no_lease_beside_it_and_none_that_gave_it_back_settles_a_message(
    q: Driver, workers: Workers, status: Status
) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    mine, theirs = await workers.take(2), await workers.take()
    [beside] = await q.settle(settlement(mine[0], status, lease=theirs.lease))
    assert (await q.retry(mine[0], delay_ms=1000)).success
    [outcome] = await q.settle(settlement(mine[0], status))
    # Unlike in an ordered group: it is in no hands until it is taken again.
    assert [(one.success, one.code in STALE) for one in (beside, outcome)] == [(False, True)] * 2
    await q.ack_all([mine[1], *theirs])


async def test_rule_12_what_does_not_exist_is_not_found(q: Driver, either: Workers) -> None:
    """A transaction id finds its message in the partition that is named; only the id of a message needs none."""
    await q.push("orders", "p1", 1, transaction_id="t1")
    [leased] = await either.take()
    names = [("no such message", leased.message.partition_id), ("t1", NEVER_GIVEN), ("t1", "no id"), ("t1", "")]
    names += [("nonsense", ""), (NEVER_GIVEN, ""), ("", "")]
    items = [Settlement(*name, lease_id=leased.lease, group="workers") for name in names]
    outcomes = await q.settle(*items, settlement(leased))
    assert [(one.success, one.code) for one in outcomes] == [(False, "not_found")] * 7 + [(True, None)]


async def test_rule_12_a_refused_item_does_not_disturb_its_neighbours_and_the_first_word_counts(
    q: Driver, either: Workers, engine: Engine
) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await either.take(4)
    requests = [
        [settlement(got[0], "failed"), settlement(got[0]), settlement(got[1], lease=NEVER_GIVEN), settlement(got[2])],
        [],
        [Settlement("unknown", got[0].message.partition_id), Settlement("unknown", "unknown"), settlement(got[3])],
    ]
    first, nothing, last = [given(answer) for answer in await engine.settle(requests)]
    assert [first[n].success for n in (0, 2, 3)] == [True, False, True]
    assert (nothing, [one.success for one in last]) == ([], [False, False, True])
    assert await either.unsettled() == 2
    assert (await q.ack(got[1])).success
    assert attempts(await either.take(10)) == [(1, 2)]


@pytest.mark.parametrize(
    ("decisions", "again"),
    [(["completed", "failed", "completed"], [(2, 2)]), (["failed", "failed", "failed"], [(1, 2), (2, 2), (3, 2)])],
)
async def test_rule_12_all_items_are_checked_by_the_leases_before_the_request(
    q: Driver, either: Workers, decisions: list[Status], again: list[tuple[object, int]]
) -> None:
    """The first failure ends the lease of an ordered group, and still the items behind it count."""
    await q.push("orders", "p1", 1, 2, 3)
    got = await either.take(3)
    outcomes = await q.settle(*map(settlement, got, decisions))
    assert [one.success for one in outcomes] == [True, True, True]
    assert attempts(await either.take(10)) == again


@pytest.mark.parametrize("named", NAMES)
async def test_rule_12_completed_of_what_is_completed_is_a_success(q: Driver, either: Workers, named: Named) -> None:
    await q.push("orders", "p1", 1, transaction_id="t1")
    await q.push("orders", "p1", 2, 3)
    got = await either.take(2)
    for leased in (got[1], got[0]):  # Beyond the cursor of an ordered group, then before it and after the lease's end.
        await q.ack_all([leased, leased])
        for lease in (got.lease, None, NEVER_GIVEN):
            [outcome] = await q.settle(settlement(leased, lease=lease, named=named))
            assert (outcome.success, outcome.lease_id, outcome.lease_released) == (True, None, False)
    assert (await either.stats()).lag == 1
    assert await either.drain() == [3]


async def test_rule_12_completed_of_what_was_removed_since_is_a_success_but_not_of_a_dead_letter(
    q: Driver, either: Workers
) -> None:
    await q.push("orders", "p1", 1, 2)
    done, dead = await either.take(2)
    await q.ack(done)
    await q.kill(dead)
    assert (await q.ack(dead)).code == "dead_lettered"
    await q.engine.delete_messages([done.message.id, dead.message.id])
    for named in NAMES[1:]:
        [outcome] = await q.settle(settlement(done, named=named))
        assert outcome.success
    assert (await q.ack(dead)).code == "dead_lettered"
    assert len(await q.dead_letters()) == 1


async def test_rule_12_what_is_completed_can_not_be_undone(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await either.take(2)
    await q.ack(got[0])
    for status in STATUSES[1:]:
        [outcome] = await q.settle(settlement(got[0], status))
        assert (outcome.success, outcome.lease_id) == (False, None), status
    assert await q.dead_letters() == []
    assert await either.unsettled() == 1
    assert await either.take() == []
    assert (await q.ack(got[1])).success
    assert await either.take() == []


async def test_rule_12_a_repeated_failure_uses_one_attempt_not_two_and_none_of_another_group(
    q: Driver, either: Workers
) -> None:
    """A client that lost the reply sends it again: one delivery never costs two attempts."""
    await q.push("orders", "p1", 1)
    [leased] = await either.take()
    await q.settle(settlement(leased, "failed"), settlement(leased, "failed"))
    await q.fail(leased)
    await q.fail(leased)
    assert attempts(await Workers(q, group="others", mode=either.mode).take()) == [(1, 1)]
    assert attempts(await either.take()) == [(1, 2)]
    assert await q.dead_letters() == []


async def test_rule_12_without_a_lease_id_it_counts_while_the_group_holds_it(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1)
    await q.push("orders", "p2", 2)
    first, second = await either.take(), await either.take()
    [outcome] = await q.settle(settlement(first[0], lease=None))
    assert (outcome.success, outcome.lease_id) == (True, first.lease)
    q.clock.advance(300)
    [late] = await q.settle(settlement(second[0], lease=None))
    assert (late.success, late.code) == (False, "not_leased")
    assert (await either.stats()).lag == 1
    assert attempts(await either.take()) == [(2, 2)]


async def test_rule_12_another_group_s_lease_does_not_help(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1)
    [mine] = await either.take()
    [theirs] = await Workers(q, group="others", mode=either.mode).take()
    unowned = [settlement(mine, lease=lease, group="never seen") for lease in (mine.lease, None)]
    for item in (*unowned, settlement(mine, group="others")):
        [outcome] = await q.settle(item)
        assert not outcome.success
    assert {one.group for one in await q.engine.group_stats(queue="orders")} == {"workers", "others"}
    assert (await q.ack(mine)).success
    assert (await q.ack(theirs)).success


@pytest.mark.parametrize("status", STATUSES)
async def test_rule_12_a_settlement_names_its_message_in_three_ways_and_its_answer_the_lease(
    q: Driver, either: Workers, status: Status
) -> None:
    for key in ("t1", "t2", "t3", "t4"):
        await q.push("orders", "p1", 1, transaction_id=key)
    first, *named = got = await either.take(4)
    items = [settlement(leased, status, named=name) for leased, name in zip(named, NAMES, strict=True)]
    for item in (settlement(first, status, lease=None), *items):
        [outcome] = await q.settle(item)
        assert (outcome.success, outcome.queue, outcome.partition) == (True, "orders", "p1")
        assert outcome.lease_id == got.lease


# What is completed -----------------------------------------------------------------------------------------


async def test_rule_13_settled_in_any_order_by_anyone(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", *range(20))
    leased = [one for got in await workers.take_together(*[4] * 5) for one in got]
    random.Random(7).shuffle(leased)
    for count, one in enumerate(leased, start=1):
        assert (await q.ack(one)).success
        assert await workers.unsettled() == 20 - count
    assert await workers.take() == []


async def test_rule_13_a_shared_lease_is_released_with_the_last_of_its_messages(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    assert not (await q.fail(got[0])).lease_released
    assert attempts(await workers.take(10)) == [(1, 2)], "the others are still held"
    assert not (await q.ack(got[2])).lease_released
    assert await engine.lease_ends([got.lease]) == [got.expires_at]
    assert (await q.ack(got[1])).lease_released
    assert await engine.lease_ends([got.lease]) == [None]


async def test_rule_13_completed_counts_in_any_order_and_the_cursor_is_the_settled_prefix(q: Driver) -> None:
    await q.push("orders", "p1", *range(1, 9))
    got = await q.pop("orders", batch=7)
    seen = []
    for index in (6, 1, 2, 0, 4, 5, 3):
        outcome = await q.ack(got[index])
        assert outcome.success
        seen.append((await q.cursor("orders", "p1"), outcome.lease_released))
    assert seen == [(0, False), (0, False), (0, False), (3, False), (3, False), (3, False), (7, True)]
    assert payloads(await q.pop("orders")) == [8]


@pytest.mark.parametrize("ended", ["by a failure", "by expiry"])
async def test_rule_13_completed_is_for_ever_however_the_lease_ends(q: Driver, clock: FakeClock, ended: str) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3, 4, 5)
    got = await q.pop("orders", batch=5)
    await q.ack_all([got[1], got[3]])
    if ended == "by expiry":
        clock.advance(10)
    else:
        await q.fail(got[0])
    assert await q.drain("orders") == [1, 3, 5]
    assert await q.cursor("orders", "p1") == 5


async def test_rule_13_the_cursor_never_moves_back(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3)
    first = await q.pop("orders", batch=3)
    clock.advance(10)
    assert await q.drain("orders") == [1, 2, 3]
    for leased in first:
        await q.ack(leased)
        await q.fail(leased)
        assert await q.cursor("orders", "p1") == 3
    assert await q.pop("orders") == []


async def test_rule_13_many_ranges(q: Driver) -> None:
    await q.push("orders", "p1", *range(1, 201))
    got = await q.pop("orders", batch=200)
    await q.settle(*(settlement(one) for one in got[1::2]))
    assert await q.cursor("orders", "p1") == 0
    await q.retry(got[0])
    rest = await q.pop("orders", batch=200)
    assert offsets(rest) == list(range(1, 200, 2))
    await q.ack_all(reversed(rest))
    assert await q.cursor("orders", "p1") == 200


async def test_rule_13_beyond_ten_thousand_ranges_only_the_head_is_delivered(q: Driver) -> None:
    for _ in range(3):
        await q.push("orders", "p1", *range(6_700))
    got = await q.pop("orders", batch=20_100)
    assert len(got) == 20_100
    await q.settle(*(settlement(one) for one in got[1::2]))
    await q.retry(got[0])
    assert offsets(await q.pop("orders", batch=10, auto_ack=True)) == [1]
    assert offsets(await q.pop("orders", batch=10, auto_ack=True)) == [3]
