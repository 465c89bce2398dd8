"""The cost of a call depends on what it carries and returns, not on what the database holds.

Cost is counted, not timed: rows that were read, blocks that were looked at. Calls are made for real and rolled back.
Plans are kept by each connection, so it matters when they were made: on empty tables, on full ones that nobody has
analyzed yet, or with statistics.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import asyncpg
import pytest
import pytest_asyncio

from hark.clock import SECOND
from hark.engine.hints import MAX_REPLY_BYTES
from hark.engine.keyvalue import bounds
from hark.engine.postgres.browse import POSITIONS, READ
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.pop import POP
from hark.engine.postgres.push import OPTIONS, PUSH
from hark.engine.postgres.settle import _SETTLE
from hark.keys import encode_key, prefix_bounds
from hark.model import Key, KeyRange
from tests.postgres_server import PostgresServer

from .large_store import (
    AUDIT,
    BUCKET,
    FIRST_TIME,
    LATE,
    LONG,
    LONG_TAIL,
    NOW,
    PARTITIONS,
    QUEUE,
    SINCE,
    WORKER,
    fill,
    lease_of,
    some,
)
from .pools import opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROWS_EACH = 20
BLOCKS_EACH = 80
"""For each candidate and each message. A block is counted each time it is looked at, three or four times per index."""
NEW_LEASE = "00000000-0000-0000-0000-00000000abcd"
OPEN, LEASED, DELAYED = some(0, 20), some(1, 20), some(7, 20)
RECENT, DUE = some(0, 10, 10_000), some(2, 10, 10_000)


class Call(NamedTuple):
    """A call of a procedure."""

    sql: str
    arguments: Sequence[object]
    size: int
    """How many candidates and messages it is given and returns: what its cost may depend on."""
    written: int
    """How many rows it changes; shows, as the next one does, that it did its work."""
    answered: int = 1
    """How many rows it answers."""


class Work(NamedTuple):
    """What a call did."""

    scanned: int
    """Rows read without an index."""
    fetched: int
    """Rows read through an index."""
    blocks: int
    written: int
    answered: int


# Calls -----------------------------------------------------------------------------------------------------


def push(partitions: Sequence[int], transaction_ids: Sequence[str] | None, *, each: int, written: int) -> Call:
    """So many messages for each of these partitions."""
    number = len(partitions)
    indexes = [index for index in range(1, number + 1) for _ in range(each)]
    ordinals = list(range(1, each + 1)) * number
    arguments = (partitions, *[None] * 4, [each] * number, indexes, ordinals, [b"{}"] * len(indexes), transaction_ids)
    return Call(PUSH, (NOW, *arguments, *[None] * (1 + OPTIONS)), number + len(indexes), written)


def push_to_new(number: int) -> Call:
    """A message for each of so many partitions that do not exist."""
    ones = list(range(1, number + 1))
    names = [f"new {n}" for n in ones]
    arguments = (
        [None] * number,
        ["orders"] * number,
        names,
        None,
        None,
        [1] * number,
        ones,
        [1] * number,
        [b"{}"] * number,
    )
    return Call(PUSH, (NOW, *arguments, *[None] * (2 + OPTIONS)), 2 * number, written=3 * number)


def pop(group: int, partitions: Sequence[int], *, returned: int, written: int) -> Call:
    """One request that is tried on these partitions."""
    number = len(partitions)
    requests = ([returned or 100], [number], [NEW_LEASE], [None], [False], [None])
    candidates = ([1] * number, [group] * number, partitions, [False] * number)
    arguments = (NOW, *requests, *candidates, MAX_REPLY_BYTES, [None])
    return Call(POP, arguments, number + returned, written, answered=number)


def settle(partitions: Sequence[int], status: int, *, by_transaction_id: bool = False, written: int) -> Call:
    """All messages of these partitions, which are leased; or those that have transaction ids, by these."""
    offsets = (3, 6, 9) if by_transaction_id else range(1, 10)
    items = [(position, partition, offset) for position, partition in enumerate(partitions, 1) for offset in offsets]
    number = len(items)
    arguments = (
        [WORKER] * len(partitions),
        partitions,
        [False] * len(partitions),
        [0] * number,
        [position for position, _, _ in items],
        [None if by_transaction_id else offset for _, _, offset in items],
        [f"t{partition}-{offset}" for _, partition, offset in items] if by_transaction_id else None,
        [None] * number,
        [lease_of(partition) for _, partition, _ in items],
        [status] * number,
        [None] * number,
        [None] * number,
    )
    return Call(_SETTLE, (NOW, *arguments), len(partitions) + number, written)


def renew(partitions: Sequence[int]) -> Call:
    """The leases of these partitions."""
    leases = [lease_of(partition) for partition in partitions]
    sql = "select * from hark.renew_v1($1, $2::uuid[], $3::bigint[])"
    return Call(sql, (NOW, leases, [600] * len(leases)), len(leases), written=2 * len(leases))


def release(partitions: Sequence[int]) -> Call:
    """The leases of these partitions."""
    leases = [lease_of(partition) for partition in partitions]
    sql = "select * from hark.release_v1($1, $2::uuid[])"
    return Call(sql, (NOW, leases), len(leases), written=len(leases), answered=len(leases))


def expire() -> Call:
    """What is due."""
    sql = "select * from hark.expire_v1($1, $2, $3, $4)"
    return Call(sql, (NOW, NOW - SECOND, NEW_LEASE, 1000), size=len(DUE), written=2 * len(DUE))


def discover() -> Call:
    """What happened just now."""
    found = len(DUE) + len(RECENT)
    sql = "select * from hark.discover_v1($1, $2, $3, $4)"
    return Call(sql, (NOW, WORKER, QUEUE, BUCKET - 4), size=found, written=0, answered=found)


def read(partitions: Sequence[int], offset: int, *, limit: int, returned: int) -> Call:
    """Messages of each of these partitions."""
    number = len(partitions)
    names = [f"p{partition}" for partition in partitions]
    arguments = (["orders"] * number, names, [offset] * number, [limit] * number, 1 << 20)
    return Call(READ, arguments, number + returned, written=0, answered=returned)


def positions(partition: str | None, time: int | None, changed_bucket: int | None, *, answered: int) -> Call:
    """Where to begin in one partition, or in those that something happened in."""
    size = answered * (20 if time else 1)  # A time is found by halving, which looks at so many messages.
    return Call(POSITIONS, ("orders", partition, False, time, changed_bucket), size + 1, written=0, answered=answered)


FRESH = [f"new {n}" for n in range(100)]
CALLS = {
    "push": push(OPEN, None, each=5, written=120),
    "push with transaction ids": push(OPEN, FRESH, each=5, written=120),
    "push of duplicates": push(OPEN, [f"t{n}-3" for n in OPEN], each=1, written=0),
    "push to a long partition": push([LONG], FRESH[:10], each=10, written=11),
    "push to new partitions": push_to_new(20),
    "pop from many": pop(WORKER, OPEN, returned=180, written=21),
    "pop from a long backlog": pop(WORKER, [LONG], returned=10, written=2),
    "pop behind a long history": pop(AUDIT, [LONG], returned=1, written=2),
    "pop with a gap from a long backlog": pop(LATE, [LONG], returned=10, written=2),
    "pop with gaps from many": pop(LATE, OPEN, returned=140, written=21),
    "pop of what is settled": pop(AUDIT, OPEN, returned=0, written=0),
    "pop of what is delayed": pop(WORKER, DELAYED, returned=0, written=0),
    "pop of what is leased": pop(WORKER, LEASED, returned=0, written=0),
    "first pop": pop(FIRST_TIME, OPEN, returned=180, written=41),
    "first pop, from a time on": pop(SINCE, [LONG], returned=10, written=3),
    "settle": settle(LEASED, 0, written=20),
    "settle by transaction id": settle(LEASED, 0, by_transaction_id=True, written=20),
    "settle as failed": settle(LEASED, 1, written=380),
    "settle as dead letters": settle(LEASED, 3, written=380),
    "renew": renew(LEASED),
    "release": release(LEASED),
    "expire": expire(),
    "discover": discover(),
    "read from many": read(OPEN, 1, limit=10, returned=180),
    "read from a long partition": read([LONG], 1000, limit=10, returned=10),
    "read at the end of a long partition": read([LONG], LONG_TAIL - 4, limit=10, returned=5),
    "read of nothing": read(OPEN, 10, limit=10, returned=0),
    "positions in one partition": positions(f"p{LONG}", None, None, answered=1),
    "positions after a time": positions(f"p{LONG}", LONG_TAIL - 20, None, answered=1),
    "positions in what was changed_bucket": positions(None, None, BUCKET - 4, answered=len(RECENT)),
}

# Counting --------------------------------------------------------------------------------------------------

_COUNTS = """
select sum(seq_tup_read)::bigint, sum(idx_tup_fetch)::bigint, sum(n_tup_ins + n_tup_upd + n_tup_del)::bigint
from pg_stat_xact_user_tables where schemaname = 'hark'
"""


_NO_AUTOVACUUM = """
do $$ declare found regclass; begin
    for found in select oid from pg_class where relnamespace = 'hark'::regnamespace and relkind = 'r' loop
        execute format('alter table %s set (autovacuum_enabled = off)', found);
    end loop;
