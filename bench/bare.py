"""Limit (b): an ASGI app that reads the body and answers, no more. `python -m bench.empty PORT`."""

from __future__ import annotations

import sys

from bench.asgi import Receive, Scope, Send, serve

START = {"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"2")]}
BODY = {"type": "http.response.body", "body": b"[]"}


async def app(_scope: Scope, receive: Receive, send: Send) -> None:
    """Answer any request."""
    while (await receive()).get("more_body"):
        pass
    await send(START)
    await send(BODY)


if __name__ == "__main__":
    serve(app, int(sys.argv[1]))
