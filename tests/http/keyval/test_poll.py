"""GET /queue/poll: one message at a time, each to one consumer, in the right order."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from hark.clock import FakeClock
from hark.settings import Queue, Settings
from tests.http.api import Api, Json, read, refusal
from tests.http.keyval.work import WAIT, Work
from tests.http.streaming import deaf, inside


def test_a_message_has_an_id_a_value_its_attempts_and_a_receipt(work: Work) -> None:
    id = work.enqueue({"n": 1})
    answer = work.get("/poll")
    message = read(answer)["message"]
    assert message == {"id": id, "value": {"n": 1}, "attempts": 1, "receipt": message["receipt"]}
    assert message["receipt"]
    assert answer.headers["cache-control"] == "no-store"


def test_an_empty_queue_gives_null_also_when_nobody_ever_used_it(work: Work) -> None:
    answer = work.get("/poll")
    assert (answer.status_code, answer.content) == (200, b'{"message":null}')
    assert answer.headers["cache-control"] == "no-store"


def test_messages_come_in_the_order_in_which_they_were_enqueued(work: Work) -> None:
    ids = [work.enqueue(number) for number in range(20)]
    assert [work.take()["id"] for _ in ids] == ids
    assert work.poll() is None


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


def test_two_consumers_never_get_the_same(work: Work, server_url: str, queue: str) -> None:
    ids = [work.enqueue(number) for number in range(200)]
    start = threading.Barrier(8)

    def consume() -> list[str]:
        with httpx.Client(base_url=server_url, timeout=30) as client:
            mine = Work(client, queue)
            taken = []
            start.wait()
            while (message := mine.poll()) is not None:
                taken.append(message["id"])
                mine.ack(message)
            return taken

    with ThreadPoolExecutor(8) as pool:
        taken = [id for consumer in [pool.submit(consume) for _ in range(8)] for id in consumer.result()]
    assert sorted(taken) == sorted(ids)
    assert work.stats() == (0, 0, 0)


# Waiting ---------------------------------------------------------------------------------------------------


def test_a_poll_may_wait_for_a_message(work: Work, server_url: str, queue: str) -> None:
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=server_url, timeout=30) as client:
        waiting = pool.submit(Work(client, queue).take, **WAIT)
        work.enqueue("news")
        assert waiting.result()["value"] == "news"


def test_a_poll_that_waits_gets_a_delayed_message_when_it_is_due(work: Work) -> None:
    work.enqueue("later", delay=150)
    assert work.poll() is None
    assert work.take(**WAIT)["value"] == "later"


def test_a_poll_that_waits_in_vain_gives_null(work: Work) -> None:
    assert work.poll(wait=True, timeout=10) is None


@pytest.mark.parametrize(
    ("query", "field"), [({"wait": "maybe"}, "wait"), ({"timeout": "long"}, "timeout"), ({"timeout": -1}, "timeout")]
)
def test_a_bad_parameter_is_a_400_that_names_it(work: Work, query: Json, field: str) -> None:
    work.enqueue(1)
    assert refusal(work.get("/poll", **query), 400).startswith(f"{field}:")
    assert work.take()["attempts"] == 1


def test_what_a_client_that_left_did_not_get_is_not_counted(queue: str) -> None:
    with inside() as server, httpx.Client(base_url=server.url, timeout=30) as client:
        work = Work(client, queue)
        for number in range(5):
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
    timed.enqueue("now")
    message = timed.take()
    assert message["value"] == "now"
    timed.ack(message)
    clock.advance(59.999)
    assert timed.poll() is None
    clock.advance(0.001)
    assert timed.take()["value"] == "later"


def test_retried_and_delayed_messages_are_ordered_by_when_they_became_available(timed: Work, clock: FakeClock) -> None:
    timed.enqueue("retried", backoffSchedule=[5000])
    timed.nack(timed.take())
    timed.enqueue("delayed", delay=3000)
    clock.advance(4)
    timed.enqueue("fresh")
    clock.advance(4)
    assert [timed.take()["value"] for _ in range(3)] == ["delayed", "fresh", "retried"]


def test_a_message_past_its_time_to_live_is_not_delivered(timed: Work, clock: FakeClock) -> None:
    timed.enqueue("stale", ttl=1000)
    timed.enqueue("fresh")
    clock.advance(2)
    assert timed.take()["value"] == "fresh"
    assert timed.poll() is None


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