end $$
"""
"""A vacuum at any time would change where new versions of rows go, and so the blocks that are counted."""


async def work_of(connection: asyncpg.Connection, call: Call) -> Work:
    """Make a call, count, and take it back."""
    transaction = connection.transaction()
    await transaction.start()
    before = await connection.fetchrow(_COUNTS)
    explained = await connection.fetchval(
        f"explain (analyze, buffers, timing off, format json) {call.sql}", *call.arguments
    )
    after = await connection.fetchrow(_COUNTS)
    await transaction.rollback()
    assert before is not None
    assert after is not None
    scanned, fetched, written = (late - early for late, early in zip(after, before, strict=True))
    plan = json.loads(explained)[0]["Plan"]
    blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return Work(scanned, fetched, blocks, written, plan["Actual Rows"])


def too_much(call: Call, work: Work) -> list[str]:
    """What of a call's work there was too much of."""
    bounds = {
        "scanned": (work.scanned, 0),
        "fetched": (work.fetched, ROWS_EACH * call.size),
        "blocks": (work.blocks, BLOCKS_EACH * call.size),
    }
    return [f"{name}: {number} > {bound}" for name, (number, bound) in bounds.items() if number > bound]


class CallCosts(NamedTuple):
    """The large store, and the work of each call by the way in which its plan was made."""

    url: str
    work: dict[str, dict[str, Work]]


