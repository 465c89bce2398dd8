"""procrastinate on PostgreSQL: asynchronous tasks that do nothing, many at a time, in one process."""

from __future__ import annotations

import logging
import time
from typing import Any

from procrastinate import App, PsycopgConnector

from bench.client.program import Taken, main

AT_ONCE = 50
SPARE_CONNECTIONS = 2


def _app(url: str) -> App:
    return App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=AT_ONCE + SPARE_CONNECTIONS))


async def push(url: str, number: int) -> Taken:
    """Install it, and enqueue."""
    app = _app(url)

    async def nothing(number: int) -> None:
        """Nothing."""

    noop: Any = app.task(name="noop")(nothing)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        began = time.perf_counter()
        for start in range(0, number, 1000):
            await noop.batch_defer_async(*({"number": n} for n in range(start, min(start + 1000, number))))
        return Taken(number, time.perf_counter() - began)


async def work(url: str, number: int) -> Taken:
    """Run what is there."""
    logging.disable(logging.INFO)
    app = _app(url)
    times: list[float] = []

    async def nothing(number: int) -> None:
        times.append(time.perf_counter())

    app.task(name="noop")(nothing)
    async with app.open_async():
        await app.run_worker_async(wait=False, concurrency=AT_ONCE)
    return Taken(len(times), times[-1] - times[0])


if __name__ == "__main__":
    main({"push": push, "work": work})
