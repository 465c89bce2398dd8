"""A server that answers as a test says, and buckets on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from hark.clock import FakeClock
from hark.engine.s3.bucket.address import Address
from hark.engine.s3.bucket.client import S3Bucket
from hark.settings.s3 import S3

DATE = "Tue, 14 Nov 2023 22:14:20 GMT"
"""A minute after the time at which fake clocks start."""
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ScriptedServer:
    """A server that answers as a test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answers: list[Answer] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path_qs, dict(request.headers), await request.read()))
        return await self.answers.pop(0)(request)

    def will(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Answer the next request so."""

        async def answer(_: web.Request) -> web.Response:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return web.Response(status=status, body=body, headers={"Date": DATE} | named)

        self.answers.append(answer)

    def will_refuse(self, status: int, code: str, message: str = "as asked") -> None:
        """Answer the next request with an error of S3."""
        self.will(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())


@asynccontextmanager
async def serving() -> AsyncIterator[ScriptedServer]:
    """A server on a free port."""
    server = ScriptedServer()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[S3Bucket]:
    """A bucket on a server."""
    bucket = S3Bucket(Address("queues", "p", url), FakeClock(), S3(**settings))
    await bucket.open()
    try:
        yield bucket
    finally:
        await bucket.close()
