"""A tiny HTTP server that records what it is asked and answers what it was told to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec


class Seen(msgspec.Struct, frozen=True):
    """A request as it came over the wire."""

    method: str
    target: str
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return msgspec.json.decode(self.body)


class Stub:
    """What to answer next, and what was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[Seen] = []
        self._answers: list[tuple[int, bytes, dict[str, str]]] = []

    def answer(self, status: int, body: object = None, **headers: str) -> None:
        """Say what the next request gets; a body of bytes goes out as it is, None is no body."""
        content = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        self._answers.append((status, content, headers))

    def next_answer(self) -> tuple[int, bytes, dict[str, str]]:
        """Take the next answer; an empty object if nothing was said."""
        return self._answers.pop(0) if self._answers else (200, b"{}", {})

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
            stub.seen.append(Seen(self.command, self.path, self.rfile.read(length)))
            status, content, headers = stub.next_answer()
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
