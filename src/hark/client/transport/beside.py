"""A server in this process with its own thread and event loop, so that a blocking handler does not stop it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from hark.client.transport.api import Answer, ConnectionFailed, Request
from hark.client.transport.inprocess import AsgiTransport, PollAs
from hark.errors import HarkError

T = TypeVar("T")
Future = concurrent.futures.Future[Any]


class BesideTransport:
    """A transport to a server in a separate thread. The thread starts with the first request.

    Any number of transports share the thread, each for one event loop: `fork` creates another one. The thread ends when
    the last one is closed.
    """

    def __init__(self, server: AsgiTransport | ServerThread) -> None:
        self._thread = ServerThread(server) if isinstance(server, AsgiTransport) else server
        self._thread.join_in()
        self._closed = False
        self._asked: set[Future] = set()

    @property
    def url(self) -> str:
        """The address, for messages."""
        return self._thread.server.url

    @property
    def poll_as(self) -> PollAs | None:
        """Sets the polling strategy of the server's store, if it polls. Can be called from any thread."""
        return self._thread.server.poll_as

    async def open(self) -> None:
        """Start the server, unless it was started."""
        await self._ask(self._thread.server.open())

    async def send(self, request: Request) -> Answer:
        """Send one request. Raises `ConnectionFailed` if there is no response in time."""
        if request.first_line is not None:
            loop, callback = asyncio.get_running_loop(), request.first_line
            request = msgspec.structs.replace(
                request, first_line=lambda line: loop.call_soon_threadsafe(callback, line)
            )
        return await self._ask(self._thread.server.send(request))

    async def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise HarkError("the client is closed; create a new one with connect()", code="client_closed")
        future = self._thread.submit(work)
        self._asked.add(future)
        try:
            # A cancellation here also cancels the request there, so the server releases the messages of a pop.
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):
                raise ConnectionFailed("the client was closed before the server answered", sent=True) from None
            raise
        finally:
            self._asked.discard(future)

    def fork(self) -> BesideTransport:
        """The same transport for another event loop."""
        return BesideTransport(self._thread)

    async def close(self) -> None:
        """Close this transport. The last one also stops the server."""
        if self._closed:
            return
        self._closed = True
        for future in list(self._asked):
            future.cancel()
        await self._thread.leave()


class ServerThread:
    """The thread of the server, and the number of transports that use it."""

    def __init__(self, server: AsgiTransport) -> None:
        self.server = server
        self._ways = 0
        self._over = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine in the server's event loop, from any thread."""
        with self._lock:
            if not self._over:
                return asyncio.run_coroutine_threadsafe(work, self._loop or self._start())
        work.close()
        raise HarkError("the client is closed; create a new one with connect()", code="client_closed")

    def _start(self) -> asyncio.AbstractEventLoop:
        started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        # A daemon thread, so that a program that forgot to close its client can end.
        self._thread = threading.Thread(target=_serve, args=(started,), name="hark-server", daemon=True)
        self._thread.start()
        self._loop = started.result()
        return self._loop

    def join_in(self) -> None:
        """Count one more transport."""
        with self._lock:
            self._ways += 1

    async def leave(self) -> None:
        """Count one transport less. After the last one the server is stopped and its thread ends."""
        with self._lock:
            self._ways -= 1
            loop, thread = self._loop, self._thread
            self._over = not self._ways
        if not self._over or loop is None or thread is None:
            return
        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.server.close(), loop))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            # The thread has nothing left to do, so this returns immediately.
            thread.join()


def _serve(started: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:  # At the end it cancels all running tasks.
        loop = runner.get_loop()
        loop.call_soon(started.set_result, loop)
        loop.run_forever()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The fastest available event loop: uvloop, which Windows does not have."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
