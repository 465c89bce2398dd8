"""POST /queue/ack, nack and cancel: with a receipt only that delivery counts, without one whichever is live."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

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
def test_a_message_that_was_acked_is_gone(work: Work, receipt: bool) -> None:
    work.enqueue(1)
    assert work.ack(work.take(), receipt=receipt) == {"ok": True}
    assert work.poll() is None
    assert work.stats() == (0, 0, 0)


@pytest.mark.parametrize("receipt", [True, False])
def test_an_ack_may_be_repeated_after_a_lost_reply(work: Work, receipt: bool) -> None:
    work.enqueue(1)
    message = work.take()
    assert work.ack(message, receipt=receipt)["ok"]
    assert work.ack(message, receipt=receipt)["ok"]


def test_messages_are_acked_in_any_order(work: Work) -> None:
    for number in range(3):
        work.enqueue(number)
    taken = [work.take() for _ in range(3)]
    for index in (1, 2, 0):
        assert work.ack(taken[index]) == {"ok": True}
    assert work.stats() == (0, 0, 0)


def test_the_id_says_which_queue_is_meant(work: Work, http: httpx.Client) -> None:
    work.enqueue(1)
    assert Work(http).ack(work.take(), receipt=False) == {"ok": True}
    assert work.stats() == (0, 0, 0)


def test_a_late_ack_with_its_receipt_is_refused_and_leaves_the_new_delivery_alone(
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


def test_a_late_ack_by_id_alone_acts_on_the_delivery_that_is_live(timed: Work, clock: FakeClock) -> None:
    timed.enqueue(1)
    late = timed.take()
    clock.advance(30)
    assert timed.ack(late, receipt=False) == {"ok": True, "found": False}
    assert timed.take()["attempts"] == 2
    assert timed.ack(late, receipt=False) == {"ok": True}
    assert timed.stats() == (0, 0, 0)


def test_a_message_that_nobody_holds_is_not_acked(work: Work) -> None:
    waiting, delayed = work.enqueue("waiting"), work.enqueue("delayed", delay=60_000)
    for id in (waiting, delayed):
        assert read(work.post("/ack", {"id": id})) == {"ok": True, "found": False}
    assert work.stats() == (2, 0, 0)


def test_a_dead_letter_is_not_acked(work: Work) -> None:
    letter = work.kill(1)
    assert read(work.post("/ack", {"id": letter["originalId"]})) == {"ok": True, "found": False}
    assert work.stats() == (0, 0, 1)


# Nack ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("receipt", [True, False])
def test_a_message_that_was_nacked_comes_again(work: Work, receipt: bool) -> None:
    work.enqueue(1, backoffSchedule=[0])
    assert work.nack(work.take(), receipt=receipt) == {"ok": True}
    assert work.take()["attempts"] == 2


def test_a_nack_counts_once(work: Work) -> None:
    work.enqueue(1, backoffSchedule=[0, 0])
    message = work.take()
    assert work.nack(message) == {"ok": True}
    refused(work, "/nack", message)
    assert work.nack(message, receipt=False) == {"ok": True, "found": False}
    assert work.take()["attempts"] == 2


def test_a_late_nack_with_its_receipt_is_refused(timed: Work, clock: FakeClock) -> None:
    timed.enqueue(1)
    late = timed.take()
    clock.advance(30)
    current = timed.take()
    refused(timed, "/nack", late)
    assert timed.ack(current) == {"ok": True}
    refused(timed, "/nack", late)
    assert timed.stats() == (0, 0, 0)


def test_a_late_nack_by_id_alone_acts_on_the_delivery_that_is_live(timed: Work, clock: FakeClock) -> None:
    timed.enqueue(1, backoffSchedule=[0, 0])
    late = timed.take()
    clock.advance(30)
    assert timed.nack(late, receipt=False) == {"ok": True, "found": False}
    current = timed.take()
    assert timed.nack(late, receipt=False) == {"ok": True}
    refused(timed, "/ack", current)
    assert timed.take()["attempts"] == 3


def test_the_last_nack_is_counted_once_whoever_says_it(work: Work, server_url: str, queue: str) -> None:
    work.enqueue(1, backoffSchedule=[])
    message = work.take()

    def nack() -> Json:
        with httpx.Client(base_url=server_url, timeout=30) as client:
            return Work(client, queue).nack(message, receipt=False)

    with ThreadPoolExecutor(8) as pool:
        answers = [answer.result() for answer in [pool.submit(nack) for _ in range(8)]]
    assert answers.count({"ok": True}) == 1
    assert answers.count({"ok": True, "found": False}) == 7
    assert work.stats() == (0, 0, 1)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"error": 5}, "error: expected a string"),
        ({"delay": -1}, "delay: expected milliseconds"),
        ({"delay": "soon"}, "delay: expected"),
        ({"delay": 1e15}, "delay: expected milliseconds"),
    ],
)
def test_a_nack_with_a_wrong_field_is_a_400_and_changes_nothing(work: Work, fields: Json, text: str) -> None:
    work.enqueue(1)
    message = work.take()
    assert refusal(work.post("/nack", {"id": message["id"]} | fields), 400).startswith(text)
    assert work.ack(message) == {"ok": True}


# Ids -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/ack", "/nack", "/cancel"])
@pytest.mark.parametrize("body", [{}, {"id": ""}, {"id": None}, {"id": 5}, {"id": ["x"]}, {"id": {}}])
def test_an_id_that_is_no_text_is_a_400(work: Work, path: str, body: Json) -> None:
    assert refusal(work.post(path, body), 400) == "id must be a non-empty string"


@pytest.mark.parametrize("path", ["/ack", "/nack", "/cancel"])
@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b'"id"', b'{"id": "\xff"}', b'{"id": "\\ud800"}'])
def test_a_body_that_is_no_object_is_a_400(work: Work, path: str, body: bytes) -> None:
    refusal(work.post(path, content=body), 400)


@pytest.mark.parametrize("path", ["/ack", "/nack"])
@pytest.mark.parametrize("id", UNKNOWN, ids=range(len(UNKNOWN)))
def test_an_unknown_id_is_no_error_without_a_receipt_and_a_409_with_one(work: Work, path: str, id: str) -> None:
    assert read(work.post(path, {"id": id})) == {"ok": True, "found": False}
    refusal(work.post(path, {"id": id, "receipt": str(uuid.uuid4())}), 409)


@pytest.mark.parametrize(
    ("receipt", "status"),
    [("", 400), (7, 400), ("a\0b", 400), ("x", 409), ("00000000-0000-4000-8000-00000000abcd", 409)],
)
def test_a_receipt_that_was_never_given_changes_nothing(work: Work, receipt: Json, status: int) -> None:
    work.enqueue(1)
    message = work.take()
    for path in ("/ack", "/nack"):
        refusal(work.post(path, {"id": message["id"], "receipt": receipt}), status)
    assert work.ack(message) == {"ok": True}


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


@pytest.mark.parametrize("id", UNKNOWN, ids=range(len(UNKNOWN)))
def test_what_is_not_there_is_not_taken_back(work: Work, id: str) -> None:
    assert read(work.post("/cancel", {"id": id})) == {"ok": True, "cancelled": False, "reason": "not_found"}
