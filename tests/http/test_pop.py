"""GET /pop and its forms: the answer's shape, its parameters, groups, waiting, and clients that leave."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from hark.http.responses import Event, send_if_there
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


def test_batch_and_partitions_bound_what_comes_under_one_lease_and_one_partition_can_be_named(
    api: Api, queue: str
) -> None:
    for name in ("p1", "p2", "p3"):
        api.push(queue, name, name, partition=name)
    assert data(api.pop(queue, "p2", batch=10, consumerGroup="g")) == ["p2", "p2"]
    assert api.pop(queue, "p2", consumerGroup="g") == [], "it is leased"
    assert len(api.pop(queue, consumerGroup="h")) == 1
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


@pytest.mark.parametrize("path", ["/pop", "/status", "/status/analytics"])
@pytest.mark.parametrize("name", ["namespace", "task"])
def test_labels_are_checked_beside_a_queue_that_makes_them_superfluous(api: Api, path: str, name: str) -> None:
    response = api.get(path, **{"queue": "q", name: "x" * 256})
    assert refusal(response, 400).startswith(f"{name}: must be at most 255 bytes")


@pytest.mark.parametrize(
    ("path", "wrong", "other"),
    [
        ("/pop", {"leaseSeconds": 0}, {"queue": "q", "leaseTime": 5}),
        ("/pop", {"partition": "x" * 256}, {"namespace": "n"}),
        ("/pop", {"subscriptionMode": "some"}, {"queue": "q", "subscriptionFrom": "2026-01-02T00:00:00Z"}),
        ("/messages", {"namespace": "x" * 256}, {"ns": "n"}),
    ],
)
def test_a_parameter_is_checked_beside_another_that_makes_it_superfluous(
    api: Api, path: str, wrong: dict[str, object], other: dict[str, object]
) -> None:
    [name] = wrong
    assert refusal(api.get(path, **wrong, **other), 400).startswith(f"{name}: ")


def test_pop_by_namespace_and_task_goes_over_queues(api: Api, queue: str) -> None:
    refusal(api.get("/pop"), 400, "invalid_input")
    api.push(queue, 1, partition="p")
    [by_name] = read(api.get("/pop", queue=queue))["messages"]
    assert (by_name["data"], by_name["queue"]) == (1, queue)
    api.push(f"{queue}.t1.a", "a")
    api.push(f"{queue}.t2.b", "b")
    [by_task] = read(api.get("/pop", namespace=queue, task="t2"))["messages"]
    assert (by_task["data"], by_task["queue"]) == ("b", f"{queue}.t2.b")
    [rest] = read(api.get("/pop", namespace=queue))["messages"]
    assert rest["data"] == "a"
    assert api.get("/pop", namespace=queue).status_code == 204


def test_a_wrong_parameter_leases_nothing_and_unknown_ones_are_ignored(api: Api, queue: str) -> None:
    api.push(queue, 1)
    refusal(api.try_pop(queue, batch=0), 400)
    assert len(api.pop(queue, frames=True, namespace="n", task="t", whatever="1")) == 1, "nothing was leased"


def test_a_waiting_pop_is_woken_by_a_push(api: Api, queue: str) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(api.pop, queue, wait=True, timeout=20_000)
        api.push(queue, "news")
        assert data(waiting.result()) == ["news"]


def test_a_waiting_pop_ends_empty_when_its_time_is_up(api: Api, queue: str) -> None:
    assert api.pop(queue, wait=True, timeout=30) == []


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


def test_a_group_starts_after_its_first_contact_or_a_time_if_it_says_so(api: Api, queue: str) -> None:
    api.push(queue, "old")
    created = api.pop_one(queue, consumerGroup="look")["createdAt"]
    starts = ({"subscriptionMode": "new"}, {"subscriptionFrom": "now"}, {"subscriptionFrom": created})
    for number, start in enumerate(starts):
        assert api.pop(queue, consumerGroup=f"g{number}", **start) == []
    api.push(queue, "new")
    for number in range(3):
        assert data(api.pop(queue, consumerGroup=f"g{number}", batch=10)) == ["new"]


# Clients that leave while their answer is on its way -------------------------------------------------------

PART = 256 * 1024


class Connection:
    """A connection that fails at a write, as event loops do it: the write returns, and they tell in their next turn."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.written: list[bytes] = []
        self.complete = False
        self._fails_at = fails_at
        self.left = asyncio.Event()

    async def send(self, event: Event) -> None:
        """Write a part of the answer; without waiting, as long as the buffers of the system take it."""
        if event["type"] != "http.response.body":
            return
        if len(self.written) == self._fails_at:
            asyncio.get_running_loop().call_soon(self.left.set)
        self.written.append(event["body"])
        self.complete = not event.get("more_body", False)

    async def receive(self) -> Event:
        """Wait for the end of the connection."""
        await self.left.wait()
        return {"type": "http.disconnect"}


@pytest.mark.parametrize("parts", [10, 3])
async def test_a_client_that_left_is_noticed_at_the_write_that_failed(parts: int) -> None:
    """Even if only the last part was missing."""
    connection = Connection(fails_at=1)
    assert not await send_if_there(connection.send, connection.receive, 200, b"x" * (parts * PART))
    assert len(connection.written) == 2
    assert not connection.complete


async def test_a_client_that_leaves_with_the_whole_answer_has_got_it() -> None:
    """It may be gone before the server's next turn: what it has must not be given to somebody else."""
    connection = Connection(fails_at=2)
    assert await send_if_there(connection.send, connection.receive, 200, b"x" * (3 * PART))


async def test_a_client_that_stays_gets_everything_in_order() -> None:
    for size in (1, PART, PART + 1, 3 * PART):
        connection = Connection()
        body = bytes(n % 251 for n in range(size))
        assert await send_if_there(connection.send, connection.receive, 200, body)
        assert b"".join(connection.written) == body
        assert connection.complete


async def test_who_left_before_the_answer_gets_nothing() -> None:
    connection = Connection()
    connection.left.set()
    assert not await send_if_there(connection.send, connection.receive, 200, b"{}")
    assert connection.written == []
