"""Several server processes on one port: a parent starts them, replaces those that exit, and stops them together.

Each worker is a complete server with its own connection pool, and runs this module as its program. One socket connects
it to the parent. The parent sends the settings over this socket, so that passwords and keys do not appear in the list
of processes. The worker answers once: it is ready, or it reports an error. Afterwards both sides request metrics over
the socket (`supervising.py`), and each side notices when the other one exits.

Each worker is a peer of the others and has its own UDP port: of several sockets on one port only one would receive a
datagram. The parent keeps these ports open, so that a replacement has the same address as the worker before it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress

import msgspec

from hark.errors import HarkError, InvalidSetting, StoreUnusable
from hark.serving import listening, supervising
from hark.serving.listening import Endpoint, endpoints, remembering
from hark.serving.server import log_to_stderr, run, serve_on
from hark.serving.supervising import LONGEST, Answer, ChildProcess, Family, Merger, ProcessLink
from hark.settings import Address, Settings

_ANSWER_SECONDS = 3.0
"""Time limit for the metrics of one worker."""
_PAUSE_SECONDS = 1.0
"""Pause before a worker is replaced: the cause of its exit can persist."""
_MORE_SECONDS = 5.0
"""Time beyond `stop_seconds` before the parent kills a worker. Workers observe `stop_seconds` themselves."""


class Order(msgspec.Struct):
    """The instructions for a worker."""

    settings: Settings
    family: int
    host: str
    port: int
    peer_fd: int
    """File descriptor of the UDP socket for notifications from its peers."""
    peers: tuple[Address, ...]
    siblings: int
    """Number of peers, at the start of `peers`, that are workers of the same server."""


class Report(msgspec.Struct):
    """The answer of a worker: empty if it is ready, or the reason why it cannot start."""

    code: str = ""
    error: str = ""


def supervise(settings: Settings, ready: Callable[[str], None]) -> None:
    """Run the workers until SIGINT or SIGTERM. Calls `ready` with the address when all of them are ready."""
    with ExitStack() as kept:
        holder = kept.enter_context(listening.reserved(settings.host, settings.port))
        settings = remembering(settings, holder)
        ends = endpoints(settings)
        for end in ends:
            kept.enter_context(end.udp)
        host, port = holder.getsockname()[:2]
        orders = [
            Order(settings, holder.family, host, port, end.udp.fileno(), end.others, end.siblings) for end in ends
        ]
        workers = [Worker(number, order) for number, order in enumerate(orders, start=1)]
        merger = Merger()

        async def ask(worker: Worker) -> None:
            with suppress(OSError, TimeoutError):
                merger.note(worker.number, worker.lives, await worker.ask())

        async def answer() -> list[Family]:
            await asyncio.gather(*map(ask, workers))
            return merger.merged()

        for worker in workers:
            worker.answer = answer
        address = listening.shown(holder, secure=bool(settings.tls.certificate))
        limit = settings.stop_seconds + _MORE_SECONDS
        asyncio.run(supervising.supervise(workers, lambda: ready(address), limit, lambda _failures: _PAUSE_SECONDS))


class Worker(ChildProcess):
    """A server process, from the parent's view."""

    def __init__(self, number: int, order: Order) -> None:
        super().__init__(number)
        self.answer: Answer | None = None
        """Function that answers its requests for metrics."""
        self._order = order
        self._link: ProcessLink | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start a process and wait until it is ready. Raises the reason if it cannot start."""
        ours, theirs = socket.socketpair()
        with theirs:
            reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=LONGEST)
            # In a separate session, Ctrl-C reaches only the parent, which forwards it once.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "hark.serving.processes",
                str(self.number),
                stdin=theirs.fileno(),
                pass_fds=[self._order.peer_fd],
                start_new_session=True,
            )
        self._writer.write(msgspec.json.encode(self._order) + b"\n")
        answer = await reader.readline()
        if not answer:
            reason = supervising.reason(await self.ended())
            raise StoreUnusable(f"a server process ended with {reason} before it was ready; see the log")
        report = msgspec.json.decode(answer, type=Report)
        if report.error:
            await self.ended()
            kind = InvalidSetting if report.code == InvalidSetting.code else StoreUnusable
            raise kind(report.error, code=report.code)
        self.serves = True
        self.lives += 1
        self._link = ProcessLink(reader, self._writer, self.answer)
        self._listening = asyncio.create_task(self._link.listen())

    async def ask(self) -> list[Family]:
        """The metrics of the process. Raises `OSError` if it does not run, and `TimeoutError`."""
        if self._link is None or not self.serves:
            raise ConnectionError("the process does not run")
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await self._link.ask()

    async def _exited(self) -> None:
        if self._listening is not None:
            self._listening.cancel()


# The program of a worker -----------------------------------------------------------------------------------


async def _work(number: int) -> None:
    """Serve until a signal arrives or the parent exits. The standard input is the socket to the parent."""
    parent = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    reader, writer = await asyncio.open_unix_connection(sock=parent, limit=LONGEST)
    text = await reader.readline()
    if not text:
        return  # The parent exited before it sent the order.
    order = msgspec.json.decode(text, type=Order)
    log_to_stderr(order.settings, number)
    link = ProcessLink(reader, writer)
    watch = asyncio.create_task(_stop_without(link))

    def report(report: Report) -> None:
        writer.write(msgspec.json.encode(report) + b"\n")

    try:
        listener = listening.joined(order.family, order.host, order.port)
        endpoint = Endpoint(socket.socket(fileno=order.peer_fd), order.peers, order.siblings)
        await serve_on(listener, order.settings, lambda: report(Report()), endpoint, link, number - 1)
    except HarkError as error:
        report(Report(error.code, error.text))
        await writer.drain()
        sys.exit(1)
    finally:
        watch.cancel()


async def _stop_without(parent: ProcessLink) -> None:
    """Shut down when the parent has exited, for whatever reason."""
    await parent.listen()
    signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    run(_work(int(sys.argv[1])))
