"""Serves a plain ASGI callable exactly as Hark serves its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def config(app: App, port: int) -> uvicorn.Config:
    """Hark's own uvicorn configuration, without the start-up hooks that only Hark's app has."""
    try:
        from hark.server import uvicorn_config
    except ImportError:
        made = uvicorn.Config(
            app,
            "127.0.0.1",
            port,
            loop="uvloop",
            http="httptools",
            ws="none",
            log_level="warning",
            access_log=False,
        )
    else:
        made = uvicorn_config(app, "127.0.0.1", port)
    made.lifespan = "off"
    return made


def serve(app: App, port: int) -> None:
    """Serve until a signal comes."""
    uvicorn.Server(config(app, port)).run()
