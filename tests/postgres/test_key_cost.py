"""What a call on keys costs depends on what it names and returns, not on how many keys there are.

Plans are kept by each connection, so it matters when they were made: here while there were no keys at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from hark.engine.keyvalue import bounds
from hark.engine.postgres.pool import Pool
from hark.keys import encode_key, prefix_bounds
from hark.model import Key, KeyRange
from tests.postgres_server import PostgresServer

from .pools import opened
from .test_cost import Call, too_much, work_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

USERS, EACH = 200, 200
NOW = 1_000_000
_FILL = """
insert into hark.kv (key, value, version, expires_at)
select key, '{}', n, case when n % 10 = 0 then $2::bigint end from unnest($1::bytea[]) with ordinality as k(key, n)
"""


def listing(prefix: Key, *, limit: int, reverse: bool, returned: int) -> Call:
    """A page below a prefix."""
    low, high = bounds(KeyRange(prefix=prefix, reverse=reverse))
    sql = "select * from hark.list_keys_v1($1, $2::bytea[], $3::bytea[], $4::bigint[], $5::boolean[])"
    return Call(sql, (NOW, [low], [high], [limit], [reverse]), size=1 + returned, written=0, answered=returned)


def reading(keys: Sequence[Key], *, returned: int) -> Call:
    """Entries by their keys."""
    sql = "select * from hark.read_keys_v1($1, $2::bytea[])"
    return Call(sql, (NOW, [encode_key(key) for key in keys]), size=len(keys), written=0, answered=returned)


def writing(keys: Sequence[Key], kind: int, value: bytes, *, written: int) -> Call:
    """The same change of all these keys."""
    number, encoded = len(keys), [encode_key(key) for key in keys]
    sql = """
    select hark.write_keys_v1($1, $2::bytea[], $3::bigint[], $4::smallint[], $2::bytea[], $5::bytea[], $6::bigint[])
    from (select hark.lock_keys_v1($2, null, null)) as locked
    """
    arguments = (NOW, encoded, [None] * number, [kind] * number, [value] * number, [None] * number)
    return Call(sql, arguments, size=4 * number, written=written)


NEW: list[Key] = [("new", number) for number in range(20)]
CALLS = {
    "list": listing(("user", 7), limit=100, reverse=False, returned=100),
    "list in reverse": listing(("user", 7), limit=100, reverse=True, returned=100),
    "list of all": listing((), limit=100, reverse=False, returned=100),
    "list of nothing": listing(("nobody",), limit=100, reverse=False, returned=0),
    "count": Call("select hark.count_keys_v1($1, $2, $3)", (NOW, *prefix_bounds(("user", 7))), EACH, 0),
    "read": reading([("user", 3, number) for number in range(1, 21)], returned=18),
    "write": writing(NEW, 0, b"1", written=40),
    "sweep": Call("select hark.sweep_keys_v1($1, 50)", (NOW,), size=50, written=50),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(postgres_server: PostgresServer) -> AsyncIterator[tuple[str, Pool]]:
    """Many keys, a tenth of them expired, and one connection to them with plans that it made when there were none."""
    keys = [encode_key(("user", user, number)) for user in range(USERS) for number in range(EACH)]
    with postgres_server.fresh_database() as url:
        async with opened(url, size=1) as pool:
            async with pool.connection() as connection:
                for call in CALLS.values():
                    await work_of(connection, call)
                await connection.execute(_FILL, keys, NOW)
            yield url, pool


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_on_keys_costs_what_it_names_and_returns(store: tuple[str, Pool], name: str) -> None:
    call = CALLS[name]
    async with store[1].connection() as connection:
        work = await work_of(connection, call)
    assert (work.answered, work.written) == (call.answered, call.written)
    assert too_much(call, work) == []


async def test_keys_without_their_index_are_noticed(store: tuple[str, Pool]) -> None:
    call = CALLS["list"]
    # On a connection of its own: what it changes makes it plan again.
    async with opened(store[0], size=1) as pool, pool.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("alter table hark.kv drop constraint kv_pkey")
        work = await work_of(connection, call)
        await transaction.rollback()
    assert too_much(call, work) != []
