"""The PostgreSQL engine: any number of equal servers on one database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import cast

from hark.clock import Clock, SystemClock
from hark.engine.api import Answers, Listener
from hark.engine.postgres import admin, browse, metrics, read, records, views
from hark.engine.postgres.deliveries import Deliveries
from hark.engine.postgres.directory import Directory, Place
from hark.engine.postgres.expiry import Expirer
from hark.engine.postgres.leases import lease_uuid
from hark.engine.postgres.migrate import migrate
from hark.engine.postgres.peers import Hearing, peer_secret
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.pop import Popper
from hark.engine.postgres.push import PUSH, Pushes
from hark.engine.postgres.retention import Retention, keep_compact
from hark.engine.postgres.settle import Settler
from hark.engine.postgres.telling import Telling
from hark.engine.postgres.transact import Transactor
from hark.errors import EngineFailure, HarkError
from hark.ids import IdCodec, IdSource
from hark.model import (
    BrowseFrom,
    Collected,
    DeadLetterFilter,
    DeadLetters,
    Expired,
    GroupDeletion,
    GroupStats,
    Hint,
    MessageFilter,
    MessageView,
    NewMessage,
    NewTrace,
    PartitionStats,
    PopRequest,
    PopResult,
    Position,
    PushOutcome,
    QueueInfo,
    QueueSpec,
    QueueStats,
    Read,
    ReadResult,
    Renewal,
    RenewOutcome,
    Seek,
    SeekOutcome,
    Settlement,
    SettleOutcome,
    Trace,
    TraceName,
    TrackStats,
    Transaction,
    TransactionOutcome,
)


class PostgresEngine:
    """One server's way to the database. What it remembers is cache and hints: every fact is in the database."""

    shared = True

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        completed_retention_seconds: int = 7 * 86400,
        idle_group_seconds: int = 30 * 86400,
        pool_size: int = 8,
        statement_timeout_ms: int = 30_000,
        wait_ms: int = 10_000,
        prepared: bool = True,
    ) -> None:
        self._clock = clock
        self._local_clock = clock or SystemClock()
        self._ids = IdSource(self._local_clock)
        self._pool = Pool(
            url,
            size=pool_size,
            statement_timeout_ms=statement_timeout_ms,
            wait_ms=wait_ms,
            prepared=prepared,
            on_return=self._hint_all,
        )
        self._retention = Retention(self._pool, completed_retention_seconds, idle_group_seconds)
        self._listener: Listener = lambda _hints: None
        self._compacting: asyncio.Task[None] | None = None
        self._open = False

    async def start(self, listener: Listener) -> None:
        """Connect, and install or migrate the schema."""
        await self._pool.open()
        try:
            await migrate(self._pool)
            tag = await self._pool.fetchval("select value from hark.meta where key = 'tag'")
        except BaseException:
            await self._pool.close()
            raise
        self._listener = listener
        self._codec = IdCodec(tag)
        self._directory = Directory(self._pool, self._codec)
        self._deliveries = Deliveries()
        self._popper = Popper(self._pool, self._directory, self._deliveries, self._codec, self._ids)
        self._settler = Settler(self._pool, self._directory, self._deliveries, self._codec)
        self._transactor = Transactor(self._pool, self._directory, self._deliveries, self._settler, self._codec)
        self._expirer = Expirer(self._pool, self._directory, self._deliveries, self._local_clock)
        self._hearing = Hearing(self._directory, self._deliveries)
        self._compacting = asyncio.create_task(keep_compact(self._pool), name="compaction")
        self._open = True

    async def close(self) -> None:
        """Finish what runs and let go of the database."""
        if not self._open:
            return
        self._open = False
        if self._compacting is not None:
            self._compacting.cancel()
            await asyncio.gather(self._compacting, return_exceptions=True)
        await self._pool.close()

    async def ping(self) -> None:
        """Raise unless the database answers now."""
        await self._pool.fetch("select 1")

    async def store_metrics(self) -> dict[str, float]:
        """See `Engine.store_metrics`."""
        return await metrics.store_metrics(self._pool)

    @property
    def pool(self) -> Pool:
        """The connections, for those who count them."""
        return self._pool

    @property
    def _now(self) -> int | None:
        """The time that calls are given: None lets the database use its own clock."""
        self._check_open()
        return None if self._clock is None else self._clock.now()

    def _check_open(self) -> None:
        if not self._open:
            raise EngineFailure("the server is stopping", code="stopping")

    def _hint(self, hints: Iterable[Hint]) -> None:
        found = list(dict.fromkeys(hints))
        if found:
            self._listener(found)

    def _hint_all(self) -> None:
        """The database is back after it was away: nobody knows what happened meanwhile."""
        if not self._open:
            return
        for group in self._directory.groups.values():
            group.ready.forget()
        self._hint(Hint(group.queue, group.name) for group in self._directory.groups.values())

    # Messages ----------------------------------------------------------------------------------------------

    async def push(self, requests: Sequence[Sequence[NewMessage]]) -> Answers[list[PushOutcome]]:
        """See `Engine.push`."""
        now = self._now
        if not any(requests):
            return [[] for _ in requests]
        while True:
            batch = await self._gather(requests)
            row = await self._pool.fetchrow(PUSH, now, *batch.arguments())
            assert row is not None
            stale, ids, tails, offsets, codes = row
            if stale is None:
                break
            self._directory.forget_places(stale)
        places = batch.adopt(ids)
        outcomes = batch.outcomes(places, tails, offsets, codes)
        self._hint(self._offered(places if codes is None else batch.queued_to(places, codes)))
        if len(requests) == 1:
            return [outcomes]
        answers: Answers[list[PushOutcome]] = []
        at = 0
        for request in requests:
            answers.append(outcomes[at : at + len(request)])
            at += len(request)
        return answers

    async def _gather(self, requests: Sequence[Sequence[NewMessage]]) -> Pushes:
        while True:
            batch = Pushes(self._directory, self._codec)
            for request in requests:
                batch.add(request)
            if not await self._directory.load_places(batch.unknown):
                return batch

    def _offered(self, places: Iterable[Place]) -> list[Hint]:
        """Partitions got messages: their groups may take them; whom to tell."""
        telling = Telling(self._directory)
        telling.arrived(places)
        return telling.hints()

    async def pop(self, requests: Sequence[PopRequest]) -> Answers[PopResult]:
        """See `Engine.pop`."""
        now = self._now
        telling = Telling(self._directory)
        try:
            answers = await self._popper.pop(requests, now, self._expirer.now(), telling)
        finally:
            self._hint(telling.hints())
        to_local = self._expirer.to_local
        for answer in answers:
            if isinstance(answer, PopResult):
                answer.look_again_at = None if answer.look_again_at is None else to_local(answer.look_again_at)
                answer.expires_at = None if answer.expires_at is None else to_local(answer.expires_at)
        return answers

    async def settle(self, requests: Sequence[Sequence[Settlement]]) -> Answers[list[SettleOutcome]]:
        """See `Engine.settle`."""
        telling = Telling(self._directory)
        outcomes = await self._settler.settle(requests, self._now, telling)
        self._hint(telling.hints())
        return cast("Answers[list[SettleOutcome]]", outcomes)

    async def transact(self, requests: Sequence[Transaction]) -> Answers[TransactionOutcome]:
        """See `Engine.transact`."""
        telling = Telling(self._directory)
        outcomes = await self._transactor.transact(requests, self._now, telling)
        self._hint(telling.hints())
        return cast("Answers[TransactionOutcome]", outcomes)

    async def renew(self, requests: Sequence[Renewal]) -> Answers[RenewOutcome]:
        """See `Engine.renew`."""
        return await self._expirer.renew(requests, self._now)

    async def lease_ends(self, lease_ids: Sequence[str]) -> list[int | None]:
        """See `Engine.lease_ends`."""
        return await self._expirer.lease_ends(lease_ids, self._now)

    async def release(self, lease_ids: Sequence[str]) -> None:
        """See `Engine.release`."""
        rows = await self._pool.fetch(
            "select * from hark.release_v1($1, $2::uuid[])", self._now, [lease_uuid(one) for one in lease_ids]
        )
        for lease in lease_ids:
            self._deliveries.end(lease)
        self._hint(self._expirer.free(rows))

    async def expire(self, limit: int = 1000) -> Expired:
        """See `Engine.expire`."""
        expired, hints = await self._expirer.expire(self._now, limit)
        self._hint(hints)
        return expired

    async def collect(self, limit: int = 1000) -> Collected:
        """See `Engine.collect`."""
        collected = await self._retention.step(await self._applied(), limit)
        if collected.removed:
            telling = Telling(self._directory)
            telling.looked_behind()
            self._hint(telling.hints())
        return collected

    async def read(self, requests: Sequence[Read]) -> Answers[ReadResult]:
        """See `Engine.read`."""
        self._check_open()
        return cast("Answers[ReadResult]", await read.read(self._pool, self._codec, requests))

    async def positions(
        self, queue: str, start: BrowseFrom, partition: str | None = None, touched_since: int | None = None
    ) -> list[Position]:
        """See `Engine.positions`."""
        self._check_open()
        since = None if touched_since is None else self._expirer.from_local(touched_since)
        return await read.positions(self._pool, queue, start, partition, since)

    async def delete_messages(self, message_ids: Sequence[str]) -> list[bool]:
        """See `Engine.delete_messages`."""
        removed = await admin.delete_messages(self._pool, self._codec, await self._applied(), message_ids)
        decoded = [self._codec.decode(one) for one, gone in zip(message_ids, removed, strict=True) if gone]
        numbers = dict.fromkeys(one.partition for one in decoded if one is not None)
        await self._directory.load_places(numbers)
        telling = Telling(self._directory)
        known = self._directory.places_by_id
        telling.removed(known[number] for number in numbers if number in known)
        self._hint(telling.hints())
        return removed

    async def _applied(self) -> int | None:
        """The time for those who look, after everything that is due has been applied."""
        behind = True
        while behind:
            _, hints = await self._expirer.expire(self._now, 1000)
            self._hint(hints)
            behind = self._expirer.behind
        return self._now

    # Queues ------------------------------------------------------------------------------------------------

    async def configure(self, specs: Sequence[QueueSpec]) -> Answers[QueueInfo]:
        """See `Engine.configure`."""
        infos = await admin.configure(self._pool, self._codec, await self._applied(), specs)
        for spec in specs:
            self._look_again(spec.name)
        self._hint(Hint(spec.name) for spec in specs)
        return cast("Answers[QueueInfo]", infos)

    def _look_again(self, queue: str) -> None:
        """What the groups of a queue wait for may have changed."""
        for group in self._directory.groups_of(queue):
            group.ready.forget()

    async def delete_queues(self, names: Sequence[str]) -> list[bool]:
        """See `Engine.delete_queues`."""
        distinct = list(dict.fromkeys(names))
        existed = await self._pool.fetchval("select hark.delete_queues_v1($1::text[])", distinct)
        for name in distinct:
            self._directory.forget_queue(name)
        answers = dict(zip(distinct, existed, strict=True))
        return [answers.pop(name, False) for name in names]

    async def purge(self, queue: str, group: str | None = None) -> int:
        """See `Engine.purge`."""
        now = await self._applied()
        number = int(await self._pool.fetchval("select hark.purge_v1($1, $2, $3)", now, queue, group))
        self._look_again(queue)
        return number

    async def pause(self, queue: str, group: str | None, paused: bool) -> bool:
        """See `Engine.pause`."""
        found = bool(await self._pool.fetchval("select hark.pause_v1($1, $2, $3)", queue, group, paused))
        if found and not paused:
            self._hint([Hint(queue, group)])
        return found

    async def queue_infos(self, names: Sequence[str] | None = None) -> list[QueueInfo]:
        """See `Engine.queue_infos`."""
        return await admin.queue_infos(self._pool, names)

    async def queue_stats(self, name: str | None = None) -> list[QueueStats]:
        """See `Engine.queue_stats`."""
        now = await self._applied()
        infos = {info.name: info for info in await self.queue_infos(None if name is None else [name])}
        return await views.queue_stats(self._pool, infos, now, name)

    async def partition_stats(
        self, queue: str, search: str | None = None, limit: int = 1000, offset: int = 0
    ) -> list[PartitionStats]:
        """See `Engine.partition_stats`."""
        now = await self._applied()
        return await views.partition_stats(self._pool, self._codec, now, queue, search, limit, offset)

    # Groups ------------------------------------------------------------------------------------------------

    async def seek(self, requests: Sequence[Seek]) -> Answers[SeekOutcome]:
        """See `Engine.seek`."""
        answers: Answers[SeekOutcome] = []
        for request in requests:
            try:
                answers.append(await admin.seek(self._pool, await self._applied(), request))
            except HarkError as error:
                answers.append(error)
                continue
            self._look_again(request.queue)
            where = None if request.partition is None else (request.partition,)
            self._hint([Hint(request.queue, request.group, where)])
        return answers

    async def delete_group(self, group: str, queue: str | None, forget_subscription: bool) -> GroupDeletion:
        """See `Engine.delete_group`."""
        deletion, queues = await admin.delete_group(
            self._pool, await self._applied(), group, queue, forget_subscription
        )
        for name in queues:
            known = self._directory.groups.get((name, group))
            if known is not None:
                self._directory.forget_group(known)
        self._hint(Hint(name, group) for name in queues)
        return deletion

    async def resubscribe(self, group: str, since: int) -> int:
        """See `Engine.resubscribe`."""
        rows = await self._pool.fetch("select * from hark.resubscribe_v1($1, $2, $3)", self._now, group, since)
        for _, queue in rows:
            self._look_again(queue)
        self._hint(Hint(queue, group) for _, queue in rows)
        return len(rows)

    async def group_stats(self, group: str | None = None, queue: str | None = None) -> list[GroupStats]:
        """See `Engine.group_stats`."""
        return await views.group_stats(self._pool, await self._applied(), group, queue)

    async def track_stats(
        self, group: str | None = None, queue: str | None = None, min_lag_seconds: int = 0, limit: int = 1000
    ) -> list[TrackStats]:
        """See `Engine.track_stats`."""
        now = await self._applied()
        return await views.track_stats(self._pool, self._codec, now, group, queue, min_lag_seconds, limit)

    # Dead letters ------------------------------------------------------------------------------------------

    async def dead_letters(self, where: DeadLetterFilter) -> DeadLetters:
        """See `Engine.dead_letters`."""
        await self._applied()
        return await records.dead_letters(self._pool, self._codec, where)

    async def requeue(self, ids: Sequence[str]) -> Answers[str]:
        """See `Engine.requeue`."""
        answers: Answers[str] = []
        for dead_letter in ids:
            try:
                message_id, queue, group = await admin.requeue(
                    self._pool, self._codec, await self._applied(), dead_letter
                )
            except HarkError as error:
                answers.append(error)
                continue
            self._look_again(queue)
            await self._tell_requeued(message_id, queue, group)
            answers.append(message_id)
        return answers

    async def _tell_requeued(self, message_id: str, queue: str, group: str) -> None:
        """One group may take what came; the others, and browsers, only see that something did."""
        place = self._codec.decode(message_id)
        number = 0 if place is None else place.partition
        await self._directory.load_places([number])
        known = self._directory.places_by_id.get(number)
        where = None if known is None else (known.name,)
        told = tuple(one.name for one in self._directory.groups_of(queue))
        self._hint([Hint(queue, None, where, "message", told), Hint(queue, group, where)])

    async def delete_dead_letters(self, where: DeadLetterFilter) -> int:
        """See `Engine.delete_dead_letters`."""
        await self._applied()
        matching = records.dead_letters_where(where, self._codec)
        return int(
            await self._pool.fetchval(
                f"with gone as (delete from hark.dead_letters where {matching} returning 1) select count(*) from gone",
                *matching.args,
            )
        )

    # Looking -----------------------------------------------------------------------------------------------

    async def messages(self, where: MessageFilter) -> list[MessageView]:
        """See `Engine.messages`."""
        return await browse.messages(self._pool, self._codec, await self._applied(), where)

    async def message(self, partition_id: str, transaction_id: str) -> MessageView | None:
        """See `Engine.message`."""
        return await browse.message(self._pool, self._codec, await self._applied(), partition_id, transaction_id)

    async def trace(self, traces: Sequence[NewTrace]) -> Answers[str]:
        """See `Engine.trace`."""
        return await admin.trace(self._pool, self._codec, self._now, traces)

    async def traces(
        self,
        partition_id: str | None = None,
        transaction_id: str | None = None,
        name: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[list[Trace], int]:
        """See `Engine.traces`."""
        await self._applied()
        return await records.traces(self._pool, self._codec, partition_id, transaction_id, name, limit, offset)

    async def trace_names(self, limit: int = 50, offset: int = 0) -> tuple[list[TraceName], int]:
        """See `Engine.trace_names`."""
        return await records.trace_names(self._pool, limit, offset)

    # Other servers -----------------------------------------------------------------------------------------

    def hear(self, hints: Sequence[Hint]) -> list[Hint]:
        """See `Engine.hear`."""
        if not self._open:
            return []
        return self._hearing.hear(hints)

    async def peer_secret(self) -> bytes:
        """See `Engine.peer_secret`."""
        self._check_open()
        return await peer_secret(self._pool)

    # The server's own notes --------------------------------------------------------------------------------

    async def read_flags(self) -> dict[str, bool]:
        """See `Engine.read_flags`."""
        return await admin.read_flags(self._pool)

    async def write_flag(self, name: str, value: bool) -> None:
        """See `Engine.write_flag`."""
        await admin.write_flag(self._pool, name, value)
