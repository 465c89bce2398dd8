"""The verbs of `Engine` for those who look on PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from hark.clock import Clock, SystemClock
from hark.engine.api import Answers, KeyListener, Listener, ignore_keys
from hark.engine.postgres import admin, browse, explain, retention, views
from hark.engine.postgres.admin import AdminVerbs
from hark.engine.postgres.discovery import HintListener, Late, peer_secret
from hark.engine.postgres.explain import Explainer
from hark.engine.postgres.keyvalue import KeyVerbs
from hark.engine.postgres.migrate import migrate, own_tag
from hark.engine.postgres.partitions import Directory
from hark.engine.postgres.pool import Looks, Pool
from hark.engine.postgres.pop import Popper
from hark.engine.postgres.push import PUSH, Notifications, Pushes
from hark.engine.postgres.retention import Expirer, Retention
from hark.engine.postgres.settle import Deliveries, Settler, lease_uuid
from hark.engine.postgres.transact import Transactor
from hark.errors import EngineFailure
from hark.ids import IdCodec, IdSource
from hark.model import (
    BrowseFrom,
    Collected,
    DeadLetterFilter,
    DeadLetters,
    Expired,
    Explain,
    Facts,
    GroupStats,
    Hint,
    KeyNotification,
    LeaseFilter,
    Leases,
    MessageFilter,
    MessageView,
    NewMessage,
    NewTrace,
    PartitionOffset,
    PartitionStats,
    PopRequest,
    PopResult,
    PositionStats,
    PushOutcome,
    QueueFilter,
    QueueInfo,
    QueuePage,
    Read,
    ReadResult,
    Renewal,
    RenewOutcome,
    Settlement,
    SettleOutcome,
    Survey,
    Totals,
    Trace,
    TraceName,
    Transaction,
    TransactionOutcome,
)

T = TypeVar("T")


class ViewVerbs(ABC):
    """Lists, counts and traces."""

    _pool: Pool
    _codec: IdCodec
    _looks: Looks

    @abstractmethod
    def _check_open(self) -> None: ...

    @property
    @abstractmethod
    def _now(self) -> int | None: ...

    @abstractmethod
    async def _applied(self) -> int | None: ...

    async def _list(self, verb: str, arguments: tuple[object, ...], look: Callable[[int | None], Awaitable[T]]) -> T:
        """Look after everything that is due has been applied, when it is the turn of this list."""
        self._check_open()

        async def applied() -> T:
            return await look(await self._applied())

        return await self._looks.share((verb, repr(arguments)), applied)

    async def queue_infos(self, names: Sequence[str] | None = None) -> list[QueueInfo]:
        """See `Engine.queue_infos`."""
        return await admin.queue_infos(self._pool, names)

    async def queue_stats(self, where: QueueFilter) -> QueuePage:
        """See `Engine.queue_stats`."""
        return await self._list("queue_stats", (where,), lambda now: views.queue_stats(self._pool, now, where))

    async def survey(self, after: tuple[int, str] = (0, ""), limit: int = 1000) -> Survey:
        """See `Engine.survey`."""
        now = self._now
        return await self._looks.share(("survey", after, limit), lambda: views.survey(self._pool, now, after, limit))

    async def totals(self) -> Totals:
        """See `Engine.totals`."""
        now = self._now
        return await self._looks.share("totals", lambda: views.totals(self._pool, now))

    async def partition_stats(
        self, queue: str, search: str | None = None, limit: int = 1000, offset: int = 0
    ) -> list[PartitionStats]:
        """See `Engine.partition_stats`."""
        return await self._list(
            "partition_stats",
            (queue, search, limit, offset),
            lambda now: views.partition_stats(self._pool, self._codec, now, queue, search, limit, offset),
        )

    async def group_names(self, queue: str | None = None) -> list[str]:
        """See `Engine.group_names`."""
        return await views.group_names(self._pool, queue)

    async def group_stats(
        self,
        group: str | None = None,
        queue: str | None = None,
        queues: Sequence[str] | None = None,
        uncounted: Sequence[str] = (),
    ) -> list[GroupStats]:
        """See `Engine.group_stats`."""
        return await self._list(
            "group_stats",
            (group, queue, queues, uncounted),
            lambda now: views.group_stats(self._pool, now, group, queue, queues, uncounted),
        )

    async def position_stats(
        self,
        group: str | None = None,
        queue: str | None = None,
        min_lag_seconds: int | None = None,
        limit: int = 1000,
        partitions: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
    ) -> list[PositionStats]:
        """See `Engine.position_stats`."""
        return await self._list(
            "position_stats",
            (group, queue, min_lag_seconds, limit, partitions, queues),
            lambda now: views.position_stats(
                self._pool, self._codec, now, group, queue, min_lag_seconds, limit, partitions, queues
            ),
        )

    async def dead_letters(self, where: DeadLetterFilter) -> DeadLetters:
        """See `Engine.dead_letters`."""
        return await self._list(
            "dead_letters", (where,), lambda _now: browse.dead_letters(self._pool, self._codec, where)
        )

    async def messages(self, where: MessageFilter) -> list[MessageView]:
        """See `Engine.messages`."""
        return await self._list("messages", (where,), lambda now: browse.messages(self._pool, self._codec, now, where))

    async def message(self, partition_id: str, transaction_id: str) -> MessageView | None:
        """See `Engine.message`."""
        return await browse.message(self._pool, self._codec, await self._applied(), partition_id, transaction_id)

    async def explain(self, requests: Sequence[Explain]) -> Answers[Facts]:
        """See `Engine.explain`."""
        return await Explainer(self._pool, self._codec, await self._applied()).explain(requests)

    async def leases(self, where: LeaseFilter) -> Leases:
        """See `Engine.leases`."""
        return await self._list("leases", (where,), lambda now: explain.leases(self._pool, self._codec, now, where))

    async def queues_of(self, ids: Sequence[str]) -> list[str | None]:
        """See `Engine.queues_of`."""
        return await explain.queues_of(self._pool, self._codec, ids)

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
        return await browse.traces(self._pool, self._codec, partition_id, transaction_id, name, limit, offset)

    async def trace_names(self, limit: int = 50, offset: int = 0) -> tuple[list[TraceName], int]:
        """See `Engine.trace_names`."""
        return await self._looks.share(
            ("trace_names", limit, offset), lambda: browse.trace_names(self._pool, limit, offset)
        )


_SHARE_OF_LISTS = 4
"""Lists get one in four connections, and at least one: the others are for the queue."""


class PostgresEngine(KeyVerbs, AdminVerbs, ViewVerbs):
    """One server's way to the database. What it remembers is cache and hints: every fact is in the database."""

    shared = True
    follows = False
    ahead = 0

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
        super().__init__(self._local_clock)
        self._ids = IdSource(self._local_clock)
        self._pool = Pool(
            url,
            size=pool_size,
            statement_timeout_ms=statement_timeout_ms,
            wait_ms=wait_ms,
            prepared=prepared,
            on_return=self._hint_all,
            on_notices=self._on_key_notices,
        )
        self._looks = Looks(max(1, pool_size // _SHARE_OF_LISTS), wait_ms / 1000)
        self._retention = Retention(self._pool, completed_retention_seconds, idle_group_seconds)
        self._listener: Listener = lambda _hints: None
        self._open = False

    async def start(self, listener: Listener, key_listener: KeyListener = ignore_keys) -> None:
        """Connect, and install or migrate the schema."""
        await self._pool.open()
        try:
            await migrate(self._pool)
            async with self._pool.connection() as connection:
                tag = await own_tag(connection)
        except BaseException:
            await self._pool.close()
            raise
        self._listener, self._key_listener = listener, key_listener
        self._codec = IdCodec(tag)
        self._directory = Directory(self._pool, self._codec)
        self._deliveries = Deliveries()
        self._late = Late()
        self._popper = Popper(self._pool, self._directory, self._deliveries, self._codec, self._ids, self._late)
        self._settler = Settler(self._pool, self._directory, self._deliveries, self._codec)
        self._transactor = Transactor(self._pool, self._directory, self._deliveries, self._settler, self._codec)
        self._expirer = Expirer(self._pool, self._directory, self._deliveries, self._local_clock, self._late)
        self._hint_listener = HintListener(self._directory, self._deliveries)
        self._open = True

    async def close(self) -> None:
        """Finish what runs and let go of the database."""
        if not self._open:
            return
        self._open = False
        await self._pool.close()

    async def ping(self) -> None:
        """Raise unless the database answers now."""
        await self._pool.fetch("select 1")

    async def store_metrics(self) -> dict[str, float]:
        """See `Engine.store_metrics`."""
        numbers = await retention.store_metrics(self._pool)
        return numbers | {"leases_expired": self._expirer.ended, "expiries_dead_lettered": self._expirer.dead_lettered}

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
            raise EngineFailure("the server is shutting down; retry", code="stopping")

    def _hint(self, hints: Iterable[Hint]) -> None:
        found = list(dict.fromkeys(hints))
        if found:
            self._listener(found)

    def _hint_all(self) -> None:
        """PostgreSQL is available again: any change may have happened during the outage."""
        if not self._open:
            return
        for group in self._directory.groups.values():
            group.ready.forget()
        self._hint(Hint(group.queue, group.name) for group in self._directory.groups.values())
        self._key_listener(KeyNotification(None))

    def _to_local(self, time: int) -> int:
        return self._expirer.to_local(time)

    # Messages ----------------------------------------------------------------------------------------------

    async def push(self, requests: Sequence[Sequence[NewMessage]]) -> Answers[list[PushOutcome]]:
        """See `Engine.push`."""
        now = self._now
        if not any(requests):
            return [[] for _ in requests]
        while True:
            batch = Pushes(self._directory, self._codec)
            for request in requests:
                batch.add(request)
            row = await self._pool.fetchrow(PUSH, now, *batch.arguments())
            assert row is not None
            stale, ids, tails, offsets, codes = row
            if stale is None:
                break
            self._directory.forget_partitions(stale)
        partitions = batch.adopt(ids)
        outcomes = batch.outcomes(partitions, tails, offsets, codes)
        notifications = Notifications(self._directory)
        notifications.arrived(batch.arrivals(partitions, codes, self._expirer.now()))
        self._hint(notifications.hints())
        if len(requests) == 1:
            return [outcomes]
        answers: list[list[PushOutcome]] = []
        at = 0
        for request in requests:
            answers.append(outcomes[at : at + len(request)])
            at += len(request)
        return answers

    async def pop(self, requests: Sequence[PopRequest]) -> Answers[PopResult]:
        """See `Engine.pop`."""
        now = self._now
        notifications = Notifications(self._directory)
        try:
            answers = await self._popper.pop(requests, now, self._expirer.now(), notifications)
        finally:
            self._hint(notifications.hints())
        to_local = self._expirer.to_local
        for answer in answers:
            if isinstance(answer, PopResult):
                answer.look_again_at = None if answer.look_again_at is None else to_local(answer.look_again_at)
                answer.expires_at = None if answer.expires_at is None else to_local(answer.expires_at)
        return answers

    async def settle(self, requests: Sequence[Sequence[Settlement]]) -> Answers[list[SettleOutcome]]:
        """See `Engine.settle`."""
        notifications = Notifications(self._directory)
        outcomes = await self._settler.settle(requests, self._now, notifications)
        self._hint(notifications.hints())
        return outcomes

    async def transact(self, requests: Sequence[Transaction]) -> Answers[TransactionOutcome]:
        """See `Engine.transact`."""
        notifications = Notifications(self._directory)
        outcomes = await self._transactor.transact(requests, self._now, self._expirer.now(), notifications)
        self._notify_keys(notifications.keys.values())
        self._hint(notifications.hints())
        return outcomes

    async def shorten(self, lease_ids: Sequence[str], microseconds: int) -> None:
        """See `Engine.shorten`."""
        await self._expirer.shorten(lease_ids, microseconds, self._now)

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
            notifications = Notifications(self._directory)
            notifications.looked_behind()
            self._hint(notifications.hints())
        return collected

    async def read(self, requests: Sequence[Read]) -> Answers[ReadResult]:
        """See `Engine.read`."""
        self._check_open()
        return await browse.read(self._pool, self._codec, requests)

    async def offsets(
        self, queue: str, start: BrowseFrom, partition: str | None = None, changed_since: int | None = None
    ) -> list[PartitionOffset]:
        """See `Engine.offsets`."""
        self._check_open()
        since = None if changed_since is None else self._late.since(self._expirer.from_local(changed_since))
        return await browse.offsets(self._pool, queue, start, partition, since)

    async def _applied(self) -> int | None:
        """The time for those who look, after everything that is due has been applied."""
        behind = True
        while behind:
            _, hints = await self._expirer.expire(self._now, 1000)
            self._hint(hints)
            behind = self._expirer.behind
        return self._now

    # Other servers -----------------------------------------------------------------------------------------

    def on_hints(self, hints: Sequence[Hint]) -> list[Hint]:
        """See `Engine.on_hints`."""
        if not self._open:
            return []
        return self._hint_listener.on_hints(hints)

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
