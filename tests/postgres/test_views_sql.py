"""Looking at a large store: pages are right across many partitions, and cost what they show."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import asyncpg
import pytest

from hark.clock import FakeClock
from hark.engine.postgres import browse, views
from hark.engine.postgres.partitions import Store
from hark.engine.postgres.pool import Pool
from hark.ids import IdCodec
from hark.model import (
    DeadLetterFilter,
    DeadLetters,
    MessageFilter,
    MessageState,
    MessageView,
    QueueFilter,
    QueuePage,
    QueueSort,
)

from .pools import opened

pytestmark = pytest.mark.fresh_database

CODEC = IdCodec(1)
NOW = 1_000_000
ALL = 100_000

# Partitions of two queues, some of them long, whose messages have times that differ, agree and overlap.
FILL = """
with shape as (
    select n, 'p' || n as name, case n % 10 when 0 then $3::bigint else $2::bigint end as tail, (n % 5 + 1) * 10 as step
    from generate_series(1, $1::bigint) n
),
place as (
    insert into hark.partitions (queue, name, created_at, tail, last_created)
    select n % 2 + 1, name, 0, tail, tail * step + n % 7 from shape
    returning id, name
)
insert into hark.messages (slot, partition, "offset", created_at, payload)
select o % 3, place.id, o, o * shape.step + shape.n % 7, '{}'
from shape join place using (name) cross join generate_series(1, shape.tail) o
"""

# Groups that got to different places, with gaps behind them, leases that are live or over, and dead letters.
GROUPS = (
    """
    insert into hark.groups (queue, name, mode, subscription, since, highest_partition, created_at, last_seen) values
        ('one', 'all', 'ordered', 'all', null, 0, 0, 0), ('one', 'new', 'ordered', 'new', 200, 1000, 0, 0)
    """,
    """
    insert into hark.positions (grp, partition, cursor, settled, lease, lease_until, leased)
    select g.id, p.id, p.id % 5, '{[9,12),[14,15)}', gen_random_uuid(), p.id % 3 * 1000000, '{[7,9)}'
    from hark.groups g join hark.queues q on q.name = g.queue join hark.partitions p on p.queue = q.id
    where p.id % 3 <> g.id % 3
    """,
    """
    insert into hark.retries (grp, partition, "offset", attempts, due)
    select t.grp, t.partition, 13, 1, 2000000 from hark.positions t where t.partition % 2 = 0
    """,
    "update hark.positions set irregular = true where partition % 2 = 0",
    """
    insert into hark.dead_letters (queue, partition, partition_name, grp, "offset", created_at, payload, attempts,
        error, failed_at)
    select distinct 'one', t.partition, '', 'all', 10, 0, '{}'::bytea, 1, 'boom', 0 from hark.positions t
    where t.partition % 4 = 0
    """,
)

# Queues of two partitions, each with a group.
QUEUES = (
    """
    insert into hark.queues (name, namespace, task, created_at)
    select 'q' || n, '', '', 0 from generate_series($1::int, $2::int) n
    """,
    """
    insert into hark.partitions (queue, name, created_at, tail)
    select q.id, p, 0, 3 from generate_series($1::int, $2::int) n join hark.queues q on q.name = 'q' || n,
        unnest(array['a', 'b']) p
    """,
    """
    insert into hark.groups (queue, name, mode, subscription, highest_partition, created_at, last_seen)
    select 'q' || n, 'g', 'ordered', 'all', 0, 0, 0 from generate_series($1::int, $2::int) n
    """,
)


class Explaining(Pool):
    """Does not answer queries but counts the blocks that the database looked at for them."""

    blocks = 0

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        [row] = await super().fetch(f"explain (analyze, buffers, format json) {sql}", *args)
        [plan] = json.loads(row[0])
        self.blocks += plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
        return []

    async def cost(self, look: Callable[[], Awaitable[object]]) -> int:
        """How many blocks a look takes, once its plans are made."""
        await look()
        self.blocks = 0
        await look()
        return self.blocks


@pytest.fixture
async def pool(postgres_url: str) -> AsyncIterator[Pool]:
    async with opened(postgres_url) as pool:
        for name in ("one", "two"):
            sql = "insert into hark.queues (name, namespace, task, created_at) values ($1, $1, '', 0)"
            await pool.fetch(sql, name)
        yield pool


@pytest.fixture
async def explaining(postgres_url: str) -> AsyncIterator[Explaining]:
    explaining = Explaining(postgres_url, size=1)
    await explaining.open()
    yield explaining
    await explaining.close()


async def fill(pool: Pool, partitions: int, messages: int, many: int | None = None) -> None:
    """Store partitions with so many messages each; every tenth may have many."""
    await pool.fetch(FILL, partitions, messages, many or messages)
    await pool.fetch("analyze hark.queues, hark.partitions, hark.messages")


def store_on(pool: Pool) -> Store:
    """What the verbs need."""
    pool.clock = FakeClock(NOW)
    store = Store(pool)
    store.codec = CODEC
    return store


async def look(pool: Pool, where: MessageFilter) -> list[MessageView]:
    """A page of messages."""
    return await browse.messages(store_on(pool), where)


# Pages -----------------------------------------------------------------------------------------------------


async def test_pages_are_in_order_over_more_partitions_than_are_looked_at_at_once(pool: Pool) -> None:
    await fill(pool, 150, 20, 300)
    rows = await pool.fetch(
        """
        select message.partition, message."offset", message.created_at, place.queue from hark.messages as message
        join hark.partitions as place on place.id = message.partition
        order by message.created_at desc, message.partition desc, message."offset" desc
        """
    )
    for queue, since, until in ((None, None, None), ("one", None, None), (None, 205, 1210), (None, None, 300)):
        expected = [
            CODEC.encode(row["partition"], row["offset"])
            for row in rows
            if (queue is None or row["queue"] == 1) and (since or 0) <= row["created_at"] <= (until or NOW)
        ]
        for limit, offset in ((1, 0), (7, 0), (7, 50), (200, 100), (ALL, 0)):
            views = await look(pool, MessageFilter(queue=queue, since=since, until=until, limit=limit, offset=offset))
            assert [view.id for view in views] == expected[offset : offset + limit], (queue, since, until, limit)


async def test_a_page_of_a_state_is_what_each_message_says_of_itself(pool: Pool) -> None:
    await fill(pool, 150, 20)
    for sql in GROUPS:
        await pool.fetch(sql)
    views = await look(pool, MessageFilter(limit=ALL))
    states: list[MessageState] = ["pending", "scheduled", "processing", "completed", "dead_letter"]
    for state in states:
        expected = [view for view in views if view.state == state]
        assert expected
        for limit, offset in ((7, 0), (7, 50), (ALL, 0)):
            found = await look(pool, MessageFilter(state=state, limit=limit, offset=offset))
            assert found == expected[offset : offset + limit]


async def test_text_that_can_not_be_stored_is_found_nowhere(pool: Pool) -> None:
    await fill(pool, 2, 2)
    partition = (await look(pool, MessageFilter()))[0].partition_id
    nul = "p\0"
    assert await look(pool, MessageFilter(queue=nul)) == []
    assert await browse.message(store_on(pool), partition, nul) is None
    for where in (QueueFilter(names=[nul]), QueueFilter(search=nul), QueueFilter(namespace=nul)):
        assert await views.queue_stats(store_on(pool), where) == QueuePage([], 0)
    assert await views.partition_stats(store_on(pool), "one", nul, 10, 0) == []
    assert await views.group_stats(store_on(pool), nul, None) == []
    assert await views.position_stats(store_on(pool), nul, None, 0, 10) == []
    assert await browse.dead_letters(store_on(pool), DeadLetterFilter(ids=[nul])) == DeadLetters([], 0)
    assert await browse.traces(store_on(pool), None, None, nul, 10, 0) == ([], 0)


# Cost ------------------------------------------------------------------------------------------------------


Look = Callable[[Explaining], Awaitable[object]]
ONE_PARTITION = MessageFilter(queue="two", partition="p1")
PENDING = MessageFilter(queue="two", partition="p1", state="pending")


@pytest.mark.parametrize(
    ("view", "shapes"),
    [
        (lambda pool: look(pool, ONE_PARTITION), [(500, 3), (10_000, 3)]),
        (lambda pool: look(pool, PENDING), [(500, 3), (10_000, 3)]),
        (lambda pool: look(pool, MessageFilter(limit=20)), [(10, 500), (10, 5000)]),
        (lambda pool: views.queue_stats(store_on(pool), QueueFilter()), [(500, 5), (500, 100)]),
        (lambda pool: views.survey(store_on(pool), (0, ""), 100), [(500, 3), (5000, 30)]),
    ],
    ids=["a partition", "what is pending in a partition", "the newest", "counts", "a step of a survey"],
)
async def test_a_look_costs_the_same_beside_many_other_partitions_and_messages(
    pool: Pool, explaining: Explaining, view: Look, shapes: list[tuple[int, int]]
) -> None:
    costs = []
    for partitions, messages in shapes:
        await pool.fetch("truncate hark.partitions, hark.messages")
        await fill(pool, partitions, messages)
        costs.append(await explaining.cost(lambda: view(explaining)))
    assert costs[1] < 2 * costs[0], costs


async def test_a_page_of_queues_costs_the_same_beside_many_others(pool: Pool, explaining: Explaining) -> None:
    sorts: tuple[QueueSort, ...] = ("newest", "name")
    costs = []
    for first, last in ((1, 300), (301, 2000)):
        for sql in QUEUES:
            await pool.fetch(sql, first, last)
        await pool.fetch("analyze hark.queues, hark.partitions, hark.groups")
        pages = [QueueFilter(sort=sort, limit=10) for sort in sorts]
        looks = [partial(views.queue_stats, store_on(explaining), page) for page in pages]
        costs.append([await explaining.cost(look) for look in looks])
    assert all(late < 2 * early for early, late in zip(*costs, strict=True)), costs
