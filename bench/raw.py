"""A client on a plain blocking socket: one connection, one request at a time, nothing between it and the kernel."""

from __future__ import annotations

import re
import socket
import time
from typing import Self

from bench.rows import PARTITIONS, QUEUE, SIZE
from bench.wrk import Sample
from hark.cli.bench import Load, percentile, push_bodies

HOST = "127.0.0.1"
TIMEOUT = 30.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_END = b"\r\n\r\n"


def get(path: bytes) -> bytes:
    """A GET request."""
    return b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path


def post(path: bytes, body: bytes) -> bytes:
    """A POST request with a JSON body."""
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (path, len(body)) + body


class RawClient:
    """One connection, kept open."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> int:
        """Send a request, read the whole answer, and return its status; `OSError` if the connection ends before."""
        return self.answer(request)[0]

    def answer(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and return the status and the body of the answer."""
        self.send(request)
        return self.receive()

    def send(self, request: bytes) -> None:
        """Send a request."""
        self._socket.sendall(request)

    def receive(self) -> tuple[int, bytes]:
        """Read an answer and return its status and body."""
        data = self._more(b"")
        while (end := data.find(_END)) < 0:
            data = self._more(data)
        found = _LENGTH.search(data, 0, end)
        whole = end + len(_END) + (int(found[1]) if found else 0)
        while len(data) < whole:
            data = self._more(data)
        return int(data[9:12]), data[end + len(_END) :]

    def _more(self, data: bytes) -> bytes:
        got = self._socket.recv(65_536)
        if not got:
            raise ConnectionResetError("the server closed the connection")
        return data + got

    def close(self) -> None:
        """Leave."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def lone_pushes(port: int, seconds: float) -> Sample:
    """Single pushes on one connection, each after the answer to the one before."""
    bodies = push_bodies(Load(kind="push", queue=QUEUE, partitions=PARTITIONS, size=SIZE))
    latencies: list[float] = []
    errors = 0
    own, began = time.process_time(), time.perf_counter()
    now = began
    with RawClient(port) as client:
        while now - began < seconds:
            request = post(b"/api/v1/push", next(bodies))
            sent = time.perf_counter()
            status = client.ask(request)
            now = time.perf_counter()
            if status == 201:
                latencies.append((now - sent) * 1e3)
            else:
                errors += 1
    return Sample(
        messages=len(latencies),
        seconds=now - began,
        errors=errors,
        empty=0,
        p50_ms=percentile(latencies, 50),
        p99_ms=percentile(latencies, 99),
        generator_cpu=(time.process_time() - own) / (now - began),
    )
