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
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

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
from hark.http.responses import Event, Receive, Scope, Send
from hark.http.wire.server import Server
from hark.logs import log_to
from hark.model import NewMessage, Transaction
from hark.polling import PollingStrategy, strategy_from
from hark.serving import listening
from hark.serving.listening import Endpoint, endpoints, make_authenticator, make_peers, reload_certificate, tls_context
from hark.serving.supervising import ProcessLink, share
from hark.settings import Loaded, Settings, shown
from hark.settings.sections import check_security, security_notes

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, Tracer


def make_engine(settings: Settings, clock: Clock, polling: PollingStrategy | None = None) -> Engine:
    """The engine that the settings name. `polling` is for S3, which has to be polled for changes."""
    completed_seconds, idle_seconds = settings.retention.completed_seconds, settings.retention.idle_group_days * 86400
    if settings.on_postgres:
        from hark.engine.postgres import PostgresEngine

        # Without a local clock: all servers use the clock of the database.
        return PostgresEngine(
            settings.engine,
            completed_retention_seconds=completed_seconds,
            idle_group_seconds=idle_seconds,
            **msgspec.structs.asdict(settings.postgres),
        )
    if settings.on_s3:
        from hark.engine.s3.engine import S3Engine

        return S3Engine(
            settings.engine,
            clock=clock,
            settings=settings.s3,
            completed_retention_seconds=completed_seconds,
            idle_group_seconds=idle_seconds,
            polling=strategy_from(settings, polling),
        )
    path = settings.sqlite_path
    if path is None:
        raise InvalidSetting(
            f"engine: {shown(settings, 'engine')!r} is not supported; use sqlite:///file.db, "
            f"postgresql://user:password@host:port/database, s3://bucket/prefix or memory, or leave it empty for a "
            f"SQLite file in {settings.data!r}"
        )
    return SqliteEngine(
        path,
        clock=clock,
        completed_retention_seconds=completed_seconds,
        idle_group_seconds=idle_seconds,
        min_free_bytes=settings.limits.min_free_bytes,
    )


def refuse_company_on_sqlite(settings: Settings) -> None:
    """Reject settings for several servers on SQLite: a SQLite file has one server process."""
    if settings.on_postgres or settings.on_s3:
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


def describe(settings: Settings) -> str:
    """The name of the store, without a password."""
    if settings.on_postgres:
        from hark.engine.postgres.pool import shown

        return shown(settings.engine)
    if settings.on_s3:
        from hark.engine.s3.bucket import Address

        return Address.parse(settings.engine).text
    return "from memory (nothing is kept)" if settings.sqlite_path == ":memory:" else str(settings.sqlite_path)


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
    # Each waiting consumer needs an open file: raise the limit as far as the system allows.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server)


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
        # Collect garbage less often: the objects so far are permanent, and requests create few cycles.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_OBJECTS_BETWEEN_LOOKS)
        listening.listen(listener)
        await server.start(listener, tls, listening.BACKLOG)
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for one in (signal.SIGINT, signal.SIGTERM):  # A second signal has no further effect.
            loop.add_signal_handler(one, stop.set)

        def reload() -> None:
            reload_certificate(tls, settings.tls)
            authenticator.reload()
            server.end_revoked()

        loop.add_signal_handler(signal.SIGHUP, reload)
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


# OpenTelemetry traces --------------------------------------------------------------------------------------

_VERBS = ("push", "settle", "transact")
"""Verbs whose calls belong to requests. A pop serves many waiting consumers."""
_MOST_LINKS = 32
_CONTEXT_HEADERS = (b"traceparent", b"tracestate")
_UPGRADED = 101
_FIRST_ERROR = 500
_CLOSE_SECONDS = 2.0
"""Time limit at shutdown for a collector that does not respond."""


def start_tracing(settings: Settings) -> Tracing | None:
    """Spans of this process, if the settings enable them. Raises `InvalidSetting` without OpenTelemetry."""
    if not settings.otel.enabled:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InvalidSetting(
            "setting otel.enabled: OpenTelemetry is missing; install it with: pip install 'hark-mq[otel]'"
        ) from error
    resource: dict[str, str | bool | int | float] = {"service.version": __version__}
    if "OTEL_SERVICE_NAME" not in os.environ and "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        resource["service.name"] = "hark"
    provider = TracerProvider(resource=Resource.create(resource), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


class Tracing:
    """The spans of one server process."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer("hark", __version__)

    def app(self, app: App) -> Callable[[Scope, Receive, Send], Awaitable[object]]:
        """The application, with a span around each request. The span of the client is the parent."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        w3c = TraceContextTextMapPropagator()

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            exchange = app.admitted(scope)
            method, route = exchange.method, exchange.route
            attributes = {"http.request.method": method, "http.route": route}
            given = ((name, value) for name, value in scope["headers"] if name in _CONTEXT_HEADERS)
            # The parent is in the headers: never the current context of the process.
            parent = w3c.extract({name.decode(): value.decode("latin-1") for name, value in given}, Context())
            span_of_request = self._tracer.start_as_current_span(
                f"{method} {route}", parent, SpanKind.SERVER, attributes
            )
            with span_of_request as span:

                def noting(event: Event) -> Coroutine[Any, Any, None]:
                    status = event.get("status", _UPGRADED if event["type"] == "websocket.accept" else None)
                    if status is not None:
                        span.set_attribute("http.response.status_code", status)
                        if status >= _FIRST_ERROR:
                            span.set_status(Status(StatusCode.ERROR))
                    return send(event)

                await app(scope, receive, noting)

        return traced

    def engine(self, engine: Engine) -> Engine:
        """The engine, with a span around each batch that requests begin."""
        return cast(Engine, _TracedEngine(engine, self._tracer))

    def close(self) -> None:
        """Send the remaining spans, unless the collector does not respond."""
        sending = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        sending.start()
        sending.join(_CLOSE_SECONDS)


class _TracedEngine:
    """An engine with spans.

    Many requests share a batch: its span is within the span of the request that began it, and has links to the pushes
    of its messages.
    """

    def __init__(self, engine: Engine, tracer: Tracer) -> None:
        self._engine = engine
        self._tracer = tracer
        for verb in _VERBS:
            setattr(self, verb, partial(self._call, verb))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def _call(self, verb: str, requests: Sequence[Any]) -> Any:
        attributes = {"hark.batch_size": len(requests)}
        with self._tracer.start_as_current_span(f"store {verb}", attributes=attributes, links=_links(requests)):
            return await getattr(self._engine, verb)(requests)


def _links(requests: Sequence[Any]) -> list[Link]:
    """Links to the pushes whose context messages of a batch carry."""
    from opentelemetry.trace import Link, get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    contexts = {message.trace_context for message in _messages(requests) if message.trace_context is not None}
    w3c = TraceContextTextMapPropagator()
    links = []
    for context in sorted(contexts)[:_MOST_LINKS]:
        found = get_current_span(w3c.extract({"traceparent": context.partition(" ")[0]})).get_span_context()
        if found.is_valid:
            links.append(Link(found))
    return links


def _messages(requests: Sequence[Sequence[object] | Transaction]) -> Iterable[NewMessage]:
    for request in requests:
        items = request.operations if isinstance(request, Transaction) else request
        yield from (item for item in items if isinstance(item, NewMessage))
