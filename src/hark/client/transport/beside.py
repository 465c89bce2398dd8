"""A server in this process, but not in the user's event loop: a handler that blocks its loop stops nothing there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hark.client.transport.api import Answer, ConnectionFailed, Request
from hark.client.transport.inprocess import AsgiTransport, PollAs
from hark.errors import HarkError

T = TypeVar("T")
Future = concurrent.futures.Future[Any]


class BesideTransport:
    """A way to a server in a thread of its own. The thread starts with the first request, and ends with the last way.

    Any number of ways lead there, each for one event loop: `fork` makes another one.
    """

    def __init__(self, server: AsgiTransport | ServerThread) -> None:
        self._thread = ServerThread(server) if isinstance(server, AsgiTransport) else server
        self._thread.join_in()
        self._closed = False
        self._asked: set[Future] = set()

    @property
    def url(self) -> str:
        """Where to, for people."""
        return self._thread.server.url

    @property
    def poll_as(self) -> PollAs | None:
        """Tells the server's store how to poll, if it does; from any thread."""
        return self._thread.server.poll_as

    async def open(self) -> None:
        """Start the server, unless it was started already."""
        await self._ask(self._thread.server.open())

    async def send(self, request: Request) -> Answer:
        """Ask once; raises `ConnectionFailed` when there is no answer in time."""
        return await self._ask(self._thread.server.send(request))

    async def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise HarkError("the client is closed; connect again", code="client_closed")
        future = self._thread.submit(work)
        self._asked.add(future)
        try:
            # Who is cancelled here is gone there too: then the server gives back what it had for him.
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):
                raise ConnectionFailed("the client was closed", sent=True) from None
            raise
        finally:
            self._asked.discard(future)

    def fork(self) -> BesideTransport:
        """The same way for another event loop."""
        return BesideTransport(self._thread)

    async def close(self) -> None:
        """Hang up; whoever is the last to do so closes the server."""
        if self._closed:
            return
        self._closed = True
        for future in list(self._asked):
            future.cancel()
        await self._thread.leave()


class ServerThread:
    """The thread in which the server lives, and how many have a way to it."""

    def __init__(self, server: AsgiTransport) -> None:
        self.server = server
        self._ways = 0
        self._over = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin something in the server's loop, from any thread."""
        with self._lock:
            if not self._over:
                return asyncio.run_coroutine_threadsafe(work, self._loop or self._start())
        work.close()
        raise HarkError("the client is closed; connect again", code="client_closed")

    def _start(self) -> asyncio.AbstractEventLoop:
        started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        # A daemon: a program that forgot to close its client can still end.
        self._thread = threading.Thread(target=_serve, args=(started,), name="hark-server", daemon=True)
        self._thread.start()
        self._loop = started.result()
        return self._loop

    def join_in(self) -> None:
        """There is one more way."""
        with self._lock:
            self._ways += 1

    async def leave(self) -> None:
        """There is one way less; after the last one the server is closed, and its thread ends."""
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
            # The thread has nothing left to do, so this takes no time.
            thread.join()


def _serve(started: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:  # At its end it cancels what still runs.
        loop = runner.get_loop()
        loop.call_soon(started.set_result, loop)
        loop.run_forever()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The fastest loop there is: uvloop, which Windows does not have."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
