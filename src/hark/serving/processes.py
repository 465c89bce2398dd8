"""Several server processes on one port: a parent that starts them, replaces what dies, and stops them together.

Each worker is a whole server with a pool of its own (`process.py`). Between it and the parent there is one socket.
The parent sends the settings over it, so that passwords and keys show in no list of processes. The worker answers once:
it is ready, or why it can't be. After that they ask each other for metrics over it (`line.py`), and it tells each side
that the other one is gone.

Each worker is a peer of the others, at a UDP port of its own: of several sockets on one port only one would hear. The
parent keeps these ports too, so that a worker that replaces another is found where that one was.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import msgspec

from hark.errors import HarkError, InvalidSetting, StoreUnusable
from hark.serving import listening
from hark.serving.line import LONGEST, Answer, Line
from hark.serving.merging import Family, Merger
from hark.serving.peering import Endpoint, endpoints
from hark.serving.securing import remembering
from hark.settings import Address, Settings

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 3.0
"""How long a worker is waited for when it is asked for its metrics."""
_PAUSE_SECONDS = 1.0
"""Before a worker that ended is replaced: it may end for a reason that lasts."""
_MORE_SECONDS = 5.0
"""What workers get beyond `stop_seconds`, which they keep to by themselves, before they are killed."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Order(msgspec.Struct):
    """What a worker is told."""

    settings: Settings
    family: int
    host: str
    port: int
    peer_fd: int
    """Of the UDP socket at which it hears its peers."""
    peers: tuple[Address, ...]


class Report(msgspec.Struct):
    """What a worker answers: nothing else than that it is ready, or why it can't start."""

    code: str = ""
    error: str = ""


def supervise(settings: Settings, ready: Callable[[str], None]) -> None:
    """Run the workers until SIGINT or SIGTERM; `ready` is called with the address when all of them serve."""
    with ExitStack() as kept:
        holder = kept.enter_context(listening.reserved(settings.host, settings.port))
        settings = remembering(settings, holder)
        ends = endpoints(settings)
        for end in ends:
            kept.enter_context(end.udp)
        workers = [Worker(number, _order(settings, holder, end)) for number, end in enumerate(ends, start=1)]
        gathering = Gathering(workers)
        for worker in workers:
            worker.answer = gathering.everybody
        address = listening.shown(holder, secure=bool(settings.tls.certificate))
        asyncio.run(_supervise(workers, lambda: ready(address), settings.stop_seconds + _MORE_SECONDS))


def _order(settings: Settings, holder: socket.socket, end: Endpoint) -> Order:
    host, port = holder.getsockname()[:2]
    return Order(settings, holder.family, host, port, end.udp.fileno(), end.others)


async def _supervise(workers: Sequence[Worker], ready: Callable[[], None], patience: float) -> None:
    stop = asyncio.Event()

    def stop_all(number: signal.Signals) -> None:
        if not stop.is_set():
            loop.call_later(patience, _kill, workers, patience)
        stop.set()
        for worker in workers:
            worker.send(number)

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop_all, number)
    try:
        await _start(workers, stop)
        if not stop.is_set():
            ready()
        await asyncio.gather(*(_keep(worker, stop) for worker in workers))
    finally:
        stop_all(signal.SIGTERM)
        await asyncio.gather(*(worker.ended() for worker in workers))


def _kill(workers: Sequence[Worker], patience: float) -> None:
    """End those that are stuck. Nothing is lost by that: what was answered is stored."""
    for worker in workers:
        if worker.lives_on:
            log.error("worker %d did not stop within %g s; killing it", worker.number, patience)
            worker.send(signal.SIGKILL)


async def _start(workers: Sequence[Worker], stop: asyncio.Event) -> None:
    """Start all; if one can't, it is likely that none can: raises what the first one said."""
    starts = [asyncio.create_task(worker.start()) for worker in workers]
    try:
        await asyncio.gather(*starts)
    except HarkError:
        if not stop.is_set():
            raise
    finally:
        for start in starts:
            start.cancel()
        await asyncio.gather(*starts, return_exceptions=True)


async def _keep(worker: Worker, stop: asyncio.Event) -> None:
    """Replace a worker whenever it ends, until told to stop."""
    while True:
        if stop.is_set():  # It was about to be started when the others were told.
            worker.send(signal.SIGTERM)
        why = f"ended with {_reason(await worker.ended())}"
        while not worker.serves:
            if stop.is_set():
                return
            fields = {"worker": worker.number, "reason": why}
            text = "worker %d %s; starting another in %g s"
            log.error(text, worker.number, why, _PAUSE_SECONDS, extra={"fields": fields})
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_SECONDS):
                    await stop.wait()
                return
            try:
                await worker.start()
            except HarkError as error:
                why = f"can't start: {error}"


def _reason(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class Worker:
    """A server process, as its parent sees it."""

    def __init__(self, number: int, order: Order) -> None:
        self.number = number
        self.serves = False
        """Whether the process said that it is ready, and is not known to have ended."""
        self.answer: Answer | None = None
        """How its questions are answered."""
        self.lives = 0
        """How many processes there have been."""
        self._order = order
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._line: Line | None = None
        self._hearing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start a process and wait until it serves; raises what kept it from doing so."""
        ours, theirs = socket.socketpair()
        with theirs:
            reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=LONGEST)
            # A session of its own: a Ctrl-C reaches the parent alone, which passes it on once.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "hark.serving.process",
                str(self.number),
                stdin=theirs.fileno(),
                pass_fds=[self._order.peer_fd],
                start_new_session=True,
            )
        self._writer.write(msgspec.json.encode(self._order) + b"\n")
        answer = await reader.readline()
        if not answer:
            reason = _reason(await self.ended())
            raise StoreUnusable(f"a server process ended with {reason} before it was ready; the log says more")
        report = msgspec.json.decode(answer, type=Report)
        if report.error:
            await self.ended()
            kind = InvalidSetting if report.code == InvalidSetting.code else StoreUnusable
            raise kind(report.error, code=report.code)
        self.serves = True
        self.lives += 1
        self._line = Line(reader, self._writer, self.answer)
        self._hearing = asyncio.create_task(self._line.hear())

    async def ask(self) -> list[Family]:
        """What the process says of itself; raises `OSError` when it is not there, and `TimeoutError`."""
        if self._line is None or not self.serves:
            raise ConnectionError("there is no process")
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await self._line.ask()

    @property
    def lives_on(self) -> bool:
        """Whether there is a process, ready or not."""
        return self._process is not None and self._process.returncode is None

    def send(self, number: signal.Signals) -> None:
        """Pass a signal on, if there is anybody to hear it."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for the end of the process; its exit code."""
        if self._process is None or self._writer is None:
            return 0
        code = await self._process.wait()
        self._writer.close()
        if self._hearing is not None:
            self._hearing.cancel()
        self.serves = False
        return code


class Gathering:
    """The metrics of all workers."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._merger = Merger()

    async def everybody(self) -> list[Family]:
        """Ask all of them; of one that does not answer what it said last counts."""
        await asyncio.gather(*(self._ask(worker) for worker in self._workers))
        return self._merger.merged()

    async def _ask(self, worker: Worker) -> None:
        with suppress(OSError, TimeoutError):
            self._merger.note(worker.number, worker.lives, await worker.ask())