WAYS = ["planned on empty tables", "planned without statistics", "planned with statistics"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def costs(postgres_server: PostgresServer) -> AsyncIterator[CallCosts]:
    """Measured in this order and before all tests: to analyze makes every connection plan again."""
    with postgres_server.fresh_database() as url:
        async with opened(url, size=1) as pool:
            async with pool.connection() as connection:
                await connection.execute(_NO_AUTOVACUUM)
            async with pool.connection() as connection:
                transaction = connection.transaction()
                await transaction.start()
                await fill(connection, sorted({LONG, *OPEN, *LEASED, *DELAYED, *DUE, *RECENT}), long_tail=100)
                await work_of_all(connection)
                await transaction.rollback()
            async with pool.connection() as connection:
                await fill(connection, range(1, PARTITIONS + 1), LONG_TAIL)
                early = await work_of_all(connection)
            results = [early]
            for analyzed in (False, True):
                async with opened(url, size=1) as late, late.connection() as connection:
                    if analyzed:
                        await connection.execute("analyze")
                    await work_of_all(connection)  # The first call of a connection also reads catalogs.
                    results.append(await work_of_all(connection))
            yield CallCosts(url, dict(zip(WAYS, results, strict=True)))


async def work_of_all(connection: asyncpg.Connection) -> dict[str, Work]:
    """What each call costs on this connection."""
    return {name: await work_of(connection, call) for name, call in CALLS.items()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_costs_what_it_carries_and_returns(costs: CallCosts, way: str, name: str) -> None:
    call, work = CALLS[name], costs.work[way][name]
    assert (work.answered, work.written) == (call.answered, call.written)
    assert too_much(call, work) == []


@pytest.mark.parametrize(
    ("index", "call"),
    [
        ("messages_offset", CALLS["pop from a long backlog"]),
        ("messages_transaction", push([LONG], FRESH[:1], each=1, written=2)),
        ("partitions_changed", CALLS["discover"]),
        ("positions_changed", CALLS["discover"]),
        ("leases_until", CALLS["expire"]),
        ("leases_id", CALLS["release"]),
        ("messages_offset", CALLS["read from a long partition"]),
        ("partitions_changed", CALLS["positions in what was changed_bucket"]),
    ],
)
async def test_a_missing_index_is_noticed(costs: CallCosts, index: str, call: Call) -> None:
    async with opened(costs.url, size=1) as pool, pool.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(f"drop index hark.{index}")
        work = await work_of(connection, call)
        await transaction.rollback()
    assert (work.answered, work.written) == (call.answered, call.written)
    assert too_much(call, work) != []


# Keys ------------------------------------------------------------------------------------------------------

USERS, EACH = 200, 200
_FILL_KEYS = """
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


NEW_KEYS: list[Key] = [("new", number) for number in range(20)]
KEY_CALLS = {
    "list": listing(("user", 7), limit=100, reverse=False, returned=100),
    "list in reverse": listing(("user", 7), limit=100, reverse=True, returned=100),
    "list of all": listing((), limit=100, reverse=False, returned=100),
    "list of nothing": listing(("nobody",), limit=100, reverse=False, returned=0),
    "count": Call("select hark.count_keys_v1($1, $2, $3)", (NOW, *prefix_bounds(("user", 7))), EACH, 0),
    "read": reading([("user", 3, number) for number in range(1, 21)], returned=18),
    "write": writing(NEW_KEYS, 0, b"1", written=40),
    "sweep": Call("select hark.sweep_keys_v1($1, 50)", (NOW,), size=50, written=50),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keys(postgres_server: PostgresServer) -> AsyncIterator[tuple[str, Pool]]:
    """Many keys, a tenth of them expired, and one connection to them with plans that it made when there were none."""
    filled = [encode_key(("user", user, number)) for user in range(USERS) for number in range(EACH)]
    with postgres_server.fresh_database() as url:
        async with opened(url, size=1) as pool:
            async with pool.connection() as connection:
                await connection.execute(_NO_AUTOVACUUM)
            async with pool.connection() as connection:
                for call in KEY_CALLS.values():
                    await work_of(connection, call)
                await connection.execute(_FILL_KEYS, filled, NOW)
            yield url, pool


@pytest.mark.parametrize("name", KEY_CALLS)
async def test_a_call_on_keys_costs_what_it_names_and_returns(keys: tuple[str, Pool], name: str) -> None:
    call = KEY_CALLS[name]
    async with keys[1].connection() as connection:
        work = await work_of(connection, call)
    assert (work.answered, work.written) == (call.answered, call.written)
    assert too_much(call, work) == []


async def test_keys_without_their_index_are_noticed(keys: tuple[str, Pool]) -> None:
    call = KEY_CALLS["list"]
    # On a connection of its own: what it changes makes it plan again.
    async with opened(keys[0], size=1) as pool, pool.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("alter table hark.kv drop constraint kv_pkey")
        work = await work_of(connection, call)
        await transaction.rollback()
    assert too_much(call, work) != []
