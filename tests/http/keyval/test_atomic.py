"""POST /keyval/api/atomic: checks, changes and messages that happen together or not at all."""

from __future__ import annotations

import pytest

from tests.http.api import refusal
from tests.http.keyval.keys import Keys
from tests.http.keyval.work import Work


def test_everything_happens_with_one_version(keys: Keys) -> None:
    keys.put("old", value=1)
    answer = keys.atomic(
        {"type": "set", "key": keys.key("a"), "value": {"x": 1}},
        {"type": "delete", "key": keys.key("old")},
        {"type": "sum", "key": keys.key("n"), "value": 5},
        {"type": "sum", "key": keys.key("n"), "value": -2},
    )
    assert answer["ok"] is True
    assert keys.listed() == [["a"], ["n"]]
    assert keys.value("n") == 3
    assert {entry["versionstamp"] for entry in keys.list()} == {answer["versionstamp"]}


def test_a_check_that_fails_is_no_error_and_nothing_happens(keys: Keys) -> None:
    stamp = keys.put("a", value=1)
    write = {"type": "set", "key": keys.key("b"), "value": 1}
    assert keys.atomic(write, checks=[{"key": keys.key("a"), "versionstamp": None}]) == {"ok": False}
    assert keys.atomic(write, checks=[{"key": keys.key("x"), "versionstamp": stamp}]) == {"ok": False}
    assert keys.listed() == [["a"]]
    checks = [{"key": keys.key("a"), "versionstamp": stamp}, {"key": keys.key("x"), "versionstamp": None}]
    assert keys.atomic(write, checks=checks)["ok"] is True
    assert keys.value("b") == 1


def test_numbers_are_combined(keys: Keys) -> None:
    keys.put("n", value=10)
    for kind, value, result in [
        ("min", 12, 10),
        ("min", 3, 3),
        ("max", 7, 7),
        ("sum", "5", 12),
        ("sum", {"__type": "bigint", "value": "-2"}, 10),
        ("sum", 0.5, 10.5),
        ("sum", 9007199254740991 - 20, 9007199254740981.5),
    ]:
        assert keys.atomic({"type": kind, "key": keys.key("n"), "value": value})["ok"] is True
        assert keys.value("n") == pytest.approx(result)


def test_arrays_grow_at_both_ends_and_keep_their_bytes(keys: Keys) -> None:
    for kind, value in [("append", [1]), ("append", [{"a": 2}, 3]), ("prepend", [0]), ("append", [])]:
        keys.atomic({"type": kind, "key": keys.key("list"), "value": value})
    assert keys.value("list") == [0, 1, {"a": 2}, 3]


def test_nothing_to_do_is_done(keys: Keys) -> None:
    answer = keys.atomic()
    assert (answer["ok"], len(answer["versionstamp"])) == (True, 20)


def test_what_does_not_fit_the_stored_value_is_a_conflict_and_nothing_happens(keys: Keys) -> None:
    keys.put("text", value="x")
    for kind, value in [("sum", 1), ("append", [1])]:
        response = keys.try_atomic(
            {
                "mutations": [
                    {"type": "enqueue", "value": 1},
                    {"type": "set", "key": keys.key("a"), "value": 1},
                    {"type": kind, "key": keys.key("text"), "value": value},
                ]
            },
            queue=keys.root,
        )
        assert "mutations[2]" in refusal(response, 409, "value_mismatch")
    assert keys.listed() == [["text"]]


# Messages --------------------------------------------------------------------------------------------------


def test_a_message_is_enqueued_with_what_is_written(keys: Keys, work: Work) -> None:
    answer = keys.atomic(
        {"type": "set", "key": keys.key("order"), "value": "placed"},
        {"type": "enqueue", "value": {"task": "ship"}, "options": {"priority": 3}},
        {"type": "enqueue", "value": "elsewhere", "queue": f"{keys.root}-other"},
        queue=keys.root,
    )
    assert answer["ok"] is True
    message = work.take()
    assert (message["value"], message["id"]) == ({"task": "ship"}, answer["ids"][0])
    assert Work(keys.client, f"{keys.root}-other").take()["id"] == answer["ids"][1]
    assert keys.value("order") == "placed"


def test_a_message_is_not_enqueued_when_a_check_fails(keys: Keys, work: Work) -> None:
    keys.put("order", value=1)
    checks = [{"key": keys.key("order"), "versionstamp": None}]
    assert keys.atomic({"type": "enqueue", "value": 1}, checks=checks, queue=keys.root) == {"ok": False}
    assert work.stats() == (0, 0, 0)


def test_a_message_that_was_written_with_keys_is_retried_as_others_are(keys: Keys, work: Work) -> None:
    keys.atomic({"type": "enqueue", "value": 1, "options": {"backoffSchedule": []}}, queue=keys.root)
    work.nack(work.take(), error="boom")
    [letter] = work.dead()
    assert (letter["value"], letter["errorMessage"], letter["attempts"]) == (1, "boom", 1)
