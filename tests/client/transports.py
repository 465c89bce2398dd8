"""Transports for tests: one that remembers and loses what it is told to lose, one whose answers the test decides, and a
way to a server that fails as networks do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlsplit

import msgspec

from hark.client.transport.api import Answer, ConnectionFailed, Request, Transport, Value

Predicate = Callable[[Request], bool]


class Recorder:
    """Hands requests on and remembers them; loses the answers of some, refuses to send others, or answers by itself."""

    def __init__(self, transport: Transport, lose: Predicate | None = None, refuse: Predicate | None = None) -> None:
        self._transport = transport
        self.lose = lose or (lambda _: False)
        self.refuse = refuse or (lambda _: False)
        self.failure: Answer | Exception | None = None
        """What comes instead of any answer of the server."""
        self.requests: list[Request] = []
        self.changed = asyncio.Event()
        self.open = asyncio.Event()
        """Requests wait until it is set, as it is from the start."""
        self.open.set()

    @property
    def url(self) -> str:
        """Where to."""
        return self._transport.url

    async def send(self, request: Request) -> Answer:
        """Ask, unless it is to be refused; forget the answer if it is to be lost."""
        self.requests.append(request)
        self.changed.set()
        await self.open.wait()
        if self.refuse(request):
            raise ConnectionFailed("refused by the test", sent=False)
        if isinstance(self.failure, Exception):
            raise self.failure
        if self.failure is not None:
            return self.failure
        lose = self.lose(request)
        answer = await self._transport.send(request)
        if lose:
            raise ConnectionFailed("lost by the test", sent=True)
        return answer

    def fork(self) -> Transport | None:
        """The way behind this one: nothing is recorded or lost there."""
        return self._transport.fork()

    async def close(self) -> None:
        """Hang up."""
        await self._transport.close()

    def count(self, route: str) -> int:
        """How many requests went to a path."""
        return sum(request.path == route for request in self.requests)


def first_of(route: str, number: int = 1) -> Predicate:
    """Says yes to the first requests to a path."""
    left = number

    def matches(request: Request) -> bool:
        nonlocal left
        if request.path != route or not left:
            return False
        left -= 1
        return True

    return matches


class Script:
    """Gives the answers of a list, or raises them; the last one over and over."""

    url = "a script"

    def __init__(self, *answers: Answer | Exception) -> None:
        self._answers = list(answers)
        self.requests: list[Request] = []

    async def send(self, request: Request) -> Answer:
        """The next answer."""
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def fork(self) -> None:
        """A script is for one reader."""

    async def close(self) -> None:
        """Nothing to close."""


def problem(status: int, code: str, text: str = "no", retry_after: float | None = None) -> Answer:
    """A refusal as Hark writes it."""
    return Answer(status, msgspec.json.encode({"error": text, "code": code}), retry_after)


def sizes(requests: Iterable[Request]) -> list[int]:
    """How many items each push had."""
    return [
        len(msgspec.json.decode(request.body or b"", type=dict[str, list[object]])["items"]) for request in requests
    ]


async def until_waiting(transport: Transport, queue: str, number: int = 1) -> None:
    """Return when so many wait for messages of a queue."""
    request = Request("GET", "/api/v1/consumers", {"queue": queue})
    async with asyncio.timeout(20):
        while msgspec.json.decode((await transport.send(request)).body)["total"] != number:
            pass


def push_of(queue: str, *payloads: object) -> Request:
    """A push without any help."""
    items = [{"queue": queue, "payload": payload} for payload in payloads]
    return Request("POST", "/api/v1/push", None, msgspec.json.encode({"items": items}))


def pop_of(queue: str, timeout: float = 30.0, **query: Value) -> Request:
    """A pop without any help."""
    return Request("GET", f"/api/v1/pop/queue/{queue}", query, timeout=timeout)


async def no_sleep(_seconds: float) -> None:
    """A pause that takes no time."""


class Pauses:
    """A sleep that remembers and does not, and the clock that goes with it: nothing else takes time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Not really."""
        self.seconds.append(seconds)

    def monotonic(self) -> float:
        """The sum of the pauses."""
        return sum(self.seconds)


class Proxy:
    """Passes bytes on, until it is told to lose replies or to fall silent."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self.url = ""
        self.lost_replies = 0
        """How many replies were lost so far."""
        self._losing = 0
        self._silent = False
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything."""
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def lose_replies(self, count: int) -> None:
        """The server gets the next requests, and its client gets a hung-up connection instead of a reply."""
        self._losing = count

    def fall_silent(self) -> None:
        """Nothing comes back any more, and nobody hangs up."""
        self._silent = True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        far_reader, far_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._requests(reader, far_writer))
                both.create_task(self._replies(far_reader, writer))
        except (BaseExceptionGroup, asyncio.CancelledError):
            pass  # Either side hung up, or the test is over.
        finally:
            writer.transport.abort()
            far_writer.transport.abort()
            self._connections.discard(task)

    async def _requests(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            sink.write(data)
        raise ConnectionAbortedError

    async def _replies(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            if self._losing:
                self._losing -= 1
                self.lost_replies += 1
                break
            if not self._silent:
                sink.write(data)
        raise ConnectionAbortedError


def path(*segments: str) -> str:
    """A path under /api/v1, with percent-encoded segments."""
    return "/".join(("/api/v1", *(quote(segment, safe="") for segment in segments)))
