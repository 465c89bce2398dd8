"""A process with the workers of two queues, whose tasks are steps of flows: `python -m tests.crash.flow_worker URL`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Literal

import hark
from hark.worker import Flow, RetryPolicy, Worker, WorkerRunOptions

LEASE_SECONDS = 2
AGAIN = RetryPolicy.schedule([0.05] * 100)
"""A step whose worker is killed uses an attempt each time."""
QUEUES = ("left", "right")

Kind = Literal["chain", "group", "chord"]
STEPS: dict[Kind, list[str]] = {
    "chain": ["first", "second", "third", "second"],
    "group": ["first", "first", "second", "third"],
    "chord": ["first", "first", "second", "third", "second", "third"],
}
"""The steps that the result of a flow names."""
MESSAGES: dict[Kind, dict[str, int]] = {
    "chain": {"left": 2, "right": 2},
    "group": {"left": 3, "right": 1},
    "chord": {"left": 4, "right": 3},
}
"""How many messages of each queue a flow has."""


def make(url: str) -> tuple[Worker, Worker]:
    """The workers of both queues."""
    left, right = (Worker(url, queue=queue, lease=LEASE_SECONDS) for queue in QUEUES)
    return left, right


Result = list[str] | list[list[str]]


def flows(left: Worker, right: Worker) -> dict[Kind, Flow[Result]]:
    """Give the workers their tasks. The result of a flow has each step once, in order."""

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

    chain = hark.chain(first.s(), second.s())
    return {
        "chain": chain | third.s() | second.s(),
        "group": hark.group(first.s(), chain, third.si([])),
        "chord": hark.group(first.s(), chain, third.si([]), second.si([])) | joined.s() | third.s(),
    }


async def main(url: str) -> None:
    """Work until a signal comes."""
    workers: Sequence[Worker] = make(url)
    flows(*workers)
    options = WorkerRunOptions(handle_signals=False, concurrency=5)
    running = [asyncio.create_task(worker.run(options)) for worker in workers]
    print("ready", flush=True)
    await asyncio.gather(*running)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
