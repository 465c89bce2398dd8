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
from hark.serving.listening import Endpoint
from hark.serving.merging import LONGEST, ProcessLink
from hark.serving.processes import Order, Report
from hark.serving.server import log_to_stderr, run, serve_on


def main() -> None:
    """Serve until a signal comes or the parent is gone."""
    run(_work(int(sys.argv[1])))


async def _work(number: int) -> None:
    # The parent's socket is in the place of the standard input.
    parent = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    reader, writer = await asyncio.open_unix_connection(sock=parent, limit=LONGEST)
    line = await reader.readline()
    if not line:
        return  # The parent ended before it said anything.
    order = msgspec.json.decode(line, type=Order)
    log_to_stderr(order.settings, number)
    talk = ProcessLink(reader, writer)
    watch = asyncio.create_task(_stop_without(talk))
    try:
        listener = listening.joined(order.family, order.host, order.port)
        endpoint = Endpoint(socket.socket(fileno=order.peer_fd), order.peers, order.siblings)
        await serve_on(listener, order.settings, lambda: _answer(writer, Report()), endpoint, talk, number - 1)
    except HarkError as error:
        _answer(writer, Report(error.code, error.text))
        await writer.drain()
        sys.exit(1)
    finally:
        watch.cancel()


async def _stop_without(parent: ProcessLink) -> None:
    """When the parent is gone, however it ended, stop as if it had said so."""
    await parent.listen()
    signal.raise_signal(signal.SIGTERM)


def _answer(writer: asyncio.StreamWriter, report: Report) -> None:
    writer.write(msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    main()
