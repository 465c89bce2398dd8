"""How the load of the crash tests reaches a queue: over HTTP, or through a client that needs no server."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import httpx
import msgspec

from hark.client.transport.api import ConnectionFailed, Request, Transport

TIMEOUT_SECONDS = 5.0


class Reply(msgspec.Struct, frozen=True):
    """What was answered."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body as Python has it."""
        return msgspec.json.decode(self.body)


class Way(Protocol):
    """One client's way to the queue."""

    async def ask(self, method: str, path: str, body: object = None) -> Reply | None:
        """Send a request once; None: the reply is lost."""


OpenWay = Callable[[], AbstractAsyncContextManager[Way]]


def over_http(urls: Sequence[str], seed: int) -> OpenWay:
    """Each request goes to any of the servers."""
    chance = random.Random(seed)

    @asynccontextmanager
    async def open_way() -> AsyncIterator[Way]:
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
            yield _Http(client, lambda: chance.choice(urls))

    return open_way


def through(transport: Transport) -> OpenWay:
    """All requests go to the server in this process."""

    @asynccontextmanager
    async def open_way() -> AsyncIterator[Way]:
        yield _InProcess(transport)

    return open_way


class _Http:
    def __init__(self, client: httpx.AsyncClient, url: Callable[[], str]) -> None:
        self._client = client
        self._url = url

    async def ask(self, method: str, path: str, body: object = None) -> Reply | None:
        content = {} if body is None else {"json": body}
        try:
            reply = await self._client.request(method, self._url() + path, **content)  # type: ignore[arg-type]  # JSON
        except httpx.TransportError:
            return None
        return Reply(reply.status_code, reply.content)


class _InProcess:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def ask(self, method: str, path: str, body: object = None) -> Reply | None:
        path, _, query = path.partition("?")
        pairs = dict(pair.split("=") for pair in query.split("&") if pair)
        content = None if body is None else msgspec.json.encode(body)
        try:
            answer = await self._transport.send(Request(method, path, pairs, content, TIMEOUT_SECONDS))
        except ConnectionFailed:
            return None
        return Reply(answer.status, answer.body)
