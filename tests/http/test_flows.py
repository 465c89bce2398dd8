"""The routes of flows: what is refused, what a repeated or refused acknowledgement does, encryption and deletion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.http.api import Api, Json, acknowledgment, read, refusal
from tests.http.test_options import SECRET, encrypting


def step(queue: str, task: str = "t", **fields: Any) -> Json:
    """A step as it is sent."""
    return {"queue": queue, "payload": {"task": task}} | fields


def push(api: Api, *steps: Json, **fields: Any) -> Json:
    """Push a flow; the answer."""
    return read(api.post("/flows", {"steps": list(steps)} | fields), 201)


def show(api: Api, flow: Json, **query: Any) -> Json:
    """The state of a flow."""
    return read(api.get(f"/flows/{flow['queue']}/{flow['id']}", **query))


def states(api: Api, flow: Json) -> dict[str, str]:
    """The state of each step."""
    return {one["path"]: one["state"] for one in show(api, flow)["steps"]}


def end(message: Json, result: Json = None, state: str = "done") -> Json:
    """What a worker says of a step that is done."""
    flow = message["data"]["flow"]
    return {"transactionId": message["transactionId"], "state": state, "result": result, "flow": flow}


def test_a_step_gets_the_result_of_the_one_before_and_the_last_one_ends_the_flow(api: Api, queue: str) -> None:
    flow = push(api, step(queue, "a"), step(queue, "b", priority=7), step(queue, "c", takesResult=False))
    assert (flow["status"], flow["queue"]) == ("queued", queue)
    first = api.pop_one(queue)
    assert "input" not in first["data"]
    assert states(api, flow) == {"0": "running", "1": "waiting", "2": "waiting"}
    api.ack(first, task=end(first, {"n": 12345678901234567890}))
    second = api.pop_one(queue)
    assert (second["data"]["task"], second["data"]["input"], second["priority"]) == (
        "b",
        {"n": 12345678901234567890},
        7,
    )
    api.ack(second, task=end(second))
    third = api.pop_one(queue)
    assert "input" not in third["data"]
    api.ack(third, task=end(third, "ready"))
    done = show(api, flow, wait=True)
    assert (done["state"], done["result"]) == ("done", "ready")
    assert set(states(api, flow).values()) == {"done"}
    assert read(api.post(f"/flows/{queue}/{flow['id']}/cancel")) == {"success": False}


def test_a_repeated_acknowledgement_pushes_nothing_again(api: Api, queue: str) -> None:
    api.configure(queue, dropSettled=True)  # So that the store forgets the transaction id at once.
    push(api, step(queue, "a"), step(queue, "b"))
    first = api.pop_one(queue)
    for _ in range(2):
        assert api.ack(first, transactionId=first["id"], task=end(first, 1))["success"]
    second = api.pop_one(queue)
    assert api.ack(second, task=end(second, 2))["success"]
    assert api.ack(first, transactionId=first["id"], task=end(first, 1))["success"]
    assert api.pop(queue) == []


def test_members_settled_together_are_counted_once_and_a_refused_one_alone_is_not(api: Api, queue: str) -> None:
    flow = push(api, {"group": [[step(queue, f"m{number}")] for number in range(4)]}, step(queue, "all"))
    members = [api.pop_one(queue, groupMode="shared") for _ in range(4)]
    items = [acknowledgment(one, task=end(one, one["data"]["task"])) for one in members]
    wrong = items[2] | {"leaseId": "another"}
    answers = read(api.post("/ack/batch", {"acknowledgments": [items[0], items[0], wrong, items[1]]}))
    assert [answer["success"] for answer in answers] == [True, True, False, True]
    assert answers[2]["code"] == "lease_invalid"
    assert {states(api, flow)[f"0.{number}"] for number in (0, 1)} == {"done"}
    assert {states(api, flow)[f"0.{number}"] for number in (2, 3)} == {"running"}
    answers = read(api.post("/ack/batch", {"acknowledgments": [items[3], items[2], items[0]]}))
    assert [answer["success"] for answer in answers] == [True, True, True]
    [last] = api.pop(queue, groupMode="shared")
    assert last["data"]["input"] == ["m0", "m1", "m2", "m3"]


def test_a_full_queue_refuses_the_acknowledgement_and_changes_nothing(api: Api, queue: str) -> None:
    other = f"{queue}-full"
    api.configure(other, maxSize=1)
    api.push(other, 1)
    flow = push(api, step(queue), step(other))
    message = api.pop_one(queue)
    refusal(api.post("/ack", acknowledgment(message, task=end(message, 1))), 429, "queue_full")
    assert states(api, flow) == {"0": "running", "1": "waiting"}
    api.pop_one(other, autoAck=True)
    read(api.post(f"/resources/queues/{other}/purge"))
    assert api.ack(message, task=end(message, 1))["success"]
    assert states(api, flow) == {"0": "done", "1": "pending"}


def test_the_flow_ends_with_its_queue(api: Api, queue: str) -> None:
    other = f"{queue}-other"
    flow = push(api, step(queue), step(other), step(other))
    first = api.pop_one(queue)
    api.ack(first, task=end(first))
    second = api.pop_one(other)
    read(api.delete(f"/resources/queues/{queue}"))
    refusal(api.get(f"/flows/{queue}/{flow['id']}"), 404, "flow_not_found")
    assert api.ack(second, task=end(second))["success"]
    assert api.pop(other) == []


def test_a_message_of_another_queue_is_no_step(api: Api, queue: str) -> None:
    flow = push(api, step(queue), step(queue))
    other = f"{queue}-other"
    api.push(other, 1)
    message = api.pop_one(other)
    ref = {"queue": queue, "id": flow["id"], "path": "0"}
    forged = {"transactionId": message["transactionId"], "state": "done", "result": 1, "flow": ref}
    assert api.ack(message, task=forged)["success"]
    assert states(api, flow) == {"0": "pending", "1": "waiting"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"steps": []}, "steps: expected at least one step"),
        ({"steps": [{"group": []}]}, "steps[0].group: expected at least one member"),
        ({"steps": [{"group": [[]]}]}, "steps[0].group[0]: expected at least one step"),
        ({"steps": [{"queue": "q", "payload": 5}]}, "steps[0].payload"),
        ({"steps": [{"queue": "q", "payload": {"n": 1}}]}, "steps[0].payload: expected a task"),
        ({"steps": [{"queue": "", "payload": {"task": "t"}}]}, "steps[0].queue"),
        ({"steps": [step("q"), {"group": [[step("q", delay=-1)]]}]}, "steps[1].group[0][0].delay"),
        (
            {"steps": [step("q") | {"group": [[step("q")]]}]},
            "steps[0]: expected either a group or the fields of a step",
        ),
        (
            {"steps": [{"group": [[step("q")]], "delay": 5}]},
            "steps[0]: expected either a group or the fields of a step",
        ),
        ({"steps": [step("q", uniqueKey="k")]}, "steps[0]: object contains unknown field `uniqueKey`"),
        ({"steps": [step("q")], "resultTTL": 5}, "unknown field `resultTTL`"),
        ({"steps": [step("q")], "resultTtl": 0}, "resultTtl"),
        ({"steps": [step("q")], "id": "ü" * 101}, "id: expected at most 200 bytes of UTF-8, got 202"),
    ],
)
def test_wrong_flows_are_refused_by_name(api: Api, body: Json, text: str) -> None:
    assert text in refusal(api.post("/flows", body), 400)


def test_a_flow_with_an_encrypted_queue_is_unreadable_at_rest(tmp_path: Path, queue: str) -> None:
    secret = f"{queue}-secret"
    with encrypting(tmp_path) as api:
        api.configure(secret, encryptionEnabled=True)
        hidden = {"queue": secret, "payload": {"task": "t", "arguments": {"text": SECRET}}}
        flow = push(api, {"group": [[step(queue)], [hidden]]}, hidden)
        plain, covered = api.pop_one(queue), api.pop_one(secret)
        assert covered["data"]["arguments"] == {"text": SECRET}
        api.ack(plain, task=end(plain, 1))
        api.ack(covered, task=end(covered, SECRET))
        last = api.pop_one(secret)
        assert last["data"]["input"] == [1, SECRET]
        api.ack(last, task=end(last, SECRET))
        assert show(api, flow)["result"] == SECRET
    assert [path.name for path in tmp_path.iterdir() if SECRET.encode() in path.read_bytes()] == []
