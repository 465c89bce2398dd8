"""The life of a message of a work queue: POST /queue/enqueue, GET /queue/poll, POST /queue/ack, /nack and /cancel.

With a receipt only that delivery is settled, without one whichever is live.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from hark.clock import FakeClock
from tests.http.api import Api, Json, read, refusal
from tests.http.keyval.work import POISON, WAIT, Work
from tests.http.streaming import deaf, inside

# Enqueue ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", POISON, ids=range(len(POISON)))
def test_a_value_comes_back_byte_for_byte(work: Work, value: bytes) -> None:
    read(work.post("/enqueue", content=b'{"value": ' + value + b"}"))
    answer = work.get("/poll")
    assert b'"value":' + value + b',"attempts":1' in answer.content
    id = answer.content.split(b'"id":"', 1)[1].split(b'"', 1)[0].decode()
    assert read(work.post("/nack", {"id": id})) == {"ok": True}


def test_fields_and_options_that_mean_nothing_are_ignored(work: Work) -> None:
    body = {"value": 1, "delay": 60_000, "options": {"colour": "red", "delay": None, "keysIfUndelivered": None}}
    read(work.post("/enqueue", body, colour="blue"))
    assert work.take()["value"] == 1
    read(work.post("/enqueue", {"value": 2, "options": None}))
    assert work.take()["value"] == 2


def test_a_request_that_names_no_queue_means_the_one_named_default(fresh_api: Api) -> None:
    default_queue = Work(fresh_api.client)
    default_queue.enqueue(1)
    message = Work(default_queue.client, "default").take()
    assert message["value"] == 1
    assert default_queue.ack(message) == {"ok": True}


def test_a_queue_that_other_clients_push_to_can_be_worked_on(work: Work, api: Api, queue: str) -> None:
    api.push(queue, {"n": 1}, transactionId="given")
    message = work.take()
    assert message["value"] == {"n": 1}
    assert work.ack(message) == {"ok": True}
    assert work.stats() == (0, 0, 0)


def test_a_deleted_queue_is_made_anew(work: Work, api: Api, queue: str) -> None:
    work.enqueue(1)
    read(api.delete(f"/resources/queues/{queue}"))
    work.enqueue(2)
    options = read(api.get(f"/resources/queues/{queue}"))["options"]
    assert options["dropSettled"]
    assert work.take()["value"] == 2


def test_a_full_queue_is_a_429(work: Work, api: Api, queue: str) -> None:
    api.configure(queue, maxSize=1, dropSettled=True)
    work.enqueue(1)
    answer = work.post("/enqueue", {"value": 2})
    refusal(answer, 429, "queue_full")
    assert answer.headers["retry-after"] == "1"
    assert work.ack(work.take()) == {"ok": True}
    work.enqueue(3)


# Poll ------------------------------------------------------------------------------------------------------


def test_a_poll_gives_the_fields_of_a_message_or_null_also_when_it_waited_in_vain(work: Work) -> None:
    for query in ({}, {"wait": True, "timeout": 10}):
        answer = work.get("/poll", **query)
        assert (answer.status_code, answer.content) == (200, b'{"message":null}')
        assert answer.headers["cache-control"] == "no-store"
    id = work.enqueue({"n": 1})
    answer = work.get("/poll")
    message = read(answer)["message"]
    assert message == {"id": id, "value": {"n": 1}, "attempts": 1, "receipt": message["receipt"]}
    assert message["receipt"]
    assert answer.headers["cache-control"] == "no-store"


def test_messages_of_higher_priority_come_first_and_say_so_also_after_a_retry(work: Work) -> None:
    for value, priority in (("a", 0), ("b", 5), ("c", 9), ("d", 5), ("e", None)):
        work.enqueue(value, priority=priority, backoffSchedule=[0])
    assert work.nack(work.take()) == {"ok": True}
    taken = [work.take() for _ in range(5)]
    assert [message["value"] for message in taken] == ["c", "b", "d", "a", "e"]
    assert [message.get("priority") for message in taken] == [9, 5, 5, None, None]
    assert [message["attempts"] for message in taken] == [2, 1, 1, 1, 1]


# Waiting ---------------------------------------------------------------------------------------------------


def test_a_poll_may_wait_for_a_message(work: Work, server_url: str, queue: str) -> None:
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=server_url, timeout=30) as client:
        waiting = pool.submit(Work(client, queue).take, **WAIT)
        work.enqueue("news")
        assert waiting.result()["value"] == "news"


def test_what_a_client_that_left_did_not_get_is_not_counted(queue: str) -> None:
    with inside() as server, httpx.Client(base_url=server.url, timeout=30) as client:
        work = Work(client, queue)
        for number in range(2):
            work.enqueue("x" * 9_000_000)  # More than the system takes over from the server.
            with deaf(server.url, f"GET /keyval/api/queue/poll?queue={queue} HTTP/1.1\nHost: localhost\n\n"):
                pass
            message = work.take(**WAIT)
            assert message["attempts"] == 1, number
            work.ack(message)


def test_a_group_that_keeps_order_already_can_not_share(work: Work, api: Api, queue: str) -> None:
    api.push(queue, 1)
    api.pop_one(queue)
    refusal(work.get("/poll"), 409, "group_mode_conflict")


# Locks -----------------------------------------------------------------------------------------------------


def test_a_lock_ends_exactly_after_its_time_and_with_the_last_one_the_message_is_a_dead_letter_that_says_so(
    timed: Work, clock: FakeClock
) -> None:
    id = timed.enqueue("deadly")
    receipts = set()
    for attempt in (1, 2, 3, 4):
        message = timed.take()
        assert (message["id"], message["attempts"]) == (id, attempt)
        receipts.add(message["receipt"])
        clock.advance(29.999)
        assert (timed.poll(), timed.stats()) == (None, (0, 1, 0))
        clock.advance(0.001)
        assert timed.stats() == ((1, 0, 0) if attempt < 4 else (0, 0, 1))
    assert len(receipts) == 4
    assert timed.poll() is None
    [letter] = timed.dead()
    assert (letter["value"], letter["attempts"]) == ("deadly", 4)
    assert "expired" in letter["errorMessage"]


@pytest.mark.parametrize(
    ("fields", "delays"), [({}, [1, 5, 10]), ({"delay": 90_000}, [90, 90, 90]), ({"delay": 0}, [0, 0, 0])]
)
def test_retries_wait_as_the_default_schedule_or_the_nack_says(
    timed: Work, clock: FakeClock, fields: Json, delays: list[int]
) -> None:
    timed.enqueue(1)
    for delay in delays:
        timed.nack(timed.take(), **fields)
        if delay:
            clock.advance(delay - 0.001)
            assert timed.poll() is None
            clock.advance(0.001)
    timed.nack(timed.take())
    assert [letter["attempts"] for letter in timed.dead()] == [4]


def test_a_delayed_message_comes_at_its_time_and_not_before(timed: Work, clock: FakeClock) -> None:
    timed.enqueue("later", delay=59_999.5)
    timed.enqueue("last", deliverAt=clock.now() // 1000 + 61_000)
    timed.enqueue("stale", ttl=1000, delay=1000)
    timed.enqueue("now", deliverAt="1970-01-01T00:00:00Z")
    timed.ack(message := timed.take())
    assert message["value"] == "now"
    clock.advance(59.999)
    assert timed.poll() is None, "not even the one whose time to live is over"
    clock.advance(0.001)
    assert timed.take()["value"] == "later"
    clock.advance(0.999)
    assert timed.poll() is None
    clock.advance(0.001)
    assert timed.take()["value"] == "last"


def test_a_queue_may_have_locks_of_its_own(timed: Work, clock: FakeClock) -> None:
    assert read(timed.get("/settings")) == {"queue": "default", "lockDuration": 30_000, "inherited": True}
    changed = {"queue": "default", "lockDuration": 5000, "inherited": False}
    assert read(timed.put("/settings", {"lockDuration": 5000})) == changed
    assert read(timed.get("/settings")) == changed
    timed.enqueue(1)
    timed.take()
    clock.advance(4.999)
    assert timed.poll() is None
    clock.advance(0.001)
    assert timed.take()["attempts"] == 2
    assert read(timed.put("/settings", {"lockDuration": 0}))["inherited"]
    clock.advance(5)
    timed.take()
    clock.advance(29.999)
    assert timed.poll() is None


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


def test_a_queue_has_only_its_own_messages_and_an_id_says_which_queue_is_meant(
    work: Work, http: httpx.Client, queue: str
) -> None:
    other = Work(http, f"{queue} é/2")
    for number, one in enumerate((work, other)):
        one.enqueue(number)
    for number, one in enumerate((work, other)):
        message = one.take()
        assert (message["value"], one.poll()) == (number, None)
        assert Work(http).ack(message, receipt=False) == {"ok": True}
        assert one.stats() == (0, 0, 0)


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


@pytest.mark.parametrize("settle", [Work.ack, Work.nack])
def test_a_late_settlement_by_id_alone_acts_on_the_delivery_that_is_live(
    timed: Work, clock: FakeClock, settle: Callable[..., Json]
) -> None:
    timed.enqueue(1, backoffSchedule=[0, 0])
    late = timed.take()
    clock.advance(30)
    assert settle(timed, late, receipt=False) == {"ok": True, "found": False}
    assert timed.stats() == (1, 0, 0), "what waits is not settled"
    current = timed.take()
    assert current["attempts"] == 2
    assert settle(timed, late, receipt=False) == {"ok": True}
    refused(timed, "/nack", current)
    assert timed.stats() == ((0, 0, 0) if settle is Work.ack else (1, 0, 0))


# Nack ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("receipt", [True, False])
def test_a_message_that_was_nacked_comes_again_and_a_nack_counts_once(work: Work, receipt: bool) -> None:
    work.enqueue(1, backoffSchedule=[0, 0])
    message = work.take()
    assert work.nack(message, receipt=receipt) == {"ok": True}
    refused(work, "/nack", message)
    assert work.nack(message, receipt=False) == {"ok": True, "found": False}
    assert work.take()["attempts"] == 2


# Ids -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", UNKNOWN, ids=range(len(UNKNOWN)))
def test_an_unknown_id_is_no_error_without_a_receipt_and_a_409_with_one(work: Work, id: str) -> None:
    for path in ("/ack", "/nack"):
        assert read(work.post(path, {"id": id})) == {"ok": True, "found": False}
        refusal(work.post(path, {"id": id, "receipt": str(uuid.uuid4())}), 409)
    assert read(work.post("/cancel", {"id": id})) == {"ok": True, "cancelled": False, "reason": "not_found"}


# Cancel ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [0, 60_000])
def test_a_message_is_taken_back_while_it_waits_and_not_when_a_consumer_got_it(work: Work, delay: int) -> None:
    id = work.enqueue(1, delay=delay)
    assert read(work.post("/cancel", {"id": id})) == {"ok": True, "cancelled": True}
    assert work.poll() is None
    assert work.stats() == (0, 0, 0)
    assert read(work.post("/cancel", {"id": id})) == {"ok": True, "cancelled": False, "reason": "not_found"}
    work.enqueue(2)
    message = work.take()
    answer = read(work.post("/cancel", {"id": message["id"]}))
    assert answer == {"ok": True, "cancelled": False, "reason": "leased"}
    assert work.ack(message) == {"ok": True}
