"""Rule 22: pushes and settlements, all or nothing, with leases checked."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import NewMessage, PushOutcome, Settlement, SettleOutcome, Transaction

from .driver import NEVER_GIVEN, Driver, Named, given, message, payloads, settlement
from .model_nouns import STALE
from .workers import Workers, attempts


async def test_rule_22_pushes_and_settlements_by_any_name_happen_together(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await either.take(3)
    items = [settlement(got[0], lease=None), settlement(got[1], named="id"), settlement(got[2], named="id alone")]
    outcome = await q.transact(*items, message("bills", "p1", 2), message("mails", "p1", 3))
    assert (outcome.success, outcome.code, outcome.failed_index) == (True, None, None)
    settled, pushed = outcome.results[:3], outcome.results[3:]
    assert all(isinstance(one, SettleOutcome) and one.success for one in settled)
    assert [isinstance(one, SettleOutcome) and one.lease_released for one in settled] == [False, False, True]
    assert all(isinstance(one, PushOutcome) and one.status == "queued" and one.message_id for one in pushed)
    assert (await either.stats()).lag == 0
    assert (await q.drain("bills"), await q.drain("mails")) == ([2], [3])


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_rule_22_one_refused_settlement_undoes_everything(q: Driver, either: Workers, position: int) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await either.take(2)
    operations: list[Settlement | NewMessage] = [settlement(got[0]), message("bills", "p1", 3)]
    operations.insert(position, settlement(got[1], lease=NEVER_GIVEN))
    outcome = await q.transact(*operations)
    assert (outcome.success, outcome.failed_index) == (False, position)
    assert outcome.code and outcome.error
    assert await either.unsettled() == 2
    assert await q.pop("bills") == []
    assert await q.engine.queue_infos(["bills"]) == [], "not even the queue was made"
    assert await either.take() == [], "both are still held"
    await q.ack_all(got)


async def test_rule_22_an_aborted_transaction_frees_its_transaction_ids_and_offsets(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    unknown = Settlement("unknown", NEVER_GIVEN)
    assert not (await q.transact(message("orders", "p1", 2, transaction_id="t2"), unknown)).success
    [outcome] = await q.push("orders", "p1", 3, transaction_id="t2")
    assert outcome.status == "queued"
    got = await q.pop("orders", batch=10)
    assert [(one.payload, one.message.offset) for one in got] == [(1, 1), (3, 2)]


async def test_rule_22_an_aborted_failure_uses_no_attempt_and_keeps_the_lease(q: Driver, either: Workers) -> None:
    await q.configure("orders", retry_limit=0)
    await q.push("orders", "p1", 1, 2)
    got = await either.take(2)
    outcome = await q.transact(
        settlement(got[0], "failed"), settlement(got[1], "dlq"), settlement(got[0], lease=NEVER_GIVEN)
    )
    assert not outcome.success
    assert await q.dead_letters() == []
    assert await either.take() == []
    await q.ack_all(got)


async def test_rule_22_an_expired_or_superseded_lease_aborts(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1)
    [old] = await either.take()
    q.clock.advance(300)
    outcome = await q.transact(message("bills", "p1", 2), settlement(old))
    assert (outcome.success, outcome.failed_index) == (False, 1)
    [new] = await either.take()
    assert not (await q.transact(settlement(old), message("bills", "p1", 3))).success
    assert (await q.transact(settlement(new), message("bills", "p1", 4))).success
    assert await q.drain("bills") == [4]


@pytest.mark.parametrize("how", ["transaction", "settlement"])
@pytest.mark.parametrize("named", ["key", "id", "id alone"])
async def test_rule_12_a_consumer_whose_lease_has_ended_commits_nothing_beside_its_successor(
    q: Driver, either: Workers, how: str, named: Named
) -> None:
    await q.push("orders", "p1", 1)
    [late] = await either.take()
    q.clock.advance(300)
    [successor] = await either.take()
    if how == "transaction":
        assert (await q.transact(settlement(successor), message("bills", "p1", "successor"))).success
    else:
        assert (await q.ack(successor)).success
    for lease in (late.lease, None, NEVER_GIVEN):
        item = settlement(late, lease=lease, named=named)
        outcome = await q.transact(message("bills", "p1", "late"), item)
        assert (outcome.success, outcome.failed_index) == (False, 1)
        assert outcome.code in STALE
    assert await q.drain("bills") == (["successor"] if how == "transaction" else [])
    assert (await q.ack(late)).success, "by itself it is a success that changes nothing"


async def test_rule_12_a_detached_message_that_its_successor_completed_aborts(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    first = await q.pop("orders", batch=2)
    await q.fail(first[0])
    second = await q.pop("orders", batch=2)
    assert (await q.transact(*map(settlement, second), message("bills", "p1", "second"))).success
    assert not (await q.transact(settlement(first[1]), message("bills", "p1", "first"))).success
    assert await q.drain("bills") == ["second"]


async def test_rule_12_a_repeat_is_a_success_for_the_lease_that_completed_and_after_a_restart(
    q: Driver, either: Workers
) -> None:
    await q.configure("orders", completed_retention_seconds=0)
    await q.push("orders", "p1", 1, 2, 3)
    got = await either.take(2)
    operations: list[Settlement | NewMessage] = [*map(settlement, got), message("bills", "p1", 2, transaction_id="t2")]
    assert (await q.transact(*operations)).success
    [other] = await either.take()
    assert (await q.ack(other)).success
    assert (await q.transact(settlement(other))).success, "completed by itself before, under the same lease"
    await q.reopen()
    assert (await q.transact(*operations)).success
    assert not (await q.transact(settlement(got[0], lease=other.lease))).success
    assert await q.drain("bills") == [2]


async def test_rule_12_after_a_seek_no_lease_of_before_has_completed_anything(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1)
    [before] = await either.take()
    assert (await q.transact(settlement(before), message("bills", "p1", "before"))).success
    await q.seek("orders", group="workers", offset=1)
    assert await either.drain() == [1]
    assert not (await q.transact(settlement(before), message("bills", "p1", "again"))).success
    assert await q.drain("bills") == ["before"]


async def test_rule_22_completed_of_completed_does_not_abort(q: Driver, either: Workers) -> None:
    """The retry of a transaction whose reply was lost succeeds and changes nothing."""
    await q.push("orders", "p1", 1)
    [leased] = await either.take()
    for _ in range(2):
        assert (await q.transact(settlement(leased), message("bills", "p1", 2, transaction_id="t2"))).success
    assert await q.drain("bills") == [2]


async def test_rule_22_every_decision_is_checked_by_the_leases_before_the_transaction(
    q: Driver, either: Workers
) -> None:
    await q.configure("orders", retry_limit=1)
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await either.take(4)
    outcome = await q.transact(
        settlement(got[0], "failed", "boom"),
        settlement(got[1], "dlq", "bad"),
        settlement(got[2], "retry"),
        settlement(got[3]),
    )
    assert outcome.success
    assert [one.error for one in await q.dead_letters("orders", "workers")] == ["bad"]
    assert attempts(await either.take(10)) == [(1, 2), (3, 1)]


async def test_rule_22_required_leases_allow_settlements_of_what_they_hold_without_a_lease_id(
    q: Driver, either: Workers
) -> None:
    await q.push("orders", "p1", 1)
    await q.push("orders", "p2", 2)
    mine, theirs = await either.take(), await either.take()
    other = settlement(theirs[0], lease=None)
    outcome = await q.transact(other, required_leases=[mine.lease])
    assert (outcome.success, outcome.failed_index) == (False, 0)
    own = settlement(mine[0], lease=None)
    assert (await q.transact(own, message("bills", "p1", 2), required_leases=[mine.lease])).success
    assert await either.unsettled() == 1
    assert not (await q.transact(other, required_leases=[mine.lease])).success, "that lease is over"
    assert (await q.transact(other, required_leases=[theirs.lease])).success


async def test_rule_22_a_required_lease_that_is_over_or_superseded_aborts(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1)
    await q.push("other", "p1", 2)
    await q.push("third", "p1", 3, 4)
    [leased], [other], superseded = await q.pop("orders"), await q.pop("other"), await q.pop("third", batch=2)
    clock.advance(10)
    await q.retry(superseded[1])
    await q.pop("third", batch=2)
    assert not (await q.transact(settlement(other), required_leases=[leased.lease, other.lease])).success
    for lease in (NEVER_GIVEN, superseded[0].lease):
        assert not (await q.transact(message("bills", "p1", 3), required_leases=[lease])).success
    assert await q.cursor("other", "p1") == 0
    assert await q.pop("bills") == []


async def test_rule_22_without_lease_id_and_required_leases_a_live_lease_is_enough(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    [leased] = await q.pop("orders")
    assert (await q.transact(settlement(leased, lease=None))).success
    await q.push("orders", "p1", 2)
    [leased] = await q.pop("orders")
    clock.advance(300)
    assert not (await q.transact(settlement(leased, lease=None))).success


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
    [leased] = await q.pop("orders")
    racing = [q.transact(settlement(leased), message("bills", "p1", n, transaction_id="t")) for n in range(10)]
    assert all(one.success for one in await asyncio.gather(*racing))
    assert len(await q.drain("bills")) == 1


async def test_rule_22_a_transaction_that_is_applied_once_pushes_nothing_after_a_repeated_settlement(
    q: Driver, either: Workers, engine: Engine
) -> None:
    await q.configure("bills", drop_settled=True)  # So that the store forgets transaction ids.
    await q.push("orders", "p1", 1, 2)
    [first, second] = await either.take(2)
    once = Transaction([settlement(first), message("bills", "p1", "a", transaction_id="t")], once=True)
    both = Transaction([settlement(second), settlement(first), message("bills", "p1", "b")], once=True)
    answers = [given(one) for one in await engine.transact([once, once, both])]
    assert [(one.success, one.code, one.failed_index) for one in answers] == [
        (True, None, None),
        (False, "repeated", 0),
        (False, "repeated", 1),
    ]
    assert await q.drain("bills") == ["a"]
    foreign = msgspec.structs.replace(settlement(first), lease_id="01890000-0000-7000-8000-000000000000")
    answers = [given(one) for one in await engine.transact([once, Transaction([foreign], once=True)])]
    assert [one.code for one in answers] == ["repeated", "repeated"], "whichever lease completed it"
    assert await q.drain("bills") == []
    assert (await q.transact(settlement(second))).success, "the refused transaction has not settled it"
    assert (await q.transact(settlement(first), message("bills", "p1", "c"))).success, "others may repeat it"


async def test_rule_22_a_transaction_that_is_applied_once_changes_nothing_if_a_message_is_a_duplicate(
    q: Driver, either: Workers, engine: Engine
) -> None:
    await q.push("orders", "p1", 1)
    [leased] = await either.take()
    assert (await q.transact(message("bills", "p1", "a", transaction_id="t"))).success
    new, known = message("bills", "p1", "b"), message("bills", "p1", "c", transaction_id="t")
    [answer] = await engine.transact([Transaction([settlement(leased), new, known], once=True)])
    assert (given(answer).success, given(answer).code, given(answer).failed_index) == (False, "repeated", 2)
    assert await q.drain("bills") == ["a"]
    assert (await q.transact(settlement(leased), known)).success, "others may repeat it"


async def test_rule_22_pushed_messages_are_visible_at_once(q: Driver) -> None:
    outcome = await q.transact()
    assert (outcome.success, list(outcome.results)) == (True, []), "an empty transaction is a success"
    assert (await q.transact(message("orders", "p1", 1), message("orders", "p1", 2))).success
    assert payloads(await q.pop("orders", batch=10)) == [1, 2]


async def test_rule_22_a_full_queue_refuses_all(q: Driver, either: Workers, engine: Engine) -> None:
    await q.configure("bills", max_size=1)
    await q.push("bills", "p1", 1)
    await q.push("orders", "p1", 1)
    got = await either.take()
    assert not (await q.transact(settlement(got[0]), message("bills", "p1", 2))).success
    assert await engine.lease_ends([got.lease]) == [got.expires_at]
    assert (await q.ack(got[0])).success


async def test_rule_22_a_message_may_go_back_to_the_queue_it_came_from(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1)
    for number in range(2, 6):
        [leased] = await either.take()
        assert (await q.transact(settlement(leased), message("orders", "p1", number))).success
    assert await either.drain() == [5]


async def test_rule_22_a_transaction_over_a_shared_and_an_ordered_group(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    await q.push("bills", "p1", 2)
    [shared], [ordered] = await workers.take(), await q.pop("bills")
    assert not (await q.transact(settlement(shared), settlement(ordered, lease=NEVER_GIVEN))).success
    assert (await q.transact(settlement(shared), settlement(ordered))).success
    assert (await workers.stats()).lag == 0


@pytest.mark.parametrize("once", [False, True])
async def test_rule_22_of_one_transaction_id_twice_in_a_transaction_the_first_message_is_pushed(
    q: Driver, once: bool
) -> None:
    """Also if the transaction would be refused for a message that is stored before it."""
    for number in range(2):  # The partitions are new, and then they are not.
        names = [(f"t{number}", "p1"), (f"t{number}", "p2"), (f"t{number}", "p1")]
        new = [message("orders", name, n, transaction_id=id) for n, (id, name) in enumerate(names)]
        [answer] = await q.engine.transact([Transaction(new, once=once)])
        pushed = [one for one in given(answer).results if isinstance(one, PushOutcome)]
        assert [one.status for one in pushed] == ["queued", "queued", "duplicate"]
        assert pushed[0].message_id == pushed[2].message_id
        assert set(await q.drain("orders")) == {0, 1}
