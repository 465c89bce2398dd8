"""Supervises processes: starts them, replaces those that exit, forwards signals, and stops them together."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from hark.errors import HarkError

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STABLE_SECONDS = 60.0
"""A process that ran this long before it exited did not fail to start: the pauses start again from the first one."""


class Process(Protocol):
    """A process that can be started again."""

    number: int
    serves: bool
    """Whether the process reported that it is ready, and has not exited since."""

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises `HarkError` if it cannot start."""

    def send(self, number: signal.Signals, /) -> bool:
        """Send a signal to the process, if it runs, ready or not. Returns whether it does."""

    async def ended(self) -> int:
        """Wait until the process exits. Returns its exit code."""


def reason(code: int) -> str:
    """How a process ended, as text."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


async def supervise(
    workers: Sequence[Process],
    ready: Callable[[], None],
    limit: float,
    pause: Callable[[int], float],
    is_over: Callable[[int], bool] = lambda _code: False,
    monotonic: Callable[[], float] = time.monotonic,
) -> list[int]:
    """Run processes until SIGINT or SIGTERM. Calls `ready` when all of them are ready. Returns their exit codes.

    Signals are forwarded. `limit` seconds after the first one, processes that still run are killed. `pause` is the time
    before a process is started again, by the number of its failures in a row. A process is not started again if
    `is_over` says so of its exit code.
    """
    stop = asyncio.Event()

    def stop_all(number: signal.Signals) -> None:
        if not stop.is_set():
            loop.call_later(limit, _kill, workers, limit)
        stop.set()
        for worker in workers:
            worker.send(number)

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop_all, number)
    loop.add_signal_handler(signal.SIGHUP, _reload, workers)
    try:
        await _start(workers, stop)
        if not stop.is_set():
            ready()
        keeping = (_keep(worker, stop, pause, is_over, monotonic) for worker in workers)
        return list(await asyncio.gather(*keeping))
    finally:
        stop_all(signal.SIGTERM)
        await asyncio.gather(*(worker.ended() for worker in workers))


def _reload(workers: Sequence[Process]) -> None:
    """Let all workers read certificates and tokens again; workers that are starting read them anyway."""
    for worker in workers:
        if worker.serves:
            worker.send(signal.SIGHUP)


def _kill(workers: Sequence[Process], limit: float) -> None:
    """Kill workers that hang. No acknowledged request is lost: it is stored before it is answered."""
    for worker in workers:
        if worker.send(signal.SIGKILL):
            log.error("worker %d did not shut down within %g s and is killed", worker.number, limit)


async def _start(workers: Sequence[Process], stop: asyncio.Event) -> None:
    """Start all workers. Raises the first error, because the other workers would most likely fail too."""
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


async def _keep(
    worker: Process,
    stop: asyncio.Event,
    pause: Callable[[int], float],
    is_over: Callable[[int], bool],
    monotonic: Callable[[], float],
) -> int:
    """Replace a worker whenever it exits, until all shut down. Returns its last exit code."""
    failures, began = 0, monotonic()
    while True:
        if stop.is_set():  # The signal arrived while this worker started.
            worker.send(signal.SIGTERM)
        code = await worker.ended()
        why = f"ended with {reason(code)}"
        if monotonic() - began > STABLE_SECONDS:
            failures = 0
        while not worker.serves:
            if stop.is_set() or is_over(code):
                return code
            failures += 1
            seconds = pause(failures)
            fields = {"worker": worker.number, "reason": why}
            text = "worker %d %s; starting another in %g s"
            log.error(text, worker.number, why, seconds, extra={"fields": fields})
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await stop.wait()
                return code
            try:
                began = monotonic()
                await worker.start()
            except HarkError as error:
                why = f"cannot start: {error}"
