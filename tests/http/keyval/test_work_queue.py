"""The life of a message of a work queue: POST /queue/enqueue, GET /queue/poll, POST /queue/ack, /nack and /cancel.

With a receipt only that delivery is settled, without one whichever is live.
"""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from hark.clock import FakeClock
from hark.settings import Queue, Settings
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


def test_messages_may_be_enqueued_for_a_time_or_with_a_delay_that_has_a_fraction(work: Work) -> None:
    work.enqueue("later", deliverAt=int(time.time() * 1000) + 3_600_000)
    work.enqueue("past", deliverAt="2020-01-01T00:00:00Z")
    assert work.take()["value"] == "past"
    assert work.poll() is None
    work.enqueue("soon", delay=150.5)
    assert work.poll() is None
    assert work.take(**WAIT)["value"] == "soon"


def test_a_queue_has_only_its_own_messages(http: httpx.Client, queue: str) -> None:
    one, other = Work(http, f"{queue}-1"), Work(http, f"{queue} é/2")
    one.enqueue(1)
    other.enqueue(2)
    assert (one.take()["value"], other.take()["value"]) == (1, 2)
    assert one.poll() is None
    assert other.poll() is None


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


def test_a_message_has_an_id_a_value_its_attempts_and_a_receipt(work: Work) -> None:
    id = work.enqueue({"n": 1})
    answer = work.get("/poll")
    message = read(answer)["message"]
    assert message == {"id": id, "value": {"n": 1}, "attempts": 1, "receipt": message["receipt"]}
    assert message["receipt"]
    assert answer.headers["cache-control"] == "no-store"


def test_an_empty_queue_gives_null_also_when_it_was_never_used_or_waited_for_in_vain(work: Work) -> None:
    for query in ({}, {"wait": True, "timeout": 10}):
        answer = work.get("/poll", **query)
        assert (answer.status_code, answer.content) == (200, b'{"message":null}')
        assert answer.headers["cache-control"] == "no-store"


def test_messages_of_higher_priority_come_first_and_say_so(work: Work) -> None:
    for value, priority in (("a", 0), ("b", 5), ("c", 9), ("d", 5), ("e", None)):
        work.enqueue(value, priority=priority)
    taken = [work.take() for _ in range(5)]
    assert [message["value"] for message in taken] == ["c", "b", "d", "a", "e"]
    assert [message.get("priority") for message in taken] == [9, 5, 5, None, None]


def test_a_priority_is_kept_over_a_retry(work: Work) -> None:
    work.enqueue("urgent", priority=9, backoffSchedule=[0])
    work.enqueue("plain")
    assert work.nack(work.take()) == {"ok": True}
    again = work.take()
    assert (again["value"], again["attempts"], again["priority"]) == ("urgent", 2, 9)


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


def test_a_lock_ends_exactly_after_its_time_and_counts(timed: Work, clock: FakeClock) -> None:
    timed.enqueue(1)
    first = timed.take()
    clock.advance(29.999)
    assert timed.poll() is None
    assert timed.stats() == (0, 1, 0)
    clock.advance(0.001)
    assert timed.stats() == (1, 0, 0)
    second = timed.take()
    assert (second["id"], second["attempts"]) == (first["id"], 2)
    assert second["receipt"] != first["receipt"]


def test_a_message_whose_locks_all_expire_is_a_dead_letter_that_says_so(timed: Work, clock: FakeClock) -> None:
    timed.enqueue("deadly")
    for attempt in (1, 2, 3, 4):
        assert timed.take()["attempts"] == attempt
        clock.advance(30)
    assert timed.poll() is None
    [letter] = timed.dead()
    assert (letter["value"], letter["attempts"]) == ("deadly", 4)
    assert "expired" in letter["errorMessage"]


def test_retries_wait_as_the_default_schedule_says(timed: Work, clock: FakeClock) -> None:
    timed.enqueue(1)
    for delay in (1, 5, 10):
        timed.nack(timed.take())
        clock.advance(delay - 0.001)
        assert timed.poll() is None
        clock.advance(0.001)
    timed.nack(timed.take())
    assert [letter["attempts"] for letter in timed.dead()] == [4]


def test_a_nack_may_say_when_the_message_comes_again(timed: Work, clock: FakeClock) -> None:
    timed.enqueue(1)
    timed.nack(timed.take(), delay=90_000)
    clock.advance(89.999)
    assert timed.poll() is None
    clock.advance(0.001)
    timed.nack(timed.take(), delay=0)
    assert timed.take()["attempts"] == 3


def test_a_delayed_message_comes_at_its_time_and_not_before(timed: Work, clock: FakeClock) -> None:
    timed.enqueue("later", delay=60_000)
    timed.enqueue("stale", ttl=1000, delay=1000)
    timed.enqueue("now")
    message = timed.take()
    assert message["value"] == "now"
    timed.ack(message)
    clock.advance(59.999)
    assert timed.poll() is None, "not even the one whose time to live is over"
    clock.advance(0.001)
    assert timed.take()["value"] == "later"


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


def test_a_waiting_poll_gets_a_message_when_its_lock_ends(queue: str) -> None:
    settings = Settings(queue=Queue(lock_duration=100, cleanup_interval=0))
    with inside(settings) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        work = Work(client, queue)
        work.enqueue(1)
        assert work.take()["attempts"] == 1
        assert work.take(**WAIT)["attempts"] == 2


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
