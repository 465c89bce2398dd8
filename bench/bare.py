"""The reference L: a bare httptools protocol on uvloop. `python -m bench.bare PORT`.

It parses each request and answers with one write, no more: what HTTP in Python costs at least.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import httptools

from bench.serving import HOST, run_until_signal

ANSWER = b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n[]"


class Bare(asyncio.Protocol):
    """One connection."""

    __slots__ = ("_parser", "_transport")

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one, but not by name

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Called by the parser: answer any request."""
        self._transport.write(ANSWER)


async def main(port: int) -> None:
    """Serve until a signal comes."""
    await asyncio.get_running_loop().create_server(Bare, HOST, port, backlog=4096)


if __name__ == "__main__":
    run_until_signal(main(int(sys.argv[1])))
