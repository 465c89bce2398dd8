"""Streaming clients for tests: WebSocket, server-sent events, clients that never read, and a server to look into."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import httpx
from websockets.sync.client import ClientConnection, connect

from hark.access.authenticator import Authenticates
from hark.broker import Broker
from hark.clock import Clock, SystemClock
from hark.engine.sqlite import SqliteEngine
from hark.http.app import App
from hark.settings import Settings
from hark.testing.server import ServerThread
from tests.http.api import Api, Json, texts

T = TypeVar("T")
WAIT_SECONDS = 20.0
"""Seconds after which a test gives up on what should come at once."""


UPGRADE = (
    "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\n"
)
"""The headers that ask for a WebSocket."""


def spread(api: Api, queue: str, number: int, first: int = 0) -> None:
    """Push numbers, each into a partition of its own: they can be worked on at the same time."""
    items = [{"queue": queue, "payload": n, "partition": str(n)} for n in range(first, first + number)]
    assert api.post("/push", {"items": items}).status_code == 201


class Socket:
    """A WebSocket consumer."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def send(self, type: str, **fields: Any) -> None:
        """Send a frame."""
        self.send_text(json.dumps({"type": type} | {name.rstrip("_"): value for name, value in fields.items()}))

    def send_text(self, text: str) -> None:
        """Send whatever it is."""
        self.connection.send(text)

    def receive(self) -> Json:
        """The next frame that is not a ping."""
        until = time.monotonic() + WAIT_SECONDS
        while (frame := json.loads(self.connection.recv(timeout=until - time.monotonic())))["type"] == "ping":
            pass
        return frame

    def expect(self, type: str) -> Json:
        """The next frame, which must be of this type."""
        frame = self.receive()
        assert frame["type"] == type, frame
        return frame

    def ask(self, type: str, **fields: Any) -> Json:
        """Send a frame and give the next one that comes."""
        self.send(type, **fields)
        return self.receive()

    def subscribe(self, id: str, queue: str | None = None, **fields: Any) -> None:
        """Subscribe; what comes is for the test."""
        assert self.ask("subscribe", id=id, queue=queue, **fields) == {"type": "subscribed", "id": id}

    def messages(self) -> list[Json]:
        """The messages of the next frame."""
        messages: list[Json] = self.expect("messages")["messages"]
        return messages

    def take(self, number: int) -> list[Json]:
        """That many messages, in as many frames as it takes."""
        taken: list[Json] = []
        while len(taken) < number:
            taken += self.messages()
        return taken

    def drain(self) -> tuple[list[Json], int]:
        """Stop; what was still on its way, and how much is unsettled."""
        self.send("drain")
        came: list[Json] = []
        while (frame := self.receive())["type"] == "messages":
            came += frame["messages"]
        assert frame["type"] == "drained", frame
        return came, frame["unsettled"]

    def settle(self, messages: list[Json], type: str = "ack", **fields: Any) -> None:
        """Send an ack or a nack of messages without waiting for its answer."""
        items = [
            {name: message[name] for name in ("transactionId", "partitionId", "leaseId")} | fields
            for message in messages
        ]
        self.send(type, items=items)


@contextmanager
def websocket(url: str, **query: Any) -> Iterator[Socket]:
    """A WebSocket to a server."""
    address = f"{url.replace('http://', 'ws://')}/api/v1/consume?{urlencode(query)}"
    with connect(address, max_size=None, proxy=None) as connection:
        yield Socket(connection)


class Events:
    """A stream of server-sent events."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._parts = response.iter_bytes()
        self._rest = b""

    def frame(self) -> bytes:
        """The next event as it came, with the empty line behind it."""
        while b"\n\n" not in self._rest:
            self._rest += next(self._parts)
        frame, self._rest = self._rest.split(b"\n\n", 1)
        return frame + b"\n\n"

    def next(self) -> tuple[str, str | None, Json]:
        """The next event: its name, its id and its data."""
        event = self.frame()[:-2]
        if event == b"event: ping\ndata: ":  # As work queues and watches say it.
            return "ping", None, {}
        fields = dict(line.split(": ", 1) for line in event.decode().split("\n"))
        assert len(fields) == event.count(b"\n") + 1, event
        return fields["event"], fields.get("id"), json.loads(fields["data"])

    def message(self) -> Json:
        """The data of the next event that is not a ping, which must be a message."""
        while (event := self.next())[0] == "ping":
            pass
        name, id, data = event
        assert (name, id) == ("message", data.get("id")), event
        return data


@contextmanager
def listening(url: str, path: str, **query: Any) -> Iterator[Events]:
    """An event stream, whose first event has come."""
    with (
        httpx.Client(base_url=url, timeout=WAIT_SECONDS, trust_env=False) as client,
        client.stream("GET", f"/api/v1/listen{path}", params=texts(query)) as response,
    ):
        assert response.status_code == 200, response.read()
        events = Events(response)
        assert events.next() == ("ping", None, {})
        yield events


@contextmanager
def deaf(url: str, request: str) -> Iterator[socket.socket]:
    """A client that sends a request and never reads more than the head of its answer."""
    where = urlsplit(url)
    assert where.hostname is not None
    with socket.socket() as client:
        # As little as the kernel allows: what is not read should stay with the server.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(WAIT_SECONDS)
        client.connect((where.hostname, where.port))
        client.sendall(request.replace("\n", "\r\n").encode())
        assert client.recv(12).startswith(b"HTTP/1.1 ")
        yield client


def masked(text: str) -> bytes:
    """A text frame as a client sends it (with a mask of zeros)."""
    data = text.encode()
    assert len(data) < 65_536
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return b"\x81" + size + bytes(4) + data


class Inside(ServerThread):
    """A server in this process, on the event loop of production, that tests can look into."""

    def __init__(
        self, settings: Settings, ping_seconds: float, clock: Clock, authenticator: Authenticates | None = None
    ) -> None:
        super().__init__(settings)
        self._given_clock = clock
        self._ping_seconds = ping_seconds
        self._authenticator = authenticator

    def look(self, function: Callable[[], T]) -> T:
        """Call something on its event loop."""

        async def run() -> T:
            return function()

        return self.call(run)

    async def _serve(self) -> None:
        clock = self._given_clock
        self.broker = Broker(SqliteEngine(":memory:", clock=clock), self._settings, clock)
        await super()._serve()

    def _app(self) -> App:
        self.app = App(self.broker, self._settings, self._ping_seconds, authenticator=self._authenticator)
        return self.app


@contextmanager
def inside(
    settings: Settings | None = None,
    ping_seconds: float = 15,
    clock: Clock | None = None,
    authenticator: Authenticates | None = None,
) -> Iterator[Inside]:
    """A server in this process for one test."""
    server = Inside(settings or Settings(), ping_seconds, clock or SystemClock(), authenticator)
    server.start()
    try:
        yield server
    finally:
        server.stop()
