"""The PostgreSQL engine: each verb is bound once to the function that does its work. `engine/api.py` documents them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from hark.clock import Clock, SystemClock
from hark.engine.api import Answers, KeyListener, Listener, ignore_keys
from hark.engine.keyvalue import StatsMemory, written_of
from hark.engine.postgres import admin, browse, explain, push, settle, transact, views
from hark.engine.postgres.inbox import PostgresInbox, inbox_metrics
from hark.engine.postgres.migrate import migrate, own_tag
from hark.engine.postgres.partitions import Store
from hark.engine.postgres.pool import Call, Pool
from hark.engine.postgres.pop import Popper
from hark.engine.postgres.push import HintListener, Notifications
from hark.errors import EngineFailure, HarkError
from hark.ids import IdCodec, IdSource
from hark.model import (
    Collected,
    Expired,
    Hint,
    KeyNotification,
    KeyStats,
    KeyWrite,
    KeyWritten,
    PopRequest,
    PopResult,
    Transaction,
)

P = ParamSpec("P")
Q = TypeVar("Q")
T = TypeVar("T")
Async = Coroutine[Any, Any, T]
Body = Callable[Concatenate[Store, int | None, P], Async[T]]
"""The work of a verb. Its second parameter is the time for the database; None: the database uses its own clock."""

_SHARE_OF_LISTS = 4
"""Lists get one in four connections, and at least one: the others are for the queue."""


class Looks:
    """Runs lists and counts beside the verbs of the queue, which must always find a connection.

    Of equal calls, one runs at a time. Calls that arrive meanwhile share the next run, which begins after all of them:
    so each sees what was committed before it.
    """

    def __init__(self, limit: int, wait_seconds: float) -> None:
        self._turns = asyncio.Semaphore(limit)
        self._wait_seconds = wait_seconds
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._waiting: dict[Hashable, asyncio.Task[Any]] = {}

    async def share(self, key: Hashable, look: Callable[[], Awaitable[T]]) -> T:
        """Run a look, or wait for an equal one that has not begun yet; raises `EngineFailure` if its turn is late."""
        task: asyncio.Task[T] | None = self._waiting.get(key)
        if task is None:
            task = self._waiting[key] = asyncio.create_task(self._run(key, look))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _run(self, key: Hashable, look: Callable[[], Awaitable[T]]) -> T:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(self._wait_seconds):
                while key in self._running:
                    await asyncio.wait([self._running[key]])
                await self._turns.acquire()
        except TimeoutError as error:
            raise EngineFailure(
                f"too many lists are being computed: this one could not begin within {self._wait_seconds:g} s; it had "
                "no effect; retry later"
            ) from error
        finally:
            del self._waiting[key]
        self._running[key] = task
        try:
            return await look()
        finally:
            del self._running[key]
            self._turns.release()


def _batches(
    body: Callable[[Store, int | None, Sequence[Q]], Async[Answers[T]]],
) -> Callable[[PostgresEngine, Sequence[Q]], Awaitable[Answers[T]]]:
    """Bind a verb of many callers: it needs no task of its own."""

    def verb(self: PostgresEngine, requests: Sequence[Q]) -> Awaitable[Answers[T]]:
        now = self._now
        return Call(body(self._store, now, requests))

    return verb


def _calls(
    body: Body[P, T], *, due: bool = False, shared: bool = False
) -> Callable[Concatenate[PostgresEngine, P], Async[T]]:
    """Bind a verb. `due`: everything that is due is applied first. `shared`: equal calls share one run."""

    async def verb(self: PostgresEngine, /, *args: P.args, **named: P.kwargs) -> T:
        async def run() -> T:
            now = await self._apply_due() if due else self._now
            return await body(self._store, now, *args, **named)

        self._check_open()
        return await (self._looks.share((body.__name__, repr(args), repr(named)), run) if shared else run())

    return verb


class PostgresEngine:
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
        self.pool = Pool(
            url,
            size=pool_size,
            statement_timeout_ms=statement_timeout_ms,
            wait_ms=wait_ms,
            prepared=prepared,
            on_return=self._hint_all,
            on_notice=self._note_keys,
        )
        self._looks = Looks(max(1, pool_size // _SHARE_OF_LISTS), wait_ms / 1000)
        self._retention = admin.Retention(self.pool, completed_retention_seconds, idle_group_seconds)
        self._key_stats = StatsMemory(self._count_all)
        self._open = False
        self.inbox: PostgresInbox | None = None

    async def start(self, listener: Listener, key_listener: KeyListener = ignore_keys) -> None:
        """Connect, and install or migrate the schema."""
        await self.pool.open()
        try:
            await migrate(self.pool)
            async with self.pool.connection() as connection:
                tag = await own_tag(connection)
        except BaseException:
            await self.pool.close()
            raise
        self._store = Store(self.pool, IdCodec(tag), self._local_clock, listener, key_listener)
        self._popper = Popper(self._store, IdSource(self._local_clock))
        self._expirer = settle.Expirer(self._store)
        self.inbox = PostgresInbox(self._store, lambda: self._now)
        self._open = True

    async def close(self) -> None:
        """Finish what runs, and close the connections."""
        if self._open:
            self._open = False
            await self.pool.close()

    async def ping(self) -> None:
        """Raise unless the database answers now."""
        await self.pool.fetch("select 1")

    async def store_metrics(self) -> dict[str, float]:
        numbers = await admin.store_metrics(self.pool) | await inbox_metrics(self.pool, self.inbox)
        return numbers | {"leases_expired": self._expirer.ended, "expiries_dead_lettered": self._expirer.dead_lettered}

    @property
    def _now(self) -> int | None:
        """The time for the database; None: it uses its own clock."""
        self._check_open()
        return None if self._clock is None else self._clock.now()

    def _check_open(self) -> None:
        if not self._open:
            raise EngineFailure("the server is shutting down; retry", code="stopping")

    def _note_keys(self, texts: Sequence[str]) -> None:
        if self._open:
            self._store.key_listener(transact.notification_of(texts))

    def _hint_all(self) -> None:
        """PostgreSQL is available again: any change may have happened during the outage."""
        if not self._open:
            return
        for group in self._store.groups.values():
            group.ready.forget()
        self._store.hint(Hint(group.queue, group.name) for group in self._store.groups.values())
        self._store.key_listener(KeyNotification(None))

    async def _apply_due(self) -> int | None:
        """End all leases that are due; returns the time for the database."""
        while True:
            await self._expirer.expire(self._now, 1000)
            if not self._expirer.behind:
                return self._now

    # Messages ----------------------------------------------------------------------------------------------

    # A verb with the name of its module comes last: in the class, the name is the verb from then on.

    push = _batches(push.push)
    renew = _batches(settle.renew)
    lease_ends = _calls(settle.lease_ends)
    shorten = _calls(settle.shorten)
    release = _calls(settle.release)
    settle = _batches(settle.settle)
    read = _calls(browse.read)
    offsets = _calls(browse.offsets)
    cancel = _calls(admin.cancel, due=True)
    delete_messages = _calls(admin.delete_messages, due=True)

    def pop(self, requests: Sequence[PopRequest]) -> Awaitable[Answers[PopResult]]:
        return Call(self._popper.pop(self._now, requests))

    async def expire(self, limit: int = 1000) -> Expired:
        return await self._expirer.expire(self._now, limit)

    async def collect(self, limit: int = 1000) -> Collected:
        collected = await self._retention.step(await self._apply_due(), limit)
        if collected.removed:
            notifications = Notifications(self._store)
            notifications.looked_behind()
            notifications.send()
        return collected

    # Queues and groups -------------------------------------------------------------------------------------

    configure = _calls(admin.configure, due=True)
    make_queues = _calls(admin.make_queues)
    delete_queues = _calls(admin.delete_queues)
    purge = _calls(admin.purge, due=True)
    pause = _calls(admin.pause)
    queue_infos = _calls(admin.queue_infos)
    queue_stats = _calls(views.queue_stats, due=True, shared=True)
    partition_stats = _calls(views.partition_stats, due=True, shared=True)
    survey = _calls(views.survey, shared=True)
    totals = _calls(views.totals, shared=True)
    seek = _calls(admin.seek, due=True)
    delete_group = _calls(admin.delete_group, due=True)
    limit_group = _calls(admin.limit_group)
    resubscribe = _calls(admin.resubscribe)
    group_names = _calls(views.group_names)
    group_stats = _calls(views.group_stats, due=True, shared=True)
    position_stats = _calls(views.position_stats, due=True, shared=True)

    # Dead letters, lists, traces ---------------------------------------------------------------------------

    requeue = _calls(admin.requeue, due=True)
    import_dead_letters = _calls(admin.import_dead_letters, due=True)
    delete_dead_letters = _calls(admin.delete_dead_letters, due=True)
    dead_letters = _calls(browse.dead_letters, due=True, shared=True)
    messages = _calls(browse.messages, due=True, shared=True)
    message = _calls(browse.message, due=True)
    trace = _calls(admin.trace)
    traces = _calls(browse.traces, due=True)
    trace_names = _calls(browse.trace_names, shared=True)
    leases = _calls(explain.leases, due=True, shared=True)
    queues_of = _calls(explain.queues_of)
    explain = _calls(explain.explain, due=True)

    # Keys --------------------------------------------------------------------------------------------------

    read_keys = _calls(transact.read_keys)
    list_keys = _calls(transact.list_keys)
    count_keys = _calls(transact.count_keys)
    sweep_keys = _calls(transact.sweep_keys)
    _count_all = _calls(transact.key_stats)
    transact = _batches(transact.transact)

    async def write_keys(self, requests: Sequence[KeyWrite]) -> Answers[KeyWritten]:
        outcomes = await self.transact([Transaction((), keys=request) for request in requests])
        return [outcome if isinstance(outcome, HarkError) else written_of(outcome) for outcome in outcomes]

    async def key_stats(self) -> KeyStats:
        return await self._key_stats.stats(self._local_clock.now())

    # Servers -----------------------------------------------------------------------------------------------

    read_flags = _calls(admin.read_flags)
    write_flag = _calls(admin.write_flag)
    peer_secret = _calls(admin.peer_secret)

    def on_hints(self, hints: Sequence[Hint]) -> list[Hint]:
        return HintListener(self._store).on_hints(hints) if self._open else []
