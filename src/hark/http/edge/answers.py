"""Headers of every response: security headers for web browsers, and the request id."""

from __future__ import annotations

from hark.http.edge.request_ids import HEADER, request_id_of
from hark.http.exchange import Exchange, Header
from hark.http.responses import NO_STORE, NOSNIFF

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
_API_PATHS = (b"/api/", b"/keyval/")


def dress(exchange: Exchange, extra: tuple[Header, ...] = ()) -> None:
    """Add the headers that all responses to this kind of request have, and the request id, to the response."""
    headers = _API if exchange.raw_path.startswith(_API_PATHS) else _PAGES
    hsts = (_HSTS,) if exchange.secure else ()
    exchange.extra = (*headers, *hsts, *extra, (HEADER, request_id_of(exchange).encode()))
