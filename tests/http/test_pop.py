"""GET /pop and its forms: the answer's shape, its parameters, groups and waiting."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.http.api import Api, data, read, refusal


def test_the_answer_has_the_contracts_shape(api: Api, queue: str) -> None:
    trace = "0199aaaa-bbbb-4ccc-8ddd-eeeeffff0000"
    [pushed] = api.push(queue, {"n": 1}, partition="p1", transactionId="t1", traceId=trace)
    answer = read(api.try_pop(queue))
    [message] = answer.pop("messages")
    lease, partition_id = answer.pop("leaseId"), answer.pop("partitionId")
    assert lease
    assert answer == {
        "success": True,
        "queue": queue,
        "partition": "p1",
        "consumerGroup": "__QUEUE_MODE__",
        "partitionsClaimed": 1,
    }
    created = message.pop("createdAt")
    assert len(created) == len("2026-01-02T03:04:05.678901Z")
    assert created.endswith("Z")
    assert partition_id == pushed["partition_id"]
    expected = {
        "id": pushed["message_id"],
        "transactionId": "t1",
        "traceId": trace,
        "data": {"n": 1},
        "producerSub": None,
        "partitionId": partition_id,
        "partition": "p1",
        "leaseId": lease,
        "consumerGroup": "__QUEUE_MODE__",
    }
    assert {name: message[name] for name in expected} == expected


def test_an_unknown_queue_or_partition_is_empty_and_not_an_error(api: Api, queue: str) -> None:
    assert api.pop(queue) == []
    assert api.pop(queue, "p") == []
    refusal(api.get(f"/resources/queues/{queue}"), 404)


def test_batch_bounds_the_number_of_messages(api: Api, queue: str) -> None:
    api.push(queue, 1, 2, 3)
    assert data(api.pop(queue)) == [1]
    other = api.pop(queue, consumerGroup="g", batch=2)
    assert data(other) == [1, 2]


def test_a_leased_partition_is_empty_for_its_group_only(api: Api, queue: str) -> None:
    api.push(queue, 1, 2)
    assert len(api.pop(queue)) == 1
    assert api.pop(queue) == []
    assert api.pop(queue, "Default") == []
    assert data(api.pop(queue, consumerGroup="other", batch=10)) == [1, 2]


def test_one_partition_can_be_asked_for(api: Api, queue: str) -> None:
    api.push(queue, "a", partition="pa")
    api.push(queue, "b", partition="pb")
    assert data(api.pop(queue, "pb", batch=10)) == ["b"]


def test_partitions_share_one_lease_and_one_batch(api: Api, queue: str) -> None:
    for name in ("p1", "p2", "p3"):
        api.push(queue, name, name, partition=name)
    answer = read(api.try_pop(queue, batch=5, partitions=3))
    messages = answer["messages"]
    assert len(messages) == 5
    assert answer["partitionsClaimed"] == 3
    assert {message["leaseId"] for message in messages} == {answer["leaseId"]}
    assert {message["partition"] for message in messages} == {"p1", "p2", "p3"}
    assert len({message["partitionId"] for message in messages}) == 3


def test_auto_ack_settles_at_delivery_without_a_lease(api: Api, queue: str) -> None:
    api.push(queue, 1, 2)
    answer = read(api.try_pop(queue, batch=10, autoAck=True))
    assert answer["leaseId"] == ""
    assert [message["leaseId"] for message in answer["messages"]] == ["", ""]
    api.push(queue, 3)
    assert data(api.pop(queue, batch=10)) == [3]


def test_a_queue_can_be_named_by_parameter(api: Api, queue: str) -> None:
    api.push(queue, 1, partition="p")
    [message] = read(api.get("/pop", queue=queue))["messages"]
    assert (message["data"], message["queue"]) == (1, queue)


def test_pop_by_namespace_and_task_goes_over_queues(api: Api, queue: str) -> None:
    api.push(f"{queue}.t1.a", "a")
    api.push(f"{queue}.t2.b", "b")
    [by_task] = read(api.get("/pop", namespace=queue, task="t2"))["messages"]
    assert (by_task["data"], by_task["queue"]) == ("b", f"{queue}.t2.b")
    [rest] = read(api.get("/pop", namespace=queue))["messages"]
    assert rest["data"] == "a"
    assert api.get("/pop", namespace=queue).status_code == 204


def test_a_pop_must_say_of_what(api: Api) -> None:
    refusal(api.get("/pop"), 400, "invalid_input")


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"batch": "x"}, "batch"),
        ({"batch": "0"}, "batch"),
        ({"batch": "-1"}, "batch"),
        ({"batch": "1.5"}, "batch"),
        ({"batch": "10001"}, "batch"),
        ({"batch": "9" * 30}, "batch"),
        ({"consumerPriority": "1001"}, "consumerPriority"),
        ({"consumerPriority": "-1001"}, "consumerPriority"),
        ({"consumerPriority": "high"}, "consumerPriority"),
        ({"partitions": "0"}, "partitions"),
        ({"partitions": "x"}, "partitions"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": "-1"}, "timeout"),
        ({"wait": "maybe"}, "wait"),
        ({"autoAck": "maybe"}, "autoAck"),
        ({"consumerGroup": "x" * 256}, "consumerGroup"),
        ({"consumerGroup": "a\0b"}, "consumerGroup"),
        ({"groupMode": "chaotic"}, "groupMode"),
        ({"leaseTime": "0"}, "leaseTime"),
        ({"leaseTime": "-1"}, "leaseTime"),
        ({"leaseTime": "1.5"}, "leaseTime"),
        ({"leaseTime": ""}, "leaseTime"),
        ({"leaseTime": "315360001"}, "leaseTime"),
        ({"subscriptionFrom": "whenever"}, "subscriptionFrom"),
    ],
)
def test_a_wrong_parameter_is_named_and_leases_nothing(
    api: Api, queue: str, query: dict[str, str], parameter: str
) -> None:
    api.push(queue, 1)
    assert refusal(api.try_pop(queue, **query), 400).startswith(parameter)
    assert len(api.pop(queue)) == 1


def lease_seconds(api: Api, message: Any) -> float:
    """How long a delivered message is held, seen from now on."""
    until = datetime.fromisoformat(api.show(message)["leaseExpiresAt"])
    return (until - datetime.now(UTC)).total_seconds()


def test_a_lease_time_may_be_ten_years(api: Api, queue: str) -> None:
    api.push(queue, 1)
    assert lease_seconds(api, api.pop_one(queue, leaseTime=315_360_000)) > 315_350_000


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_a_consumer_may_say_how_long_it_holds_what_it_gets(api: Api, queue: str, mode: str) -> None:
    api.configure(queue, leaseTime=60)
    api.push(queue, 1)
    asked = api.pop_one(queue, consumerGroup="asks", groupMode=mode, leaseTime=5000)
    assert 4000 < lease_seconds(api, asked) < 6000
    other = api.pop_one(queue, consumerGroup="does-not", groupMode=mode)
    held = read(api.post(f"/lease/{other['leaseId']}/extend", {"seconds": 1}))["expiresAt"]
    assert (datetime.fromisoformat(held) - datetime.now(UTC)).total_seconds() < 61


def test_a_short_lease_time_ends_before_the_queue_s_would(api: Api, queue: str) -> None:
    api.configure(queue, leaseTime=300)
    api.push(queue, 1)
    api.pop_one(queue, leaseTime=1)
    again = api.pop_one(queue, wait=True, timeout=20_000)
    assert again["deliveryAttempt"] == 2


def test_the_lock_duration_of_a_work_queue_counts_instead_of_a_lease_time(api: Api, queue: str) -> None:
    path = f"/keyval/api/queue/settings?queue={queue}"
    api.push(queue, 1)
    assert api.client.put(path, json={"lockDuration": 5_000_000}).status_code == 200
    assert 4000 < lease_seconds(api, api.pop_one(queue, leaseTime=60)) < 6000


def test_unknown_parameters_are_ignored(api: Api, queue: str) -> None:
    api.push(queue, 1)
    assert len(api.pop(queue, frames=True, namespace="n", task="t", whatever="1")) == 1


def test_a_waiting_pop_is_woken_by_a_push(api: Api, queue: str) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(api.pop, queue, wait=True, timeout=20_000)
        api.push(queue, "news")
        assert data(waiting.result()) == ["news"]


def test_a_waiting_pop_ends_empty_when_its_time_is_up(api: Api, queue: str) -> None:
    assert api.pop(queue, wait=True, timeout=30) == []


def test_a_waiting_pop_is_woken_by_a_nack(api: Api, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(api.pop, queue, wait=True, timeout=20_000)
        api.ack(message, "failed", error="again")
        [again] = waiting.result()
    assert (again["id"], again["deliveryAttempt"]) == (message["id"], 2)


def test_a_client_that_leaves_while_it_waits_takes_nothing_with_it(api: Api, server_url: str, queue: str) -> None:
    address = urlsplit(server_url)
    assert address.hostname is not None
    assert address.port is not None
    for _ in range(20):
        with socket.create_connection((address.hostname, address.port)) as connection:
            head = f"GET /api/v1/pop/queue/{queue}?wait=true&timeout=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            connection.sendall(head.encode())
        api.push(queue, "kept")
        message = api.pop_one(queue, wait=True, timeout=20_000)
        assert (message["data"], message["deliveryAttempt"]) == ("kept", 1)
        api.ack(message)


def test_autopilot_takes_up_to_200(api: Api, queue: str) -> None:
    api.push(queue, *range(201))
    assert len(api.pop(queue, autopilot=True)) == 200


class TestGroups:
    """Groups: where they start, and how they share."""

    def test_each_group_sees_every_message(self, api: Api, queue: str) -> None:
        api.push(queue, 1)
        for group in ("a", "b", "__QUEUE_MODE__"):
            assert data(api.pop(queue, consumerGroup=group)) == [1]

    def test_new_starts_after_the_first_contact_even_an_empty_one(self, api: Api, queue: str) -> None:
        api.push(queue, "old")
        assert api.pop(queue, consumerGroup="g", subscriptionMode="new") == []
        api.push(queue, "new")
        assert data(api.pop(queue, consumerGroup="g", batch=10)) == ["new"]

    def test_now_is_another_word_for_new(self, api: Api, queue: str) -> None:
        api.push(queue, "old")
        assert api.pop(queue, consumerGroup="g", subscriptionFrom="now") == []
        api.push(queue, "new")
        assert data(api.pop(queue, consumerGroup="g", batch=10)) == ["new"]

    def test_a_timestamp_starts_after_that_time(self, api: Api, queue: str) -> None:
        api.push(queue, "old")
        created = api.pop_one(queue, consumerGroup="look")["createdAt"]
        api.push(queue, "new")
        assert data(api.pop(queue, consumerGroup="g", subscriptionFrom=created, batch=10)) == ["new"]
