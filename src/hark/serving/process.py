"""One of several server processes on a port; `processes.py` is their parent, and starts this as a program."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import msgspec

from hark.errors import HarkError
from hark.serving import listening
from hark.serving.peering import Endpoint
from hark.serving.processes import Order, Report
from hark.serving.server import log_to_stderr, run, serve_on


def main() -> None:
    """Serve until a signal comes or the parent is gone."""
    run(_work(f"worker {sys.argv[1]}: "))


async def _work(name: str) -> None:
    # The parent's socket is in the place of the standard input.
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=os.dup(sys.stdin.fileno())))
    line = await reader.readline()
    if not line:
        return  # The parent ended before it said anything.
    order = msgspec.json.decode(line, type=Order)
    log_to_stderr(order.settings, name)
    watch = asyncio.create_task(_stop_without(reader))
    try:
        listener = listening.joined(order.family, order.host, order.port)
        endpoint = Endpoint(socket.socket(fileno=order.peer_fd), order.peers)
        await serve_on(listener, order.settings, lambda: _answer(writer, Report()), endpoint)
    except HarkError as error:
        _answer(writer, Report(error.code, error.text))
        await writer.drain()
        sys.exit(1)
    finally:
        watch.cancel()


async def _stop_without(parent: asyncio.StreamReader) -> None:
    """When the parent is gone, however it ended, stop as if it had said so."""
    await parent.read()
    signal.raise_signal(signal.SIGTERM)


def _answer(writer: asyncio.StreamWriter, report: Report) -> None:
    writer.write(msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    main()
