"""What a server keeps of connections that are over."""

from __future__ import annotations

import gc
import socket
import struct
import time
from urllib.parse import urlsplit

from hark.http.stream.transport import OpenProtocol
from tests.http.streaming import PATIENCE, inside

RESET = struct.pack("ii", 1, 0)
"""Linger for no time at all: the end of the connection is a reset."""


def kept() -> int:
    """How many connections are in memory."""
    gc.collect()
    return sum(isinstance(one, OpenProtocol) for one in gc.get_objects())


def test_a_connection_that_is_reset_is_let_go_of_long_before_its_idle_time_is_over() -> None:
    with inside() as server:
        where = urlsplit(server.url)
        before = server.call(kept)
        with socket.create_connection((where.hostname, where.port), PATIENCE) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: hark\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
            assert server.call(kept) == before + 1
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        until = time.monotonic() + PATIENCE
        while server.call(kept) > before:
            assert time.monotonic() < until
