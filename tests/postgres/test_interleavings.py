"""What happens in the middle of something: a push that has not committed yet, news between two rounds of a pop."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import asyncpg
import pytest

from hark.clock import FakeClock
from hark.engine.postgres import retention
from hark.engine.postgres.contact import Job
from hark.engine.postgres.discovery import Discovery
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.pop import POP
from hark.engine.postgres.push import OPTIONS, PUSH
from hark.model import PartitionOffset, Read
from tests.engine.driver import Driver, given, payloads

from .pools import SOON, opened, until_locked


async def push_without_commit(pool: Pool, connection: asyncpg.Connection, now: int | None, payload: bytes) -> None:
    """Push to partition p1 in a transaction that is still open."""
    partition = await pool.fetchval("select id from hark.partitions where name = 'p1'")
    await connection.fetch(PUSH, now, [partition], *[None] * 4, [1], [1], [1], [payload], *[None] * (2 + OPTIONS))


async def offsets_read(driver: Driver) -> list[int]:
    """The offsets of all that a browser sees."""
    [answer] = await driver.engine.read([Read(queue="orders", partition="p1", offset=1)])
    return [one.offset for one in given(answer).messages]


async def test_rule_3_a_browser_never_passes_a_message_that_commits_later(
    here: Driver, there: Driver, postgres_url: str
) -> None:
    await here.push("orders", "p1", 1)
    async with opened(postgres_url) as pool:
        async with pool.connection() as connection:
            await push_without_commit(pool, connection, None, b"2")
            later = asyncio.create_task(there.push("orders", "p1", 3))
            await until_locked(pool, "push_v1")
            assert await offsets_read(here) == [1]
            assert await here.engine.offsets("orders", "tail") == [PartitionOffset("p1", 2)]
        await later
    assert await offsets_read(here) == [1, 2, 3]


async def test_a_push_that_commits_while_its_partition_is_emptied_is_kept(
    here: Driver, clock: FakeClock, postgres_url: str
) -> None:
    await here.push("orders", "p1", 1, 2, 3)
    await here.drain("orders")
    clock.advance(8 * 86400)
    async with opened(postgres_url) as pool:
        async with pool.connection() as producer:
            await push_without_commit(pool, producer, clock.now(), b"4")
            collecting = asyncio.create_task(here.collect())
            await until_locked(pool, "collect_v1")
        assert await collecting == 3
    assert payloads(await here.pop("orders", batch=9)) == [4]


async def test_a_push_does_not_wait_while_retention_is_at_another_partition(
    here: Driver, there: Driver, clock: FakeClock, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_STEP_MS", 0)  # A step ends with the first partition that it changed.
    for name in ("p1", "p2"):
        await here.push("orders", name, 1, 2)
    await here.drain("orders")
    clock.advance(8 * 86400)
    async with opened(postgres_url) as pool:
        async with pool.connection() as holder:
            await holder.execute(
                "select * from hark.positions t join hark.partitions p on p.id = t.partition where p.name = 'p2'"
                " for update of t"
            )
            collecting = asyncio.create_task(here.collect())
            await until_locked(pool, "collect_v1")
            await asyncio.wait_for(there.push("orders", "p1", 3), SOON)
        assert await collecting == 4
    assert payloads(await there.pop("orders", batch=9)) == [3]


async def test_a_browser_sees_what_was_moved_to_another_table(here: Driver, there: Driver, postgres_url: str) -> None:
    await here.push("orders", "p1", 1, 2)
    async with opened(postgres_url) as pool:
        await pool.fetch("update hark.rotation set slot = 1 where name = 'messages'")
        await there.push("orders", "p1", 3)
        assert await offsets_read(there) == [1, 2, 3]
        rows = await pool.fetchval("select array_agg(ctid) from hark.messages_0")
        assert await pool.fetchval("select hark.move_rows_v1('messages', 0::smallint, $1::tid[])", rows) == 2
    assert await offsets_read(here) == [1, 2, 3]


async def test_partitions_that_nothing_happened_in_are_not_among_those_changed_since(
    here: Driver, there: Driver, clock: FakeClock
) -> None:
    await here.push("orders", "old", 1)
    clock.advance(3600)
    before = clock.now()
    await here.push("orders", "new", 2)
    clock.advance(20)
    assert await there.engine.offsets("orders", "head", changed_since=before) == [PartitionOffset("new", 1)]
    assert len(await there.engine.offsets("orders", "head", changed_since=before - 3_600_000_000)) == 2
    clock.advance(3600)
    assert await there.engine.offsets("orders", "head", changed_since=clock.now()) == []


# Transactions that become visible late ----------------------------------------------------------------------

STALLED_SECONDS = 120
"""Longer than any look reaches back."""


@pytest.mark.parametrize("looked_before", [True, False], ids=["a server that had looked before", "a new server"])
async def test_rule_9_a_pop_finds_what_became_visible_late(
    here: Driver, there: Driver, clock: FakeClock, postgres_url: str, looked_before: bool
) -> None:
    await here.push("orders", "p1", 1)
    assert await (there if looked_before else here).drain("orders") == [1]
    async with opened(postgres_url) as pool, pool.connection() as stalled:
        await push_without_commit(pool, stalled, clock.now(), b"2")
        for _ in range(2):
            clock.advance(STALLED_SECONDS)
            assert await there.pop("orders") == []
    assert payloads(await there.pop("orders")) == [2]


async def test_a_browser_finds_what_became_visible_late(
    here: Driver, there: Driver, clock: FakeClock, postgres_url: str
) -> None:
    await here.push("orders", "p1", 1)
    await there.engine.expire()
    async with opened(postgres_url) as pool, pool.connection() as stalled:
        await push_without_commit(pool, stalled, clock.now(), b"2")
        clock.advance(STALLED_SECONDS)
        await there.engine.expire()
    polled_before = clock.now()
    await there.engine.expire()
    assert await there.engine.offsets("orders", "tail", changed_since=polled_before) == [PartitionOffset("p1", 3)]


async def test_rule_16_a_lease_that_became_visible_after_its_end_is_ended(
    here: Driver, there: Driver, clock: FakeClock, postgres_url: str
) -> None:
    await here.push("orders", "p1", 1)
    assert await there.pop("orders", "nowhere", group="g") == []
    async with opened(postgres_url) as pool:
        [group, partition] = await pool.fetch("select id from hark.groups union all select id from hark.partitions")
        async with pool.connection() as stalled:
            lease = [uuid4()]
            taken = await stalled.fetch(
                POP, clock.now(), [1], [1], lease, [None], [False], [None], [1], [group[0]], [partition[0]], [False],
                1 << 20, [None],
            )  # fmt: skip
            assert len(taken) == 1
            clock.advance(300 + STALLED_SECONDS)
            assert (await there.engine.expire()).leases == 0
    while not (expired := await there.engine.expire()).leases:
        assert expired.next_due == clock.now(), "there is more to look at"
    assert expired.leases == 1


@pytest.fixture
def _searched_between_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to ask the database for more comes when a pop has got something already."""

    def is_wanted(_self: Discovery, job: Job, _now: int) -> bool:
        unknown = any(group.ready.discovered is None for _, group in job.groups)
        return not job.discovered and (unknown or bool(job.messages))

    monkeypatch.setattr(Discovery, "is_wanted", is_wanted)


@pytest.mark.usefixtures("_searched_between_rounds")
async def test_rule_16_one_message_at_a_time_is_one_for_each_pop(here: Driver, clock: FakeClock) -> None:
    await here.configure("orders", lease_time=10)
    await here.push("orders", "p1", 1, 2, 3)
    assert payloads(await here.pop("orders", batch=3)) == [1, 2, 3]
    clock.advance(10)
    for number in (1, 2, 3):
        got = await here.pop("orders", batch=10, partitions=10, auto_ack=True)
        assert (payloads(got), got.partitions) == ([number], 1)


@pytest.mark.usefixtures("_searched_between_rounds")
async def test_a_partition_that_was_found_between_rounds_is_taken_too(here: Driver, there: Driver) -> None:
    await here.push("orders", "p1", 1)
    await here.push("orders", "p2", 2)
    assert len(await here.pop("orders", batch=1)) == 1
    await there.push("orders", "p3", 3)
    got = await here.pop("orders", batch=10, partitions=10, auto_ack=True)
    assert sorted(map(str, payloads(got))) == ["2", "3"]
