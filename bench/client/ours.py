"""Hark's client, as the quickstart shows it."""

from __future__ import annotations

import time
from typing import Any

import hark
from bench.client.program import BATCH, FILLED, PAYLOAD, QUEUE, Taken, main, push_at_once


async def push(url: str, number: int) -> Taken:
    """Single pushes at the same time."""
    async with hark.connect(url) as client:
        queue = client.queue(QUEUE)

        async def one(payload: dict[str, Any]) -> object:
            return await queue.push(payload)

        return await push_at_once(one, number)


async def fill(url: str, number: int) -> Taken:
    """Messages in several partitions, the same number in each."""
    began = time.perf_counter()
    async with hark.connect(url) as client:
        for partition in range(FILLED):
            queue = client.queue(QUEUE).partition(f"p{partition}")
            await queue.push_many([PAYLOAD] * (number // FILLED))
    return Taken(number, time.perf_counter() - began)


async def consume(url: str, number: int) -> Taken:
    """Batches, acked when their handler is done."""
    seen = 0

    async def handle(messages: list[hark.Message]) -> None:
        nonlocal seen
        seen += len(messages)

    async with hark.connect(url) as client:
        began = time.perf_counter()
        await client.queue(QUEUE).group("ours").batch(BATCH).limit(number).consume(handle)
        return Taken(seen, time.perf_counter() - began)


if __name__ == "__main__":
    main({"push": push, "fill": fill, "consume": consume})
