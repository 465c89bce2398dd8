"""Bodies and headers of requests and responses: errors, trace context, security headers, cross-origin checks."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, MutableMapping, Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_args
from urllib.parse import urlsplit

import msgspec

from hark.api import types
from hark.errors import BodyTooLarge, Forbidden, HarkError, InvalidInput, MethodNotAllowed, Unauthorized
from hark.http import checks
from hark.http.checks import Payloads, many_values, time_of, too_many_values
from hark.http.exchange import (
    HEADER,
    Exchange,
    Header,
    current_exchange,
    current_request_id,
    exchange_of,
    request_id_of,
)
from hark.model import NewMessage
from hark.model.messages import is_traceparent, is_tracestate, trace_context
from hark.settings import Settings
from hark.settings.sections import ANY_ORIGIN

if TYPE_CHECKING:
    from hark.http.routing import Operation

log = logging.getLogger(__name__)

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, Event]]
Send = Callable[[Event], Coroutine[Any, Any, None]]
encode = types.encode
JSON_HEADER = (b"content-type", b"application/json")
NO_STORE = (b"cache-control", b"no-store")
NOSNIFF = (b"x-content-type-options", b"nosniff")
JSON_HEADERS = (JSON_HEADER, NOSNIFF)
UNCACHED_JSON = (JSON_HEADER, NOSNIFF, NO_STORE)
_PART_BYTES = 256 * 1024
_INTERNAL = "internal"


async def send_if_there(send: Send, receive: Receive, status: int, body: bytes, *extra: Header) -> bool:
    """Send a JSON response; return False if the client disconnected before it received all of it.

    A large body is sent in parts. `send` waits while the buffer of the transport is full, so that a disconnected client
    is detected before the last part.
    """
    if has_left(receive):
        return False
    headers = [JSON_HEADER, NOSNIFF, (b"content-length", b"%d" % len(body)), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for start in range(0, len(body), _PART_BYTES):
        if start:
            # A failed write does not wait; the event loop reports it in its next turn.
            await asyncio.sleep(0)
            if has_left(receive):
                return False
        part = body[start : start + _PART_BYTES] if len(body) > _PART_BYTES else body
        more = start + _PART_BYTES < len(body)
        await send({"type": "http.response.body", "body": part, "more_body": more})
    return True


def has_left(receive: Receive) -> bool:
    """Return whether the client has disconnected: only then does one step of `receive` return immediately."""
    step = receive().__await__()
    try:
        next(step)
    except StopIteration as answer:
        return bool(answer.value["type"] == "http.disconnect")
    step.close()
    return False


async def wait_until_left(receive: Receive) -> None:
    """Return when the client has disconnected or has received the whole response."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of some work, which is cancelled if the client disconnects."""
    waiting, left = asyncio.ensure_future(work), asyncio.ensure_future(wait_until_left(receive))
    try:
        await asyncio.wait((waiting, left), return_when=asyncio.FIRST_COMPLETED)
    finally:
        left.cancel()
        if not waiting.done():
            waiting.cancel()
    return await waiting


Response = tuple[int, tuple[Header, ...], bytes]
"""Status, headers and body of a response."""


def error_body(error: HarkError) -> dict[str, str]:
    """Return the body of an error response. Internal errors include the request id, to find them in the log."""
    body = {"error": error.text, "code": error.code}
    if error.code == _INTERNAL and (request_id := current_request_id()):
        body["requestId"] = request_id
    return body


def error_response(error: Exception) -> Response:
    """Return any exception as a response, with request id, retry-after, allow and www-authenticate."""
    known = known_error(error)
    headers = [*UNCACHED_JSON]
    if request_id := current_request_id():
        headers.append((HEADER, request_id.encode()))
    if isinstance(known, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if known.retry_after is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(known.retry_after)))
    if isinstance(known, MethodNotAllowed):
        headers.append((b"allow", known.allow.encode()))
    return known.status, tuple(headers), encode(error_body(known))


