"""What a client's program does: `python -m bench.client.NAME VERB URL NUMBER`, and prints what it measured."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec
import uvloop

PUSHERS = 64
"""Coroutines that push one message at a time."""
BATCH = 100
"""Messages of a consumer's batch."""
FILLED = 10
"""Partitions of the consumer's second queue."""
QUEUE = "bench"
PAYLOAD = {"customer": 4711, "items": [1, 2, 3], "note": "x" * 180}


class Taken(msgspec.Struct, frozen=True):
    """How many it were, and how long it took."""

    number: int
    seconds: float
    latencies_ms: list[float] = []
    cpu_us: float = 0
    """CPU microseconds of this process for each of them, where it was measured."""

    @property
    def rate(self) -> float:
        """A second."""
        return self.number / self.seconds


Verb = Callable[[str, int], Coroutine[Any, Any, Taken]]


async def push_at_once(push: Callable[[dict[str, Any]], Coroutine[Any, Any, object]], number: int) -> Taken:
    """Many who push, each one message after the other."""
    import asyncio

    left = iter(range(number))

    async def one_after_the_other() -> None:
        for _ in left:
            await push(PAYLOAD)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as pushers:
        for _ in range(PUSHERS):
            pushers.create_task(one_after_the_other())
    return Taken(number, time.perf_counter() - began)


def main(verbs: Mapping[str, Verb]) -> None:
    """Do what the command line says."""
    verb, url, number = sys.argv[1:]
    print(msgspec.json.encode(uvloop.run(verbs[verb](url, int(number)))).decode())
