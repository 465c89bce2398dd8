"""OpenTelemetry spans of requests. They are off unless the settings enable them."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from hark.http.app import App
from hark.http.responses import Event, Receive, Scope, Send

_w3c = TraceContextTextMapPropagator()
_UPGRADED = 101
_FIRST_ERROR = 500


class Traced:
    """An application with a span around each request. The span of the client is the parent."""

    def __init__(self, app: App, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = self._app.admitted(scope)
        method, route = exchange.method, exchange.route
        attributes: dict[str, AttributeValue] = {"http.request.method": method, "http.route": route}
        with self._tracer.start_as_current_span(
            f"{method} {route}", _parent(scope), SpanKind.SERVER, attributes
        ) as span:

            def noting(event: Event) -> Coroutine[Any, Any, None]:
                if "status" in event:
                    _note(span, event["status"])
                elif event["type"] == "websocket.accept":
                    _note(span, _UPGRADED)
                return send(event)

            await self._app(scope, receive, noting)


def _note(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= _FIRST_ERROR:
        span.set_status(Status(StatusCode.ERROR))


def _parent(scope: Scope) -> Context:
    """Return the trace context of the headers, never the current context of the process."""
    wanted = (b"traceparent", b"tracestate")
    carrier = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in wanted}
    return _w3c.extract(carrier, Context())
