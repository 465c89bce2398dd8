"""The bytes in flight: bodies that arrive, answers that are not read, streams; in all and of one token."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx

from hark.settings import Limits, Settings
from tests.http.api import Api, Json, read, refusal
from tests.http.edge.app_client import Tokens
from tests.http.streaming import UPGRADE, WAIT_SECONDS, Inside, deaf, inside, masked
from tests.http.wire.test_connections import connected, everything

MIB = 2**20
POST = "POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: {}\r\n\r\n"
CODE = "too_many_bytes"


def limited(most: int = 3 * MIB, of_identity: int = 2**40) -> Settings:
    """Settings with few bytes in flight."""
    return Settings(limits=Limits(max_bytes_in_flight=most, max_bytes_in_flight_per_identity=of_identity))


@contextmanager
def api_of(server: Inside, token: str = "") -> Iterator[Api]:
    """The API of a server."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(base_url=server.url, timeout=WAIT_SECONDS, trust_env=False, headers=headers) as client:
        yield Api(client)


def used(server: Inside) -> int:
    """The bytes in flight."""
    return server.look(lambda: server.server.budget.used)


def wait_until_free(server: Inside) -> None:
    """Return when the server has noticed the end of the connections."""
    while used(server):
        pass


def unfinished(client: socket.socket, size: int, head: str = "") -> None:
    """Send a part of a body."""
    client.sendall(POST.format(head, 8 * MIB).encode() + b" " * size)


def refused_after(client: socket.socket, status: int) -> None:
    """Check the answer to an unfinished body."""
    answer = everything(client)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert CODE.encode() in answer
    assert b"retry-after: 1" in answer


def fill(api: Api, queue: str, number: int, size: int) -> None:
    """Push large messages."""
    for _ in range(number):
        api.push(queue, "x" * size)


def test_unfinished_bodies_are_refused_beyond_the_budget_and_free_it_when_they_end() -> None:
    with inside(limited()) as server:
        with ExitStack() as clients:
            for number in range(1, 3):
                unfinished(clients.enter_context(connected(server.url)), MIB)
                while used(server) < number * MIB:
                    pass
            last = clients.enter_context(connected(server.url))
            unfinished(last, 2 * MIB)
            refused_after(last, 503)
        wait_until_free(server)
        with api_of(server) as api:
            api.push("q", "x" * MIB)
        wait_until_free(server)


def test_one_token_leaves_room_for_the_others() -> None:
    with inside(limited(8 * MIB, 2 * MIB), authenticator=Tokens()) as server, ExitStack() as clients:
        unfinished(clients.enter_context(connected(server.url)), MIB, "Authorization: Bearer writer\r\n")
        while used(server) < MIB:
            pass
        last = clients.enter_context(connected(server.url))
        unfinished(last, 2 * MIB, "Authorization: Bearer writer\r\n")
        refused_after(last, 429)
        with api_of(server, "admin") as api:
            api.push("q", "x" * MIB)


def test_a_small_request_needs_no_budget() -> None:
    with inside(limited(1)) as server, api_of(server) as api:
        api.push("q", "x" * 60_000)
        assert len(api.pop("q")) == 1
        assert used(server) == 0


def answer_to(api: Api, number: int, **query: Json) -> httpx.Response:
    """The answer to a pop of a number of messages."""
    return api.try_pop("q", batch=number, partitions=1, **query)


def test_a_pop_beyond_the_budget_of_unread_answers_is_refused_and_its_messages_come_again() -> None:
    with inside(limited(20 * MIB)) as server, api_of(server) as api:
        fill(api, "other", 16, MIB)
        fill(api, "q", 8, MIB)
        with deaf(server.url, "GET /api/v1/pop/queue/other?batch=16 HTTP/1.1\nHost: localhost\n\n"):
            while used(server) < 8 * MIB:
                pass
            answer = answer_to(api, 8)
            assert (answer.status_code, answer.json()["code"]) == (503, CODE)
            assert answer.headers["retry-after"] == "1"
            assert len(answer_to(api, 1, wait=True).json()["messages"]) == 1
            assert len(answer_to(api, 7, autoAck=True, consumerGroup="at-once").json()["messages"]) == 7
        wait_until_free(server)


def test_a_stream_that_is_not_read_counts_and_another_one_ends() -> None:
    with inside(limited(12 * MIB)) as server, api_of(server) as api:
        fill(api, "q", 8, MIB)
        fill(api, "more", 8, MIB)
        with deaf(server.url, "GET /api/v1/listen/queue/q?batch=8 HTTP/1.1\nHost: localhost\n\n"):
            while used(server) < 4 * MIB:
                pass
            refused = api.get("/listen/queue/more", batch=8)  # It ends by itself.
            assert CODE in refused.text
            assert len(refused.text) < 1000
        wait_until_free(server)
        assert len(api.pop("more", batch=8, wait=True)) == 8


def test_unfinished_messages_of_websockets_count() -> None:
    opening = f"GET /api/v1/consume HTTP/1.1\nHost: localhost\n{UPGRADE}\n"
    frame = b"\x81\xff" + (5 * MIB).to_bytes(8, "big") + bytes(4)
    with inside(limited(2 * MIB)) as server:
        with deaf(server.url, opening) as first, deaf(server.url, opening) as second:
            first.sendall(frame + b" " * MIB)
            while used(server) < MIB:
                pass
            second.sendall(frame + b" " * (MIB + MIB // 2))
            while b"\x88" not in second.recv(65_536):  # The close frame.
                pass
            first.sendall(b" " * 1000)
        wait_until_free(server)


def test_a_complete_message_of_a_websocket_is_no_longer_counted() -> None:
    opening = f"GET /api/v1/consume HTTP/1.1\nHost: localhost\n{UPGRADE}\n"
    with inside(limited(2 * MIB)) as server, deaf(server.url, opening) as client:
        client.sendall(b"\x81\xff" + MIB.to_bytes(8, "big") + bytes(4) + b" " * MIB + masked('{"type":"ping"}'))
        answers = b""
        while b"pong" not in answers:
            answers += client.recv(65_536)
        assert used(server) == 0


def test_a_page_of_large_values_is_refused() -> None:
    large = "x" * (8 * MIB)
    with inside() as server, api_of(server) as api:
        for _ in range(9):
            message = api.kill("q", large)
        assert api.client.put("/keyval/api/keys/large", json=large).status_code == 200
        traced = {name: message[name] for name in ("partitionId", "transactionId")}
        assert read(api.post("/traces", {"data": 1, "traceNames": ["n"]} | traced), 201)

        def batch(number: int) -> httpx.Response:
            return api.client.post("/keyval/api/keys/batch", json={"keys": [["large"]] * number})

        for refused in (api.get("/dlq", queue="q"), batch(9)):
            assert refusal(refused, 400, "batch_too_large").endswith("ask for fewer at once")
        for answer in (api.get("/dlq", queue="q", limit=7), batch(7), api.get("/traces/by-name/n")):
            assert answer.status_code == 200
