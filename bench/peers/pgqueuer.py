"""pgqueuer as its guide to performance says: batch enqueue, a pool, its autovacuum settings, durable tables."""

from __future__ import annotations

import asyncpg
import msgspec
from pgqueuer import PgQueuer, Queries
from pgqueuer.types import QueueExecutionMode

from bench.peers.peer import PAYLOAD, Span, batches, main, timed

NAME = "job"
CONNECTIONS = 5


async def enqueue(url: str, jobs: int) -> Span:
    """Install it, and enqueue."""
    queries = Queries.from_asyncpg_connection(await asyncpg.connect(url))
    await queries.install()
    await queries.optimize_autovacuum()
    payload = msgspec.json.encode(PAYLOAD)

    async def all_batches() -> None:
        for size in batches(jobs):
            await queries.enqueue([NAME] * size, [payload] * size, [0] * size)

    return await timed(all_batches())


async def work(url: str, at_once: int) -> Span:
    """Settle what is there, taking so many at a time."""
    async with asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        worker = PgQueuer.from_asyncpg_pool(pool)
        worker.entrypoint(NAME)(_job)
        return await timed(worker.run(batch_size=at_once, mode=QueueExecutionMode.drain))


async def _job(_job: object) -> None:
    """Nothing."""


if __name__ == "__main__":
    main(enqueue, work)
