"""What a pushed message costs PostgreSQL: its CPU for the engine's push, beside COPY of the same rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product
from statistics import median
from time import perf_counter

import msgspec

from bench.figures import Figure
from bench.postgres.cluster import execute
from bench.postgres.copy import BATCH, Copier, TransactionIds
from bench.procfs import family_us
from bench.rows import QUEUE, SIZE
from bench.stores import StoreLocation
from hark.cli.bench import payload_of
from hark.engine.postgres import PostgresEngine
from hark.errors import HarkError
from hark.model import NewMessage

ROUNDS = 5
"""A round is the engine and COPY right after each other; the median counts."""
WARM_BATCHES = 5


class Case(msgspec.Struct, frozen=True):
    """Batches of 1000 over so many partitions."""

    partitions: int
    ids: bool

    @property
    def name(self) -> str:
        """As in the table of what must hold."""
        return f"cost_{self.partitions}" + ("_tx" if self.ids else "")

    @property
    def title(self) -> str:
        """In words."""
        return f"push {BATCH} over {self.partitions} partitions" + (" with transaction ids" if self.ids else "")


CASES = tuple(Case(partitions, ids) for partitions, ids in product((1000, 10), (False, True)))


class Pusher:
    """Pushes the same batches as `Copier`, by the engine in this process."""

    def __init__(self, engine: PostgresEngine, case: Case) -> None:
        self._engine = engine
        self._partitions = case.partitions
        self._ids = TransactionIds(case.ids)
        self._payload = payload_of(SIZE)

    async def batch(self) -> None:
        """Push the next batch."""
        messages = [
            NewMessage(QUEUE, f"p{n % self._partitions}", self._payload, transaction_id)
            for n, transaction_id in enumerate(self._ids.batch())
        ]
        [answer] = await self._engine.push([messages])
        if isinstance(answer, HarkError):
            raise RuntimeError(f"a push was refused: {answer}")


async def _spent(batch: Callable[[], Awaitable[None]], batches: int, pid: int) -> tuple[float, float]:
    """CPU microseconds of PostgreSQL per message, and messages per second."""
    before, began = family_us(pid), perf_counter()
    for _ in range(batches):
        await batch()
    messages = batches * BATCH
    return (family_us(pid) - before) / messages, messages / (perf_counter() - began)


async def _compare(
    engine_store: StoreLocation, copy_store: StoreLocation, case: Case, batches: int
) -> list[list[tuple[float, float]]]:
    engine = PostgresEngine(engine_store.url)
    await engine.start(lambda _hints: None)
    copier = await Copier.open(copy_store.url, case.partitions, TransactionIds(case.ids))
    both = (Pusher(engine, case).batch, copier.batch)
    try:
        for batch in both:
            await _spent(batch, WARM_BATCHES, engine_store.store_pid)
        return [[await _spent(batch, batches, engine_store.store_pid) for batch in both] for _ in range(ROUNDS)]
    finally:
        await engine.close()
        await copier.close()


def compare(
    engine_store: StoreLocation, copy_store: StoreLocation, case: Case, batches: int
) -> tuple[float, list[Figure]]:
    """The engine's cost in units of COPY's, and the figures of both."""
    execute(engine_store.url, "checkpoint")  # what was measured before is written now, not meanwhile
    rounds = asyncio.run(_compare(engine_store, copy_store, case, batches))
    figures = [
        Figure(
            row=case.name,
            title=case.title,
            server=server,
            throughput=median(speed for _, speed in spent),
            store_us=median(cost for cost, _ in spent),
        )
        for server, spent in zip(("hark", "copy"), zip(*rounds, strict=True), strict=True)
    ]
    return median(pushed[0] / copied[0] for pushed, copied in rounds), figures
