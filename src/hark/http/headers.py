"""Headers of requests and responses: trace context, security headers, cross-origin checks."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from hark.errors import Forbidden
from hark.http.exchange import HEADER, Exchange, Header, request_id_of
from hark.http.responses import NO_STORE, NOSNIFF
from hark.model import NewMessage
from hark.model.messages import is_traceparent, is_tracestate, trace_context
from hark.settings.sections import ANY_ORIGIN

PARENT_HEADER = b"traceparent"
_STATE_HEADER = b"tracestate"


def note_context(exchange: Exchange) -> None:
    """Store the trace context of the headers. Invalid headers are ignored, as W3C Trace Context requires."""
    traceparent = exchange.headers[PARENT_HEADER].decode("latin-1")
    tracestate = exchange.headers.get(_STATE_HEADER, b"").decode("latin-1")
    if is_traceparent(traceparent):
        exchange.trace_context = trace_context(traceparent, tracestate if is_tracestate(tracestate) else None)


def carry(exchange: Exchange, messages: Iterable[object]) -> None:
    """Set the trace context of the request on its messages that have none."""
    if exchange.trace_context is not None:
        for message in messages:
            if isinstance(message, NewMessage) and message.trace_context is None:
                message.trace_context = exchange.trace_context


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


# A page of any site can make a web browser send requests to any address that its user can reach, including loopback.
# Web browsers mark these requests with `Origin` and `Sec-Fetch-Site`; other clients send neither. Requests whose
# response
# the page could not read are rejected too, because a GET can have effects: a pop receives messages.
#
# A page could also point its own host name to the address of this server (DNS rebinding), and would then count as the
# same site. While no token is required, web browsers must therefore use a host name of this server.


Headers = Mapping[bytes, bytes]

_VARY = (b"vary", b"origin")
_PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
    (b"access-control-allow-headers", b"authorization, content-type, x-request-id"),
    (b"access-control-max-age", b"600"),
)
_EXPOSED = (b"access-control-expose-headers", b"x-request-id, retry-after")
_OTHER_SITES = (b"cross-site", b"same-site")
_ONLY_BROWSERS = (b"origin", b"sec-fetch-site", b"sec-fetch-dest")
_MODES_OF_NODE = (b"cors", b"websocket")
"""Node.js sends `Sec-Fetch-Mode` and `Accept-Language: *`, but none of the headers above."""
_KEPT_HOSTS = 1000
_LONGEST_KEPT_HOST = 255


class Sites:
    """Allowed origins, and the host names of this server."""

    def __init__(self, origins: Sequence[str], hosts: Sequence[str], *, loopback: bool) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self._any = ANY_ORIGIN in origins
        self._hosts = frozenset(host.lower() for host in hosts)
        self._loopback = loopback
        self.good_hosts: set[bytes | None] = {None}
        """Known host names of this server; None: the request has no host."""

    def check(self, headers: Headers, *, page: bool) -> None:
        """Raise `Forbidden` for requests from pages of other sites. `page`: a public page that other sites may link."""
        origin = headers.get(b"origin")
        if origin is not None:
            if not self.allows(origin) and not _is_own(origin, headers):
                raise _refused(origin.decode("latin-1"))
            return
        # Requests without an origin are not made with CORS: images, frames, links.
        follows_link = page and headers.get(b"sec-fetch-mode") == b"navigate"
        if headers.get(b"sec-fetch-site") in _OTHER_SITES and not follows_link:
            raise _refused("another site")

    def check_host(self, headers: Headers, *, public: bool = False) -> None:
        """Raise `Forbidden` if a request that needs no token has a host name that is not one of this server.

        Programs can use any name for public routes, and for servers that other machines can reach: a network has names
        that this server does not know.
        """
        host = headers.get(b"host")
        if host is None or ((public or not self._loopback) and not is_from_browser(headers)):
            return
        if not self._is_good(host.decode("latin-1")):
            raise Forbidden(
                f"the host name {host.decode('latin-1')!r} is not allowed; use the IP address of the server or "
                "localhost, or add the name to the setting allowed_hosts",
                code="host_not_allowed",
            )
        if len(self.good_hosts) < _KEPT_HOSTS and len(host) <= _LONGEST_KEPT_HOST:
            self.good_hosts.add(host)

    def _is_good(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if name == "localhost" or name.endswith(".localhost") or name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    # CORS --------------------------------------------------------------------------------------------------

    def allows(self, origin: bytes) -> bool:
        """Return whether the settings allow an origin."""
        return self._any or origin in self._origins

    def is_cross_site(self, headers: Headers) -> bool:
        """Return whether the request comes from a page of another site. Its cookies are ignored."""
        origin = headers.get(b"origin")
        return origin is not None and not _is_own(origin, headers)

    def preflight(self, headers: Headers) -> tuple[Header, ...] | None:
        """Return the headers of the response to a CORS preflight; None if the request is not a preflight."""
        origin = headers.get(b"origin")
        if origin is None or b"access-control-request-method" not in headers:
            return None
        if not self.allows(origin):
            raise _refused(origin.decode("latin-1"))
        return (*self.cors_headers(headers), *_PREFLIGHT)

    def cors_headers(self, headers: Headers) -> tuple[Header, ...]:
        """Return the headers that allow a page to read the response; empty if the settings allow no origins."""
        if not self._any and not self._origins:
            return ()
        origin = headers.get(b"origin")
        if origin is None or not self.allows(origin):
            return (_VARY,)
        shown = ANY_ORIGIN.encode() if self._any else origin
        return ((b"access-control-allow-origin", shown), _EXPOSED, _VARY)


def is_from_browser(headers: Headers) -> bool:
    """Return whether a web browser sent the request.

    To `http://` names web browsers send no `Sec-Fetch-*`, and a GET to the page's own name has no `Origin`. They always
    send `Accept-Language`: a page can change it but not remove it, and cannot set `Sec-Fetch-Mode`.
    """
    if any(name in headers for name in _ONLY_BROWSERS):
        return True
    mode = headers.get(b"sec-fetch-mode")
    return mode not in _MODES_OF_NODE and (mode is not None or b"accept-language" in headers)


def _is_own(origin: bytes, headers: Headers) -> bool:
    """Return whether an origin is this server."""
    _, separator, authority = origin.partition(b"://")
    return bool(separator) and authority == headers.get(b"host")


def _refused(who: str) -> Forbidden:
    return Forbidden(
        f"requests from pages of {who} are not allowed; add the origin to the setting cors.origins to allow them",
        code="cross_origin",
    )
