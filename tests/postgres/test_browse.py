"""What browsers see of a database that several servers push to."""

from __future__ import annotations

import asyncio

from hark.clock import FakeClock
from hark.engine.postgres.push import OPTIONS, PUSH
from hark.model import Position, Read
from tests.engine.driver import Driver, given

from .pools import opened

WHOLE = Read(queue="orders", partition="p1", offset=1)
_WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%push_v1%'"


async def offsets_read(driver: Driver) -> list[int]:
    """The offsets of all that a browser sees."""
    [answer] = await driver.engine.read([WHOLE])
    return [one.offset for one in given(answer).messages]


async def test_rule_3_a_browser_never_passes_a_message_that_commits_later(
    here: Driver, there: Driver, postgres_url: str
) -> None:
    await here.push("orders", "p1", 1)
    async with opened(postgres_url) as pool:
        [partition] = await pool.fetch("select id from hark.partitions where name = 'p1'")
        async with pool.connection() as connection:
            arguments = ([partition["id"]], None, None, [1], [1], [1], [b"2"], *[None] * (2 + OPTIONS))
            await connection.fetch(PUSH, None, *arguments)
            later = asyncio.create_task(there.push("orders", "p1", 3))
            async with asyncio.timeout(10):
                while not await pool.fetchval(_WAITING):
                    pass
            assert await offsets_read(here) == [1]
            assert await here.engine.positions("orders", "tail") == [Position("p1", 2)]
        await later
    assert await offsets_read(here) == [1, 2, 3]


async def test_a_browser_sees_what_was_moved_to_another_table(here: Driver, there: Driver, postgres_url: str) -> None:
    await here.push("orders", "p1", 1, 2)
    async with opened(postgres_url) as pool:
        await pool.fetch("update hark.rotation set slot = 1 where name = 'messages'")
        await there.push("orders", "p1", 3)
        assert await offsets_read(there) == [1, 2, 3]
        assert await pool.fetchval("select hark.empty_messages_v1(0::smallint, 100, 100)") == 2
    assert await offsets_read(here) == [1, 2, 3]


async def test_partitions_that_nothing_happened_in_are_not_among_those_touched_since(
    here: Driver, there: Driver, clock: FakeClock
) -> None:
    await here.push("orders", "old", 1)
    clock.advance(3600)
    before = clock.now()
    await here.push("orders", "new", 2)
    clock.advance(20)
    assert await there.engine.positions("orders", "head", touched_since=before) == [Position("new", 1)]
    assert len(await there.engine.positions("orders", "head", touched_since=before - 3_600_000_000)) == 2
    clock.advance(3600)
    assert await there.engine.positions("orders", "head", touched_since=clock.now()) == []
