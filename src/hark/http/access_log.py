"""The access log: one line for each request, written when the request ends. It is off by default."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

from hark.http.app import App
from hark.http.edge.audit import client_of
from hark.http.edge.identities import IDENTITY, NOBODY
from hark.http.responses import Event, Receive, Scope, Send
from hark.http.routes.table import WEBSOCKET

log = logging.getLogger("hark.access")

_UPGRADED = 101


class AccessLog:
    """The application with an access log: method, route, status, duration, size, subject and client address."""

    def __init__(self, app: App, timer: Callable[[], float] = perf_counter) -> None:
        self._app = app
        self._timer = timer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and log it."""
        started = self._timer()
        answer = _Answer()

        def noting(event: Event) -> Coroutine[Any, Any, None]:
            answer.note(event)
            return send(event)

        try:
            await self._app(scope, receive, noting)
        finally:
            self._log(scope, answer, self._timer() - started)

    def _log(self, scope: Scope, answer: _Answer, seconds: float) -> None:
        method, route = scope.get("method", WEBSOCKET), self._app.route_of(scope)
        status = answer.status or "no answer"
        fields = {
            "method": method,
            "route": route,
            "status": answer.status,
            "ms": round(seconds * 1000, 3),
            "bytes": answer.size,
            "subject": scope.get(IDENTITY, NOBODY).subject,
            "client": client_of(scope),
        }
        log.info("%s %s: %s", method, route, status, extra={"fields": fields})


class _Answer:
    """Status and size of a response."""

    def __init__(self) -> None:
        self.status: int | None = None
        """None: the client disconnected or the request failed before the response began."""
        self.size = 0

    def note(self, event: Event) -> None:
        if "status" in event:
            self.status = event["status"]
        elif event["type"] == "websocket.accept":
            self.status = _UPGRADED
        elif event["type"] == "websocket.send":
            text = event.get("text")
            self.size += len(event.get("bytes") or b"") if text is None else len(text.encode())
        else:
            self.size += len(event.get("body", b""))
