"""The official client 2.6.0, as its documentation shows it; PYTHONPATH says where it is."""

from __future__ import annotations

import time
from typing import Any

from queen import Queen

from bench.client.program import BATCH, QUEUE, Taken, main, push_at_once


async def push(url: str, number: int) -> Taken:
    """Single pushes at the same time."""
    async with Queen(url) as queen:

        async def one(payload: dict[str, Any]) -> object:
            return await queen.queue(QUEUE).push({"data": payload})

        return await push_at_once(one, number)


async def consume(url: str, number: int) -> Taken:
    """Batches, acked when their handler is done."""
    seen = 0

    async def handle(messages: list[Any]) -> None:
        nonlocal seen
        seen += len(messages)

    async with Queen(url) as queen:
        began = time.perf_counter()
        await queen.queue(QUEUE).group("official").batch(BATCH).limit(number).consume(handle)
        return Taken(seen, time.perf_counter() - began)


if __name__ == "__main__":
    main({"push": push, "consume": consume})
