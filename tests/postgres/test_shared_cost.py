"""What a call on a shared group costs depends on what it carries and returns, not on what waits or is held beside it.

Plans are kept by each connection, so it matters when they were made: while there was next to nothing, on what nobody
has analyzed yet, or with statistics of a moment at which nothing was held.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
import pytest_asyncio

from hark.clock import FakeClock
from hark.engine.hints import MAX_REPLY_BYTES
from hark.engine.postgres import PostgresEngine
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.pop import SHARE
from hark.engine.postgres.settle import _SETTLE
from tests.engine.driver import Driver, Got, settlement
from tests.engine.workers import Workers
from tests.postgres_server import PostgresServer

from .pools import opened
from .test_cost import Call, too_much, work_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

BATCH, BATCHES, MIDDLE = 100, 20, 7
WAITING = BATCH * (BATCHES + 5)
"""What is held, or waits for its next attempt."""
NEW_LEASE = "00000000-0000-0000-0000-00000000abcd"


class Store(NamedTuple):
    """A partition of which a shared group holds much; beside it much waits."""

    now: int
    group: int
    partition: int
    batches: list[Got]

    def call(self, name: str) -> Call:
        """A call by its name, with all that it needs."""
        statuses = {"completed": 0, "failed": 1, "retry": 2, "dlq": 3}
        if name in statuses:
            return self.settle(self.batches[MIDDLE], statuses[name], written=BATCH * (2 if name == "dlq" else 1))
        return {"claim": self.claim(10), "renew": self.renew(), "release": self.release()}[name]

    def claim(self, number: int) -> Call:
        """The next messages."""
        requests = ([1], [number], [1], [NEW_LEASE], [None], [False], [None])
        candidates = ([1], [self.group], [self.partition], [True])
        # It looks at some more, to know whether there is something for others.
        return Call(
            SHARE, (self.now, *requests, *candidates, MAX_REPLY_BYTES, [None]), number + 40, number + 2, answered=2
        )

    def settle(self, got: Got, status: int, *, written: int) -> Call:
        """All of a batch in the middle."""
        offsets, number = [one.message.offset for one in got], len(got)
        items = ([1] * number, [1] * number, offsets, None, [None] * number, [got.lease] * number, [status] * number)
        positions = ([self.group], [self.partition], [True])
        return Call(_SETTLE, (self.now, *positions, *items, [None] * number, [None] * number), 1 + number, written)

    def renew(self) -> Call:
        """The lease of a batch."""
        sql = "select * from hark.renew_v1($1, $2::uuid[], $3::bigint[])"
        return Call(sql, (self.now, [self.batches[MIDDLE].lease], [600]), BATCH, written=BATCH + 1)

    def release(self) -> Call:
        """The lease of a batch."""
        sql = "select * from hark.release_v1($1, $2::uuid[])"
        return Call(sql, (self.now, [self.batches[MIDDLE].lease]), BATCH, written=BATCH)


NAMES = ["claim", "completed", "failed", "retry", "dlq", "renew", "release"]


async def filled(q: Driver, workers: Workers) -> list[Got]:
    """Let much be held and much wait; what is held, in batches."""
    for _ in range(BATCHES):
        await q.push("orders", "p1", *range(BATCH))
    batches = [await workers.take(BATCH) for _ in range(BATCHES)]
    for number in range(BATCHES):
        await q.push("orders", "p1", *range(BATCH), delay_ms=3_600_000, priority=number % 2)
    for _ in range(5):
        await q.push("orders", "p1", *range(BATCH))
        await q.settle(*(settlement(one, "failed", delay_ms=3_600_000) for one in await workers.take(BATCH)))
    await q.push("orders", "p1", *range(BATCH))
    return batches


@asynccontextmanager
async def opened_store(
    server: PostgresServer, *, planned_early: bool, analyzed: bool
) -> AsyncIterator[tuple[Store, Pool]]:
    """The store, and one connection to it."""
    clock = FakeClock()
    with server.fresh_database() as url:
        q = Driver(lambda clock: PostgresEngine(url, clock=clock), clock)
        await q.start()
        workers = Workers(q)
        await q.push("orders", "p1", *range(10))
        first = await workers.take(2)
        async with opened(url, size=1) as pool:
            async with pool.connection() as connection:
                if analyzed:
                    await q.ack_all(first)
                    await connection.execute("analyze")
                row = await connection.fetchrow("select grp, partition from hark.positions")
                assert row is not None
                early = Store(clock.now(), row[0], row[1], [first] * (MIDDLE + 1))
                for name in NAMES if planned_early else ():
                    await work_of(connection, early.call(name))
            await q.ack_all(await workers.take(10))
            yield Store(clock.now(), row[0], row[1], await filled(q, workers)), pool
        await q.engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["planned early", "planned late"])
async def store(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> AsyncIterator[tuple[Store, Pool]]:
    """A connection without statistics, which made its plans before there was much, or makes them now."""
    early = request.param == "planned early"
    async with opened_store(postgres_server, planned_early=early, analyzed=False) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def misled(postgres_server: PostgresServer) -> AsyncIterator[tuple[Store, Pool]]:
    """A connection whose plans are of a moment at which nothing was held."""
    async with opened_store(postgres_server, planned_early=True, analyzed=True) as found:
        yield found


@pytest.mark.parametrize("name", NAMES)
async def test_a_call_costs_what_it_carries_and_returns(store: tuple[Store, Pool], name: str) -> None:
    call = store[0].call(name)
    async with store[1].connection() as connection:
        await work_of(connection, call)  # The first call of a connection also reads catalogs.
        work = await work_of(connection, call)
    assert (work.answered, work.written) == (call.answered, call.written)
    assert too_much(call, work) == []


@pytest.mark.parametrize("name", NAMES)
async def test_statistics_of_a_moment_without_work_cost_one_look_at_what_is_leased_at_most(
    misled: tuple[Store, Pool], name: str
) -> None:
    """Where there was nothing, every index looks as good as the right one; but not a look for each message."""
    call = misled[0].call(name)
    async with misled[1].connection() as connection:
        work = await work_of(connection, call)
    assert (work.answered, work.written) == (call.answered, call.written)
    assert too_much(call, work._replace(fetched=max(0, work.fetched - WAITING))) == []
