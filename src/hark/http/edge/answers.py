"""What every answer says beside its content: headers that keep browsers from mischief, and the id of the request."""

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
    """The headers of all answers to this kind of request."""
    headers = _API if scope["path"].startswith(_API_PATHS) else _PAGES
    return (*headers, _HSTS) if scope.get("scheme") in ("https", "wss") else headers


def dressed(
    scope: Scope, send: Send, extra: tuple[Header, ...] = (), note: Callable[[int], None] | None = None
) -> Send:
    """A `send` that gives the answer what it lacks of these headers, and the id of the request.

    `note` hears the status when the answer begins.
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
