"""Transactions with keys: checks, mutations, settlements and messages, all or nothing (rule 22)."""

from __future__ import annotations

from collections.abc import Sequence

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import Key, KeyCheck, KeyRange, KeyWrite, NewMessage, Settlement, Transaction, TransactionOutcome

from .driver import NEVER_GIVEN, Driver, given, message, payloads, settlement
from .key_words import change, entry, listed, put, set_to, told, value, write

A: Key = ("a",)


async def transact(
    engine: Engine, keys: KeyWrite, *operations: NewMessage | Settlement, required_leases: Sequence[str] = ()
) -> TransactionOutcome:
    """One transaction with keys."""
    [answer] = await engine.transact([Transaction(operations, required_leases, keys)])
    return given(answer)


async def test_rule_22_keys_messages_and_settlements_happen_together(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    q.key_news.clear()
    keys = KeyWrite([KeyCheck(A, None)], [set_to(A, "done")], [message("audit", "p1", 3)])
    outcome = await transact(engine, keys, settlement(held), message("bills", "p1", 2))
    assert outcome.success and len(outcome.results) == 2
    assert outcome.keys is not None and outcome.keys.version is not None
    assert [one.status for one in outcome.keys.messages] == ["queued"]
    assert (await q.drain("bills"), await q.drain("audit"), await q.cursor("orders", "p1")) == ([2], [3], 1)
    assert await value(engine, A) == "done"
    assert told(q.key_news) == {A}


async def test_rule_22_a_failed_check_aborts_everything(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    await put(engine, A)
    keys = KeyWrite([KeyCheck(A, None)], [set_to(("b",), 1)], [message("audit", "p1", 3)])
    outcome = await transact(engine, keys, settlement(held), message("bills", "p1", 2))
    assert (outcome.success, outcome.code) == (False, "check_failed")
    assert outcome.keys is not None and (outcome.keys.success, outcome.keys.failed_check) == (False, 0)
    assert (await q.pop("bills"), await q.pop("audit"), await q.cursor("orders", "p1")) == ([], [], 0)
    assert await listed(engine, KeyRange()) == [A]
    assert (await q.ack(held)).success


async def test_rule_22_a_mutation_that_does_not_fit_aborts_everything(q: Driver, engine: Engine) -> None:
    await put(engine, A)
    outcome = await transact(engine, KeyWrite((), [set_to(("b",), 1), change("sum", A, 1)]), message("bills", "p1", 2))
    assert (outcome.success, outcome.code) == (False, "value_mismatch")
    assert outcome.error is not None and "mutations[1]" in outcome.error
    assert await q.pop("bills") == []
    assert await listed(engine, KeyRange()) == [A]


async def test_rule_22_a_refused_settlement_or_lease_keeps_the_keys_as_they_were(
    q: Driver, engine: Engine, clock: FakeClock
) -> None:
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    keys = KeyWrite((), [set_to(A, 1)])
    q.key_news.clear()
    assert not (await transact(engine, keys, settlement(held, lease=NEVER_GIVEN))).success
    assert not (await transact(engine, keys, required_leases=[NEVER_GIVEN])).success
    clock.advance(300)
    assert not (await transact(engine, keys, settlement(held))).success
    assert await entry(engine, A) is None
    assert told(q.key_news) == set()


async def test_rule_22_a_refused_message_keeps_the_keys_as_they_were(q: Driver, engine: Engine) -> None:
    await q.configure("orders", max_size=1)
    keys = KeyWrite((), [set_to(A, 1)], [message("orders", "p1", 2), message("orders", "p1", 3)])
    outcome = await transact(engine, keys, message("bills", "p1", 1))
    assert (outcome.success, outcome.code, outcome.failed_index) == (False, "queue_full", 2)
    assert await entry(engine, A) is None
    assert await q.pop("bills") == []


async def test_rule_22_what_is_refused_first_does_not_depend_on_the_engine(q: Driver, engine: Engine) -> None:
    """Leases, then settlements, then messages, then keys."""
    await q.configure("full", max_size=1)
    await q.push("full", "p1", 0)
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    keys = KeyWrite([KeyCheck(A, 7)], [set_to(A, 1)])
    foreign, full = settlement(held, lease=NEVER_GIVEN), message("full", "p1", 1)
    codes = [
        (await transact(engine, keys, full, foreign, required_leases=[NEVER_GIVEN])).failed_index,
        (await transact(engine, keys, full, foreign)).code,
        (await transact(engine, keys, full)).code,
        (await transact(engine, keys)).code,
    ]
    assert codes == [None, "lease_invalid", "queue_full", "check_failed"]


async def test_rule_22_a_dead_letter_has_the_last_word_over_its_keys(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", "payload", undelivered_keys=(A,))
    [held] = await q.pop("orders")
    outcome = await transact(engine, KeyWrite([KeyCheck(A, None)], [set_to(A, "set")]), settlement(held, "dlq"))
    assert outcome.success
    assert await value(engine, A) == "payload"


async def test_rule_22_transactions_of_one_call_see_the_keys_of_those_before(q: Driver, engine: Engine) -> None:
    claim = Transaction([message("orders", "p1", 1)], keys=KeyWrite([KeyCheck(A, None)], [set_to(A, 1)]))
    answers = [given(one) for one in await engine.transact([claim, claim, Transaction([message("orders", "p1", 2)])])]
    assert [one.success for one in answers] == [True, False, True]
    assert [one.keys is None for one in answers] == [False, False, True]
    assert payloads(await q.pop("orders", batch=10)) == [1, 2]


async def test_rule_22_what_was_written_survives_a_restart(durable: Driver) -> None:
    await write(durable.engine, set_to(A, 1))
    keys = KeyWrite((), [change("sum", A, 1)], [message("orders", "p1", 1)])
    assert (await transact(durable.engine, keys)).success
    await durable.reopen()
    assert await value(durable.engine, A) == 2
    assert payloads(await durable.pop("orders")) == [1]
