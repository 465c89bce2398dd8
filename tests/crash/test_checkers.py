"""The checkers find what they are for: each of these histories breaks one promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.history import (
    History,
    Journal,
    Message,
    Output,
    leased_twice,
    operations_in,
    output_differs,
    problems,
)

Call = tuple[str, list[Message], str]
ONE: Message = ("p", 1, "1")
TWO: Message = ("p", 2, "2")
PUSHED: Call = ("push", [("p", 0, "1"), ("p", 0, "2")], "")
PUSHED_ONE: Call = ("push", [("p", 0, "1")], "")
LOST = "the reply is lost"


def history_of(*calls: Call) -> History:
    """A history of calls that follow each other, each with its lease."""
    history = History()
    for moment, (name, messages, lease) in enumerate(calls):
        operation = history.call("test", name, messages, "" if lease == LOST else lease)
        operation.called, operation.returned = moment, float("inf") if lease == LOST else moment + 0.5
        operation.known = lease != LOST
    return history


def test_an_acknowledged_message_that_is_never_delivered_is_lost() -> None:
    assert problems(history_of(PUSHED_ONE)) == ["lost: ('p', '1')"]


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([PUSHED, ("push", [("p", 0, "3")], LOST), ("pop", [ONE], "a"), ("ack", [ONE], "a"), ("pop", [TWO], "b")], []),
        ([("pop", [("p", 1, "7")], "a")], ["invented: ('p', '7')"]),
        (
            [PUSHED, ("pop", [ONE], "a"), ("pop", [("p", 1, "2")], "b")],
            ["two messages at one place: p 1: 1, 2"],
        ),
        ([PUSHED, ("pop", [("p", 1, "2"), ("p", 2, "1")], "a")], ["reordered or doubled: p: [2, 1]"]),
        (
            [PUSHED_ONE, ("pop", [ONE], "a"), ("ack", [ONE], "a"), ("pop", [ONE], "b")],
            ["delivered after it was settled: p 1"],
        ),
        ([PUSHED, ("pop", [ONE], "a"), ("pop", [TWO], "b")], ["p 2 was handed out while 1 was unsettled"]),
        ([PUSHED_ONE, ("pop", [ONE], "old"), ("pop", [ONE], "new"), ("ack", [ONE], "new")], []),
        (
            [PUSHED_ONE, ("pop", [ONE], "old"), ("pop", [ONE], "new"), ("ack", [ONE], "old")],
            ["settled under a stale lease: p 1"],
        ),
    ],
    ids=["good", "invented", "one place", "reordered", "settled", "unsettled", "new lease", "stale lease"],
)
def test_what_is_wrong_with_a_history_is_found(calls: list[Call], found: list[str]) -> None:
    assert problems(history_of(*calls)) == found


def test_to_complete_what_is_completed_is_no_settlement_under_a_stale_lease() -> None:
    history = history_of(
        PUSHED_ONE, ("pop", [ONE], "old"), ("pop", [ONE], "new"), ("ack", [ONE], LOST), ("ack", [ONE], "old")
    )
    history.operations[3].lease = "new"
    assert problems(history) == []


def test_a_message_on_two_leases_at_once_is_found() -> None:
    history = history_of(PUSHED_ONE, ("pop", [ONE], "old"), ("pop", [ONE], "new"))
    # The first pop was called at second 1, the second one was answered at 2.5.
    assert leased_twice(history, 1.5) == []
    assert leased_twice(history, 1.6) == ["on two leases at once: p 1"]


def test_a_journal_shows_what_its_process_did_before_it_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.done(journal.call("p", "push", [("p", 0, "1"), ("p", 0, "02")]))
    assert (journal.last_number("p"), journal.open_batch("p")) == (2, [])
    journal.call("p", "push", [("p", 0, "3")])
    with path.open("ab") as torn:
        torn.write(b'{"number":2,"opera')
    again = Journal(path)
    assert (again.last_number("p"), again.open_batch("p")) == (3, ["3"])
    again.done(again.call("p", "push", [("p", 0, "3")]))
    assert [(one.name, one.known) for one in operations_in(path)] == [("push", True), ("push", False), ("push", True)]


@pytest.mark.parametrize(
    ("written", "note", "found"),
    [
        (["1", "2"], "2", []),
        (["1"], "2", ["missing in the output: p 2"]),
        (["1", "2", "2"], "2", ["2 times in the output: p 2"]),
        (["2", "1"], "2", ["the output of p is not in order: ['2', '1']"]),
        (["1", "2"], "1", ["the note of p is 1, its last message 2"]),
    ],
)
def test_an_output_that_is_not_the_input_is_found(written: list[str], note: str, found: list[str]) -> None:
    history = history_of(PUSHED, ("pop", [ONE, TWO], "a"))
    assert output_differs(history, Output({"p": written}, {"p": note})) == found
    assert output_differs(history, Output({"p": written, "q": ["1"]}, {"p": note})) == [
        "output without input: q",
        *found,
    ]
