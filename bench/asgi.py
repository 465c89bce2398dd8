"""Serves a plain ASGI callable exactly as Hark serves its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from hark.server import uvicorn_config

if TYPE_CHECKING:
    from uvicorn._types import ASGIApplication

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def serve(app: App, port: int) -> None:
    """Serve until a signal comes."""
    uvicorn.Server(uvicorn_config(cast("ASGIApplication", app), "127.0.0.1", port)).run()
