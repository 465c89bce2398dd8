"""What happens to keys together or not at all: checks and mutations, alone and in transactions (rule 22)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import pytest

from hark.engine.api import Engine
from hark.errors import Conflict, Overloaded
from hark.model import (
    Key,
    KeyCheck,
    KeyMutation,
    KeyRange,
    KeyWrite,
    KeyWritten,
    NewMessage,
    Settlement,
    Transaction,
    TransactionOutcome,
)

from .driver import NEVER_GIVEN, Driver, given, message, payloads, settlement
from .key_words import change, changed_keys, delete, entry, listed, put, set_to, text, value, write

A: Key = ("a",)
B: Key = ("b",)
Combining = Literal["sum", "min", "max", "append", "prepend"]


# Checks ----------------------------------------------------------------------------------------------------


async def test_a_write_happens_if_its_checks_hold(engine: Engine) -> None:
    version = await put(engine, A)
    written = await write(engine, set_to(A, 2), checks=(KeyCheck(A, version), KeyCheck(B, None)))
    assert written.success
    assert await value(engine, A) == 2
    assert (await write(engine, checks=(KeyCheck(B, None),))).success, "checks alone answer whether they hold"
    assert not (await write(engine, checks=(KeyCheck(B, 1),))).success
    assert await entry(engine, B) is None


async def test_of_a_write_whose_check_fails_nothing_happens(q: Driver, engine: Engine) -> None:
    version = await put(engine, A)
    q.key_notifications.clear()
    for checks, failed in (
        ((KeyCheck(A, version + 1000),), 0),
        ((KeyCheck(A, version), KeyCheck(B, version)), 1),
        ((KeyCheck(B, None), KeyCheck(A, None)), 1),
    ):
        written = await write(engine, set_to(A, 2), set_to(B, 2), delete(A), checks=checks)
        assert written == KeyWritten(False, failed_check=failed)
    assert await listed(engine, KeyRange()) == [A]
    assert await value(engine, A) == ["a"]
    assert q.key_notifications == []


async def test_a_check_sees_the_requests_before_it(engine: Engine) -> None:
    claim = KeyWrite([KeyCheck(A, None)], [set_to(A, 1)])
    free = KeyWrite(mutations=[delete(A)])
    answers = await engine.write_keys([claim, claim, free, claim])
    assert [given(one).success for one in answers] == [True, False, True, True]


async def test_of_many_who_check_and_set_at_once_one_wins(engine: Engine) -> None:
    for number in range(10):
        key = ("lock", number)
        answers = await asyncio.gather(
            *(write(engine, set_to(key, racer), checks=(KeyCheck(key, None),)) for racer in range(8))
        )
        [winner] = [racer for racer, one in enumerate(answers) if one.success]
        assert await value(engine, key) == winner


async def test_no_update_is_lost(engine: Engine) -> None:
    await asyncio.gather(*(write(engine, change("sum", A, 1), change("append", B, [number])) for number in range(50)))
    assert await value(engine, A) == 50
    found = await value(engine, B)
    assert isinstance(found, list) and sorted(found) == list(range(50))


async def test_mutations_of_one_request_follow_each_other(engine: Engine) -> None:
    await write(engine, set_to(A, 5), change("sum", A, 2), delete(A), change("sum", A, 1), change("sum", A, 1))
    assert await value(engine, A) == 2


# Numbers ---------------------------------------------------------------------------------------------------


COMBINED: list[tuple[Combining, bytes | None, bytes, bytes | None]] = [
    ("sum", None, b"5", b"5"),
    ("sum", None, b"1.50", b"1.5"),
    ("sum", b"5", b"-7", b"-2"),
    ("sum", b" 5 ", b" 7 ", b"12"),
    ("sum", b"0.1", b"0.2", b"0.30000000000000004"),
    ("sum", b"1e2", b"1", b"101"),
    ("sum", b"0.5", b"0.5", b"1"),
    ("sum", b"-0", b"-0.0", b"0"),
    ("sum", b"9007199254740991", b"1", b"9007199254740992"),
    ("sum", b"-9007199254740992", b"9007199254740992", b"0"),
    ("sum", b"1e300", b"1", b"1e+300"),
    ("sum", b"9007199254740992.0", b"9007199254740992.0", b"1.8014398509481984e+16"),
    ("sum", b"9007199254740992", b"2.0", b"9.007199254740994e+15"),
    ("sum", b"4503599627370496", b"-0.5", b"4.5035996273704955e+15"),
    ("sum", b"-4503599627370496", b"0.5", b"-4.5035996273704955e+15"),
    ("sum", b"100000000000000", b"0.25", b"100000000000000.25"),
    ("sum", b"0", b"0.00001", b"1e-05"),
    ("sum", b"0", b"5e-324", b"5e-324"),
    ("min", b"5", b"7", b"5"),
    ("min", b"5", b"4.5", b"4.5"),
    ("min", None, b"3E0", b"3"),
    ("max", b"5", b"7", b"7"),
    ("max", b"9007199254740992", b"9007199254740991", b"9007199254740992"),
    ("max", b"-1e-400000", b"7", None),
    ("max", b"-1", b"-0.0", b"0"),
    ("sum", b"9007199254740992", b"1", None),
    ("sum", b"-9007199254740992", b"-1", None),
    ("sum", b"9007199254740993", b"1", None),
    ("sum", b"1", b"9007199254740993", None),
    ("sum", b"1e308", b"1e308", None),
    ("sum", b"1", b"1e999", None),
    ("sum", b"1", b"1e-999", None),
    ("sum", b"0e999", b"1", b"1"),
    ("sum", b'"5"', b"1", None),
    ("sum", b"null", b"1", None),
    ("sum", b"[5]", b"1", None),
    ("max", b"true", b"1", None),
    ("sum", b"1", b'"5"', None),
    ("append", None, b" [ 1 , 2 ] ", b"[1 , 2]"),
    ("append", b"[]", b"[]", b"[]"),
    ("append", b"[1]", b"[]", b"[1]"),
    ("append", b" [ ] ", b"[1.0,2]", b"[1.0,2]"),
    ("append", b'[1.50,{"b":1 ,"a":"\xc3\xa9"}]', b"[ 1E1 ]", b'[1.50,{"b":1 ,"a":"\xc3\xa9"},1E1]'),
    ("prepend", b"[1,[2]]", b'["]"]', b'["]",1,[2]]'),
    ("prepend", None, b"[1]", b"[1]"),
    ("append", b"{}", b"[1]", None),
    ("append", b'"[1]"', b"[1]", None),
    ("prepend", b"[1]", b"1", None),
]
"""What is done, to which value, with which one, and the result; None: it is refused."""


async def test_values_are_combined_alike_on_every_engine(engine: Engine) -> None:
    for number, case in enumerate(COMBINED):
        kind, stored, operand, result = case
        key, beside = ("combined", number), ("beside", number)
        if stored is not None:
            await write(engine, KeyMutation(kind="set", key=key, value=stored))
        if result is None:
            with pytest.raises(Conflict, match=r"^mutations\[1\]: ") as refused:
                await write(engine, set_to(beside, 1), change(kind, key, operand))
            assert refused.value.code == "value_mismatch", case
            assert await entry(engine, beside) is None, case
            result = stored and stored.strip()
        else:
            await write(engine, change(kind, key, operand))
        found = await text(engine, key)
        assert (found and found.strip()) == result, case


async def test_a_request_that_does_not_fit_disturbs_no_other(engine: Engine) -> None:
    await put(engine, A)
    good, bad = KeyWrite(mutations=[set_to(B, 1)]), KeyWrite(mutations=[delete(A), change("sum", B, "x")])
    first, refused, last = await engine.write_keys([good, bad, good])
    assert isinstance(refused, Conflict) and "mutations[1]" in refused.text
    assert given(first).success and given(last).success
    assert await listed(engine, KeyRange()) == [A, B]


# Messages --------------------------------------------------------------------------------------------------


def with_messages(*messages: NewMessage, checks: tuple[KeyCheck, ...] = ()) -> KeyWrite:
    """A write of one key with messages."""
    return KeyWrite(checks, [set_to(A, 1)], messages)


async def test_messages_are_pushed_with_the_write(q: Driver, engine: Engine) -> None:
    request = with_messages(message("orders", "p1", 1, transaction_id="t"), message("bills", "p1", 2))
    first, second = [given(one) for one in await engine.write_keys([request, request])]
    assert [one.status for one in first.messages] == ["queued", "queued"]
    assert [one.status for one in second.messages] == ["duplicate", "queued"], "a duplicate is a success"
    assert first.messages[0].message_id == second.messages[0].message_id
    assert (await q.drain("orders"), await q.drain("bills")) == ([1], [2, 2])


async def test_a_failed_check_or_a_message_that_is_sealed_against_the_queue_refuses_all(
    q: Driver, engine: Engine
) -> None:
    plain = with_messages(message("orders", "p1", 1), checks=(KeyCheck(A, 7),))
    answer, refused = await engine.write_keys([plain, with_messages(message("orders", "p1", 1, sealed=True))])
    assert given(answer) == KeyWritten(False, failed_check=0)
    assert isinstance(refused, Conflict) and refused.code == "sealing_mismatch"
    assert (await q.pop("orders"), await entry(engine, A)) == ([], None)


async def test_a_full_queue_refuses_the_write(q: Driver, engine: Engine) -> None:
    await q.configure("orders", max_size=1)
    first, refused = await engine.write_keys([with_messages(message("orders", "p1", number)) for number in (1, 2)])
    assert given(first).success
    assert isinstance(refused, Overloaded) and refused.code == "queue_full"
    found = await entry(engine, A)
    assert found is not None and found.version == given(first).version


async def test_an_array_does_not_grow_without_end(engine: Engine) -> None:
    chunk = b'["' + b"x" * (6 << 20) + b'"]'
    for _ in range(2):
        assert (await write(engine, KeyMutation(kind="append", key=A, value=chunk))).success
    before = await entry(engine, A)
    for kind in ("append", "prepend"):
        [refusal] = await engine.write_keys([KeyWrite(mutations=[KeyMutation(kind=kind, key=A, value=chunk)])])
        assert isinstance(refusal, Conflict)
        assert (refusal.code, str(refusal)) == (
            "value_mismatch",
            f"mutations[0]: cannot apply {kind}: the array would be longer than 16777216 bytes; use another key",
        )
    assert await entry(engine, A) == before


async def test_one_request_does_not_rewrite_a_long_array_without_end(engine: Engine) -> None:
    await write(engine, set_to(A, ["x" * (15 << 20)]))
    before = await entry(engine, A)
    again = [KeyMutation(kind="append", key=A, value=b"[1]")] * 18
    [refusal] = await engine.write_keys([KeyWrite(mutations=again)])
    assert isinstance(refusal, Conflict)
    assert (refusal.code, str(refusal)) == (
        "value_mismatch",
        "mutations[17]: cannot apply append: the appends of one request would rewrite more than 268435456 bytes; "
        "append in one mutation",
    )
    assert await entry(engine, A) == before
    assert all([(await write(engine, *again[:9])).success for _ in range(2)])


# Transactions with keys: checks, mutations, settlements and messages, all or nothing (rule 22) -------------


async def transact(
    engine: Engine, keys: KeyWrite, *operations: NewMessage | Settlement, required_leases: Sequence[str] = ()
) -> TransactionOutcome:
    """One transaction with keys."""
    [answer] = await engine.transact([Transaction(operations, required_leases, keys)])
    return given(answer)


async def test_rule_22_keys_messages_and_settlements_happen_together(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    [leased] = await q.pop("orders")
    q.key_notifications.clear()
    keys = KeyWrite([KeyCheck(A, None)], [set_to(A, "done")], [message("audit", "p1", 3)])
    outcome = await transact(engine, keys, settlement(leased), message("bills", "p1", 2))
    assert outcome.success and len(outcome.results) == 2
    assert outcome.keys is not None and outcome.keys.version is not None
    assert [one.status for one in outcome.keys.messages] == ["queued"]
    assert (await q.drain("bills"), await q.drain("audit"), await q.cursor("orders", "p1")) == ([2], [3], 1)
    assert await value(engine, A) == "done"
    assert changed_keys(q.key_notifications) == {A}


async def test_rule_22_a_failed_check_aborts_everything(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    [leased] = await q.pop("orders")
    await put(engine, A)
    keys = KeyWrite([KeyCheck(A, None)], [set_to(("b",), 1)], [message("audit", "p1", 3)])
    outcome = await transact(engine, keys, settlement(leased), message("bills", "p1", 2))
    assert (outcome.success, outcome.code) == (False, "check_failed")
    assert outcome.keys is not None and (outcome.keys.success, outcome.keys.failed_check) == (False, 0)
    assert (await q.pop("bills"), await q.pop("audit"), await q.cursor("orders", "p1")) == ([], [], 0)
    assert await listed(engine, KeyRange()) == [A]
    assert (await q.ack(leased)).success


async def test_rule_22_a_mutation_that_does_not_fit_aborts_everything(q: Driver, engine: Engine) -> None:
    await put(engine, A)
    outcome = await transact(engine, KeyWrite((), [set_to(("b",), 1), change("sum", A, 1)]), message("bills", "p1", 2))
    assert (outcome.success, outcome.code) == (False, "value_mismatch")
    assert outcome.error is not None and "mutations[1]" in outcome.error
    assert await q.pop("bills") == []
    assert await listed(engine, KeyRange()) == [A]


async def test_rule_22_a_refused_settlement_or_lease_keeps_the_keys_as_they_were(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    [leased] = await q.pop("orders")
    keys = KeyWrite((), [set_to(A, 1)])
    q.key_notifications.clear()
    assert not (await transact(engine, keys, settlement(leased, lease=NEVER_GIVEN))).success
    assert not (await transact(engine, keys, required_leases=[NEVER_GIVEN])).success
    q.clock.advance(300)
    assert not (await transact(engine, keys, settlement(leased))).success
    assert await entry(engine, A) is None
    assert changed_keys(q.key_notifications) == set()


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
    [leased] = await q.pop("orders")
    keys = KeyWrite([KeyCheck(A, 7)], [set_to(A, 1)])
    unowned, full = settlement(leased, lease=NEVER_GIVEN), message("full", "p1", 1)
    codes = [
        (await transact(engine, keys, full, unowned, required_leases=[NEVER_GIVEN])).failed_index,
        (await transact(engine, keys, full, unowned)).code,
        (await transact(engine, keys, full)).code,
        (await transact(engine, keys)).code,
    ]
    assert codes == [None, "lease_invalid", "queue_full", "check_failed"]


async def test_rule_22_a_dead_letter_has_the_last_word_over_its_keys(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", "payload", undelivered_keys=(A,))
    [leased] = await q.pop("orders")
    outcome = await transact(engine, KeyWrite([KeyCheck(A, None)], [set_to(A, "set")]), settlement(leased, "dlq"))
    assert outcome.success
    assert await value(engine, A) == "payload"


async def test_rule_22_transactions_of_one_call_see_the_keys_of_those_before(q: Driver, engine: Engine) -> None:
    claim = Transaction([message("orders", "p1", 1)], keys=KeyWrite([KeyCheck(A, None)], [set_to(A, 1)]))
    answers = [given(one) for one in await engine.transact([claim, claim, Transaction([message("orders", "p1", 2)])])]
    assert [one.success for one in answers] == [True, False, True]
    assert [one.keys is None for one in answers] == [False, False, True]
    assert payloads(await q.pop("orders", batch=10)) == [1, 2]


async def test_rule_22_what_was_written_survives_a_restart(q: Driver) -> None:
    await write(q.engine, set_to(A, 1))
    keys = KeyWrite((), [change("sum", A, 1)], [message("orders", "p1", 1)])
    assert (await transact(q.engine, keys)).success
    await q.reopen()
    assert await value(q.engine, A) == 2
    assert payloads(await q.pop("orders")) == [1]
