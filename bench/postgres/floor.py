"""Limit (f) on PostgreSQL: a push server without any rule. `python -m bench.postgres.floor PORT URL`.

Hark's wire, msgspec, one call for all requests that wait, which moves the tails and inserts into Hark's table with
binary arrays. It knows the ids of its partitions. No duplicates, no options, no limits.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter

import asyncpg
import msgspec

from bench.floor import Answer, Body, Item, Job
from bench.postgres.table import Connection, make_partitions, open_tables
from bench.serving import HEADERS, PushServer, answer, serve
from hark.errors import HarkError
from hark.http.exchange import Exchange

PUSH = """
with taken as (
    update hark.partitions set tail = tail + counts.number
    from unnest($1::bigint[], $2::bigint[]) as counts (id, number)
    where partitions.id = counts.id
    returning partitions.id, partitions.tail - counts.number as base
), put as (
    insert into hark.messages (slot, partition, "offset", created_at, payload)
    select 0, item.partition, taken.base + item.rank, $3, item.payload
    from unnest($4::bigint[], $5::bigint[], $6::bytea[]) as item (partition, rank, payload)
    join taken on taken.id = item.partition
)
select id, base from taken
"""


class Floor(PushServer):
    """The server: requests that arrive during a call share the next one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._decode = msgspec.json.Decoder(Body).decode
        self._encode = msgspec.json.Encoder().encode
        self._connection: Connection = None
        self._ids: dict[tuple[str, str], int] = {}
        self._waiting: list[Job] = []
        self._writer: asyncio.Task[None] | None = None

    def take(self, exchange: Exchange) -> None:
        """Answer a push when it is on disk."""
        self._waiting.append((self._decode(exchange.body).items, exchange))
        if self._writer is None:
            self._writer = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        while self._waiting:
            jobs, self._waiting = self._waiting, []
            try:
                await self._push(jobs)
            except (asyncpg.PostgresError, HarkError) as error:
                for _, exchange in jobs:
                    exchange.carrier.respond(exchange, 500, HEADERS, self._encode(str(error)))
        self._writer = None

    async def _push(self, jobs: list[Job]) -> None:
        if self._connection is None:
            self._connection = await open_tables(self._url)
        flat = [item for items, _ in jobs for item in items]
        partitions = await self._partitions(flat)
        counts: Counter[int] = Counter()
        ranks = []
        for partition in partitions:
            counts[partition] = rank = counts[partition] + 1
            ranks.append(rank)
        now = time.time_ns() // 1000
        payloads = [bytes(item.payload) for item in flat]
        taken = await self._connection.fetch(
            PUSH, list(counts), list(counts.values()), now, partitions, ranks, payloads
        )
        bases = dict(taken)
        targets = zip(partitions, ranks, strict=True)
        for items, exchange in jobs:
            answers = []
            for index, (partition, rank) in zip(range(len(items)), targets, strict=False):
                answers.append(Answer(index, "queued", partition, bases[partition] + rank))
            answer(exchange, self._encode(answers))

    async def _partitions(self, items: list[Item]) -> list[int]:
        ids = self._ids
        try:
            return [ids[item.queue, item.partition] for item in items]
        except KeyError:
            missing = list({(item.queue, item.partition) for item in items} - ids.keys())
            made = await make_partitions(self._connection, [f"{queue}/{name}" for queue, name in missing])
            ids.update(zip(missing, made, strict=True))
            return [ids[item.queue, item.partition] for item in items]


if __name__ == "__main__":
    serve(Floor(sys.argv[2]), int(sys.argv[1]))
