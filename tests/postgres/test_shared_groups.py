"""Shared groups on several servers with one database: nothing is lost or given twice, and limits hold over all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hark.clock import FakeClock
from hark.engine.postgres.pool import Pool
from tests.engine.driver import Driver, message, payloads
from tests.engine.workers import Workers

from .pools import opened, until_blocked


async def test_servers_that_take_from_one_partition_at_once_get_disjoint_messages(here: Driver, there: Driver) -> None:
    await here.push("orders", "p1", *range(60))
    teams = [Workers(here), Workers(there)]

    async def work(team: Workers) -> list[object]:
        done: list[object] = []
        while got := await team.take(3):
            done += payloads(got)
            await team.q.ack_all(got)
        return done

    found = await asyncio.gather(*(work(team) for team in teams for _ in range(4)))
    assert sorted(one for some in found for one in some if isinstance(one, int)) == list(range(60))


async def test_messages_in_flight_are_bounded_over_all_servers(here: Driver, there: Driver) -> None:
    await here.configure("orders", max_in_flight=3)
    await here.push("orders", "p1", *range(10))
    first, second = Workers(here), Workers(there)
    leased = await first.take(2)
    got = await asyncio.gather(*(team.take() for team in (first, second) for _ in range(4)))
    assert sum(map(len, got)) == 1
    await there.ack(leased[0])
    assert len(await second.take(5)) == 1
    assert (await first.take()).reason == "max_in_flight"


async def test_a_rate_is_one_for_all_servers(here: Driver, there: Driver, clock: FakeClock) -> None:
    await here.configure("orders", rate_limit=2, rate_burst=4)
    await here.push("orders", "p1", *range(10))
    first, second = Workers(here), Workers(there)
    assert len(await first.take(3)) == 3
    assert len(await second.take(3)) == 1
    assert (await first.take()).look_again_at == clock.now() + 500_000
    clock.advance(0.5)
    assert len(await first.take(5)) + len(await second.take(5)) == 1


async def test_a_delayed_push_that_commits_late_is_not_passed_unseen(
    here: Driver, there: Driver, clock: FakeClock
) -> None:
    """Its time is before that of a message that the group has passed already."""
    await here.push("orders", "p1", "first", delay_ms=2000)
    clock.advance(3)
    workers = Workers(there)
    assert await workers.drain() == ["first"]
    clock.advance(-2.5)
    await here.push("orders", "p1", "late", delay_ms=500)
    clock.advance(10)
    assert await workers.drain() == ["late"]


async def test_what_one_server_handed_out_is_settled_renewed_and_expired_by_another(
    here: Driver, there: Driver, clock: FakeClock
) -> None:
    await here.push("orders", "p1", 1, 2, 3)
    got = await Workers(here).take(3)
    assert (await there.ack(got[0])).lease_id == got.lease
    assert (await there.renew(got.lease, 400)).success
    clock.advance(399)
    assert (await there.ack(got[1])).success
    clock.advance(2)
    assert (await there.engine.expire()).leases == 1
    [again] = await Workers(here).take(9)
    assert (again.payload, again.message.attempt) == (3, 2)


async def test_claims_settlements_and_removals_of_the_same_messages_do_not_block_each_other_for_good(
    here: Driver, there: Driver
) -> None:
    await here.push_messages(*(message("orders", f"p{n % 3}", n, priority=n % 3) for n in range(30)))
    first, second = Workers(here), Workers(there)
    leased = [*await first.take(9), *await first.take(9), *await first.take(9)]
    ids = [one.message.id for one in leased]
    await asyncio.gather(
        here.ack_all(leased),
        there.ack_all(reversed(leased)),
        here.engine.delete_messages(ids[::-1]),
        there.engine.cancel(ids),
        second.take(5),
        first.take(5),
        there.engine.collect(),
    )
    await here.engine.purge("orders", "workers")
    assert (await second.stats()).lag == 0


async def test_rule_17_what_one_server_gives_back_is_found_at_once_by_another(
    here: Driver, there: Driver, clock: FakeClock
) -> None:
    await here.push("orders", "p1", 1)
    got = await Workers(here).take()
    assert (await Workers(there).take()).reason == "lease_held"
    clock.advance(120)
    assert await Workers(there).take() == []
    await here.engine.release([got.lease])
    [again] = await Workers(there).take()
    assert (again.payload, again.message.attempt) == (1, 1)


@asynccontextmanager
async def blocked_between_snapshot_and_lock(pool: Pool) -> AsyncIterator[None]:
    """The first claim of a shared group that begins in here has read its partition but not locked its position."""
    async with pool.connection() as changing:
        await changing.execute("""
            create sequence public.claims;
            create function public.gate() returns boolean language plpgsql as $$
            declare
                v_stack text;
            begin
                get diagnostics v_stack = pg_context;
                if v_stack like '%load_v1%' and nextval('public.claims') = 1 then
                    perform pg_advisory_xact_lock(1);
                end if;
                return true;
            end $$;
            alter table hark.queues rename to stored_queues;
            create view hark.queues as select * from hark.stored_queues where public.gate();
        """)
    try:
        async with pool.connection() as holder:
            await holder.fetch("select pg_advisory_xact_lock(1)")
            yield
    finally:
        async with pool.connection() as restoring:
            await restoring.execute("""
                drop view hark.queues;
                alter table hark.stored_queues rename to queues;
                drop function public.gate();
                drop sequence public.claims;
            """)


async def test_a_delayed_message_that_was_completed_while_a_claim_began_does_not_come_back(
    here: Driver, there: Driver, clock: FakeClock, postgres_url: str
) -> None:
    await here.push("orders", "p1", 1, delay_ms=1000)
    await Workers(here).take()
    async with opened(postgres_url) as pool:
        clock.advance(2)
        async with blocked_between_snapshot_and_lock(pool):
            claim = asyncio.create_task(Workers(here).take())
            await until_blocked(pool)
            await there.push("orders", "p1", 2, delay_ms=1000)
            clock.advance(2)
            done = await Workers(there).take(2)
            assert payloads(done) == [1, 2]
            await there.ack_all(done)
        assert await claim == []
    assert await Workers(there).drain() == []
