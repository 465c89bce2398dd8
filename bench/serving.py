"""Serves a plain ASGI callable exactly as Hark serves its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from hark.serving.server import uvicorn_config

if TYPE_CHECKING:
    from uvicorn._types import ASGIApplication

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def body_of(receive: Receive) -> bytes:
    """The whole body of a request."""
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event["body"], event["more_body"]
    return body


async def answer(send: Send, body: bytes) -> None:
    """Say that something was made, and what."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve(app: App, port: int) -> None:
    """Serve until a signal comes."""
    uvicorn.Server(uvicorn_config(cast("ASGIApplication", app), "127.0.0.1", port)).run()
