"""procrastinate as its documentation says: batch defer, asynchronous tasks, several at a time."""

from __future__ import annotations

import logging
from typing import Any

from procrastinate import App, PsycopgConnector

from bench.peers.peer import PAYLOAD, Span, batches, main, timed

SPARE_CONNECTIONS = 2
"""For fetching jobs and for notifications, beside those of the tasks."""


def _app(url: str, at_once: int = 1) -> App:
    connections = at_once + SPARE_CONNECTIONS
    return App(connector=PsycopgConnector(conninfo=url, min_size=connections, max_size=connections))


async def _job(pad: str) -> None:
    """Nothing."""


async def enqueue(url: str, jobs: int) -> Span:
    """Install it, and enqueue."""
    app = _app(url)
    task = app.task(name="job")(_job)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()

        async def all_batches() -> None:
            for size in batches(jobs):
                arguments: list[Any] = [PAYLOAD] * size
                await task.batch_defer_async(*arguments)

        return await timed(all_batches())


async def work(url: str, at_once: int) -> Span:
    """Settle what is there, so many at a time."""
    logging.disable(logging.INFO)
    app = _app(url, at_once)
    app.task(name="job")(_job)
    async with app.open_async():
        return await timed(app.run_worker_async(wait=False, concurrency=at_once))


if __name__ == "__main__":
    main(enqueue, work)
