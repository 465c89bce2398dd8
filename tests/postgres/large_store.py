"""A large store for tests of cost: 100,000 partitions and a million messages, nearly all of them settled.

The number of a partition says what it is like:

| number     | messages | group 1, `worker`        | group 2, `audit` | group 3, `late`             |
|------------|----------|--------------------------|------------------|-----------------------------|
| LONG       | 100,000  | all of it is open        | all but the last | all of it is open, irregular|
| 100 n      | 9        | open; 10,000 n: just now | settled          | a gap and a retry          |
| 100 n + 1  | 9        | all under a live lease   | settled          | a gap and a retry          |
| 10,000 n+2 | 9        | all under a lease, due   | settled          | a gap and a retry          |
| 100 n + 7  | 9        | open, but delayed        | settled          | a gap and a retry          |
| others     | 9        | settled                  | settled          | a gap and a retry          |

Groups 4 and 5 have not been anywhere yet: the one starts at the beginning, the other at a time.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from hashlib import md5

import asyncpg

from hark.clock import SECOND

NOW = 1_700_000_000 * SECOND
BUCKET = NOW // (10 * SECOND)
"""The bucket of what happened just now; everything else happened long before."""
PARTITIONS = 100_000
LONG = 50_003
LONG_TAIL = 100_000
WORKER, AUDIT, LATE, FIRST_TIME, SINCE = 1, 2, 3, 4, 5
QUEUE = 1

# What each partition is to be like. The numbers are ids, whatever ids were used up before.
_SHAPE = f"""
create temporary table shape on commit drop as
select n, case n when {LONG} then $1::bigint else 9 end as tail,
    n <> {LONG} and (n % 100 = 1 or n % 10000 = 2) as leased, n <> {LONG} and n % 10000 = 2 as due
from unnest($2::bigint[]) n
"""
_FILL = (
    f"""
    insert into hark.queues (id, name, namespace, task, created_at) overriding system value
    values ({QUEUE}, 'orders', '', '', 0)
    """,
    f"""
    insert into hark.groups (id, queue, name, mode, subscription, since, highest_partition, created_at, last_seen)
    overriding system value
    select id, 'orders', name, 'ordered', case when since is null then 'all' else 'timestamp' end, since,
        {PARTITIONS}, 0, 0
    from (values ({WORKER}, 'worker', null), ({AUDIT}, 'audit', null), ({LATE}, 'late', null),
        ({FIRST_TIME}, 'first time', null), ({SINCE}, 'since', {LONG_TAIL} - 20)) as g(id, name, since)
    """,
    f"""
    insert into hark.partitions (id, queue, name, created_at, tail, last_created, special, changed_bucket)
    overriding system value
    select n, {QUEUE}, 'p' || n, 0, tail, {LONG_TAIL}, case n % 100 when 7 then tail else 0 end,
        {BUCKET} - case when n % 10000 = 0 then 0 else 1000 + n % 1000 end
    from shape
    """,
    "select setval('hark.partitions_id_seq', 1000000)",
    f"""
    insert into hark.messages (slot, partition, "offset", created_at, payload, transaction_id, deliver_at)
    select case when o * 2 > tail then 1 else 0 end, n, o, {LONG_TAIL} - tail + o, '{{}}',
        case when o % 3 = 0 then 't' || n || '-' || o end, case n % 100 when 7 then {NOW} + 60000000 end
    from shape cross join lateral generate_series(1, tail) o
    """,
    "update hark.rotation set slot = 1 where name = 'messages'",
    f"""
    insert into hark.positions (grp, partition, cursor, lease, lease_until, handed, lease_last, leased, changed_bucket)
    select {WORKER}, n, case when n % 100 in (0, 7) or n = {LONG} or leased then 0 else tail end,
        case when leased then md5(n::text)::uuid end,
        case when due then {NOW} - 500000 when leased then {NOW} + 60000000 end,
        case when leased then tail else 0 end, case when leased then tail else 0 end,
        case when leased then int8multirange(int8range(1, tail + 1)) else '{{}}' end,
        {BUCKET} - case when due then 0 else 1000 + n % 1000 end
    from shape
    """,
    f"""
    insert into hark.positions (grp, partition, cursor, changed_bucket)
    select {AUDIT}, n, case n when {LONG} then tail - 1 else tail end, {BUCKET} - 1000 from shape
    """,
    f"""
    insert into hark.positions (grp, partition, cursor, settled, irregular, changed_bucket)
    select {LATE}, n, 0, '{{[3,5)}}', true, {BUCKET} - 1000 from shape
    """,
    f"""
    insert into hark.retries (grp, partition, "offset", attempts, due) select {LATE}, n, 6, 1, 0 from shape
    """,
    f"""
    insert into hark.leases (slot, id, until, grps, partitions, since, consumer)
    select n % 2, md5(n::text)::uuid,
        {NOW} + case when due then -500000 when leased then 60000000 else -3600000000 + n end,
        array[{WORKER}], array[n], {NOW} - 1, 'worker'
    from shape
    """,
)


async def fill(connection: asyncpg.Connection, partitions: Sequence[int], long_tail: int) -> None:
    """Make these partitions of it, in a database with nothing but the schema, inside a transaction."""
    await connection.execute(_SHAPE, long_tail, partitions)
    for statement in _FILL:
        await connection.execute(statement)


def lease_of(partition: int) -> uuid.UUID:
    """The lease that a partition is under."""
    return uuid.UUID(md5(str(partition).encode()).hexdigest())


def some(remainder: int, number: int, modulus: int = 100) -> list[int]:
    """Partitions of one kind, far from each other."""
    step = PARTITIONS // modulus // number * modulus
    return list(range(remainder or modulus, PARTITIONS + 1, step))[:number]
