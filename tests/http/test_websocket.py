"""GET /consume: frames over a WebSocket."""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.http.api import WAIT, Api, Json, data
from tests.http.streaming import UPGRADE, Socket, deaf, inside, spread, websocket

OPENING = f"GET /api/v1/consume HTTP/1.1\nHost: localhost\n{UPGRADE}\n"

# Subscribing -----------------------------------------------------------------------------------------------


def test_messages_come_with_the_shape_of_a_pop(api: Api, socket: Socket, queue: str) -> None:
    socket.send("credit", n=10)
    socket.subscribe("s1", queue, consumerGroup="g")
    api.push(queue, {"n": 1}, {"n": 2}, partition="p")
    frame = socket.expect("messages")
    assert set(frame) == {"type", "id", "leaseId", "messages"}
    assert (frame["id"], data(frame["messages"])) == ("s1", [{"n": 1}, {"n": 2}])
    assert {message["leaseId"] for message in frame["messages"]} == {frame["leaseId"]}
    assert set(frame["messages"][0]) == set(api.pop_one(queue, consumerGroup="other"))


def test_nothing_comes_without_credit_which_may_be_in_the_address(
    api: Api, socket: Socket, server_url: str, queue: str
) -> None:
    api.push(queue, 1)
    socket.subscribe("s", queue)
    assert socket.drain() == ([], 0)
    socket.send("resume")
    socket.send("credit", n=1)
    assert data(socket.messages()) == [1]
    spread(api, f"{queue}-more", 3)
    with websocket(server_url, credit=2) as other:
        other.subscribe("s", f"{queue}-more")
        other.take(2)
        assert other.drain() == ([], 2)


def test_one_socket_consumes_from_two_queues_with_shared_credit(api: Api, socket: Socket, queue: str) -> None:
    other = f"{queue}-other"
    spread(api, queue, 5)
    spread(api, other, 5, first=5)
    socket.send("credit", n=3)
    socket.send("subscribe", id="a", queue=queue, batch=1)
    socket.send("subscribe", id="b", queue=other, batch=1)
    seen: list[Json] = []
    leased: list[Json] = []
    while len(seen) < 10:
        frame = socket.receive()
        if frame["type"] == "messages":
            assert {message["queue"] for message in frame["messages"]} == {queue if frame["id"] == "a" else other}
            leased += frame["messages"]
            seen += frame["messages"]
        assert len(leased) <= 3
        if len(leased) == 3:
            socket.settle(leased)
            leased = []
    assert sorted(data(seen)) == list(range(10))


@pytest.mark.parametrize(("credit", "batch"), [(10, 10), (1, 1), (10, 3)])
def test_two_busy_queues_on_one_socket_take_turns(
    api: Api, socket: Socket, queue: str, credit: int, batch: int
) -> None:
    other = f"{queue}-other"
    for name in (queue, other):
        spread(api, name, 100)
    socket.send("credit", n=credit)
    for name in (queue, other):
        socket.send("subscribe", id=name, queue=name, batch=batch)
    turns: list[str] = []
    while len(turns) < 40:
        frame = socket.receive()
        if frame["type"] == "messages":
            turns.append(frame["id"])
            socket.settle(frame["messages"])
    assert abs(turns.count(queue) - turns.count(other)) <= 2


def test_after_unsubscribed_nothing_comes(api: Api, socket: Socket, queue: str) -> None:
    socket.send("credit", n=10)
    socket.subscribe("s", queue)
    api.push(queue, 1)
    [message] = socket.messages()
    assert socket.ask("unsubscribe", id="s") == {"type": "unsubscribed", "id": "s"}
    api.push(queue, 2, partition="other")
    assert data(api.pop(queue, **WAIT)) == [2]
    socket.settle([message])
    assert [result["success"] for result in socket.expect("settled")["results"]] == [True]
    assert socket.ask("unsubscribe", id="s")["code"] == "subscription_not_found"
    socket.subscribe("s", queue)


def hold_one(api: Api, socket: Socket, queue: str, **fields: Any) -> Json:
    """A message that uses up all credit of a socket: nothing else is on its way to it."""
    socket.send("credit", n=1)
    socket.subscribe("s", queue, **fields)
    api.push(queue, 1)
    [message] = socket.messages()
    return message


# Credit ----------------------------------------------------------------------------------------------------


