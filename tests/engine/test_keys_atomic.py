"""Checks and mutations of keys that happen together or not at all, and what they make of values."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from hark.engine.api import Engine
from hark.errors import Conflict, Overloaded
from hark.model import Key, KeyCheck, KeyMutation, KeyRange, KeyWrite, KeyWritten, NewMessage

from .driver import Driver, given, message
from .key_words import change, delete, entry, listed, put, set_to, text, value, write

A: Key = ("a",)
B: Key = ("b",)
Combining = Literal["sum", "min", "max", "append", "prepend"]


# Checks ----------------------------------------------------------------------------------------------------


async def test_a_write_happens_if_its_checks_hold(engine: Engine) -> None:
    version = await put(engine, A)
    written = await write(engine, set_to(A, 2), checks=(KeyCheck(A, version), KeyCheck(B, None)))
    assert written.success
    assert await value(engine, A) == 2


async def test_of_a_write_whose_check_fails_nothing_happens(q: Driver, engine: Engine) -> None:
    version = await put(engine, A)
    q.key_news.clear()
    for checks, failed in (
        ((KeyCheck(A, version + 1000),), 0),
        ((KeyCheck(A, version), KeyCheck(B, version)), 1),
        ((KeyCheck(B, None), KeyCheck(A, None)), 1),
    ):
        written = await write(engine, set_to(A, 2), set_to(B, 2), delete(A), checks=checks)
        assert written == KeyWritten(False, failed_check=failed)
    assert await listed(engine, KeyRange()) == [A]
    assert await value(engine, A) == ["a"]
    assert q.key_news == []


async def test_checks_alone_answer_whether_they_hold(engine: Engine) -> None:
    assert (await write(engine, checks=(KeyCheck(A, None),))).success
    assert not (await write(engine, checks=(KeyCheck(A, 1),))).success
    assert await entry(engine, A) is None


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


@pytest.mark.parametrize(
    ("kind", "stored", "given", "result"),
    [
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
    ],
)
async def test_values_are_combined_alike_on_every_engine(
    engine: Engine, kind: Combining, stored: bytes | None, given: bytes, result: bytes | None
) -> None:
    if stored is not None:
        await write(engine, KeyMutation(kind="set", key=A, value=stored))
    if result is None:
        with pytest.raises(Conflict, match=r"^mutations\[1\]: ") as refused:
            await write(engine, set_to(B, 1), change(kind, A, given))
        assert refused.value.code == "value_mismatch"
        assert await entry(engine, B) is None
        result = stored and stored.strip()
    else:
        await write(engine, change(kind, A, given))
    found = await text(engine, A)
    assert (found and found.strip()) == result


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
    [answer] = await engine.write_keys([with_messages(message("orders", "p1", 1), message("bills", "p1", 2))])
    written = given(answer)
    assert [one.status for one in written.messages] == ["queued", "queued"]
    assert (await q.drain("orders"), await q.drain("bills")) == ([1], [2])


async def test_a_failed_check_keeps_its_messages_back(q: Driver, engine: Engine) -> None:
    [answer] = await engine.write_keys([with_messages(message("orders", "p1", 1), checks=(KeyCheck(A, 7),))])
    assert given(answer) == KeyWritten(False, failed_check=0)
    assert await q.pop("orders") == []


async def test_a_full_queue_refuses_the_write(q: Driver, engine: Engine) -> None:
    await q.configure("orders", max_size=1)
    first, refused = await engine.write_keys([with_messages(message("orders", "p1", number)) for number in (1, 2)])
    assert given(first).success
    assert isinstance(refused, Overloaded) and refused.code == "queue_full"
    found = await entry(engine, A)
    assert found is not None and found.version == given(first).version


async def test_a_duplicate_message_is_a_success(q: Driver, engine: Engine) -> None:
    request = with_messages(message("orders", "p1", 1, transaction_id="t"))
    first, second = [given(one) for one in await engine.write_keys([request, request])]
    assert [one.status for one in (*first.messages, *second.messages)] == ["queued", "duplicate"]
    assert first.messages[0].message_id == second.messages[0].message_id
    assert await q.drain("orders") == [1]


async def test_a_message_that_is_sealed_against_the_queue_refuses_the_write(engine: Engine) -> None:
    [refused] = await engine.write_keys([with_messages(message("orders", "p1", 1, sealed=True))])
    assert isinstance(refused, Conflict) and refused.code == "sealing_mismatch"
    assert await entry(engine, A) is None


async def test_an_array_does_not_grow_without_end(engine: Engine) -> None:
    piece = b'["' + b"x" * (6 << 20) + b'"]'
    for _ in range(2):
        assert (await write(engine, KeyMutation(kind="append", key=A, value=piece))).success
    before = await entry(engine, A)
    for kind in ("append", "prepend"):
        [refusal] = await engine.write_keys([KeyWrite(mutations=[KeyMutation(kind=kind, key=A, value=piece)])])
        assert isinstance(refusal, Conflict)
        assert (refusal.code, str(refusal)) == (
            "value_mismatch",
            f"mutations[0]: {kind} is not possible: the array would be longer than 16777216 bytes; begin another key",
        )
    assert await entry(engine, A) == before
