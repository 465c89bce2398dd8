"""The server process: wires the layers, and runs them until told to stop."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
import uvloop

from hark._version import __version__
from hark.broker import Broker
from hark.clock import SystemClock
from hark.http.app import App
from hark.http.stream.transport import WEBSOCKET_LOG, OpenProtocol, QuietWebSocket, is_worth_logging
from hark.serving import listening
from hark.serving.engines import describe, make_engine, refuse_company_on_sqlite
from hark.serving.peering import Endpoint, endpoints, make_peers
from hark.settings import Loaded, Settings

log = logging.getLogger(__name__)

_SWITCH_INTERVAL = 0.0003
"""Seconds that a busy thread keeps the interpreter from the others; the default of 5 ms is longer than a commit.
(Measured: batches of 100 and single pops gain a tenth over 1 ms, nothing loses.)"""


def serve(loaded: Loaded) -> None:
    """Run a server until SIGINT or SIGTERM; raises `HarkError` when it can't start."""
    settings = loaded.settings
    log_to_stderr(settings)
    refuse_company_on_sqlite(settings)
    if settings.workers > 1:
        from hark.serving.processes import supervise

        supervise(settings, lambda address: announce(settings, address))
    else:
        with listening.bound(settings.host, settings.port) as listener:
            endpoint = next(iter(endpoints(settings)), None)
            run(serve_on(listener, settings, lambda: announce(settings, listening.shown(listener)), endpoint))


def log_to_stderr(settings: Settings, who: str = "") -> None:
    """Send the log to stderr; `who` names one of several processes."""
    layout = f"%(asctime)s %(levelname)s {who}%(name)s: %(message)s"
    logging.basicConfig(level=settings.log_level.upper(), format=layout, stream=sys.stderr)
    logging.getLogger(WEBSOCKET_LOG).addFilter(is_worth_logging)  # Else there are lines for every connection.


def announce(settings: Settings, address: str) -> None:
    """Say on stdout that requests are taken."""
    print(f"Hark {__version__} serves {describe(settings)} on {address}", flush=True)


def run(server: Coroutine[Any, Any, None]) -> None:
    """Run a server on the event loop that is made for it."""
    sys.setswitchinterval(_SWITCH_INTERVAL)
    _allow_connections()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server)


def _allow_connections() -> None:
    """Raise the number of open files as far as the system lets us: each consumer that waits is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def serve_on(
    listener: socket.socket, settings: Settings, ready: Callable[[], None], endpoint: Endpoint | None
) -> None:
    """Serve on a bound socket until a signal comes; `ready` is called when connections are taken."""
    clock = SystemClock()
    peers = make_peers(endpoint, settings, clock) if endpoint is not None else None
    try:
        broker = Broker(make_engine(settings, clock), settings, clock, peers=peers)
        await broker.start()
    except BaseException:
        listener.close()
        if peers is not None:
            await peers.close()
        raise
    try:
        config = uvicorn_config(App(broker, settings), settings.host, settings.port, settings.max_body_bytes)
        server = _Server(config, broker)
        listening.listen(listener)
        ready()
        await server.serve([listener])
    finally:
        await broker.close()


def uvicorn_config(app: Any, host: str, port: int, max_frame_bytes: int = 2**20) -> uvicorn.Config:
    """How Hark runs uvicorn; the benchmark's empty application runs the same way."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http=OpenProtocol,
        interface="asgi3",
        ws=QuietWebSocket,
        ws_max_size=max_frame_bytes,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        server_header=False,
        log_config=None,
        backlog=listening.BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=10,
    )


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
