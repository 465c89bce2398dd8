"""Maintenance over every way in and out: nothing is pushed while pushes are stopped, nothing comes while pops are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.http.api import WAIT, Api, Json, acknowledgment, data, read, refusal
from tests.http.keyval.work import Work
from tests.http.streaming import listening

PUSH, POP = "/system/maintenance", "/system/maintenance/pop"


@pytest.fixture
def api(fresh_api: Api) -> Api:
    """Of a server that the test may stop."""
    return fresh_api


@contextmanager
def stopped(api: Api, path: str) -> Iterator[None]:
    """Maintenance, until the end."""
    read(api.post(path, {"enabled": True}))
    try:
        yield
    finally:
        read(api.post(path, {"enabled": False}))


# Pushes ----------------------------------------------------------------------------------------------------

ENQUEUE = {"type": "enqueue", "value": 1}
PUSHES: dict[str, tuple[str, Json]] = {
    "push": ("/api/v1/push", {"items": [{"queue": "QUEUE", "payload": 1}]}),
    "transaction": (
        "/api/v1/transaction",
        {"operations": [{"type": "push", "items": [{"queue": "QUEUE", "payload": 1}]}]},
    ),
    "transaction with keys": (
        "/api/v1/transaction",
        {
            "operations": [{"type": "push", "items": [{"queue": "QUEUE", "payload": 1}]}],
            "kv": {"mutations": [{"type": "set", "key": ["QUEUE"], "value": 1}]},
        },
    ),
    "enqueue": ("/keyval/api/queue/enqueue?queue=QUEUE", {"value": 1}),
    "atomic write that enqueues": (
        "/keyval/api/atomic",
        {"mutations": [{"type": "set", "key": ["QUEUE"], "value": 1}, ENQUEUE | {"queue": "QUEUE"}]},
    ),
}


@pytest.mark.parametrize("way", PUSHES)
def test_every_way_to_push_is_refused_and_keeps_nothing(api: Api, queue: str, way: str) -> None:
    path, body = json.loads(json.dumps(PUSHES[way]).replace("QUEUE", queue))
    with stopped(api, PUSH):
        answer = api.client.post(path, json=body)
        refusal(answer, 503, "maintenance")
        assert answer.headers["retry-after"] == "5"
    assert api.get(f"/resources/queues/{queue}").status_code == 404, "not even the queue was made"
    assert api.client.get(f'/keyval/api/keys/["{queue}"]').status_code == 404
    assert api.client.post(path, json=body).status_code in (200, 201), "it goes on afterwards"
    assert read(api.get(f"/resources/queues/{queue}"))["totals"]["total"] == 1


def test_what_pushes_nothing_and_what_takes_nothing_goes_on(api: Api, fresh_server_url: str, queue: str) -> None:
    api.push(queue, 1)
    with stopped(api, PUSH):
        write = {"mutations": [{"type": "set", "key": [queue], "value": 1}]}
        assert read(api.client.post("/keyval/api/atomic", json=write))["ok"] is True
        message = api.pop_one(queue)
        assert api.transact({"type": "ack"} | acknowledgment(message))["success"]
    api.push(queue, 2)
    leased = api.pop_one(queue)
    with stopped(api, POP), listening(fresh_server_url, f"/queue/{queue}", browse=True) as events:
        api.push(queue, 3)
        assert events.message()["data"] == 3
        assert api.ack(leased)["success"]


# Pops ------------------------------------------------------------------------------------------------------


def test_every_pop_answers_empty_at_once_also_one_that_would_wait(api: Api, queue: str) -> None:
    api.configure(queue, namespace=queue)
    api.push(queue, 1, partition="p")
    work = Work(api.client, f"{queue}-work")
    work.enqueue(2)
    with stopped(api, POP):
        assert api.pop(queue) == []
        assert api.pop(queue, "p") == []
        assert api.pop(queue, autoAck=True) == []
        assert api.get("/pop", namespace=queue).status_code == 204
        assert api.pop(queue, wait=True, timeout=600_000) == []
        assert work.poll() is None
        assert work.poll(wait=True, timeout=600_000) is None
    assert data(api.pop(queue)) == [1]
    assert work.take()["value"] == 2


def test_those_who_wait_are_answered_when_it_begins(api: Api, queue: str) -> None:
    work = Work(api.client, f"{queue}-work")
    work.enqueue("makes the queue")
    work.ack(work.take())
    with ThreadPoolExecutor() as pool:
        pop, poll = pool.submit(api.pop, queue, **WAIT), pool.submit(work.poll, **WAIT)
        while read(api.get("/consumers"))["total"] < 2:
            pass
        with stopped(api, POP):
            assert (pop.result(), poll.result()) == ([], None)
