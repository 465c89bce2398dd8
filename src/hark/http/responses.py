"""Bodies of requests and responses on the raw ASGI routes."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, MutableMapping
from typing import Any, TypeVar

import msgspec

from hark.api.types import base
from hark.errors import BodyTooLarge, HarkError, InvalidInput, MethodNotAllowed, Unauthorized
from hark.http import exchange
from hark.http.checks import check_nesting_in_turns, check_values, decode_unbounded, many_values, too_many_values
from hark.http.exchange import Header, exchange_of
from hark.http.routes.table import Operation
from hark.settings import Settings

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, Event]]
Send = Callable[[Event], Coroutine[Any, Any, None]]
encode = base.encode
JSON_HEADER = (b"content-type", b"application/json")
NO_STORE = (b"cache-control", b"no-store")
NOSNIFF = (b"x-content-type-options", b"nosniff")
JSON_HEADERS = (JSON_HEADER, NOSNIFF)
UNCACHED_JSON = (JSON_HEADER, NOSNIFF, NO_STORE)
_PART_BYTES = 256 * 1024
_INTERNAL = "internal"


async def send_json(send: Send, status: int, body: bytes) -> None:
    """Send a JSON response."""
    await send_response(send, (status, JSON_HEADERS, body))


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


Response = tuple[int, tuple[Header, ...], bytes]
"""Status, headers and body of a response."""


def error_body(error: HarkError) -> dict[str, str]:
    """Return the body of an error response. Internal errors include the request id, to find them in the log."""
    body = {"error": error.text, "code": error.code}
    if error.code == _INTERNAL and (request_id := exchange.current_request_id()):
        body["requestId"] = request_id
    return body


def error_headers(error: HarkError) -> tuple[Header, ...]:
    """Return the headers of an error response: request id, retry-after, allow and www-authenticate."""
    headers = [JSON_HEADER, NOSNIFF, NO_STORE]
    if request_id := exchange.current_request_id():
        headers.append((exchange.HEADER, request_id.encode()))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after)))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    return tuple(headers)


def error_response(error: Exception) -> Response:
    """Return any exception as a response."""
    known = known_error(error)
    return known.status, error_headers(known), encode(error_body(known))


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


def known_error(error: Exception) -> HarkError:
    """Return an exception as the error that the client receives."""
    return error if isinstance(error, HarkError) else internal_error(error)


def internal_error(error: Exception) -> HarkError:
    """Log an unexpected exception, and return the error that the client receives."""
    log.error("a request failed because of a bug; please report it", exc_info=error)
    return HarkError("internal error; the log of the server has the details", code=_INTERNAL)


T = TypeVar("T")


def body_limit(operation: Operation, settings: Settings) -> int:
    """Return the maximum size of the body of an operation, in bytes."""
    return min(operation.body_bytes, settings.max_body_bytes)


async def read_whole(scope: Scope, receive: Receive, settings: Settings) -> bytes:
    """Return the whole body; raises an error if it is larger than its operation allows, or nested too deeply."""
    most = body_limit(exchange_of(scope).operation, settings)
    event = await receive()
    body: bytes = event.get("body", b"")
    if not event.get("more_body"):
        if len(body) > most:
            raise too_large(most, settings.max_body_bytes)
        await check_nesting_in_turns(body)
        return body
    parts = [body]
    size = len(body)
    while event.get("more_body"):
        if size > most:
            raise too_large(most, settings.max_body_bytes)
        event = await receive()
        if event["type"] == "http.disconnect":
            raise InvalidInput("the client disconnected before the request body was complete")
        parts.append(event.get("body", b""))
        size += len(parts[-1])
    if size > most:
        raise too_large(most, settings.max_body_bytes)
    whole = b"".join(parts)
    await check_nesting_in_turns(whole)
    return whole


Payloads = Callable[[bytes], Iterable[msgspec.Raw]]
"""Returns the parts of a body that are not decoded."""


async def decode_in_turns(
    body: bytes, type: type[T], what: str, texts: Mapping[str, str] | None = None, payloads: Payloads | None = None
) -> T:
    """Decode a body like `decode_json`; its payloads may have many values. Others are served between the steps."""
    if number := many_values(body):
        if payloads is None:
            raise too_many_values()
        await asyncio.sleep(0)
        check_values(number, payloads(body))
        await asyncio.sleep(0)
    return decode_unbounded(body, type, what, texts)


def too_large(most: int, max_body_bytes: int) -> BodyTooLarge:
    """Return the error for a body that is larger than `most`, the limit of its operation."""
    if most < max_body_bytes:
        return BodyTooLarge(f"the request body is over {most} bytes, the limit of this operation")
    return BodyTooLarge(f"the request body is over {most} bytes (setting max_body_bytes); send smaller batches")
