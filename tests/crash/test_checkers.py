"""The checkers find what they are for: each of these histories breaks one promise."""

from __future__ import annotations

from pathlib import Path

from tests.crash.history import History, Message, leased_twice, problems
from tests.crash.journal import Journal, operations_in


def history_of(*operations: tuple[str, list[Message], bool]) -> History:
    """A history of calls that follow each other; the last field says whether the reply arrived."""
    history = History()
    for moment, (name, messages, known) in enumerate(operations):
        operation = history.call("test", name, messages)
        operation.called, operation.returned = moment, moment + 0.5 if known else float("inf")
        operation.known = known
    return history


def test_a_good_history_has_no_problems() -> None:
    history = history_of(
        ("push", [("p", 0, "1"), ("p", 0, "2")], True),
        ("push", [("p", 0, "3")], False),
        ("pop", [("p", 1, "1")], True),
        ("ack", [("p", 1, "1")], True),
        ("pop", [("p", 2, "2")], True),
    )
    assert problems(history) == []


def test_an_acknowledged_message_that_is_never_delivered_is_lost() -> None:
    assert problems(history_of(("push", [("p", 0, "1")], True))) == ["lost: ('p', '1')"]


def test_a_message_that_nobody_pushed_is_invented() -> None:
    assert problems(history_of(("pop", [("p", 1, "7")], True))) == ["invented: ('p', '7')"]


def test_two_messages_at_one_offset_are_found() -> None:
    history = history_of(
        ("push", [("p", 0, "1"), ("p", 0, "2")], True), ("pop", [("p", 1, "1")], True), ("pop", [("p", 1, "2")], True)
    )
    assert any(problem.startswith("two messages at one place") for problem in problems(history))


def test_messages_in_another_order_than_pushed_are_found() -> None:
    history = history_of(("push", [("p", 0, "1"), ("p", 0, "2")], True), ("pop", [("p", 1, "2"), ("p", 2, "1")], True))
    assert any(problem.startswith("reordered") for problem in problems(history))


def test_a_lost_settlement_is_found() -> None:
    history = history_of(
        ("push", [("p", 0, "1")], True),
        ("pop", [("p", 1, "1")], True),
        ("ack", [("p", 1, "1")], True),
        ("pop", [("p", 1, "1")], True),
    )
    assert problems(history) == ["delivered after it was settled: p 1"]


def test_delivery_over_an_unsettled_message_is_found() -> None:
    history = history_of(
        ("push", [("p", 0, "1"), ("p", 0, "2")], True), ("pop", [("p", 1, "1")], True), ("pop", [("p", 2, "2")], True)
    )
    assert problems(history) == ["p 2 was handed out while 1 was unsettled"]


def under_leases(history: History, *leases: str) -> History:
    """The same history, with a lease for each operation."""
    for operation, lease in zip(history.operations, leases, strict=True):
        operation.lease = lease
    return history


def test_a_settlement_under_a_stale_lease_is_found() -> None:
    taken_twice: list[tuple[str, list[Message], bool]] = [
        ("push", [("p", 0, "1")], True),
        ("pop", [("p", 1, "1")], True),
        ("pop", [("p", 1, "1")], True),
        ("ack", [("p", 1, "1")], True),
    ]
    assert problems(under_leases(history_of(*taken_twice), "", "old", "new", "new")) == []
    stale = under_leases(history_of(*taken_twice), "", "old", "new", "old")
    assert problems(stale) == ["settled under a stale lease: p 1"]


def test_to_complete_what_is_completed_is_no_settlement_under_a_stale_lease() -> None:
    history = history_of(
        ("push", [("p", 0, "1")], True),
        ("pop", [("p", 1, "1")], True),
        ("pop", [("p", 1, "1")], True),
        ("ack", [("p", 1, "1")], False),
        ("ack", [("p", 1, "1")], True),
    )
    assert problems(under_leases(history, "", "old", "new", "new", "old")) == []


def test_a_message_on_two_leases_at_once_is_found() -> None:
    history = history_of(
        ("push", [("p", 0, "1")], True), ("pop", [("p", 1, "1")], True), ("pop", [("p", 1, "1")], True)
    )
    # The first pop was called at second 1, the second one was answered at 2.5.
    assert leased_twice(history, 1.5) == []
    assert leased_twice(history, 1.6) == ["on two leases at once: p 1"]


def test_a_journal_tells_what_its_process_did_before_it_was_killed(tmp_path: Path) -> None:
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
