"""A whole server in a thread of this process: a store in memory, the broker, and HTTP on a free port."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from hark.broker import Broker
from hark.clock import SECOND, FakeClock
from hark.http.app import App
from hark.http.wire.server import Server
from hark.serving import listening
from hark.settings import Settings
from hark.testing.engine import ObservedEngine
from hark.testing.timers import FakeTimers

T = TypeVar("T")

_ANSWER_SECONDS = 60.0
_CLOSE_SECONDS = 5.0


class ServerThread:
    """The parts that `hark serve` runs, with a clock that the test moves."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.clock = FakeClock(time.time_ns() // 1000)
        self._timers = FakeTimers(self.clock)
        self.engine = ObservedEngine(self.clock)
        self.broker = Broker(self.engine, settings, self.clock, timers=self._timers)
        self.url = ""
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="hark-test-server", daemon=True)

    def start(self) -> None:
        """Start the server. Returns when it accepts requests; raises if it cannot start."""
        self._thread.start()
        self._ready.result(_ANSWER_SECONDS)

    def stop(self) -> None:
        """Answer waiting requests, close everything and wait for the end of the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_ANSWER_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError(f"the test server did not stop within {_ANSWER_SECONDS:g} s")

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the server, and wait for it."""
        if not self._thread.is_alive():
            raise RuntimeError(
                "the test server is not running; use it as a context manager: with HarkServer() as server"
            )
        return asyncio.run_coroutine_threadsafe(make(), self._loop).result(_ANSWER_SECONDS)

    async def advance(self, seconds: float) -> None:
        """Move the clock from one due time to the next, and wait for the consequences of each."""
        end = self.clock.now() + round(seconds * SECOND)
        await self.engine.rest()
        while True:
            expired = await self.engine.expire()
            dues = [due for due in (self._timers.next_due(), expired.next_due, end) if due is not None]
            now = min(dues)
            self._timers.advance(max(0, now - self.clock.now()) / SECOND)
            await self.engine.rest()
            if now >= end:
                break
        await self.engine.expire()
        await self.engine.sweep_keys(10_000)
        await self._collect()
        await self.engine.rest()

    async def _collect(self) -> None:
        while (await self.engine.collect()).more:
            pass

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    def _app(self) -> App:
        return App(self.broker, self._settings)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        listener = listening.bound("127.0.0.1", 0)
        try:
            await self.broker.start()
        except BaseException:
            listener.close()
            raise
        try:
            app = self._app()
            self.server = Server(app, limits=self._settings.limits, max_body_bytes=self._settings.max_body_bytes)
            app.metrics.load = self.server.load
            await self.server.start(listener)
            self.url = listening.shown(listener)
            self._ready.set_result(None)
            await self._stop.wait()
            self.broker.stop_waiting()
            await self.server.stop(_CLOSE_SECONDS)
        finally:
            await self.broker.close()
