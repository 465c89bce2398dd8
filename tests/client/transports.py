"""Transports for tests: one that remembers what went over it, and one whose answers the test decides."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hark.client.transport.api import Answer, Request, Transport, Value


class Recorder:
    """Hands requests on and remembers them."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.requests: list[Request] = []

    @property
    def url(self) -> str:
        """Where to."""
        return self._transport.url

    async def send(self, request: Request) -> Answer:
        """Ask once."""
        self.requests.append(request)
        return await self._transport.send(request)

    def fork(self) -> Transport | None:
        """The way behind this one, unrecorded."""
        return self._transport.fork()

    async def close(self) -> None:
        """Hang up."""
        await self._transport.close()


class Script:
    """Gives the answers of a list, or raises them; the last one over and over."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self._answers = list(answers)
        self.requests: list[Request] = []

    @property
    def url(self) -> str:
        """Where to."""
        return "a script"

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


async def until_waiting(transport: Transport, queue: str) -> None:
    """Return when a pop waits for messages of a queue."""
    request = Request("GET", "/api/v1/consumers", {"queue": queue})
    while not msgspec.json.decode((await transport.send(request)).body)["total"]:
        pass


def push_of(queue: str, *payloads: object) -> Request:
    """A push without any help."""
    items = [{"queue": queue, "payload": payload} for payload in payloads]
    return Request("POST", "/api/v1/push", None, msgspec.json.encode({"items": items}))


def pop_of(queue: str, timeout: float = 30.0, **query: Value) -> Request:
    """A pop without any help."""
    return Request("GET", f"/api/v1/pop/queue/{queue}", query, timeout=timeout)
