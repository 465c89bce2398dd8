"""The server process: chooses the engine, wires the layers, and runs them until told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from hark._version import __version__
from hark.broker import Broker
from hark.clock import Clock, SystemClock
from hark.engine.api import Engine
from hark.engine.sqlite import SqliteEngine
from hark.errors import InvalidSetting, StoreUnusable
from hark.http.app import App
from hark.settings import Loaded, Settings

log = logging.getLogger(__name__)

_SWITCH_INTERVAL = 0.0003
"""Seconds that a busy thread keeps the interpreter from the others; the default of 5 ms is longer than a commit.
(Measured: batches of 100 and single pops gain a tenth over 1 ms, nothing loses.)"""


def serve(loaded: Loaded) -> None:
    """Run a server until SIGINT or SIGTERM; raises `HarkError` when it can't start."""
    settings = loaded.settings
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    sys.setswitchinterval(_SWITCH_INTERVAL)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    clock = SystemClock()
    engine = make_engine(settings, clock)
    listener = _listen(settings)
    broker = Broker(engine, settings, clock)
    try:
        await broker.start()
    except BaseException:
        listener.close()
        raise
    try:
        server = _Server(uvicorn_config(App(broker, settings), settings.host, settings.port), broker)
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"Hark {__version__} serves {describe(settings)} on http://{shown}:{port}", flush=True)
        await server.serve([listener])
    finally:
        await broker.close()


def uvicorn_config(app: Any, host: str, port: int) -> uvicorn.Config:
    """How Hark runs uvicorn; the benchmark's empty application runs the same way."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http="httptools",
        interface="asgi3",
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        log_config=None,
        backlog=4096,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=10,
    )


def make_engine(settings: Settings, clock: Clock) -> Engine:
    """The engine that the settings name."""
    url = settings.engine
    retention = settings.retention
    path = sqlite_path(settings)
    if path is None:
        raise InvalidSetting(
            f"engine: {url!r} is not an engine that this Hark has; use sqlite:///file.db, memory, or leave it empty "
            f"for a file under {settings.data!r}"
        )
    if settings.workers > 1:
        raise InvalidSetting(f"workers: {settings.workers} server processes can't share one SQLite store; use 1")
    return SqliteEngine(
        path,
        clock=clock,
        completed_retention_seconds=retention.completed_seconds,
        idle_group_seconds=retention.idle_group_days * 86400,
    )


def sqlite_path(settings: Settings) -> str | None:
    """Where the SQLite engine keeps its data; None when the settings name another engine."""
    if not settings.engine:
        return str(Path(settings.data) / "hark.db")
    if settings.engine in ("memory", "memory://", "sqlite://:memory:", "sqlite:///:memory:"):
        return ":memory:"
    if settings.engine.startswith("sqlite:///"):
        return settings.engine.removeprefix("sqlite:///")
    return None


def describe(settings: Settings) -> str:
    """The store, in words."""
    path = sqlite_path(settings)
    return "from memory (nothing is kept)" if path == ":memory:" else str(path)


def _listen(settings: Settings) -> socket.socket:
    """Take the port first: a second server must fail before it touches the store."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise StoreUnusable(
            f"can't listen on {settings.host}:{settings.port}: {error.strerror}; is another server running? "
            "choose another --port",
            code="address_in_use",
        ) from error
    return listener


class _Server(uvicorn.Server):
    """uvicorn, but waiting pops are answered when it begins to stop, instead of holding it up."""

    def __init__(self, config: uvicorn.Config, broker: Broker) -> None:
        super().__init__(config)
        self._broker = broker

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal, but do not raise it again as uvicorn would: the store has to be closed first."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._broker.stop_waiting()
        await super().shutdown(sockets)
