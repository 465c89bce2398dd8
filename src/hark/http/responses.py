"""Responses of the raw ASGI routes: JSON bodies and errors."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any

import msgspec

from hark.errors import HarkError, MethodNotAllowed, Unauthorized
from hark.http.edge import request_ids
from hark.http.exchange import Header

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, Event]]
Send = Callable[[Event], Coroutine[Any, Any, None]]
encode = msgspec.json.Encoder().encode
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
    if error.code == _INTERNAL and (request_id := request_ids.current_request_id()):
        body["requestId"] = request_id
    return body


def error_headers(error: HarkError) -> tuple[Header, ...]:
    """Return the headers of an error response: request id, retry-after, allow and www-authenticate."""
    headers = [JSON_HEADER, NOSNIFF, NO_STORE]
    if request_id := request_ids.current_request_id():
        headers.append((request_ids.HEADER, request_id.encode()))
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
