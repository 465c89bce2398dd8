"""What every stream of messages promises: server-sent events, a WebSocket, and the listeners of work queues."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from hark.access.tokens import Identity
from hark.errors import Unauthorized
from hark.settings import Delivery, Limits, Queue, Settings
from tests.http.api import WAIT, Api, Json, data, read, refusal
from tests.http.edge.app_client import Tokens
from tests.http.keyval.keys import watching
from tests.http.keyval.test_listen import listening as listening_to_work
from tests.http.streaming import UPGRADE, WAIT_SECONDS, Inside, deaf, inside, listening, masked, spread, websocket

Next = Callable[[], Json]
"""The next message of a stream."""


class Way(NamedTuple):
    """A way to get messages as they come."""

    opened: Callable[..., AbstractContextManager[Next]]
    """Of the queue of a server, with that much unsettled at most."""
    ack: Callable[[Api, Json], bool]
    payload: str
    attempt: str
    """The names of these fields."""
    request: str
    """Of a client that does not read."""
    frame: str = ""
    """What it sends next."""
    sign: bytes = b"event: message"
    """What the first message begins with."""


@contextmanager
def _events(url: str, queue: str, most: int, **options: Any) -> Iterator[Next]:
    with listening(url, f"/queue/{queue}" if queue else "", prefetch=most, **{"batch": 1} | options) as events:
        yield events.message


@contextmanager
def _frames(url: str, queue: str, most: int, **options: Any) -> Iterator[Next]:
    with websocket(url, credit=most) as consumer:
        consumer.subscribe("s", queue or None, **{"batch": 1} | options)
        yield lambda: consumer.take(1)[0]


@contextmanager
def _work(url: str, queue: str, most: int) -> Iterator[Next]:
    with listening_to_work(url, queue, prefetch=most) as events:
        yield events.message


def _ack(api: Api, message: Json) -> bool:
    return bool(api.ack(message)["success"])


def _ack_work(api: Api, message: Json) -> bool:
    body = {"id": message["id"], "receipt": message["receipt"]}
    return bool(read(api.client.post("/keyval/api/queue/ack", json=body)) == {"ok": True})


WAYS = {
    "events": Way(
        _events, _ack, "data", "deliveryAttempt", "/api/v1/listen/queue/{queue}?prefetch={most}&batch={batch}"
    ),
    "websocket": Way(
        _frames,
        _ack,
        "data",
        "deliveryAttempt",
        "/api/v1/consume?credit={most}",
        '{{"type": "subscribe", "id": "s", "queue": "{queue}", "batch": {batch}}}',
        b'"messages"',
    ),
    "work": Way(_work, _ack_work, "value", "attempts", "/keyval/api/queue/listen?queue={queue}&prefetch={most}"),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
ordinary_ways = pytest.mark.parametrize("way", [WAYS["events"], WAYS["websocket"]], ids=["events", "websocket"])
"""Those that take what a pop takes."""


@contextmanager
def unread(server: Inside, way: Way, queue: str, most: int, batch: int) -> Iterator[socket.socket]:
    """A stream whose client does not read what comes."""
    path = way.request.format(queue=queue, most=most, batch=batch)
    with deaf(server.url, f"GET {path} HTTP/1.1\nHost: localhost\n{UPGRADE if way.frame else ''}\n") as lazy:
        if way.frame:
            lazy.sendall(masked(way.frame.format(queue=queue, batch=batch)))
        yield lazy


@contextmanager
def own(settings: Settings | None = None) -> Iterator[tuple[Inside, Api]]:
    """A server to look into, and its API."""
    with inside(settings) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        yield server, Api(client)


# Who gets what ---------------------------------------------------------------------------------------------


@every_way
def test_what_was_there_before_comes_first_and_then_what_is_pushed(
    api: Api, server_url: str, queue: str, way: Way
) -> None:
    spread(api, queue, 2)
    with way.opened(server_url, queue, 10) as following:
        assert sorted(following()[way.payload] for _ in range(2)) == [0, 1]
        content = (
            f'{{"items": [{{"queue": "{queue}", "payload": {{\r\n  "a":\n 1, "b": "x\\ny"}}, "partition": "p"}}]}}'
        )
        read(api.post("/push", content=content.encode()), 201)
        message = following()
        assert (message[way.payload], message[way.attempt]) == ({"a": 1, "b": "x\ny"}, 1), "in one line"
        assert way.ack(api, message)


@every_way
def test_no_more_is_unsettled_than_the_client_requested(api: Api, server_url: str, queue: str, way: Way) -> None:
    spread(api, queue, 5)
    with way.opened(server_url, queue, 2) as following:
        leased = [following(), following()]
        # The rest is for others, so the stream did not take it.
        others = [api.pop_one(queue) for _ in range(3)]
        assert api.pop(queue) == []
        api.ack(others[0], "retry")
        assert way.ack(api, leased[0])
        assert following()[way.payload] == others[0]["data"]


@ordinary_ways
def test_auto_ack_settles_at_delivery_and_makes_room_for_all(api: Api, server_url: str, queue: str, way: Way) -> None:
    api.push(queue, 1, 2, 3)
    with way.opened(server_url, queue, 1, autoAck=True) as following:
        messages = [following() for _ in range(3)]
        assert data(messages) == [1, 2, 3]
        assert {message["leaseId"] for message in messages} == {""}
    assert api.pop(queue) == []


@ordinary_ways
def test_a_namespace_brings_the_messages_of_all_its_queues(api: Api, server_url: str, queue: str, way: Way) -> None:
    with way.opened(server_url, "", 10, namespace=queue) as following:
        api.push(f"{queue}.a", 1)
        api.push(f"{queue}.b", 2)
        assert sorted(data([following(), following()])) == [1, 2]


@every_way
def test_clients_share_what_comes_fairly(api: Api, server_url: str, queue: str, way: Way) -> None:
    """All of ten are idle when a hundred messages come: each gets ten (by receipts it may hold no more)."""
    options: Json = {} if way.payload == "value" else {"autoAck": True}
    with ExitStack() as stack, ThreadPoolExecutor(10) as pool:
        most = 1 if options else 10
        streams = [stack.enter_context(way.opened(server_url, queue, most, **options)) for _ in range(10)]
        spread(api, queue, 100)
        taken = pool.map(lambda following: [following()[way.payload] for _ in range(10)], streams)
        assert sorted(number for numbers in taken for number in numbers) == list(range(100))


@every_way
def test_in_maintenance_nothing_comes_until_it_ends(
    fresh_api: Api, fresh_server_url: str, queue: str, way: Way
) -> None:
    read(fresh_api.post("/system/maintenance/pop", {"enabled": True}))
    with way.opened(fresh_server_url, queue, 10) as following:
        # A message that the stream would take if it could can be taken back: it is still there.
        [pushed] = fresh_api.push(queue, "during")
        assert fresh_api.pop(queue) == []
        assert read(fresh_api.post(f"/messages/{pushed['message_id']}/cancel"))["cancelled"] is True
        read(fresh_api.post("/system/maintenance/pop", {"enabled": False}))
        fresh_api.push(queue, "after")
        assert following()[way.payload] == "after"


# Leaving ---------------------------------------------------------------------------------------------------


@every_way
def test_what_was_written_stays_with_its_lease_when_the_client_leaves(
    api: Api, server_url: str, queue: str, way: Way
) -> None:
    api.push(queue, 1)
    with way.opened(server_url, queue, 1) as following:
        message = following()
    assert api.pop(queue) == []
    assert way.ack(api, message)


@every_way
def test_what_comes_after_the_client_left_is_for_others_and_nothing_is_left_behind(queue: str, way: Way) -> None:
    with own() as (server, api):
        for _ in range(10):
            with way.opened(server.url, queue, 1):
                pass
            api.push(queue, 1)
            message = api.pop_one(queue, **WAIT)
            assert message["deliveryAttempt"] == 1
            api.ack(message)
        until = time.monotonic() + WAIT_SECONDS
        while server.look(lambda: len(server.broker.delivery.streams)):
            assert time.monotonic() < until


@every_way
def test_a_client_that_does_not_read_holds_a_bounded_part_and_is_cut_off(queue: str, way: Way) -> None:
    with (
        own(Settings(limits=Limits(stalled_seconds=1))) as (server, api),
        unread(server, way, queue, most=1000, batch=10) as lazy,
    ):
        [stream] = server.look(lambda: list(server.broker.delivery.streams))
        for partition in range(50):
            api.push(queue, *["x" * 100_000] * 10, partition=str(partition))
        got = 0
        while not stream.closed:
            got += len(api.pop(queue, batch=10, wait=True, timeout=1000))
        # The socket's buffers took some; of the rest the stream had one batch, and that came back.
        assert stream.unsettled < 200
        while messages := api.pop(queue, batch=10):
            got += len(messages)
        assert got + stream.unsettled == 500
        while lazy.recv(1 << 20):  # Its end comes after what the socket had.
            pass


@every_way
def test_a_client_that_leaves_in_the_middle_of_a_write_gives_it_back(queue: str, way: Way) -> None:
    with own() as (server, api):
        api.push(queue, "x" * 9_000_000)  # More than the system takes over from the server.
        with unread(server, way, queue, most=200, batch=200) as lazy:
            [stream] = server.look(lambda: list(server.broker.delivery.streams))
            begun = b""
            while way.sign not in begun:
                begun += lazy.recv(1024)
        assert api.pop_one(queue, **WAIT)["deliveryAttempt"] == 1
        assert stream.closed


@every_way
def test_what_a_client_that_left_had_received_comes_again_after_the_grace(queue: str, way: Way) -> None:
    with own(Settings(delivery=Delivery(disconnect_grace_ms=0))) as (server, api):
        api.push(queue, 1)
        with way.opened(server.url, queue, 1) as following:
            following()
        assert api.pop_one(queue, **WAIT)["deliveryAttempt"] == 2


@every_way
def test_a_client_that_settles_what_expired_gets_messages_again(queue: str, way: Way) -> None:
    with own() as (server, api), way.opened(server.url, queue, 1) as following:
        api.push(queue, 1, 2)
        first = following()
        [stream] = server.look(lambda: list(server.broker.delivery.streams))
        # As if its time were up; nothing comes of the second, because it may not be read.
        [lease] = stream.leases()
        server.look(lambda: stream.renewed(lease, 0))
        server.call(lambda: server.broker.engine.shorten([lease], 0))
        server.look(lambda: stream.ended(lease))
        assert server.look(lambda: (stream.silent, stream.unsettled)) == (True, 0)
        answer = api.client.post(
            "/api/v1/ack", json={"transactionId": first["id"], "leaseId": lease, "status": "completed"}
        )
        assert answer.status_code == 200
        assert following()[way.payload] in (1, 2)


# Too many --------------------------------------------------------------------------------------------------


@every_way
def test_too_many_streams_are_a_429(queue: str, way: Way) -> None:
    with own(Settings(limits=Limits(max_streams=1))) as (server, api), way.opened(server.url, queue, 1):
        for path in (f"/api/v1/listen/queue/{queue}", f"/keyval/api/queue/listen?queue={queue}"):
            answer = api.client.get(path)
            refusal(answer, 429, "too_many_streams")
            assert answer.headers["retry-after"] == "1"
        with pytest.raises(InvalidStatus) as refused, websocket(server.url):
            pass
        response = refused.value.response
        assert (response.status_code, json.loads(response.body)["code"]) == (429, "too_many_streams")
        with listening(server.url, f"/queue/{queue}", browse=True):
            refusal(api.get(f"/listen/queue/{queue}", browse=True), 429, "too_many_streams")


# Server-sent events ----------------------------------------------------------------------------------------


def test_a_message_comes_as_an_event_with_the_shape_of_a_pop(api: Api, server_url: str, queue: str) -> None:
    with listening(server_url, f"/queue/{queue}", consumerGroup="g") as events:
        headers = events.response.headers
        assert headers["content-type"] == "text/event-stream"
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-store", "no")
        [pushed] = api.push(queue, {"n": 1}, partition="p", transactionId="t")
        message = events.message()
        other = api.pop_one(queue, consumerGroup="other")
        assert set(message) == set(other)
        assert (message["id"], message["data"], message["queue"]) == (pushed["message_id"], {"n": 1}, queue)
        assert (message["consumerGroup"], message["deliveryAttempt"]) == ("g", 1)
        assert message["leaseId"]
        assert api.ack(message)["success"]


def test_only_the_partition_that_was_named_comes(api: Api, server_url: str, queue: str) -> None:
    api.push(queue, "other", partition="q")
    for path, query in ((f"/queue/{queue}/partition/p", {}), (f"/queue/{queue}", {"partition": "p"})):
        with listening(server_url, path, consumerGroup=path, **query) as events:
            api.push(queue, path, partition="p")
            while (message := events.message())["data"] != path:
                assert message["partition"] == "p"
                api.ack(message)


def test_pings_come_while_there_is_nothing_else(queue: str) -> None:
    settings = Settings(queue=Queue(ping_interval_ms=20))
    with (
        inside(settings, ping_seconds=0.02) as server,
        listening(server.url, f"/queue/{queue}") as events,
        websocket(server.url) as consumer,
        listening_to_work(server.url, queue) as work,
        watching(server.url, "/watch/prefix", prefix="a") as watch,
    ):
        assert [events.next() for _ in range(3)] == [("ping", None, {})] * 3
        assert [consumer.connection.recv(timeout=WAIT_SECONDS) for _ in range(3)] == ['{"type":"ping"}'] * 3
        for stream in (work, watch):
            assert [stream.frame() for _ in range(3)] == [b"event: ping\ndata: \n\n"] * 3


def test_a_server_that_stops_ends_the_stream(queue: str) -> None:
    with (
        inside() as server,
        listening(server.url, f"/queue/{queue}") as events,
        listening(server.url, f"/queue/{queue}", browse=True) as browser,
        listening_to_work(server.url, queue) as work,
    ):
        assert work.next() == ("ping", None, {})
        server.look(server.broker.stop_waiting)
        for stream in (events, browser, work):
            with pytest.raises(StopIteration):
                stream.next()


@pytest.mark.parametrize("kind", ["events", "work"])
def test_a_group_of_another_mode_ends_the_stream_with_an_error(
    api: Api, server_url: str, queue: str, kind: str
) -> None:
    api.push(queue, 1)
    api.pop_one(queue, groupMode="ordered" if kind == "work" else "shared")
    with (
        listening_to_work(server_url, queue)
        if kind == "work"
        else listening(server_url, f"/queue/{queue}", groupMode="ordered") as events
    ):
        name, _, problem = events.next()
        assert (name, problem["code"]) == ("error", "group_mode_conflict")
        with pytest.raises(StopIteration):
            events.next()


def test_where_to_begin_is_for_browsers_only(api: Api, queue: str) -> None:
    for query in ({"from": "head"}, {"browse": True, "from": "yesterday"}):
        assert refusal(api.get(f"/listen/queue/{queue}", **query), 400).startswith("from:")


def test_what_to_listen_to_is_required(api: Api) -> None:
    assert "queue" in refusal(api.get("/listen"), 400)
    assert "queue" in refusal(api.get("/listen", namespace="n", browse=True), 400)
    refusal(api.get("/listen/somewhere"), 404, "route_not_found")


# Tokens ----------------------------------------------------------------------------------------------------


class Changing(Tokens):
    """Tokens that can be revoked."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()

    def identify(self, credential: str | None) -> Identity:
        """Who comes with this token."""
        if credential in self.revoked:
            raise Unauthorized("the token was revoked")
        return super().identify(credential)


