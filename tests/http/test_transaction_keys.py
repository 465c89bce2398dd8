"""POST /transaction with `kv`: writes of the key-value store that happen with pushes and settlements, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.api import Api, Json, acknowledgment, data, read, refusal


def value(api: Api, *key: str) -> Json:
    """What is stored under a key of texts; None: nothing."""
    response = api.client.get(f"/keyval/api/keys/{'/'.join(key)}")
    return None if response.status_code == 404 else read(response)["value"]


def kv(*mutations: Json, checks: list[Json] | None = None) -> Json:
    """The rider of a transaction."""
    return {"checks": checks or [], "mutations": list(mutations)}


def put(queue: str, what: Json, name: str = "a") -> Json:
    """A mutation that sets a key of this test."""
    return {"type": "set", "key": [queue, name], "value": what}


def test_keys_are_written_with_an_ack_and_a_push(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    answer = api.transact(
        {"type": "ack"} | acknowledgment(message),
        {"type": "push", "queue": f"{queue}-out", "payload": 2},
        kv=kv(put(queue, {"n": 1}), {"type": "sum", "key": [queue, "b"], "value": 5}),
    )
    assert (answer["success"], len(answer["results"])) == (True, 2)
    assert answer["kv"]["ok"] is True
    entry = read(api.client.get(f"/keyval/api/keys/{queue}/a"))
    assert (entry["value"], entry["versionstamp"]) == ({"n": 1}, answer["kv"]["versionstamp"])
    assert value(api, queue, "b") == 5
    assert data(api.pop(f"{queue}-out")) == [2]
    assert api.pop(queue) == []


def test_a_check_that_fails_undoes_everything(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    checks = [{"key": [queue, "b"], "versionstamp": None}, {"key": [queue, "a"], "versionstamp": "1".zfill(20)}]
    answer = api.transact(
        {"type": "ack"} | acknowledgment(message),
        {"type": "push", "queue": f"{queue}-out"},
        kv=kv(put(queue, 1), checks=checks),
    )
    assert (answer["success"], answer["code"], answer["kv"]) == (False, "check_failed", {"ok": False})
    assert "checks[1]" in answer["error"]
    assert value(api, queue, "a") is None
    refusal(api.get(f"/resources/queues/{queue}-out"), 404)
    assert api.ack(message)["success"]


def test_an_ack_that_is_refused_undoes_the_keys(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    foreign = {"leaseId": "0199aaaa-bbbb-7ccc-8ddd-eeeeffff0000"}
    answer = api.transact({"type": "ack"} | acknowledgment(message) | foreign, kv=kv(put(queue, 1)))
    assert (answer["success"], answer["code"], answer["kv"]) == (False, "lease_invalid", {"ok": False})
    assert value(api, queue, "a") is None


def test_what_does_not_fit_the_stored_value_undoes_everything(api: Api, queue: str) -> None:
    assert api.transact(kv=kv(put(queue, "text")))["success"]
    mutation = {"type": "sum", "key": [queue, "a"], "value": 1}
    answer = api.transact({"type": "push", "queue": f"{queue}-out"}, kv=kv(put(queue, 1, "b"), mutation))
    assert (answer["success"], answer["code"]) == (False, "value_mismatch")
    assert "mutations[1]" in answer["error"]
    assert value(api, queue, "b") is None
    refusal(api.get(f"/resources/queues/{queue}-out"), 404)


def test_operations_may_be_empty_beside_keys(api: Api, queue: str) -> None:
    answer = api.transact(kv=kv(put(queue, 1)))
    assert (answer["success"], answer["results"], answer["kv"]["ok"]) == (True, [], True)
    assert value(api, queue, "a") == 1


def test_without_kv_the_answer_says_nothing_of_it(api: Api, queue: str) -> None:
    riders: list[dict[str, Any]] = [{}, {"kv": None}, {"kv": []}, {"timers": []}, {"timers": None}]
    for nothing in riders:
        assert "kv" not in api.transact({"type": "push", "queue": queue}, **nothing)


@pytest.mark.parametrize(
    ("rider", "text"),
    [
        ({"kv": 5}, "kv: expected an object or an array, got an integer"),
        ({"kv": "x"}, "kv: expected an object or an array, got a string"),
        ({"kv": {}}, "kv.mutations: is required"),
        ({"kv": {"mutations": [{"key": ["a"]}]}}, "kv.mutations[0].type: is required"),
        ({"kv": {"mutations": [{"type": "enqueue", "value": 1}]}}, "kv.mutations[0].type: push messages with"),
        ({"kv": {"mutations": [{"type": "jump", "key": ["a"]}]}}, "kv.mutations[0].type: "),
        ({"kv": {"mutations": [{"type": "set", "key": [], "value": 1}]}}, "kv.mutations[0].key: "),
        ({"kv": {"mutations": [], "checks": [{"key": "a", "versionstamp": None}]}}, "kv.checks[0].key: "),
    ],
)
def test_wrong_keys_are_refused_by_name_and_nothing_is_stored(
    api: Api, queue: str, rider: dict[str, Any], text: str
) -> None:
    body = {"operations": [{"type": "push", "queue": queue}]} | rider
    assert refusal(api.post("/transaction", body), 400, "invalid_input").startswith(text)
    refusal(api.get(f"/resources/queues/{queue}"), 404)


@pytest.mark.parametrize(
    ("rider", "text"),
    [
        ({"kv": [{"op": "put", "key": "a"}]}, "kv: expected an object with checks and mutations"),
        ({"timers": [{"op": "schedule"}]}, "timers: this server has none; push with delay or deliverAt"),
    ],
)
def test_riders_that_are_not_supported_are_refused_not_dropped(
    api: Api, queue: str, rider: dict[str, Any], text: str
) -> None:
    body = {"operations": [{"type": "push", "queue": queue}]} | rider
    assert refusal(api.post("/transaction", body), 501, "not_supported").startswith(text)
    refusal(api.get(f"/resources/queues/{queue}"), 404)