async def send_response(send: Send, response: Response) -> None:
    """Send a whole response."""
    status, headers, body = response
    length = () if status == 204 else ((b"content-length", b"%d" % len(body)),)
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": body})


async def refuse_websocket(receive: Receive, send: Send, response: Response) -> None:
    """Answer the request for a WebSocket with a response, instead of an upgrade of the connection."""
    await receive()  # The connect event.
    status, headers, body = response
    await send({"type": "websocket.http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "websocket.http.response.body", "body": body})


async def send_failure(send: Send, error: Exception) -> None:
    """Send any exception as an error response."""
    await send_response(send, error_response(error))


def fail(exchange: Exchange, error: Exception) -> None:
    """Respond with an error. Its headers and log lines name the request."""
    token = current_exchange.set(exchange)
    try:
        exchange.carrier.respond(exchange, *error_response(error))
    finally:
        current_exchange.reset(token)


def known_error(error: Exception) -> HarkError:
    """Return an exception as the error that the client receives."""
    if isinstance(error, HarkError):
        return error
    log.error("a request failed because of a bug; please report it", exc_info=error)
    return HarkError("internal error; the log of the server has the details", code=_INTERNAL)


def body_limit(operation: Operation, settings: Settings) -> int:
    """Return the maximum size of the body of an operation, in bytes."""
    return min(operation.body_bytes, settings.max_body_bytes)


async def read_whole(scope: Scope, receive: Receive, settings: Settings) -> bytes:
    """Return the whole body; raises an error if it is larger than its operation allows, or nested too deeply."""
    most = body_limit(exchange_of(scope).operation, settings)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise InvalidInput("the client disconnected before the request body was complete")
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise too_large(most, settings.max_body_bytes)
        more = event.get("more_body", False)
    body = b"".join(parts)
    await checks.check_nesting_in_turns(body)
    return body


async def decode_in_turns(
    body: bytes, type: type[T], what: str, texts: Mapping[str, str] | None = None, payloads: Payloads | None = None
) -> T:
    """Decode a body like `decode_json`; its payloads may have many values. Others are served between the steps."""
    if number := many_values(body):
        if payloads is None:
            raise too_many_values()
        await asyncio.sleep(0)
        checks.check_values(number, payloads(body))
        await asyncio.sleep(0)
    return checks.decode_unbounded(body, type, what, texts)


def too_large(most: int, max_body_bytes: int) -> BodyTooLarge:
    """Return the error for a body that is larger than `most`, the limit of its operation."""
    if most < max_body_bytes:
        return BodyTooLarge(f"the request body is over {most} bytes, the limit of this operation")
    return BodyTooLarge(f"the request body is over {most} bytes (setting max_body_bytes); send smaller batches")


# Answers ---------------------------------------------------------------------------------------------------


def answer_of(shape: Callable[..., T], source: msgspec.Struct, **others: Any) -> T:
    """Return an answer or a body with the fields of `source` that have the same name, and others. Times become text."""
    values = {
        name: time_of(getattr(source, name)) if is_time else getattr(source, name)
        for name, is_time in _common_fields(shape, type(source))
        if name not in others
    }
    return shape(**values, **others)


@cache
def _common_fields(shape: type[Any], source: type[msgspec.Struct]) -> tuple[tuple[str, bool], ...]:
    """Return the fields of both types, and whether they are times that are not text yet."""
    return tuple(
        (field.name, datetime in (field.type, *get_args(field.type)) and not issubclass(source, types.Answer))
        for field in msgspec.structs.fields(shape)
        if field.name in source.__struct_fields__
    )


# Headers --------------------------------------------------------------------------------------------------

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
# response the page could not read are rejected too, because a GET can have effects: a pop receives messages.
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
    _, separator, host = origin.partition(b"://")
    return bool(separator) and host == headers.get(b"host")


def _refused(who: str) -> Forbidden:
    return Forbidden(
        f"requests from pages of {who} are not allowed; add the origin to the setting cors.origins to allow them",
        code="cross_origin",
    )
