"""POST /transaction: both forms of operations, writes of keys beside them, all or nothing, refusals in the answer."""

from __future__ import annotations

from typing import Any

from tests.http.api import Api, Json, acknowledgment, data, read, refusal

UNKNOWN_LEASE = "0199aaaa-bbbb-7ccc-8ddd-eeeeffff0000"


def ack(message: Json, status: str = "completed", **fields: Any) -> Json:
    """The operation that settles a message without naming its lease, as old clients send it."""
    return {
        "type": "ack",
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "status": status,
    } | fields


def push(queue: str, *payloads: Json, **fields: Any) -> Json:
    """The operation that pushes items."""
    return {"type": "push", "items": [{"queue": queue, "payload": payload} | fields for payload in payloads]}


def test_an_ack_and_pushes_happen_together(api: Api, queue: str) -> None:
    out = f"{queue}-out"
    api.push(queue, "in", transactionId="t1")
    message = api.pop_one(queue)
    answer = api.transact(ack(message, leaseId=message["leaseId"]), push(out, 1, 2, transactionId="t7"), push(out, 3))
    assert answer["success"] is True
    assert answer["transactionId"]
    assert "error" not in answer
    acked, first, duplicate, third = answer["results"]
    assert acked == {"index": 0, "type": "ack", "success": True, "transactionId": "t1", "error": None, "dlq": False}
    assert first.pop("messageId") == duplicate["messageId"]
    assert first.pop("partitionId")
    assert first == {
        "index": 1,
        "type": "push",
        "success": True,
        "status": "queued",
        "transactionId": "t7",
        "queueName": out,
    }
    assert (duplicate["index"], duplicate["success"], duplicate["status"]) == (2, True, "duplicate")
    assert (third["index"], third["status"]) == (3, "queued")
    assert api.pop(queue) == []
    assert data(api.pop(out, batch=10)) == [1, 3]


def test_a_push_may_be_written_flat_and_its_missing_payload_is_an_object(api: Api, queue: str) -> None:
    answer = api.transact(
        {"type": "push", "queue": queue, "partition": "p", "payload": 1, "transactionId": "t"},
        {"type": "push", "queue": queue, "partition": "p"},
    )
    assert answer["success"]
    assert data(api.pop(queue, "p", batch=10)) == [1, {}]


def test_a_refused_ack_undoes_the_pushes_and_the_other_acks(api: Api, queue: str) -> None:
    api.push(queue, 1, 2)
    messages = api.pop(queue, batch=2)
    missing = ack(messages[1]) | {"transactionId": "unknown"}
    answer = api.transact(push(f"{queue}-out", 1), ack(messages[0]), missing)
    assert answer["success"] is False
    assert answer["error"] == "ACK operation failed: Message not found"
    assert answer["code"] == "not_found"
    assert answer["transactionId"]
    assert isinstance(answer["results"], list)
    refusal(api.get(f"/resources/queues/{queue}-out"), 404)
    assert api.ack(messages[0], "failed")["success"]
    assert data(api.pop(queue, batch=10)) == [1, 2]


def test_leases_count_whether_they_are_named_required_or_neither(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    answer = api.transact(ack(message, leaseId=UNKNOWN_LEASE), push(queue, 2))
    assert (answer["success"], answer["code"]) == (False, "lease_invalid")
    assert not api.transact(ack(message), requiredLeases=[UNKNOWN_LEASE])["success"]
    api.ack(message, "retry")
    assert not api.transact(ack(message))["success"], "without any lease the message must be held"
    again = api.pop_one(queue)
    assert api.transact(ack(message), requiredLeases=[again["leaseId"]])["success"]
    assert api.pop(queue) == []


def test_acks_of_other_groups_name_their_group_and_count_as_elsewhere(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue, consumerGroup="g")
    assert not api.transact(ack(message))["success"]
    assert api.transact(ack(message, "failed", error="boom", consumerGroup="g"))["success"]
    again = api.pop_one(queue, consumerGroup="g")
    assert again["deliveryAttempt"] == 2
    [result] = api.transact(ack(again, "dlq", error="boom", consumerGroup="g"))["results"]
    assert result["dlq"] is True
    assert [letter["errorMessage"] for letter in api.dead_letters(queue)] == ["boom"]


# Keys ----------------------------------------------------------------------------------------------------


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


def test_whatever_is_refused_undoes_keys_messages_and_settlements(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    assert api.transact(kv=kv(put(queue, "text", "c")))["success"]
    settle = {"type": "ack"} | acknowledgment(message)
    checks = [{"key": [queue, "b"], "versionstamp": None}, {"key": [queue, "a"], "versionstamp": "1".zfill(20)}]
    mutation = {"type": "sum", "key": [queue, "c"], "value": 1}
    for operation, rider, code, path in (
        (settle, kv(put(queue, 1), checks=checks), "check_failed", "checks[1]"),
        (settle | {"leaseId": UNKNOWN_LEASE}, kv(put(queue, 1)), "lease_invalid", ""),
        (settle, kv(put(queue, 1), mutation), "value_mismatch", "mutations[1]"),
    ):
        answer = api.transact(operation, {"type": "push", "queue": f"{queue}-out"}, kv=rider)
        assert (answer["success"], answer["code"], answer["kv"]) == (False, code, {"ok": False})
        assert path in answer["error"]
        assert value(api, queue, "a") is None
        refusal(api.get(f"/resources/queues/{queue}-out"), 404)
    assert api.ack(message)["success"]


def test_operations_may_be_empty_beside_keys_and_without_keys_nothing_is_stated_of_them(api: Api, queue: str) -> None:
    riders: list[dict[str, Any]] = [{}, {"kv": None}, {"kv": []}, {"timers": []}, {"timers": None}]
    for nothing in riders:
        assert "kv" not in api.transact({"type": "push", "queue": queue}, **nothing)
    answer = api.transact(kv=kv(put(queue, 1)))
    assert (answer["success"], answer["results"], answer["kv"]["ok"]) == (True, [], True)
    assert value(api, queue, "a") == 1
