"""A server in this process: requests go to an ASGI application, without a socket."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec

from hark.client.calling import Answer, ConnectionFailed, Home, Request, client_closed, retry_after_seconds
from hark.client.io_thread import LoopThread, is_cancelling
from hark.errors import HarkError
from hark.polling import PollingStrategy, PollMetrics

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, Event]]
Send = Callable[[Event], Coroutine[Any, Any, None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[object]]
PollAs = Callable[[PollingStrategy], PollMetrics]
"""Sets the polling strategy of a store. Returns the metrics of these polls."""


class AsgiTransport:
    """An ASGI application that runs in the client's event loop.

    `on_open` is awaited once, before the first request; `on_close` at the end, if it was opened. `poll_as` is set if
    the server polls its store for changes by other processes.
    """

    def __init__(
        self,
        app: AsgiApp,
        on_close: Callable[[], Awaitable[None]] | None = None,
        on_open: Callable[[], Awaitable[None]] | None = None,
        *,
        url: str = "in this process",
        poll_as: PollAs | None = None,
    ) -> None:
        self.url = url
        """The address, for messages."""
        self.poll_as = poll_as
        self._app = app
        self._on_open = on_open
        self._on_close = on_close
        self._opening: asyncio.Future[None] | None = None
        self._running: dict[asyncio.Task[None], _Exchange] = {}
        self._closed = False
        self._home = Home()

    async def open(self) -> None:
        """Start the server, unless it was started."""
        if self._closed:
            raise client_closed()
        self._home.check()
        if self._opening is None:
            self._opening = asyncio.ensure_future(asyncio.sleep(0) if self._on_open is None else self._on_open())
        # Others may wait for it, too: a cancelled caller does not cancel the start.
        await asyncio.shield(self._opening)

    async def send(self, request: Request) -> Answer:
        await self.open()
        exchange = _Exchange(request)
        task = asyncio.create_task(self._run(exchange))
        self._running[task] = exchange
        task.add_done_callback(self._running.pop)
        try:
            async with asyncio.timeout(request.timeout):
                return await exchange.answer
        except TimeoutError:
            text = f"no response from the server in this process within {request.timeout:g} s"
            raise ConnectionFailed(text, sent=True) from None
        finally:
            # The application learns that its client is gone, as over a socket, and can release the messages of a pop.
            exchange.left.set()

    async def _run(self, exchange: _Exchange) -> None:
        failure = HarkError("the ASGI application did not send a response", code="no_answer")
        try:
            await self._app(exchange.scope, exchange.receive, exchange.send)
        except Exception as error:
            failure = HarkError(f"the ASGI application raised {error!r}", code="application_failed")
            failure.__cause__ = error
        exchange.fail(failure)

    def fork(self) -> None:
        """None: the server lives in this event loop and cannot be reached from another one."""

    async def close(self) -> None:
        """End running requests, then stop the server."""
        if self._closed or self._opening is None:
            self._closed = True
            return
        self._closed = True
        for exchange in self._running.values():
            exchange.left.set()
            exchange.fail(ConnectionFailed("the client was closed before the server answered", sent=True))
        await asyncio.wait([self._opening, *self._running])
        if not self._opening.cancelled() and self._opening.exception() is None and self._on_close is not None:
            await self._on_close()


class _Exchange:
    """One request and its response, as an ASGI application sees them."""

    def __init__(self, request: Request) -> None:
        self._body: bytes | None = request.body or b""
        self._status = 0
        self._retry_after: str | None = None
        self._first_line = request.first_line
        self._parts: list[bytes] = []
        self.scope = _scope(request)
        self.left = asyncio.Event()
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def fail(self, error: HarkError) -> None:
        """Fail the request, unless it has a response."""
        if not self.answer.done():
            self.answer.set_exception(error)

    async def receive(self) -> Event:
        """The request body. After that it waits until the client is gone or has its response."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: Event) -> None:
        """Receive a part of the response."""
        if event["type"] == "http.response.start":
            self._status = event["status"]
            headers = {bytes(name).lower(): bytes(value) for name, value in event.get("headers", ())}
            if b"retry-after" in headers:
                self._retry_after = headers[b"retry-after"].decode("latin-1")
        elif event["type"] == "http.response.body":
            self._parts.append(event.get("body", b""))
            if self._first_line is not None and self._status == 200:  # A first part is at least the first line.
                callback, self._first_line = self._first_line, None
                callback(self._parts[0].partition(b"\n")[0])
            if not event.get("more_body", False) and not self.answer.done():
                self.left.set()
                retry_after = retry_after_seconds(self._retry_after)
                self.answer.set_result(Answer(self._status, b"".join(self._parts), retry_after))


