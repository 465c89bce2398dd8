"""The server process: chooses an engine, connects the layers, and runs them until a signal to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from hark._version import __version__
from hark.broker import Broker
from hark.clock import Clock, SystemClock
from hark.engine.api import Engine
from hark.engine.sqlite import SqliteEngine
from hark.errors import InvalidSetting
from hark.http.app import App
from hark.http.audit import log_access
from hark.http.exchange import RequestIds
from hark.http.wire.server import Server
from hark.logs import log_to
from hark.polling import PollingStrategy, strategy_from
from hark.serving import listening
from hark.serving.listening import Endpoint, endpoints, make_authenticator, make_peers, reload_certificate, tls_context
from hark.serving.merging import ProcessLink, share
from hark.serving.tracing import start_tracing
from hark.settings import Loaded, Settings, shown
from hark.settings.sections import check_security, security_notes

S3_SCHEME = "s3://"
_POSTGRES_SCHEMES = ("postgresql://", "postgres://")


def make_engine(settings: Settings, clock: Clock, polling: PollingStrategy | None = None) -> Engine:
    """The engine that the settings name. `polling` is for S3, which has to be polled for changes."""
    if is_postgres(settings):
        return _on_postgres(settings)
    if is_s3(settings):
        return _on_s3(settings, clock, strategy_from(settings, polling))
    path = sqlite_path(settings)
    if path is None:
        raise InvalidSetting(
            f"engine: {shown(settings, 'engine')!r} is not supported; use sqlite:///file.db, "
            f"postgresql://user:password@host:port/database, s3://bucket/prefix or memory, or leave it empty for a "
            f"SQLite file in {settings.data!r}"
        )
    retention = settings.retention
    return SqliteEngine(
        path,
        clock=clock,
        completed_retention_seconds=retention.completed_seconds,
        idle_group_seconds=retention.idle_group_days * 86400,
        min_free_bytes=settings.limits.min_free_bytes,
    )


def _on_postgres(settings: Settings) -> Engine:
    from hark.engine.postgres import PostgresEngine

    # Without a local clock: all servers use the clock of the database.
    return PostgresEngine(
        settings.engine,
        completed_retention_seconds=settings.retention.completed_seconds,
        idle_group_seconds=settings.retention.idle_group_days * 86400,
        **msgspec.structs.asdict(settings.postgres),
    )


def _on_s3(settings: Settings, clock: Clock, polling: PollingStrategy) -> Engine:
    from hark.engine.s3.engine import S3Engine

    return S3Engine(
        settings.engine,
        clock=clock,
        settings=settings.s3,
        completed_retention_seconds=settings.retention.completed_seconds,
        idle_group_seconds=settings.retention.idle_group_days * 86400,
        polling=polling,
    )


def refuse_company_on_sqlite(settings: Settings) -> None:
    """Reject settings for several servers on SQLite: a SQLite file has one server process."""
    if is_postgres(settings) or is_s3(settings):
        return
    if settings.workers > 1:
        raise InvalidSetting(
            f"setting workers: {settings.workers} server processes cannot share one SQLite store; use 1, or use "
            "PostgreSQL or S3"
        )
    for name, value in (("peers", settings.peers), ("peer.port", settings.peer.port)):
        if value:
            raise InvalidSetting(
                f"setting {name}: a SQLite store has one server and no peers; remove it, or use PostgreSQL or S3"
            )


def is_postgres(settings: Settings) -> bool:
    """Whether the settings name a PostgreSQL database."""
    return settings.engine.startswith(_POSTGRES_SCHEMES)


def is_s3(settings: Settings) -> bool:
    """Whether the settings name a bucket."""
    return settings.engine.startswith(S3_SCHEME)


def sqlite_path(settings: Settings) -> str | None:
    """The path of the SQLite file, or None if the settings name another engine."""
    if not settings.engine:
        return str(Path(settings.data) / "hark.db")
    if settings.engine in ("memory", "memory://", "sqlite://:memory:", "sqlite:///:memory:"):
        return ":memory:"
    if settings.engine.startswith("sqlite:///"):
        return settings.engine.removeprefix("sqlite:///")
    return None


def describe(settings: Settings) -> str:
    """The name of the store, without a password."""
    if is_postgres(settings):
        from hark.engine.postgres import connections

        return connections.shown(settings.engine)
    if is_s3(settings):
        from hark.engine.s3.bucket import Address

        return Address.parse(settings.engine).text
    path = sqlite_path(settings)
    return "from memory (nothing is kept)" if path == ":memory:" else str(path)


log = logging.getLogger(__name__)

EXIT_UNFINISHED = 75
"""Exit code if the process ended before its store closed: EX_TEMPFAIL of `sysexits.h`."""
_LEAST_FOR_THE_STORE = 1.0
"""Minimum time for the store to close, even if requests used up the whole time limit."""
_OBJECTS_BETWEEN_LOOKS = 10_000
"""Number of new objects before the interpreter collects young cycles; its default is 700."""
_SWITCH_INTERVAL = 0.0003
"""Seconds before a busy thread yields the interpreter. The default of 5 ms is longer than a commit.
(Measured: batches of 100 and single pops gain a tenth over 1 ms; below 0.3 ms nothing is gained beyond the noise.)"""


def serve(loaded: Loaded) -> None:
    """Run a server until SIGINT or SIGTERM; SIGHUP makes it read certificates and tokens again.

    Raises `HarkError` if it cannot start.
    """
    settings = loaded.settings
    log_to_stderr(settings)
    check_security(settings.auth, settings.tls, loaded.sources)
    for note in security_notes(settings.auth, loaded.sources, os.environ):
        log.warning("%s", note)
    refuse_company_on_sqlite(settings)
    if settings.workers > 1:
        from hark.serving.processes import supervise

        supervise(settings, lambda address: announce(settings, address))
    else:
        with listening.bound(settings.host, settings.port) as listener:
            endpoint = next(iter(endpoints(settings)), None)
            address = listening.shown(listener, secure=bool(settings.tls.certificate))
            run(serve_on(listener, settings, lambda: announce(settings, address), endpoint))


def log_to_stderr(settings: Settings, worker: int | None = None) -> None:
    """Send the log to stderr. `worker` is the number of one of several processes."""
    fields = {} if worker is None else {"worker": worker}
    log_to(sys.stderr, settings.log_level, settings.log_format, fields, RequestIds())


def announce(settings: Settings, address: str) -> None:
    """Announce on stdout that the server accepts requests."""
    # One write with its line end: without a buffer `print` makes two, and a worker can log between them.
    print(f"Hark {__version__} serves {describe(settings)} on {address}\n", end="", flush=True)


def run(server: Coroutine[Any, Any, None]) -> None:
    """Run a server on its event loop."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # Until the server has started, it would end the process.
    sys.setswitchinterval(_SWITCH_INTERVAL)
    _allow_connections()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server)


