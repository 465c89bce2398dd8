"""Headers of every response: security headers for web browsers, and the request id."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from hark.http.edge.request_ids import HEADER, request_id_of
from hark.http.responses import NO_STORE, NOSNIFF, Event, Header, Scope, Send

_API = (NOSNIFF, NO_STORE)
_PAGES = (
    NOSNIFF,
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_HSTS = (b"strict-transport-security", b"max-age=31536000")
_API_PATHS = ("/api/", "/keyval/")


def standing_headers(scope: Scope) -> tuple[Header, ...]:
    """Return the headers that all responses to this kind of request have."""
    headers = _API if scope["path"].startswith(_API_PATHS) else _PAGES
    return (*headers, _HSTS) if scope.get("scheme") in ("https", "wss") else headers


def dressed(
    scope: Scope, send: Send, extra: tuple[Header, ...] = (), note: Callable[[int], None] | None = None
) -> Send:
    """Return a `send` that adds missing headers and the request id to the response.

    `note` is called with the status when the response begins.
    """

    def sending(event: Event) -> Coroutine[Any, Any, None]:
        if event["type"] in ("http.response.start", "websocket.http.response.start"):
            if note is not None:
                note(event["status"])
            headers = list(event.get("headers", ()))
            there = {name for name, _ in headers}
            wanted = (*standing_headers(scope), *extra, (HEADER, request_id_of(scope).encode()))
            headers += [header for header in wanted if header[0] not in there]
            event = {**event, "headers": headers}
        return send(event)

    return sending