def test_streams_of_a_revoked_token_end_and_others_go_on(queue: str) -> None:
    tokens = Changing()
    names = ["admin", "writer"]
    with inside(authenticator=tokens) as server, ExitStack() as stack:
        address = server.url.replace("http://", "ws://")
        streams = {}
        for name in names:
            headers = {"Authorization": f"Bearer {name}"}
            client = stack.enter_context(httpx.Client(base_url=server.url, headers=headers, timeout=WAIT_SECONDS))
            paths = (f"/api/v1/listen/queue/{queue}", f"/keyval/api/queue/listen?queue={queue}-work")
            opened = [stack.enter_context(client.stream("GET", path)).iter_bytes() for path in paths]
            assert all(next(one) for one in opened)
            socket = stack.enter_context(connect(f"{address}/api/v1/consume", additional_headers=headers, proxy=None))
            socket.send('{"type": "ping"}')
            assert socket.recv(timeout=WAIT_SECONDS)
            streams[name] = opened, socket
        server.look(server.server.end_revoked)
        tokens.revoked.add("writer")
        server.look(server.server.end_revoked)
        opened, socket = streams["writer"]
        for one in opened:
            with pytest.raises(httpx.TransportError):
                for _ in one:
                    pass
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=WAIT_SECONDS)
        socket = streams["admin"][1]
        socket.send('{"type": "ping"}')
        assert socket.recv(timeout=WAIT_SECONDS)
        latest = time.monotonic() + WAIT_SECONDS
        while len(server.look(lambda: list(server.broker.delivery.streams))) != 3:
            assert time.monotonic() < latest


