"""Tallies: what is counted by queue is bounded, and the total has all of it."""

from __future__ import annotations

import msgspec

from hark.broker.tallies import Tallies
from hark.clock import SECOND, FakeClock
from hark.errors import EngineFailure
from hark.model import (
    Delivery,
    KeyWrite,
    KeyWritten,
    NewMessage,
    PopRequest,
    PopResult,
    PushOutcome,
    Settlement,
    SettleOutcome,
    Transaction,
    TransactionOutcome,
)

QUEUED = PushOutcome("queued", None)


def push(tallies: Tallies, *queues: str) -> None:
    """A request for each queue, as one batch."""
    tallies.pushed([[NewMessage(queue)] for queue in queues], [[QUEUED] for _ in queues])


def test_queues_that_were_busy_longest_ago_are_forgotten_and_stay_in_the_total() -> None:
    tallies = Tallies(FakeClock(), most_queues=3)
    push(tallies, "a", "b", "c", "a", "d", "e")
    assert list(tallies.queues) == ["a", "d", "e"], "a was busy after b and c"
    assert [tally.pushed for tally in tallies.queues.values()] == [2, 1, 1]
    assert tallies.total.pushed == 6


def test_a_million_names_keep_no_more_than_the_bound() -> None:
    tallies = Tallies(FakeClock())
    for start in range(0, 30_000, 1000):
        push(tallies, *(f"queue-{number}" for number in range(start, start + 1000)))
        tallies.touched = set()  # As the sampler does.
    assert len(tallies.queues) == 10_000
    assert tallies.total.pushed == 30_000


def test_queues_that_something_happened_to_are_named_until_the_sampler_took_them() -> None:
    tallies = Tallies(FakeClock())
    push(tallies, "a", "b")
    assert tallies.touched == {"a", "b"}
    tallies.touched = set()
    push(tallies, "b")
    assert tallies.touched == {"b"}


def test_requests_that_could_not_be_judged_leave_the_others_where_they_are() -> None:
    tallies = Tallies(FakeClock())
    requests = [[NewMessage("a")], [NewMessage("b"), NewMessage("b")], [NewMessage("c")]]
    tallies.pushed(requests, [[QUEUED], EngineFailure("away"), [QUEUED]])
    assert {name: tally.pushed for name, tally in tallies.queues.items()} == {"a": 1, "c": 1}
    assert (tallies.push_requests, tallies.total.pushed) == (3, 2)


def test_messages_of_a_request_count_for_their_own_queues() -> None:
    tallies = Tallies(FakeClock())
    messages = [NewMessage(queue) for queue in ("a", "a", "b", "a")]
    duplicate, full = PushOutcome("duplicate", None), PushOutcome("failed", None, code="queue_full")
    tallies.pushed([messages], [[QUEUED, duplicate, full, QUEUED]])
    a, b = tallies.queues["a"], tallies.queues["b"]
    assert (a.pushed, a.duplicates, b.pushed, b.refused) == (2, 1, 0, 1)
    assert (tallies.total.pushed, tallies.total.duplicates, tallies.total.refused) == (2, 1, 1)


def test_what_is_sealed_anew_is_not_refused() -> None:
    tallies = Tallies(FakeClock())
    tallies.pushed([[NewMessage("a")]], [[PushOutcome("failed", None, code="sealing_mismatch")]])
    assert tallies.total.refused == 0


def test_settlements_that_change_nothing_are_not_counted_and_refused_ones_apart() -> None:
    tallies = Tallies(FakeClock())
    again = SettleOutcome("t", True, queue="a")
    refused = SettleOutcome("t", False, "lease_expired", "too late", "a")
    tallies.settled([[Settlement("t"), Settlement("t")]], [[again, refused]])
    assert (tallies.total.settled, tallies.refused_settlements, tallies.settle_requests) == (0, 1, 1)


def test_a_dead_letter_that_is_not_kept_counts_as_failed() -> None:
    tallies = Tallies(FakeClock())
    tallies.settled([[Settlement("t", status="dlq")]], [[SettleOutcome("t", True, queue="a", lease_id="l")]])
    assert (tallies.total.failed, tallies.total.dead_lettered) == (1, 0)


def test_a_transaction_that_failed_counts_nothing_but_itself() -> None:
    tallies = Tallies(FakeClock())
    transaction = Transaction([NewMessage("a")])
    tallies.transacted([transaction, transaction], [TransactionOutcome(False, ()), EngineFailure("away")])
    assert (tallies.transactions, tallies.total.pushed) == (2, 0)


def test_messages_that_go_with_keys_count_if_they_were_written() -> None:
    tallies = Tallies(FakeClock())
    write = KeyWrite(messages=[NewMessage("a")])
    tallies.wrote_keys([write, write], [KeyWritten(True, messages=[QUEUED]), KeyWritten(False)])
    tallies.transacted(
        [Transaction([], keys=write)], [TransactionOutcome(True, (), keys=KeyWritten(True, messages=[QUEUED]))]
    )
    assert tallies.total.pushed == 2


def test_a_message_from_the_future_by_another_clock_was_delivered_at_once() -> None:
    clock = FakeClock()
    tallies = Tallies(clock)
    created_at = clock.now() + 3600 * SECOND
    late = Delivery("id", "id", None, msgspec.Raw(b"1"), False, None, created_at, "a", "p", "id", 1, 0, attempt=1)
    tallies.popped([PopRequest(queue="a")], [PopResult([late])])
    assert (tallies.ages[0], sum(tallies.ages), tallies.age_sum) == (1, 1, 0)
