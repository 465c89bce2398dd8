"""A dump that is restored into another database, as the backup of docs/postgresql.md."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from hark.clock import FakeClock
from hark.engine.postgres import PostgresEngine
from tests.engine.driver import Driver
from tests.postgres_programs import client_program
from tests.postgres_server import PostgresServer


async def run(program: str, *arguments: str) -> bytes:
    """What a program writes."""
    process = await asyncio.create_subprocess_exec(
        client_program(program), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors
    return output


async def restore(dump: bytes, url: str) -> None:
    """Run the statements of a dump, without those for psql."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("\n".join(line for line in dump.decode().split("\n") if not line.startswith("\\")))
    finally:
        await connection.close()


@pytest.mark.fresh_database
async def test_messages_after_a_restore_do_not_get_the_ids_of_those_that_it_lost(
    postgres_server: PostgresServer, postgres_url: str, clock: FakeClock
) -> None:
    async def driver(url: str) -> Driver:
        driver = Driver(lambda time: PostgresEngine(url, clock=time), clock)
        await driver.start()
        return driver

    q = await driver(postgres_url)
    kept = await q.push_id("orders", "p", 1)
    dump = await run("pg_dump", "--schema=hark", "--inserts", postgres_url)
    lost = await q.push_id("orders", "p", 2)
    await q.engine.close()
    with postgres_server.fresh_database(installed=False) as restored_url:
        await restore(dump, restored_url)
        q = await driver(restored_url)
        new = await q.push_id("orders", "p", 3)
        await q.engine.close()
        q = await driver(restored_url)
        leased = await q.pop("orders", "p", batch=10)
        await q.engine.close()
        await restore(b"delete from hark.meta where key = 'home'", restored_url)
        q = await driver(restored_url)
        [again] = await q.pop("orders", "p", group="other")
        await q.engine.close()
    assert [one.payload for one in leased] == [1, 3]
    assert [one.message.id for one in leased][1:] == [new], "it is the same store at its second start"
    assert len({kept, lost, new, leased[0].message.id, again.message.id}) == 5
