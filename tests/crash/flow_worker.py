"""A process with the workers of two queues, whose tasks are steps of flows: `python -m tests.crash.flow_worker URL`."""

from __future__ import annotations

import asyncio
import os
import sys

import hark
from hark.worker import Flow, RetryPolicy, Worker, WorkerRunOptions

LEASE_SECONDS = 2
AGAIN = RetryPolicy.schedule([0.05] * 100)
"""A step whose worker is killed uses an attempt each time."""
QUEUES = ("left", "right")


def make(url: str) -> tuple[Worker, Worker, Flow[list[str]], Flow[list[str]]]:
    """The workers, a chain and a chord. The result of both has each step once, in order."""
    left, right = (Worker(url, queue=queue, lease=LEASE_SECONDS) for queue in QUEUES)

    @left.task(retry=AGAIN)
    async def first() -> list[str]:
        return [f"first {os.getpid()}"]

    @right.task(retry=AGAIN)
    async def second(done: list[str]) -> list[str]:
        return [*done, f"second {os.getpid()}"]

    @left.task(retry=AGAIN)
    def third(done: list[str]) -> list[str]:
        return [*done, f"third {os.getpid()}"]

    @right.task(retry=AGAIN)
    async def joined(members: list[list[str]]) -> list[str]:
        return [text for member in members for text in member]

    chain = hark.chain(first.s(), second.s(), third.s(), second.s())
    members = [first.s(), hark.chain(first.s(), second.s()), third.si([]), second.si([])]
    return left, right, chain, hark.group(*members) | joined.s() | third.s()


CHAIN = ["first", "second", "third", "second"]
CHORD = ["first", "first", "second", "third", "second", "third"]
MESSAGES = {"chain": {"left": 2, "right": 2}, "chord": {"left": 4, "right": 3}}
"""How many messages of each queue a flow has."""


async def main(url: str) -> None:
    """Work until a signal comes."""
    left, right, *_ = make(url)
    options = WorkerRunOptions(handle_signals=False, concurrency=5)
    running = [asyncio.create_task(worker.run(options)) for worker in (left, right)]
    print("ready", flush=True)
    await asyncio.gather(*running)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
