"""A tiny HTTP server that records what it is asked and answers what it was told to."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from hark.broker import Broker
from hark.http.app import App, Router
from hark.http.routing import JSON
from hark.settings import Settings
from tests.whole import whole

_HINT = re.compile(r"/api/v1/resources/queues/[^?]+\?limit=1&offset=0")
"""Commands look whether a queue exists, for a hint; that is not what the tests are about."""


class Seen(msgspec.Struct, frozen=True):
    """A request as it came over the wire."""

    method: str
    target: str
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return msgspec.json.decode(self.body)


@cache
def _router() -> Router:
    return Router(App(cast(Broker, None), Settings()).table)


def whole_answer(request: Seen, given: object, status: int = 200) -> bytes:
    """An answer in the form of the request's operation: the given fields, and something for those that it must have."""
    path = request.target.partition("?")[0].encode()
    operation = _router().find(SimpleNamespace(raw_path=path, method=request.method)).operation  # type: ignore[arg-type]
    shape = operation.answers.get(status, operation.answer if status < 300 else None)
    shape = next(iter(shape.values())) if isinstance(shape, dict) else shape
    return msgspec.json.encode(given if shape is None or operation.media != JSON else whole(given, shape))


class Stub:
    """What to answer next, and what was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[Seen] = []
        self.sent = b""
        """The body of the last answer."""
        self.indent = -1
        """How JSON is laid out: a program that prints it must keep that."""
        self._answers: list[tuple[int, object, dict[str, str]]] = []

    def answer(self, status: int, body: object = None, **headers: str) -> None:
        """Say what the next request gets: bytes as they are, else fields of the answer. None is no body."""
        self._answers.append((status, body, headers))

    def receive(self, request: Seen) -> tuple[int, bytes, dict[str, str]]:
        """Record a request and take the next answer, with all fields that it has; an empty one if nothing was said."""
        if _HINT.fullmatch(request.target):
            return 200, whole_answer(request, {}), {}
        self.seen.append(request)
        status, body, headers = self._answers.pop(0) if self._answers else (200, {}, {})
        content = body if isinstance(body, bytes) else b"" if body is None else whole_answer(request, body, status)
        self.sent = msgspec.json.format(content, indent=self.indent) if self.indent > 0 else content
        return status, self.sent, headers

    @property
    def last(self) -> Seen:
        """The last request."""
        return self.seen[-1]


@contextmanager
def running_stub() -> Iterator[Stub]:
    """Run a stub on a free port."""
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            request = Seen(self.command, self.path, self.rfile.read(length))
            status, content, headers = stub.receive(request)
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        stub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield stub
        finally:
            server.shutdown()
            thread.join()
