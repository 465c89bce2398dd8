"""Rules 12, 13 and 22: whose settlements count, what `completed` does, and transactions."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import NewMessage, PushOutcome, Settlement, SettleOutcome, Status, Transaction

from .driver import NEVER_GIVEN, Driver, Named, given, message, offsets, payloads, settlement
from .workers import attempts

STALE = {"lease_expired", "lease_invalid", "not_leased"}
STATUSES: list[Status] = ["completed", "failed", "retry", "dlq"]


async def test_rule_12_a_settlement_under_the_lease_counts(q: Driver) -> None:
    await q.push("orders", "p1", 1, transaction_id="t1")
    [held] = await q.pop("orders")
    outcome = await q.ack(held)
    assert (outcome.success, outcome.code, outcome.error) == (True, None, None)
    assert (outcome.transaction_id, outcome.queue, outcome.partition) == ("t1", "orders", "p1")
    assert (outcome.lease_released, outcome.dead_lettered) == (True, False)


async def test_rule_12_an_expired_or_superseded_lease_settles_nothing(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10, retry_limit=5)
    await q.push("orders", "p1", 1)
    [old] = await q.pop("orders")
    clock.advance(10)
    refused = [await q.settle(settlement(old, status)) for status in STATUSES]
    [new] = await q.pop("orders")
    assert new.message.attempt == 2
    refused += [await q.settle(settlement(old, status)) for status in STATUSES]
    for [outcome] in refused:
        assert not outcome.success and outcome.error
        assert outcome.code in STALE
    assert await q.dead_letters() == []
    assert await q.cursor("orders", "p1") == 0
    assert await q.pop("orders") == [], "the new lease still holds"
    assert (await q.ack(new)).success


@pytest.mark.parametrize("status", STATUSES)
async def test_rule_12_a_foreign_lease_settles_nothing(q: Driver, status: Status) -> None:
    _, second = await q.push("orders", "p1", 1, 2)
    await q.push("orders", "p2", 3)
    mine, theirs = await q.pop("orders"), await q.pop("orders")
    waits = Settlement(second.transaction_id or "", second.partition_id or "", status=status)
    items = [settlement(mine[0], status, lease=lease) for lease in (NEVER_GIVEN, theirs.lease, "no uuid at all")]
    # What was never delivered can't be settled under any lease.
    items += [msgspec.structs.replace(waits, lease_id=lease) for lease in (mine.lease, NEVER_GIVEN, None)]
    for item in items:
        [outcome] = await q.settle(item)
        assert (outcome.success, outcome.code in STALE) == (False, True), item
    assert (await q.ack(mine[0])).success
    assert payloads(await q.pop("orders")) == [2]


async def test_rule_12_what_does_not_exist_is_not_found(q: Driver) -> None:
    """A transaction id finds its message in the partition that is named; only the id of a message needs none."""
    await q.push("orders", "p1", 1, transaction_id="t1")
    [held] = await q.pop("orders")
    partition = held.message.partition_id
    names = [
        ("no such message", partition),
        ("t1", NEVER_GIVEN),
        ("t1", "no id"),
        ("t1", ""),
        ("", ""),
        (NEVER_GIVEN, ""),
    ]
    outcomes = await q.settle(*(Settlement(*name, lease_id=held.lease) for name in names), settlement(held))
    assert [one.code for one in outcomes] == ["not_found"] * 6 + [None]


async def test_rule_12_a_refused_item_does_not_disturb_its_neighbours(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=3)
    requests = [
        [settlement(got[0]), settlement(got[1], lease=NEVER_GIVEN)],
        [],
        [Settlement("unknown", got[0].message.partition_id), settlement(got[2])],
    ]
    answers = [given(answer) for answer in await engine.settle(requests)]
    assert [[one.success for one in answer] for answer in answers] == [[True, False], [], [False, True]]
    assert await q.cursor("orders", "p1") == 1
    assert (await q.ack(got[1])).success
    assert await q.cursor("orders", "p1") == 3


@pytest.mark.parametrize(
    ("verdicts", "again"),
    [(["completed", "failed", "completed"], [(2, 2)]), (["failed", "failed", "failed"], [(1, 2), (2, 2), (3, 2)])],
)
async def test_rule_12_all_items_are_judged_by_the_leases_before_the_request(
    q: Driver, verdicts: list[Status], again: list[tuple[object, int]]
) -> None:
    """The first failure ends the lease, and still the items behind it count."""
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=3)
    outcomes = await q.settle(*map(settlement, got, verdicts))
    assert [one.success for one in outcomes] == [True, True, True]
    assert attempts(await q.pop("orders", batch=10)) == again


async def test_rule_12_completed_of_what_is_completed_is_a_success(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=2)
    await q.ack_all([got[1], got[1]])
    assert await q.pop("orders") == [], "the first message is still leased"
    assert (await q.ack(got[1])).success, "beyond the cursor"
    await q.ack_all([got[0], got[0]])
    assert (await q.ack(got[0])).success, "at or before the cursor, after the end of the lease"
    assert await q.cursor("orders", "p1") == 2
    assert payloads(await q.pop("orders")) == [3]
    await engine.delete_messages([one.message.id for one in got])
    outcomes = await q.settle(settlement(got[0], named="id"), settlement(got[1], named="id alone"))
    assert [one.success for one in outcomes] == [True, True], "also when it was removed since"


async def test_rule_12_what_is_completed_can_not_be_undone(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await q.pop("orders", batch=2)
    await q.ack(got[0])
    for status in STATUSES[1:]:
        [outcome] = await q.settle(settlement(got[0], status))
        assert not outcome.success
    assert await q.dead_letters() == []
    assert await q.cursor("orders", "p1") == 1
    assert (await q.ack(got[1])).success
    assert await q.pop("orders") == []


async def test_rule_12_a_repeated_failure_uses_one_attempt_not_two(q: Driver) -> None:
    """A client that lost the reply sends it again: one delivery never costs two attempts."""
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    await q.fail(held)
    await q.fail(held)
    await q.settle(settlement(held, "failed"), settlement(held, "failed"))
    [again] = await q.pop("orders")
    assert again.message.attempt == 2
    assert await q.dead_letters() == []


async def test_rule_12_without_a_lease_id_it_counts_while_the_group_holds_it(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await q.pop("orders", batch=2)
    [outcome] = await q.settle(settlement(got[0], lease=None))
    assert outcome.success
    clock.advance(300)
    [late] = await q.settle(settlement(got[1], lease=None))
    assert (late.success, late.code) == (False, "not_leased")
    assert await q.cursor("orders", "p1") == 1


async def test_rule_12_without_a_lease_id_another_group_s_lease_does_not_help(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders", group="a")
    [unknown] = await q.settle(settlement(held, lease=None, group="never seen"))
    assert not unknown.success
    await q.pop("orders", group="b", auto_ack=True)
    await q.push("orders", "p1", 2)
    [other] = await q.settle(settlement(held, lease=None, group="c"))
    assert not other.success
    assert {one.group for one in await q.engine.group_stats(queue="orders")} == {"a", "b"}


@pytest.mark.parametrize("status", STATUSES)
async def test_rule_12_an_outcome_names_the_lease_that_the_message_was_held_under(q: Driver, status: Status) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await q.pop("orders", batch=2)
    [with_lease] = await q.settle(settlement(got[1], status))
    [without] = await q.settle(settlement(got[0], lease=None))
    assert [with_lease.lease_id, without.lease_id] == [got.lease, got.lease]
    [again] = await q.settle(settlement(got[0]))
    assert (again.success, again.lease_id) == (True, None), "it changed nothing"
    [refused] = await q.settle(settlement(got[0], "failed"))
    assert (refused.success, refused.lease_id) == (False, None)


@pytest.mark.parametrize("status", STATUSES)
async def test_rule_12_a_settlement_names_its_message_in_three_ways(q: Driver, status: Status) -> None:
    ways: list[Named] = ["key", "id", "id alone"]
    for named in ways:
        await q.push("orders", named, 1, transaction_id="t1")
        [held] = await q.pop("orders", named)
        [outcome] = await q.settle(settlement(held, status, named=named))
        assert (outcome.success, outcome.queue, outcome.partition) == (True, "orders", named)


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
    for held in first:
        await q.ack(held)
        await q.fail(held)
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


# Rule 22: pushes and settlements, all or nothing, with leases checked ------------------------------------


async def test_rule_22_pushes_and_settlements_happen_together(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    outcome = await q.transact(settlement(held), message("bills", "p1", 2), message("mails", "p1", 3))
    assert (outcome.success, outcome.code, outcome.failed_index) == (True, None, None)
    settled, *pushed = outcome.results
    assert isinstance(settled, SettleOutcome) and settled.success and settled.lease_released
    assert all(isinstance(one, PushOutcome) and one.status == "queued" and one.message_id for one in pushed)
    assert await q.cursor("orders", "p1") == 1
    assert (await q.drain("bills"), await q.drain("mails")) == ([2], [3])


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_rule_22_one_refused_settlement_undoes_everything(q: Driver, position: int) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await q.pop("orders", batch=2)
    operations: list[Settlement | NewMessage] = [settlement(got[0]), message("bills", "p1", 3)]
    operations.insert(position, settlement(got[1], lease=NEVER_GIVEN))
    outcome = await q.transact(*operations)
    assert (outcome.success, outcome.failed_index) == (False, position)
    assert outcome.code and outcome.error
    assert await q.cursor("orders", "p1") == 0
    assert await q.pop("bills") == []
    assert await q.engine.queue_infos(["bills"]) == [], "not even the queue was made"
    await q.ack_all(got)


async def test_rule_22_an_aborted_transaction_frees_its_transaction_ids_and_offsets(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    unknown = Settlement("unknown", NEVER_GIVEN)
    assert not (await q.transact(message("orders", "p1", 2, transaction_id="t2"), unknown)).success
    [outcome] = await q.push("orders", "p1", 3, transaction_id="t2")
    assert outcome.status == "queued"
    got = await q.pop("orders", batch=10)
    assert [(one.payload, one.message.offset) for one in got] == [(1, 1), (3, 2)]


async def test_rule_22_an_aborted_failure_uses_no_attempt_and_keeps_the_lease(q: Driver) -> None:
    await q.configure("orders", retry_limit=0)
    await q.push("orders", "p1", 1, 2)
    got = await q.pop("orders", batch=2)
    outcome = await q.transact(
        settlement(got[0], "failed"), settlement(got[1], "dlq"), settlement(got[0], lease=NEVER_GIVEN)
    )
    assert not outcome.success
    assert await q.dead_letters() == []
    assert await q.pop("orders") == []
    await q.ack_all(got)


async def test_rule_22_an_expired_or_superseded_lease_aborts(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    [old] = await q.pop("orders")
    clock.advance(300)
    outcome = await q.transact(message("bills", "p1", 2), settlement(old))
    assert (outcome.success, outcome.failed_index) == (False, 1)
    [new] = await q.pop("orders")
    assert not (await q.transact(settlement(old), message("bills", "p1", 3))).success
    assert (await q.transact(settlement(new), message("bills", "p1", 4))).success
    assert await q.drain("bills") == [4]


async def test_rule_22_completed_of_completed_does_not_abort(q: Driver) -> None:
    """The retry of a transaction whose reply was lost succeeds and changes nothing."""
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    operations = (settlement(held), message("bills", "p1", 2, transaction_id="t2"))
    assert (await q.transact(*operations)).success
    assert (await q.transact(*operations)).success
    assert await q.drain("bills") == [2]


async def test_rule_22_settlements_are_judged_by_the_leases_before_the_transaction(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=3)
    outcome = await q.transact(settlement(got[0], "failed"), settlement(got[1]), settlement(got[2]))
    assert outcome.success
    assert payloads(await q.pop("orders", batch=10)) == [1]


async def test_rule_22_required_leases_allow_settlements_of_what_they_hold_without_a_lease_id(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    await q.push("orders", "p2", 2)
    [mine], [theirs] = await q.pop("orders"), await q.pop("orders")
    outcome = await q.transact(settlement(theirs, lease=None), required_leases=[mine.lease])
    assert (outcome.success, outcome.failed_index) == (False, 0)
    outcome = await q.transact(settlement(mine, lease=None), message("bills", "p1", 2), required_leases=[mine.lease])
    assert outcome.success
    assert await q.cursor("orders", "p1") == 1
    assert (await q.ack(theirs)).success


async def test_rule_22_a_required_lease_that_is_over_or_superseded_aborts(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1)
    await q.push("other", "p1", 2)
    await q.push("third", "p1", 3, 4)
    [held], [other], superseded = await q.pop("orders"), await q.pop("other"), await q.pop("third", batch=2)
    clock.advance(10)
    await q.retry(superseded[1])
    await q.pop("third", batch=2)
    assert not (await q.transact(settlement(other), required_leases=[held.lease, other.lease])).success
    for lease in (NEVER_GIVEN, superseded[0].lease):
        assert not (await q.transact(message("bills", "p1", 3), required_leases=[lease])).success
    assert await q.cursor("other", "p1") == 0
    assert await q.pop("bills") == []


async def test_rule_22_without_lease_id_and_required_leases_a_live_lease_is_enough(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    assert (await q.transact(settlement(held, lease=None))).success
    await q.push("orders", "p1", 2)
    [held] = await q.pop("orders")
    clock.advance(300)
    assert not (await q.transact(settlement(held, lease=None))).success


async def test_rule_22_transactions_of_one_call_do_not_disturb_each_other(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await q.pop("orders", batch=2)
    answers = await engine.transact(
        [
            Transaction([settlement(got[0]), message("bills", "p1", 1)]),
            Transaction([message("bills", "p1", 2), settlement(got[1], lease=NEVER_GIVEN)]),
            Transaction([message("bills", "p1", 3), settlement(got[1])]),
        ]
    )
    assert [given(one).success for one in answers] == [True, False, True]
    assert await q.cursor("orders", "p1") == 2
    assert await q.drain("bills") == [1, 3]


async def test_rule_22_of_racing_transactions_on_one_message_all_succeed_but_only_one_pushes(q: Driver) -> None:
    """Completed of completed is a success; the pushed transaction id makes the effect happen once."""
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    racing = [q.transact(settlement(held), message("bills", "p1", n, transaction_id="t")) for n in range(10)]
    assert all(one.success for one in await asyncio.gather(*racing))
    assert len(await q.drain("bills")) == 1


async def test_rule_22_pushed_messages_are_visible_at_once(q: Driver) -> None:
    outcome = await q.transact()
    assert (outcome.success, list(outcome.results)) == (True, []), "an empty transaction is a success"
    assert (await q.transact(message("orders", "p1", 1), message("orders", "p1", 2))).success
    assert payloads(await q.pop("orders", batch=10)) == [1, 2]
