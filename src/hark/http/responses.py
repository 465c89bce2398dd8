"""Responses of the raw ASGI routes: JSON bodies and errors."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any

import msgspec

from hark.errors import BodyTooLarge, HarkError, MethodNotAllowed, Unauthorized
from hark.http.edge import request_ids

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, Event]]
Send = Callable[[Event], Coroutine[Any, Any, None]]
Header = tuple[bytes, bytes]

encode = msgspec.json.Encoder().encode
JSON_HEADER = (b"content-type", b"application/json")
NO_STORE = (b"cache-control", b"no-store")
NOSNIFF = (b"x-content-type-options", b"nosniff")
_PART_BYTES = 256 * 1024
_INTERNAL = "internal"


async def send_json(send: Send, status: int, body: bytes, *extra: Header) -> None:
    """Send a JSON response."""
    headers = [JSON_HEADER, NOSNIFF, (b"content-length", b"%d" % len(body)), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


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


async def send_empty(send: Send) -> None:
    """Send 204 without a body."""
    await send({"type": "http.response.start", "status": 204, "headers": [NO_STORE]})
    await send({"type": "http.response.body", "body": b""})


def error_body(error: HarkError) -> dict[str, str]:
    """Return the body of an error response. Internal errors include the request id, to find them in the log."""
    body = {"error": error.text, "code": error.code}
    if error.code == _INTERNAL and (request_id := request_ids.current_request_id()):
        body["requestId"] = request_id
    return body


def error_headers(error: HarkError) -> dict[str, str]:
    """Return the headers of an error response: request id, retry-after, allow and www-authenticate."""
    headers = {}
    if request_id := request_ids.current_request_id():
        headers["x-request-id"] = request_id
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    if error.retry_after is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after))
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = error.allow
    return headers


async def send_error(send: Send, error: HarkError, *, close: bool = False) -> None:
    """Send an error response. `close`: close the connection, because the rest of the body is not read."""
    body = encode(error_body(error))
    headers = [JSON_HEADER, NOSNIFF, NO_STORE, (b"content-length", b"%d" % len(body))]
    headers += [(name.encode(), value.encode()) for name, value in error_headers(error).items()]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def refuse(scope: Scope, receive: Receive, send: Send, error: HarkError) -> None:
    """Reject a request. A WebSocket is rejected before the connection is upgraded."""
    if scope["type"] == "http":
        await send_error(send, error)
        return
    await receive()  # The connect event.
    headers = [JSON_HEADER, *((name.encode(), value.encode()) for name, value in error_headers(error).items())]
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": encode(error_body(error))})


async def send_failure(send: Send, error: Exception) -> None:
    """Send any exception as an error response."""
    known = known_error(error)
    await send_error(send, known, close=isinstance(known, BodyTooLarge))


def known_error(error: Exception) -> HarkError:
    """Return an exception as the error that the client receives."""
    return error if isinstance(error, HarkError) else internal_error(error)


def internal_error(error: Exception) -> HarkError:
    """Log an unexpected exception, and return the error that the client receives."""
    log.error("a request failed because of a bug; please report it", exc_info=error)
    return HarkError("internal error; the log of the server has the details", code=_INTERNAL)
