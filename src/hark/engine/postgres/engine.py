"""The PostgreSQL engine: each verb is bound once to the function that does its work. `engine/api.py` documents them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from hark.clock import Clock
from hark.engine.api import Answers, KeyListener, Listener, ignore_keys
from hark.engine.keyvalue import StatsMemory, written_of
from hark.engine.postgres import admin, browse, explain, pop, push, settle, transact, views
from hark.engine.postgres.inbox import PostgresInbox, inbox_metrics
from hark.engine.postgres.migrate import migrate, own_tag
from hark.engine.postgres.partitions import Store
from hark.engine.postgres.pool import Pool, without_task
from hark.engine.postgres.push import on_hints
from hark.errors import EngineFailure, HarkError
from hark.ids import IdCodec
from hark.model import Collected, Expired, Hint, KeyNotification, KeyStats, KeyWrite, KeyWritten, Transaction

P = ParamSpec("P")
T = TypeVar("T")
Async = Coroutine[Any, Any, T]
Verb = Callable[Concatenate[Any, P], Async[T]]

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


def _after_due(body: Verb[P, T]) -> Verb[P, T]:
    """Bind a verb before which everything that is due is applied."""

    @wraps(body)
    async def verb(self: PostgresEngine, /, *args: P.args, **named: P.kwargs) -> T:
        await self._apply_due()
        return await body(self, *args, **named)

    return verb


def _shared(body: Verb[P, T]) -> Verb[P, T]:
    """Bind a verb of which equal calls share one run."""

    async def verb(self: PostgresEngine, /, *args: P.args, **named: P.kwargs) -> T:
        return await self._looks.share((body.__name__, repr(args), repr(named)), lambda: body(self, *args, **named))

    return verb


class PostgresEngine(Store):
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
        pool = Pool(
            url,
            size=pool_size,
            statement_timeout_ms=statement_timeout_ms,
            wait_ms=wait_ms,
            prepared=prepared,
            clock=clock,
            on_return=self._hint_all,
            on_notice=self._note_keys,
        )
        super().__init__(pool)
        self._looks = Looks(max(1, pool_size // _SHARE_OF_LISTS), wait_ms / 1000)
        self._expirer = settle.Expirer(self)
        self._retention = admin.Retention(self, completed_retention_seconds, idle_group_seconds)
        self._key_stats = StatsMemory(partial(transact.key_stats, self))
        self.inbox = PostgresInbox(self)

    async def start(self, listener: Listener, key_listener: KeyListener = ignore_keys) -> None:
        """Connect, and install or migrate the schema."""
        await self.pool.open()
        try:
            await migrate(self.pool)
            async with self.pool.connection() as connection:
                self.codec = IdCodec(await own_tag(connection))
        except BaseException:
            await self.pool.close()
            raise
        self.listener, self.key_listener = listener, key_listener

    async def close(self) -> None:
        """Finish what runs, and close the connections; calls are refused from now on."""
        await self.pool.close()

    async def ping(self) -> None:
        """Raise unless the database answers now."""
        await self.pool.fetch("select 1")

    async def store_metrics(self) -> dict[str, float]:
        numbers = await admin.store_metrics(self.pool) | await inbox_metrics(self.pool, self.inbox)
        return numbers | {"leases_expired": self._expirer.ended, "expiries_dead_lettered": self._expirer.dead_lettered}

    def _note_keys(self, texts: Sequence[str]) -> None:
        self.key_listener(transact.notification_of(texts))

    def _hint_all(self) -> None:
        """PostgreSQL is available again: any change may have happened during the outage."""
        if self.pool.closing:
            return
        for group in self.groups.values():
            group.ready.forget()
        self.hint(Hint(group.queue, group.name) for group in self.groups.values())
        self.key_listener(KeyNotification(None))

    async def _apply_due(self) -> None:
        """End all leases that are due."""
        self._expirer.behind = True
        while self._expirer.behind:
            await self._expirer.expire(1000)

    # Messages ----------------------------------------------------------------------------------------------

    # A verb with the name of its module comes last: in the class, the name is the verb from then on.

    push = without_task(push.push)
    pop = without_task(pop.pop)
    renew = without_task(settle.renew)
    lease_ends = settle.lease_ends
    shorten = settle.shorten
    release = settle.release
    settle = without_task(settle.settle)
    read = browse.read
    offsets = browse.offsets
    cancel = _after_due(admin.cancel)
    delete_messages = _after_due(admin.delete_messages)

    async def expire(self, limit: int = 1000) -> Expired:
        return await self._expirer.expire(limit)

    async def collect(self, limit: int = 1000) -> Collected:
        await self._apply_due()
        return await self._retention.step(limit)

    # Queues and groups -------------------------------------------------------------------------------------

    configure = _after_due(admin.configure)
    make_queues = admin.make_queues
    delete_queues = admin.delete_queues
    purge = _after_due(admin.purge)
    pause = admin.pause
    queue_infos = admin.queue_infos
    queue_stats = _shared(_after_due(views.queue_stats))
    partition_stats = _shared(_after_due(views.partition_stats))
    survey = _shared(views.survey)
    totals = _shared(views.totals)
    seek = _after_due(admin.seek)
    delete_group = _after_due(admin.delete_group)
    limit_group = admin.limit_group
    resubscribe = admin.resubscribe
    group_names = views.group_names
    group_stats = _shared(_after_due(views.group_stats))
    position_stats = _shared(_after_due(views.position_stats))

    # Dead letters, lists, traces ---------------------------------------------------------------------------

    requeue = _after_due(admin.requeue)
    import_dead_letters = _after_due(admin.import_dead_letters)
    delete_dead_letters = _after_due(admin.delete_dead_letters)
    dead_letters = _shared(_after_due(browse.dead_letters))
    messages = _shared(_after_due(browse.messages))
    message = _after_due(browse.message)
    trace = admin.trace
    traces = _after_due(browse.traces)
    trace_names = _shared(browse.trace_names)
    leases = _shared(_after_due(explain.leases))
    queues_of = explain.queues_of
    explain = _after_due(explain.explain)

    # Keys --------------------------------------------------------------------------------------------------

    read_keys = transact.read_keys
    list_keys = transact.list_keys
    count_keys = transact.count_keys
    sweep_keys = transact.sweep_keys
    transact = without_task(transact.transact)

    async def write_keys(self, requests: Sequence[KeyWrite]) -> Answers[KeyWritten]:
        outcomes = await self.transact([Transaction((), keys=request) for request in requests])
        return [outcome if isinstance(outcome, HarkError) else written_of(outcome) for outcome in outcomes]

    async def key_stats(self) -> KeyStats:
        return await self._key_stats.stats(self.clock.now())

    # Servers -----------------------------------------------------------------------------------------------

    read_flags = admin.read_flags
    write_flag = admin.write_flag
    peer_secret = admin.peer_secret
    on_hints = on_hints
