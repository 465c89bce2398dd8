"""Where a request waits until a test lets it go."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from tests.s3.stub.store import Request


class Stop:
    """A place where a request waits for a test; both may be in any thread and any event loop."""

    def __init__(self) -> None:
        self._reached: Future[Request] = Future()
        self._gone: Future[None] = Future()

    async def __call__(self, request: Request) -> None:
        """Hold a request here; the ones that come after `go` pass."""
        if not self._reached.done():
            self._reached.set_result(request)
        await asyncio.shield(asyncio.wrap_future(self._gone))

    async def reached(self) -> Request:
        """Wait until a request is here."""
        return await asyncio.shield(asyncio.wrap_future(self._reached))

    def wait(self, seconds: float = 30.0) -> Request:
        """The same for a test without an event loop."""
        return self._reached.result(seconds)

    def go(self) -> None:
        """Let the request go on."""
        if not self._gone.done():
            self._gone.set_result(None)