def until(server: Inside, waiting: int) -> None:
    """Wait until this number of pops wait."""
    latest = time.monotonic() + WAIT_SECONDS
    while len(server.broker.delivery.intentions) != waiting:
        assert time.monotonic() < latest


@pytest.mark.parametrize("first_line", [False, True])
def test_waiting_pops_of_a_revoked_token_end_and_others_go_on(queue: str, first_line: bool) -> None:
    tokens = Changing()
    with inside(authenticator=tokens) as server, ExitStack() as stack:
        waiting_pops: dict[str, list[Future[Any]]] = {}
        for name in ("admin", "writer"):
            headers = {"Authorization": f"Bearer {name}"}
            client = stack.enter_context(httpx.Client(base_url=server.url, headers=headers, timeout=WAIT_SECONDS))
            pool = stack.enter_context(ThreadPoolExecutor(2))
            query = f"queue={queue}&wait=true&timeout=600000"
            if first_line:
                begun = stack.enter_context(client.stream("POST", f"/api/v1/next?{query}")).iter_lines()
                assert next(begun) == "[]"
                waiting_pops[name] = [pool.submit(next, begun)]
            else:
                waiting_pops[name] = [
                    pool.submit(client.get, f"/api/v1/pop?{query}"),
                    pool.submit(client.post, f"/api/v1/next?{query}"),
                ]
        until(server, 2 if first_line else 4)
        tokens.revoked.add("writer")
        server.look(server.server.end_revoked)
        for one in waiting_pops["writer"]:
            if first_line:
                assert isinstance(one.exception(WAIT_SECONDS), httpx.TransportError)
            else:
                assert (one.result(WAIT_SECONDS).status_code, one.result().json()["code"]) == (401, "unauthorized")
        until(server, 1 if first_line else 2)
        with httpx.Client(base_url=server.url, headers={"Authorization": "Bearer admin"}) as client:
            items = [{"queue": queue, "payload": number, "partition": str(number)} for number in range(2)]
            assert client.post("/api/v1/push", json={"items": items}).status_code == 201
        assert all(one.result(WAIT_SECONDS) for one in waiting_pops["admin"])
