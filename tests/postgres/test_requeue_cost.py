"""What a call costs does not depend on how many dead letters there are, or were requeued into its partition."""

from __future__ import annotations

import uuid

import pytest

from hark.clock import FakeClock
from hark.engine.hints import MAX_REPLY_BYTES
from hark.engine.postgres import PostgresEngine
from hark.engine.postgres.pop import POP
from hark.engine.postgres.settle import _SETTLE
from tests.engine.driver import Driver, settlement

from .pools import opened
from .test_cost import NEW_LEASE, Call, too_much, work_of

DEAD, REQUEUED = 1000, 600


@pytest.mark.fresh_database
@pytest.mark.parametrize("what", ["pop", "ack", "requeue"])
async def test_the_cost_does_not_grow_with_requeued_dead_letters(
    postgres_url: str, clock: FakeClock, what: str
) -> None:
    q = Driver(lambda time: PostgresEngine(postgres_url, clock=time), clock)
    await q.start()
    await q.push("orders", "p1", *range(DEAD))
    await q.settle(*(settlement(one, "dlq") for one in await q.pop("orders", batch=DEAD)))
    letters = await q.dead_letters()
    await q.engine.requeue([one.id for one in letters[:REQUEUED]])
    now = clock.now()
    async with opened(postgres_url, size=1) as pool, pool.connection() as connection:
        group = await connection.fetchval("select id from hark.groups")
        partition = await connection.fetchval("select id from hark.partitions")
        call = Call("select * from hark.requeue_v1($1, $2, null, null)", (now, uuid.UUID(letters[-1].id)), 2, 6)
        if what == "pop":
            requests, candidates = (
                ([1], [1], [NEW_LEASE], [None], [False], [None]),
                ([1], [group], [partition], [False]),
            )
            call = Call(POP, (now, *requests, *candidates, MAX_REPLY_BYTES, [None]), 2, 2)
        elif what == "ack":
            [leased] = await q.pop("orders")
            item = ([group], [partition], [False], [0], [1], [leased.message.offset], None, [None])
            call = Call(_SETTLE, (now, *item, [uuid.UUID(leased.lease)], [0], [None], [None]), 2, 2)
        await work_of(connection, call)  # The first call of a connection also reads catalogs.
        work = await work_of(connection, call)
    await q.engine.close()
    assert work.written >= call.written, work
    # Small tables are read as a whole.
    assert not too_much(call, work._replace(scanned=0, fetched=work.scanned + work.fetched))
