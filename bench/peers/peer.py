"""What a peer's module does: `python -m bench.peers.NAME enqueue URL JOBS`, then `... work URL AT_ONCE`."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import uvloop

BATCH = 1000
"""Jobs that are enqueued by one call."""
PAYLOAD = {"pad": ""}


class Span(msgspec.Struct, frozen=True):
    """From when to when a process worked, by the clock that all processes share."""

    began: float
    ended: float


Timed = Callable[[str, int], Coroutine[Any, Any, Span]]


def batches(jobs: int) -> list[int]:
    """The sizes of the batches that so many jobs are enqueued in."""
    return [min(BATCH, jobs - start) for start in range(0, jobs, BATCH)]


async def timed(work: Awaitable[object]) -> Span:
    """How long it takes, without what was set up before."""
    began = time.time()
    await work
    return Span(began, time.time())


def main(enqueue: Timed, work: Timed) -> None:
    """Do what the command line says and print when it was done."""
    verb, url, number = sys.argv[1:]
    span = uvloop.run({"enqueue": enqueue, "work": work}[verb](url, int(number)))
    print(msgspec.json.encode(span).decode())