def test_i6_crossed_credits_and_acks_never_leave_more_unsettled_than_the_largest_grant(
    api: Api, socket: Socket, queue: str
) -> None:
    spread(api, queue, 200)
    chance = random.Random(6)
    granted = 7
    socket.send("credit", n=granted)
    socket.send("subscribe", id="s", queue=queue, batch=3, partitions=3)
    leased: dict[str, Json] = {}
    requested: dict[str, Json] = {}
    seen = 0
    while seen < 200 or requested:
        frame = socket.receive()
        if frame["type"] == "messages":
            leased |= {message["id"]: message for message in frame["messages"]}
            seen += len(frame["messages"])
        elif frame["type"] == "settled":
            for result in frame["results"]:
                assert result["success"], result
                del requested[result["transactionId"]]
        assert len(leased) <= 7
        if chance.random() < 0.3:
            granted = chance.randint(1, 7)
            socket.send("credit", n=granted)
        if leased and (len(leased) >= granted or seen == 200 or chance.random() < 0.5):
            done = chance.sample(sorted(leased), chance.randint(1, len(leased)))
            messages = [leased.pop(id) for id in done]
            requested |= {message["transactionId"]: message for message in messages}
            socket.settle(messages)
    assert not leased or socket.drain()[1] == len(leased)


@pytest.mark.parametrize(
    ("stop", "go_on"),
    [({"type": "pause"}, {"type": "resume"}), ({"type": "credit", "n": 0}, {"type": "credit", "n": 1})],
)
def test_a_pause_or_credit_that_is_taken_back_stops_deliveries_until_they_go_on(
    api: Api, socket: Socket, queue: str, stop: Json, go_on: Json
) -> None:
    message = hold_one(api, socket, queue)
    socket.send(**stop)
    socket.settle([message])
    socket.expect("settled")
    api.push(queue, 2)
    other = api.pop_one(queue)
    assert other["data"] == 2
    api.ack(other, "retry")
    socket.send(**go_on)
    assert data(socket.messages()) == [2]


def test_a_drain_is_answered_when_all_that_was_on_its_way_has_come(api: Api, socket: Socket, queue: str) -> None:
    spread(api, queue, 3)
    socket.send("credit", n=10)
    socket.send("subscribe", id="s", queue=queue, batch=1)
    socket.send("drain", ref={"any": ["thing"]})
    assert socket.receive()["type"] == "subscribed"
    came = 0
    while (frame := socket.receive())["type"] == "messages":
        came += len(frame["messages"])
    assert frame == {"type": "drained", "ref": {"any": ["thing"]}, "unsettled": came}
    assert socket.ask("drain", ref=2) == {"type": "drained", "ref": 2, "unsettled": came}
    assert len(api.pop(queue, batch=3, partitions=3)) == 3 - came
    socket.send("resume")
    socket.send("drain", ref=3)
    assert socket.receive() == {"type": "drained", "ref": 3, "unsettled": came}
    socket.send("resume")
    api.push(queue, "more")
    assert data(socket.messages()) == ["more"]


# Settling --------------------------------------------------------------------------------------------------


def test_an_ack_finds_the_group_by_its_lease(api: Api, socket: Socket, queue: str) -> None:
    socket.send("credit", n=10)
    socket.subscribe("a", queue, consumerGroup="a")
    socket.subscribe("b", queue, consumerGroup="b")
    api.push(queue, 1)
    messages = socket.messages() + socket.messages()
    assert {message["consumerGroup"] for message in messages} == {"a", "b"}
    socket.settle(messages)
    results = socket.expect("settled")["results"]
    assert [(result["success"], result["leaseReleased"]) for result in results] == [(True, True)] * 2
    names = ("index", "transactionId", "success", "error", "queueName", "partitionName", "leaseReleased", "dlq")
    assert set(results[0]) == set(names)


def test_an_ack_may_name_its_group(api: Api, socket: Socket, queue: str) -> None:
    api.push(queue, 1)
    message = api.pop_one(queue, consumerGroup="g")
    items = [{name: message[name] for name in ("transactionId", "partitionId", "leaseId")}]
    refused = socket.ask("ack", ref=1, items=items)
    assert (refused["ref"], refused["results"][0]["success"]) == (1, False)
    assert refused["results"][0]["code"]
    settled = socket.ask("ack", ref=[2], items=items, consumerGroup="g")
    assert (settled["ref"], settled["results"][0]["success"]) == ([2], True)


def test_answers_come_in_the_order_of_the_requests(socket: Socket) -> None:
    for ref in range(0, 60, 3):
        socket.send("ack", ref=ref, items=[{"transactionId": "t", "partitionId": "p"}])
        socket.send("renew", ref=ref + 1, leaseIds=["l"])
        socket.send("nack", ref=ref + 2, items=[])
    assert [socket.receive()["ref"] for _ in range(60)] == list(range(60))


