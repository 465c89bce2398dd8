"""POST /queue/ack, nack and cancel: with a receipt only that delivery counts, without one whichever is live."""

from __future__ import annotations

import uuid

import httpx
import pytest

from hark.clock import FakeClock
from tests.http.api import Json, read, refusal
from tests.http.keyval.work import Work

UNKNOWN = ["00000000-0000-4000-8000-00000000abcd", "01J9X3K2M5N7P8Q9R0S1T2V3W4", "x", "\0", "é" * 1000, " "]


def refused(work: Work, path: str, message: Json) -> None:
    """A settlement with the receipt of a delivery that is over changes nothing."""
    answer = work.post(path, {"id": message["id"], "receipt": message["receipt"]})
    assert refusal(answer, 409).startswith("receipt: ")


# Ack -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("receipt", [True, False])
def test_a_message_that_was_acked_is_gone_and_the_ack_may_be_repeated(work: Work, receipt: bool) -> None:
    work.enqueue(1)
    message = work.take()
    assert work.ack(message, receipt=receipt) == {"ok": True}
    assert work.poll() is None
    assert work.stats() == (0, 0, 0)
    assert work.ack(message, receipt=receipt)["ok"], "its reply may have been lost"


def test_the_id_says_which_queue_is_meant(work: Work, http: httpx.Client) -> None:
    work.enqueue(1)
    assert Work(http).ack(work.take(), receipt=False) == {"ok": True}
    assert work.stats() == (0, 0, 0)


def test_a_late_settlement_with_its_receipt_is_refused_and_leaves_the_new_delivery_alone(
    timed: Work, clock: FakeClock
) -> None:
    timed.enqueue(1)
    late = timed.take()
    clock.advance(30)
    refused(timed, "/ack", late)
    current = timed.take()
    refused(timed, "/ack", late)
    refused(timed, "/nack", late)
    assert timed.stats() == (0, 1, 0)
    assert timed.ack(current) == {"ok": True}
    refused(timed, "/nack", late)
    assert timed.stats() == (0, 0, 0)


def test_a_late_ack_by_id_alone_acts_on_the_delivery_that_is_live(timed: Work, clock: FakeClock) -> None:
    timed.enqueue(1)
    late = timed.take()
    clock.advance(30)
    assert timed.ack(late, receipt=False) == {"ok": True, "found": False}
    assert timed.take()["attempts"] == 2
    assert timed.ack(late, receipt=False) == {"ok": True}
    assert timed.stats() == (0, 0, 0)


def test_a_message_that_nobody_holds_is_not_acked(work: Work) -> None:
    dead = work.kill(1)["originalId"]
    waiting, delayed = work.enqueue("waiting"), work.enqueue("delayed", delay=60_000)
    for id in (waiting, delayed, dead):
        assert read(work.post("/ack", {"id": id})) == {"ok": True, "found": False}
    assert work.stats() == (2, 0, 1)


# Nack ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("receipt", [True, False])
def test_a_message_that_was_nacked_comes_again_and_a_nack_counts_once(work: Work, receipt: bool) -> None:
    work.enqueue(1, backoffSchedule=[0, 0])
    message = work.take()
    assert work.nack(message, receipt=receipt) == {"ok": True}
    refused(work, "/nack", message)
    assert work.nack(message, receipt=False) == {"ok": True, "found": False}
    assert work.take()["attempts"] == 2


def test_a_late_nack_by_id_alone_acts_on_the_delivery_that_is_live(timed: Work, clock: FakeClock) -> None:
    timed.enqueue(1, backoffSchedule=[0, 0])
    late = timed.take()
    clock.advance(30)
    assert timed.nack(late, receipt=False) == {"ok": True, "found": False}
    current = timed.take()
    assert timed.nack(late, receipt=False) == {"ok": True}
    refused(timed, "/ack", current)
    assert timed.take()["attempts"] == 3


# Ids -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", UNKNOWN, ids=range(len(UNKNOWN)))
def test_an_unknown_id_is_no_error_without_a_receipt_and_a_409_with_one(work: Work, id: str) -> None:
    for path in ("/ack", "/nack"):
        assert read(work.post(path, {"id": id})) == {"ok": True, "found": False}
        refusal(work.post(path, {"id": id, "receipt": str(uuid.uuid4())}), 409)
    assert read(work.post("/cancel", {"id": id})) == {"ok": True, "cancelled": False, "reason": "not_found"}


def test_the_receipt_of_another_message_does_not_count(work: Work) -> None:
    work.enqueue(1)
    work.enqueue(2)
    one, other = work.take(), work.take()
    refusal(work.post("/ack", {"id": one["id"], "receipt": other["receipt"]}), 409)
    assert work.stats() == (0, 2, 0)


# Cancel ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [0, 60_000])
def test_a_message_that_waits_is_taken_back(work: Work, delay: int) -> None:
    id = work.enqueue(1, delay=delay)
    assert read(work.post("/cancel", {"id": id})) == {"ok": True, "cancelled": True}
    assert work.poll() is None
    assert work.stats() == (0, 0, 0)
    assert read(work.post("/cancel", {"id": id})) == {"ok": True, "cancelled": False, "reason": "not_found"}


def test_a_message_that_somebody_got_is_not_taken_back(work: Work) -> None:
    work.enqueue(1)
    message = work.take()
    answer = read(work.post("/cancel", {"id": message["id"]}))
    assert answer == {"ok": True, "cancelled": False, "reason": "leased"}
    work.ack(message)
    assert not read(work.post("/cancel", {"id": message["id"]}))["cancelled"]
