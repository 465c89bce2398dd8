"""The routes of tasks: state, result and progress; the task of an acknowledgement; cancellation of what runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from hark.testing import HarkServer
from tests.http.api import Api, Json, acknowledgment, read, refusal
from tests.http.test_options import SECRET, encrypting

UNKNOWN = "00000000-0000-8000-8000-000000000000"


def pushed(api: Api, queue: str, **options: Any) -> Json:
    """Push a task."""
    [message] = api.push(queue, {"task": "add"}, transactionId="t", **options)
    return message


def show(api: Api, message: Json, name: str = "t", **query: Any) -> Json:
    """The state of a task."""
    return read(api.get(f"/messages/{message['partition_id']}/{name}/task", **query))


def test_what_tasks_of_an_encrypted_queue_store_is_unreadable_on_the_disk(tmp_path: Path, queue: str) -> None:
    texts = [f"{SECRET} {number}" for number in range(8)]
    argument, note, result, next_result, error, scheduled, unique, plain = texts
    with encrypting(tmp_path) as api:
        api.push(f"{queue}-plain", plain)
        api.configure(queue, encryptionEnabled=True)
        for _ in range(3):
            api.push(queue, {"task": "add", "arguments": argument, "resultTtl": 600})
        first, second, third = api.pop(queue, batch=3)
        progress = f"/messages/{first['partitionId']}/{first['transactionId']}/progress"
        read(api.post(progress, {"leaseId": first["leaseId"], "progress": 0.5, "note": note}))
        task = f"/messages/{first['partitionId']}/{first['transactionId']}/task"
        assert read(api.get(task))["note"] == note
        assert api.ack(first, task={"transactionId": first["transactionId"], "result": result})["success"]
        end = {"transactionId": second["transactionId"], "result": next_result}
        body = {"acknowledgments": [acknowledgment(second, task=end)]}
        assert api.post("/next", body, queue=f"{queue}-other").status_code == 200
        end = {"transactionId": third["transactionId"], "state": "failed"}
        assert api.ack(third, "dlq", error=error, task=end)["success"]
        [letter] = api.dead_letters(queue)
        assert (letter["errorMessage"], letter["data"]["arguments"]) == (error, argument)
        read(api.put(f"/schedules/{queue}", {"queue": queue, "every": 60, "payload": scheduled}), 201)
        read(api.post(f"/schedules/{queue}/run"), 201)
        for _ in range(2):
            api.push(queue, unique, uniqueKey="k")
        assert read(api.get(task))["result"] == result
        stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    stored += b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert [text for text in texts if text.encode() in stored] == [plain]


def test_a_task_from_its_push_to_its_result(api: Api, queue: str) -> None:
    message = pushed(api, queue)
    assert show(api, message) == {"state": "pending"}
    leased = api.pop_one(queue)
    progress = f"/messages/{message['partition_id']}/t/progress"
    body = {"leaseId": leased["leaseId"], "progress": 0.25, "note": "x" * 2000}
    assert read(api.post(progress, body)) == {"success": True}
    assert show(api, message) == {"state": "running", "progress": 0.25, "note": "x" * 1000}
    result = '{"big":12345678901234567890}'
    end = {"transactionId": "t", "state": "done", "resultTtl": 60}
    assert api.ack(leased, task=end | {"result": {"big": 12345678901234567890}})["success"]
    found = api.get(f"/messages/{message['partition_id']}/t/task", wait="true")
    assert found.headers["cache-control"] == "no-store"
    assert f'"result":{result}' in found.text.replace(" ", ""), "byte for byte"
    assert show(api, message, message["message_id"])["state"] == "done"
    assert refusal(api.post(progress, body), 409, "lease_lost")


def test_the_batch_stores_results_and_null_is_one(api: Api, queue: str) -> None:
    names = ["a", "b", "c"]
    messages = [api.push(queue, {"task": "t"}, transactionId=name)[0] for name in names]
    leased = api.pop(queue, batch=3)
    items = [
        acknowledgment(one) | {"task": {"transactionId": name, "state": "done", "resultTtl": 60, "result": result}}
        for one, name, result in zip(leased, names, ([1] * 5000, None, "x" * 10_000), strict=True)
    ]
    assert all(one["success"] for one in read(api.post("/ack/batch", {"acknowledgments": items})))
    assert [show(api, one, name)["result"] for one, name in zip(messages, names, strict=True)] == [
        [1] * 5000,
        None,
        "x" * 10_000,
    ]


@pytest.mark.parametrize(
    ("status", "task", "text"),
    [
        ("completed", {"state": "failed"}, "task.state: expected done or cancelled with the status completed"),
        ("failed", {"state": "done"}, "task.state: expected failed with the status failed"),
        ("retry", {"state": "failed"}, "task.state: expected no task with the status retry"),
        ("completed", {"state": "over"}, "task.state"),
        ("completed", {"state": "done", "resultTtl": 0}, "task.resultTtl: expected an integer from 1"),
        ("completed", {"state": "done", "transactionId": ""}, "task.transactionId"),
        ("completed", {"state": 7}, "task.state"),
        ("completed", "done", "task"),
    ],
)
def test_a_wrong_task_is_refused_and_settles_nothing(api: Api, queue: str, status: str, task: Json, text: str) -> None:
    message = pushed(api, queue)
    leased = api.pop_one(queue)
    if isinstance(task, dict):
        task = {"transactionId": "t", "resultTtl": 60} | task
    assert text in refusal(api.post("/ack", acknowledgment(leased, status) | {"task": task}), 400)
    assert text in refusal(
        api.post("/ack/batch", {"acknowledgments": [acknowledgment(leased, status) | {"task": task}]}), 400
    )
    assert show(api, message) == {"state": "running"}
    assert api.ack(leased)["success"]
    assert show(api, message) == {"state": "done"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"progress": 1.5}, "progress: expected a number from 0 to 1, got 1.5"),
        ({"progress": -0.1}, "progress: expected a number from 0 to 1"),
        ({"progress": "half"}, "progress"),
        ({"note": "\0"}, "note"),
        ({"progres": 0.5}, "unknown field `progres`"),
        ({"leaseId": 7}, "leaseId"),
        ({"leaseId": None}, "leaseId"),
    ],
)
def test_wrong_progress_is_refused_and_stores_nothing(api: Api, queue: str, body: Json, text: str) -> None:
    message = pushed(api, queue)
    leased = api.pop_one(queue)
    path = f"/messages/{message['partition_id']}/t/progress"
    assert text in refusal(api.post(path, {"leaseId": leased["leaseId"]} | body), 400)
    assert show(api, message) == {"state": "running"}


def test_what_is_unknown_is_not_found(api: Api, queue: str) -> None:
    message = pushed(api, queue)
    for partition, name in ((message["partition_id"], "other"), (UNKNOWN, "t"), ("no-id", "t")):
        refusal(api.get(f"/messages/{partition}/{name}/task"), 404, "message_not_found")
        refusal(api.get(f"/messages/{partition}/{name}/task", wait="true"), 404, "message_not_found")
    refusal(api.get(f"/messages/{message['partition_id']}/t/task", wait="perhaps"), 400)
    refusal(api.get(f"/messages/{message['partition_id']}/t/task", timeout="-1"), 400)
    assert show(api, message, id=message["message_id"], consumerGroup="never-asked") == {"state": "pending"}


def test_what_runs_is_cancelled_only_if_the_request_says_so(api: Api, queue: str) -> None:
    message = pushed(api, queue)
    leased = api.pop_one(queue)
    path = f"/messages/{message['message_id']}/cancel"
    assert "running=true" in refusal(api.post(path), 409, "message_leased")
    assert read(api.post(path, running="true")) == {"success": True, "id": message["message_id"], "cancelling": True}
    [renewal] = read(api.post("/lease/extend", {"leaseIds": [leased["leaseId"]]}))["results"]
    assert renewal["cancelled"] == [message["message_id"]]
    assert read(api.post(f"/lease/{leased['leaseId']}/extend"))["cancelled"] == [message["message_id"]]
    end = {"transactionId": "t", "state": "cancelled", "resultTtl": 60}
    assert api.ack(leased, task=end)["success"]
    assert show(api, message) == {"state": "cancelled"}
    refusal(api.post(path, running="true"), 409, "message_settled")
    refusal(api.post(f"/messages/{UNKNOWN}/cancel", running="true"), 404, "message_not_found")


def test_a_requeued_task_of_any_route_is_waited_for(api: Api, queue: str) -> None:
    payload = {"task": "add", "transactionId": "t", "resultTtl": 60}
    [message] = api.push(queue, payload, transactionId="t")
    first = message["message_id"]
    for requeue in ("one", "many", "keyval"):
        api.ack(api.pop_one(queue), "dlq", error="no fuel")
        assert show(api, message, id=first)["state"] == "failed"
        [letter] = api.dead_letters(queue)
        match requeue:
            case "one":
                read(api.post(f"/dlq/{letter['deadLetterId']}/requeue"))
            case "many":
                read(api.post("/dlq/requeue", {"ids": [letter["deadLetterId"]]}))
            case _:
                found = api.client.post(
                    f"/keyval/api/queue/dlq/{letter['deadLetterId']}/requeue", params={"queue": queue}
                )
                assert found.status_code == 200, found.text
        assert show(api, message, id=first)["state"] == "pending"
    leased = api.pop_one(queue)
    api.ack(leased, task={"transactionId": "t", "state": "done", "resultTtl": 60, "result": 3})
    assert show(api, message, id=first) == {"state": "done", "result": 3}


async def test_a_wait_ends_with_the_result_or_with_its_time_or_when_its_client_leaves(hark_server: HarkServer) -> None:
    async with httpx.AsyncClient(base_url=hark_server.url, timeout=60) as client:
        answer = await client.post("/api/v1/push", json={"items": [{"queue": "q", "payload": 1, "transactionId": "t"}]})
        [message] = answer.json()
        path = f"/api/v1/messages/{message['partition_id']}/t/task"

        async def wait(timeout_ms: int = 3_600_000) -> httpx.Response:
            return await client.get(path, params={"wait": "true", "timeout": min(timeout_ms, 600_000)})

        def watchers() -> int:
            async def count() -> int:
                return len(hark_server._thread.broker.keyvalue.watchers)

            return hark_server._thread.call(count)

        async def until(number: int) -> None:
            async with asyncio.timeout(60):
                while await asyncio.to_thread(watchers) != number:  # noqa: ASYNC110  # It is another thread's.
                    await asyncio.sleep(0.01)

        waiting = [asyncio.create_task(wait()) for _ in range(2)]
        await until(2)
        waiting.pop().cancel()
        await until(1)
        late = asyncio.create_task(wait(1000))
        await until(2)
        await asyncio.to_thread(hark_server.clock.advance, 1)
        assert (await late).json() == {"state": "pending"}
        [leased] = (await client.get("/api/v1/pop/queue/q")).json()["messages"]
        body = acknowledgment(leased) | {"task": {"transactionId": "t", "state": "done", "resultTtl": 9, "result": 7}}
        await client.post("/api/v1/ack", json=body)
        assert (await waiting[0]).json() == {"state": "done", "result": 7}
        await until(0)