def _allow_connections() -> None:
    """Raise the limit of open files as far as the system allows: each waiting consumer needs one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def serve_on(
    listener: socket.socket,
    settings: Settings,
    ready: Callable[[], None],
    endpoint: Endpoint | None,
    link: ProcessLink | None = None,
    number: int = 0,
) -> None:
    """Serve on a bound socket until a signal arrives. Calls `ready` when the server accepts connections.

    `link` connects one of several processes to its parent; `number` says which one it is, from 0.
    """
    clock = SystemClock()
    peers = make_peers(endpoint, settings, clock) if endpoint is not None else None
    try:
        authenticator = make_authenticator(settings, clock, listener)
        tls = tls_context(settings.tls)
        tracing = start_tracing(settings)
        engine = make_engine(settings, clock)
        broker = Broker(engine if tracing is None else tracing.engine(engine), settings, clock, peers=peers)
        await broker.start()
    except BaseException:
        listener.close()
        if peers is not None:
            await peers.close()
        raise
    stopping_since: float | None = None
    try:
        app = App(broker, settings, authenticator=authenticator, number=number)
        server = Server(
            app,
            limits=settings.limits,
            max_body_bytes=settings.max_body_bytes,
            asgi=None if tracing is None else tracing.app(app),
            on_end=log_access if settings.access_log else None,
        )
        app.metrics.load = server.load
        if link is not None:
            share(app.metrics, link)
        _look_for_cycles_less_often()
        listening.listen(listener)
        await server.start(listener, tls, listening.BACKLOG)
        stop = _signalled()

        def reload() -> None:
            reload_certificate(tls, settings.tls)
            authenticator.reload()
            server.end_revoked()

        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
        log.info("server process %d is ready", os.getpid())
        ready()
        await stop.wait()
        log.info("server process %d is shutting down", os.getpid())
        stopping_since = time.monotonic()
        server.stop_accepting()
        broker.stop_waiting()
        await server.stop(settings.stop_seconds)
    finally:
        left = settings.stop_seconds - (0 if stopping_since is None else time.monotonic() - stopping_since)
        await _close_in_time(broker, max(left, _LEAST_FOR_THE_STORE))
        if tracing is not None:
            tracing.close()


def _signalled() -> asyncio.Event:
    """Return an event that is set by the signal to stop. A second signal has no further effect."""
    signalled = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    return signalled


def _look_for_cycles_less_often() -> None:
    """Collect garbage less often: the objects so far are permanent, and requests create few cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_LOOKS)


async def _close_in_time(broker: Broker, seconds: float) -> None:
    """Close the broker, or end the process if the store does not respond in time.

    No acknowledged request is lost: it is stored before it is answered.
    """
    closing = asyncio.ensure_future(broker.close())
    done, _ = await asyncio.wait([closing], timeout=seconds)
    if not done:
        log.error(
            "the store did not close within %.1f s (stop_seconds); exiting anyway, no acknowledged request is lost",
            seconds,
        )
        logging.shutdown()
        # Threads that wait for the store would delay any other way to exit.
        os._exit(EXIT_UNFINISHED)
    await closing