def _scope(request: Request) -> Scope:
    headers = [(b"host", b"localhost")]
    if request.body is not None:
        headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(request.body))]
    headers += [(name.lower().encode(), value.encode()) for name, value in (request.headers or {}).items()]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(request.path),
        "raw_path": request.path.encode(),
        "query_string": request.query_string.encode(),
        "root_path": "",
        "headers": headers,
        "client": None,
        "server": None,
    }


T = TypeVar("T")


class BesideTransport:
    """A transport to a server in a separate thread. The thread starts with the first request.

    Any number of transports share the thread, each for one event loop: `fork` creates another one. The thread ends when
    the last one is closed.
    """

    def __init__(self, server: AsgiTransport | ServerThread) -> None:
        self._thread = ServerThread(server) if isinstance(server, AsgiTransport) else server
        self._thread.join_in()
        self.url = self._thread.server.url
        """The address, for messages."""
        self.poll_as = self._thread.server.poll_as
        """Sets the polling strategy of the server's store, if it polls. Can be called from any thread."""
        self._closed = False
        self._pending: set[concurrent.futures.Future[Any]] = set()

    async def open(self) -> None:
        """Start the server, unless it was started."""
        await self._ask(self._thread.server.open())

    async def send(self, request: Request) -> Answer:
        if request.first_line is not None:
            loop, callback = asyncio.get_running_loop(), request.first_line
            request = msgspec.structs.replace(
                request, first_line=lambda line: loop.call_soon_threadsafe(callback, line)
            )
        return await self._ask(self._thread.server.send(request))

    async def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise client_closed()
        future = self._thread.submit(work)
        self._pending.add(future)
        try:
            # A cancellation here also cancels the request there, so the server releases the messages of a pop.
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._closed and not is_cancelling():
                raise ConnectionFailed("the client was closed before the server answered", sent=True) from None
            raise
        finally:
            self._pending.discard(future)

    def fork(self) -> BesideTransport:
        return BesideTransport(self._thread)

    async def close(self) -> None:
        """Close this transport. The last one also stops the server."""
        if self._closed:
            return
        self._closed = True
        for future in list(self._pending):
            future.cancel()
        await self._thread.leave()


class ServerThread:
    """The thread of the server, and the number of transports that use it."""

    def __init__(self, server: AsgiTransport) -> None:
        self.server = server
        self._transports = 0
        self._over = False
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine in the server's event loop, from any thread."""
        with self._lock:
            if not self._over:
                if self._thread is None:
                    self._thread = LoopThread("hark-server")
                return self._thread.submit(work)
        work.close()
        raise client_closed()

    def join_in(self) -> None:
        """Count one more transport."""
        with self._lock:
            self._transports += 1

    async def leave(self) -> None:
        """Count one transport less. After the last one the server is stopped and its thread ends."""
        with self._lock:
            self._transports -= 1
            self._over = not self._transports
        if self._over and self._thread is not None:
            try:
                await asyncio.wrap_future(self._thread.submit(self.server.close()))
            finally:
                self._thread.close()  # The thread has nothing left to do, so this returns immediately.
