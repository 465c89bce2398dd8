"""OpenTelemetry traces: the SDK, configured by its own variables, and the spans of the server."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from hark._version import __version__
from hark.engine.api import Engine
from hark.errors import InvalidSetting
from hark.http.app import App
from hark.http.responses import Event, Receive, Scope, Send
from hark.model import NewMessage, Transaction
from hark.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, Tracer

_VERBS = ("push", "settle", "transact")
"""Verbs whose calls belong to requests. (Pops of waiting consumers serve many requests.)"""
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
    provider = TracerProvider(resource=Resource.create(_resource()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


def _resource() -> dict[str, str | bool | int | float]:
    """Who we are, unless the variables say so."""
    resource: dict[str, str | bool | int | float] = {"service.version": __version__}
    if "OTEL_SERVICE_NAME" not in os.environ and "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        resource["service.name"] = "hark"
    return resource


class Tracing:
    """The spans of one server process."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer("hark", __version__)

    def app(self, app: App) -> Callable[[Scope, Receive, Send], Awaitable[object]]:
        """The application, with a span around each request."""
        return _traced_app(app, self._tracer)

    def engine(self, engine: Engine) -> Engine:
        """The engine, with a span around each batch that requests begin."""
        return cast(Engine, _TracedEngine(engine, self._tracer))

    def close(self) -> None:
        """Send the remaining spans, unless the collector does not respond."""
        sending = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        sending.start()
        sending.join(_CLOSE_SECONDS)


def _traced_app(app: App, tracer: Tracer) -> Callable[[Scope, Receive, Send], Awaitable[object]]:
    """Return an application with a span around each request. The span of the client is the parent."""
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
        with tracer.start_as_current_span(f"{method} {route}", parent, SpanKind.SERVER, attributes) as span:

            def noting(event: Event) -> Coroutine[Any, Any, None]:
                status = event.get("status", _UPGRADED if event["type"] == "websocket.accept" else None)
                if status is not None:
                    span.set_attribute("http.response.status_code", status)
                    if status >= _FIRST_ERROR:
                        span.set_status(Status(StatusCode.ERROR))
                return send(event)

            await app(scope, receive, noting)

    return traced


class _TracedEngine:
    """Stands for an engine.

    A batch is shared by many requests: its span is within that of the one that began it, and linked to the pushes
    that its messages come from.
    """

    def __init__(self, engine: Engine, tracer: Tracer) -> None:
        self._engine = engine
        for verb in _VERBS:
            setattr(self, verb, _traced(engine, verb, tracer))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _traced(engine: Engine, verb: str, tracer: Tracer) -> Callable[[Sequence[Any]], Awaitable[Any]]:
    call = getattr(engine, verb)

    async def traced(requests: Sequence[Any]) -> Any:
        attributes = {"hark.batch_size": len(requests)}
        with tracer.start_as_current_span(f"store {verb}", attributes=attributes, links=_links(requests)):
            return await call(requests)

    return traced


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
