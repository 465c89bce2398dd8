"""POST /queue/enqueue: what is accepted, what is kept byte for byte, and what is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx
import pytest

from tests.conftest import running_server
from tests.http.api import Api, Json, read, refusal
from tests.http.keyval.work import Work

MiB = 2**20


# What is accepted ------------------------------------------------------------------------------------------


def test_the_answer_has_the_id_that_the_message_is_delivered_with(work: Work) -> None:
    id = work.enqueue({"task": "send-email"})
    message = work.take()
    assert (message["id"], message["value"], message["attempts"]) == (id, {"task": "send-email"}, 1)


@pytest.mark.parametrize("value", [None, True, 0, "", "text", [], {}, [None], {"a": {"b": [1, 2]}}])
def test_any_json_is_a_value(work: Work, value: Json) -> None:
    work.enqueue(value)
    assert work.take()["value"] == value


POISON = [
    b'{"$now": true, "$offset": 5}',
    b'{"__proto__": {"polluted": true}, "constructor": {"prototype": 1}}',
    b'{"__type": "bigint", "value": "123456789012345678901234567890"}',
    b"123456789012345678901234567890.123456789",
    b"1e400",
    b"-0.0",
    b'{"b": 1, "a": 2, "a": 3}',
    b'"\\u0000 \\u2028 \\ud83d\\ude00"',
    '"é \U0001f600"'.encode(),
    b"[" * 256 + b"]" * 256,
    b'{ "spaced" :\t[ 1 , 2 ] }',
]


@pytest.mark.parametrize("value", POISON, ids=range(len(POISON)))
def test_a_value_comes_back_byte_for_byte(work: Work, value: bytes) -> None:
    read(work.post("/enqueue", content=b'{"value": ' + value + b"}"))
    answer = work.get("/poll")
    assert b'"value":' + value + b',"attempts":1' in answer.content
    id = answer.content.split(b'"id":"', 1)[1].split(b'"', 1)[0].decode()
    assert read(work.post("/nack", {"id": id})) == {"ok": True}


def test_a_big_value_comes_back_whole(work: Work) -> None:
    value = "x" * (8 * MiB)
    work.enqueue(value)
    assert work.take()["value"] == value


def test_fields_and_options_that_mean_nothing_are_ignored(work: Work) -> None:
    body = {"value": 1, "delay": 60_000, "options": {"colour": "red", "delay": None, "keysIfUndelivered": None}}
    read(work.post("/enqueue", body, colour="blue"))
    assert work.take()["value"] == 1
    read(work.post("/enqueue", {"value": 2, "options": None}))
    assert work.take()["value"] == 2


def test_the_content_type_does_not_matter(work: Work) -> None:
    read(work.post("/enqueue", content=b'{"value": "plain"}'))
    assert work.take()["value"] == "plain"


def test_a_delay_may_have_a_fraction(work: Work) -> None:
    work.enqueue(1, delay=0.5)
    assert work.take(wait=True)["value"] == 1


def test_messages_may_be_enqueued_for_a_time(work: Work) -> None:
    work.enqueue("later", deliverAt=int(time.time() * 1000) + 3_600_000)
    work.enqueue("past", deliverAt="2020-01-01T00:00:00Z")
    assert work.take()["value"] == "past"
    assert work.poll() is None


def test_a_queue_has_only_its_own_messages(http: httpx.Client, queue: str) -> None:
    one, other = Work(http, f"{queue}-1"), Work(http, f"{queue} é/2")
    one.enqueue(1)
    other.enqueue(2)
    assert (one.take()["value"], other.take()["value"]) == (1, 2)
    assert one.poll() is None
    assert other.poll() is None


def test_a_request_that_names_no_queue_means_the_one_named_default(default_queue: Work) -> None:
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


# What is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Empty request body"),
        (b"{", "Invalid JSON"),
        (b'{"value": 1}x', "Invalid JSON"),
        (b'{"value": "\xff"}', "Invalid JSON"),
        (b'{"value": "\\ud800"}', "Invalid JSON"),
        (b'{"value": NaN}', "Invalid JSON"),
        (b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", ""),
        (b"null", "body: expected an object, got null"),
        (b"[]", "body: expected an object, got an array"),
        (b'"value"', "body: expected an object, got a string"),
        (b"{}", "value: is required"),
        (b'{"options": {}}', "value: is required"),
        (b'{"value": ' + b"[" * 257 + b"]" * 257 + b"}", "value: nested too deeply"),
        (b'{"value": 1, "options": []}', "options: expected an object, got an array"),
        (b'{"value": 1, "options": "delay"}', "options: expected an object, got a string"),
    ],
)
def test_a_body_that_is_no_message_is_a_400(work: Work, body: bytes, text: str) -> None:
    assert refusal(work.post("/enqueue", content=body), 400).startswith(text)
    assert work.stats() == (0, 0, 0)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("delay", -1, "options.delay: expected milliseconds from 0 to"),
        ("delay", "60000", "options.delay: expected a number, got a string"),
        ("delay", True, "options.delay: expected"),
        ("delay", 10**15, "options.delay: expected milliseconds"),
        ("deliverAt", "tomorrow", "options.deliverAt: expected a time"),
        ("deliverAt", -5, "options.deliverAt: expected"),
        ("deliverAt", [], "options.deliverAt: expected"),
        ("backoffSchedule", 1000, "options.backoffSchedule: expected an array, got an integer"),
        ("backoffSchedule", {"0": 1}, "options.backoffSchedule: expected an array"),
        ("backoffSchedule", [1000, -1], "options.backoffSchedule[1]: expected milliseconds"),
        ("backoffSchedule", [1000, "x"], "options.backoffSchedule[1]: expected a number, got a string"),
        ("backoffSchedule", [1] * 101, "options.backoffSchedule: at most 100 entries, got 101"),
        ("priority", 10, "options.priority: expected an integer from 0 to 9, got 10"),
        ("priority", -1, "options.priority: expected an integer from 0 to 9, got -1"),
        ("priority", 1.5, "options.priority: expected an integer"),
        ("priority", "high", "options.priority: expected an integer, got a string"),
        ("ttl", 0, "options.ttl: expected milliseconds from 1"),
        ("ttl", "1h", "options.ttl: expected"),
        ("keysIfUndelivered", [], "options.keysIfUndelivered: Keys array cannot be empty."),
        ("keysIfUndelivered", "key", "options.keysIfUndelivered: Keys must be an array of key arrays"),
        ("keysIfUndelivered", ["key"], "options.keysIfUndelivered: Invalid key at index 0: Key must be an array"),
        ("keysIfUndelivered", [["a"], []], "options.keysIfUndelivered: Invalid key at index 1: Key cannot be empty."),
        ("keysIfUndelivered", [["a", None]], "options.keysIfUndelivered: Invalid key at index 0: Invalid key part"),
        ("keysIfUndelivered", [["a"] * 21], "options.keysIfUndelivered: Invalid key at index 0: Key too deep"),
        ("keysIfUndelivered", [["a"]] * 1001, "options.keysIfUndelivered: Too many keys: 1001"),
    ],
)
def test_an_option_with_a_wrong_value_is_a_400_that_names_it(work: Work, option: str, value: Json, text: str) -> None:
    body = json.dumps({"value": 1, "options": {option: value}}).encode()
    assert refusal(work.post("/enqueue", content=body), 400).startswith(text)
    assert work.stats() == (0, 0, 0)


def test_a_delay_and_a_time_contradict_each_other(work: Work) -> None:
    body = {"value": 1, "options": {"delay": 1, "deliverAt": 1}}
    assert refusal(work.post("/enqueue", body), 400).startswith("options.deliverAt: give either")


@pytest.mark.parametrize("name", ["a\0b", "é" * 128])
def test_the_name_of_a_queue_is_checked_on_every_route(http: httpx.Client, name: str) -> None:
    work = Work(http, name)
    answers = [
        work.post("/enqueue", {"value": 1}),
        work.get("/poll"),
        work.get("/listen"),
        work.post("/ack", {"id": "x"}),
        work.post("/nack", {"id": "x"}),
        work.post("/cancel", {"id": "x"}),
        work.get("/stats"),
        work.get("/settings"),
        work.put("/settings", {}),
        work.get("/dlq"),
        work.delete("/dlq"),
        work.get("/dlq/x"),
        work.post("/dlq/x/requeue"),
        work.delete("/dlq/x"),
    ]
    for answer in answers:
        assert refusal(answer, 400, "invalid_input").startswith("queue:")


def test_a_body_over_the_limit_is_a_413(tmp_path: Path) -> None:
    with (
        running_server(tmp_path, settings={"HARK_MAX_BODY_BYTES": "1000"}) as url,
        httpx.Client(base_url=url) as client,
    ):
        refusal(Work(client).post("/enqueue", {"value": "x" * 1000}), 413, "body_too_large")


def test_a_full_queue_is_a_429(work: Work, api: Api, queue: str) -> None:
    api.configure(queue, maxSize=1, dropSettled=True)
    work.enqueue(1)
    answer = work.post("/enqueue", {"value": 2})
    refusal(answer, 429, "queue_full")
    assert answer.headers["retry-after"] == "1"
    assert work.ack(work.take()) == {"ok": True}
    work.enqueue(3)


def test_maintenance_is_a_503_that_says_when_to_try_again(default_queue: Work) -> None:
    read(default_queue.client.post("/api/v1/system/maintenance", json={"enabled": True}))
    answer = default_queue.post("/enqueue", {"value": 1})
    refusal(answer, 503, "maintenance")
    assert answer.headers["retry-after"] == "5"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/enqueue", "POST"),
        ("PUT", "/ack", "POST"),
        ("GET", "/nack", "POST"),
        ("DELETE", "/cancel", "POST"),
        ("POST", "/poll", "GET"),
        ("HEAD", "/poll", "GET"),
        ("HEAD", "/listen", "GET"),
        ("POST", "/stats", "GET"),
        ("PATCH", "/dlq", "GET"),
        ("GET", "/dlq/x/requeue", "POST"),
    ],
)
def test_a_wrong_method_is_a_405(work: Work, method: str, path: str, allow: str) -> None:
    answer = work.client.request(method, f"/keyval/api/queue{path}")
    assert answer.status_code == 405
    assert allow in answer.headers["allow"]


@pytest.mark.parametrize("path", ["", "/", "/poll/", "/poll/x", "/enqueue/", "/nothing", "/dlq/x/y"])
def test_a_route_that_is_not_there_is_a_404_in_json(work: Work, path: str) -> None:
    refusal(work.get(path), 404, "route_not_found")