def test_a_nack_in_an_ordered_group_brings_the_rest_of_the_batch_again(api: Api, socket: Socket, queue: str) -> None:
    socket.send("credit", n=3)
    socket.subscribe("s", queue)
    api.push(queue, 1, 2, 3)
    first, second, third = socket.messages()
    socket.settle([first])
    socket.settle([second], "nack", error="boom")
    again: list[Json] = []
    while len(again) < 2:
        frame = socket.receive()
        if frame["type"] == "settled":
            assert [result["success"] for result in frame["results"]] == [True]
        else:
            again += frame["messages"]
            socket.settle([frame["messages"][0]])
    assert [(message["data"], message["deliveryAttempt"]) for message in again] == [(2, 2), (3, 1)]
    assert again[1]["id"] == third["id"]


def test_a_nack_can_wait_or_be_the_end(api: Api, socket: Socket, queue: str) -> None:
    message = hold_one(api, socket, queue)
    socket.settle([message], "nack", status="retry", delay=1)
    assert socket.expect("settled")["results"][0]["success"]
    [again] = socket.messages()
    assert (again["id"], again["deliveryAttempt"]) == (message["id"], 1)
    socket.settle([again], "nack", status="dlq", error="never")
    assert socket.expect("settled")["results"][0]["dlq"]
    [letter] = api.dead_letters(queue)
    assert letter["errorMessage"] == "never"


def test_renew_answers_lease_by_lease(api: Api, socket: Socket, queue: str) -> None:
    message = hold_one(api, socket, queue)
    answer = socket.ask("renew", ref="r", leaseIds=[message["leaseId"], "gone"], seconds=1000)
    leased, gone = answer["results"]
    assert (answer["type"], answer["ref"]) == ("renewed", "r")
    assert (leased["leaseId"], leased["success"], leased["expiresAt"][-1]) == (message["leaseId"], True, "Z")
    assert (gone["success"], gone["expiresAt"], gone["code"]) == (False, None, "lease_not_found")
    assert gone["error"]


def test_a_subscription_may_say_how_long_it_holds_what_it_gets(api: Api, socket: Socket, queue: str) -> None:
    api.configure(queue, leaseTime=60)
    message = hold_one(api, socket, queue, leaseTime=5000)
    leased = datetime.fromisoformat(api.show(message)["leaseExpiresAt"]) - datetime.now(UTC)
    assert 4000 < leased.total_seconds() < 6000


def test_any_frame_is_a_sign_of_life(queue: str) -> None:
    with inside() as server, websocket(server.url) as socket:
        [stream] = server.look(lambda: list(server.broker.delivery.streams))
        for text in ('{"type": "pong"}', "not JSON", '{"type": "ping"}'):
            server.look(lambda: setattr(stream, "silent", True))
            socket.send_text(text)
            socket.ask("subscribe", id=text, queue=queue) if text == '{"type": "pong"}' else socket.receive()
            assert not stream.silent


# Leaving ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(b"\x89\xfd" + bytes(4 + 125), id="pings that it does not read the answers of"),
        pytest.param(b"\x00\x81" + bytes(4 + 1), id="a message in very many parts"),
    ],
)
def test_a_client_that_floods_and_does_not_read_is_cut_off(flood: bytes) -> None:
    with inside() as server, deaf(server.url, OPENING) as client:
        client.sendall(b"\x01\x81" + bytes(4 + 1))  # The first part of a message.
        with pytest.raises(ConnectionError):
            for _ in range(10_000):
                client.sendall(flood * 1000)


def test_a_server_that_stops_closes_with_1012() -> None:
    with ExitStack() as stack:
        with inside() as server:
            socket = stack.enter_context(websocket(server.url))
            assert socket.ask("ping") == {"type": "pong"}
        with pytest.raises(ConnectionClosed) as closed:
            socket.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


def test_the_example_in_the_docs_works(api: Api, server_url: str, queue: str) -> None:
    section = (Path(__file__).parents[2] / "docs" / "http.md").read_text().split("\n## Streaming (WebSocket)\n")[1]
    example = section.split("```python\n")[1].split("```")[0]
    program = example.replace("ws://127.0.0.1:6632", server_url.replace("http", "ws")).replace('"orders"', f'"{queue}"')
    assert program.count(queue) == 1
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for number in (1, 2):
            api.push(queue, {"order": number})
            assert running.stdout.readline() == f"{{'order': {number}}}\n"
        running.terminate()
