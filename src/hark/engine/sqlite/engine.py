"""The SQLite engine: the embedded default, in the server's process."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, cast

import apsw

from hark.clock import SECOND, Clock
from hark.engine.api import Answers, KeyListener, Listener, ignore_keys
from hark.engine.sqlite import deadletters, expire, groups, leases, messages, metrics, push, queues, read, settle, views
from hark.engine.sqlite.browse import Browser
from hark.engine.sqlite.calls import Call, Claim, Expire, Look, Stop, Write
from hark.engine.sqlite.collect import Collector
from hark.engine.sqlite.key_verbs import KeyVerbs
from hark.engine.sqlite.leases import LeaseView
from hark.engine.sqlite.state import State
from hark.engine.sqlite.store import Store, rows_of, run
from hark.engine.sqlite.threads import StoreThreads
from hark.engine.sqlite.transaction import WriteTransaction
from hark.errors import EngineFailure
from hark.ids import IdSource
from hark.model import (
    BrowseFrom,
    CancelOutcome,
    Collected,
    DeadLetterFilter,
    DeadLetters,
    Expired,
    GroupDeletion,
    GroupStats,
    Hint,
    Limits,
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

T = TypeVar("T")
_READERS = 2
_FLAG = "flag:"
_SECRET_BYTES = 32


class SqliteEngine(KeyVerbs):
    """One database file (or `:memory:`), one server."""

    shared = False

    def __init__(
        self,
        path: str,
        *,
        clock: Clock,
        completed_retention_seconds: int = 7 * 86400,
        idle_group_seconds: int = 30 * 86400,
    ) -> None:
        super().__init__(clock)
        self._store = Store(path)
        self._ids = IdSource(clock)
        self._collector = Collector(completed_retention_seconds, idle_group_seconds)
        self._threads: StoreThreads | None = None
        self._local = threading.local()
        self._reader_connections: list[apsw.Connection] = []
        self._peer_secret = secrets.token_bytes(_SECRET_BYTES)

    @property
    def path(self) -> Path | None:
        """The database file; None in memory."""
        return None if self._store.memory else Path(self._store.path)

    async def start(self, listener: Listener, key_listener: KeyListener = ignore_keys) -> None:
        """Open the database."""
        self._store.open()
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="hark-store-read")
        self._threads = StoreThreads(self._store, self._clock, self._ids, listener, key_listener)
        self._codec = self._threads.state.codec
        self._threads.start()

    async def close(self) -> None:
        """Finish what was accepted and close the database."""
        thread, self._threads = self._threads, None
        if thread is None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        thread.submit(Stop(future))
        await future
        await asyncio.to_thread(thread.join)
        await asyncio.to_thread(self._pool.shutdown)
        for connection in self._reader_connections:
            connection.close()
        self._store.close()

    async def ping(self) -> None:
        """Raise unless the claimer can read and the writer can begin and end a transaction."""
        await self._look(lambda _state, _now: self._store.reader.execute("select 1 from meta limit 1").get)
        await self._write(lambda _transaction: None)

    async def store_metrics(self) -> dict[str, float]:
        """See `Engine.store_metrics`."""
        return await self._look(lambda _state, _now: metrics.store_metrics(self._store))

    # How calls travel --------------------------------------------------------------------------------------

    def _running(self) -> StoreThreads:
        if self._threads is None:
            raise EngineFailure("the server is stopping", code="stopping")
        return self._threads

    def _submit(self, call: Call) -> None:
        self._running().submit(call)

    async def _write(self, body: Callable[[WriteTransaction], T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(Write(future, body))
        return await future

    async def _look(self, body: Callable[[State, int], T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(Look(future, body))
        return await future

    async def _read(self, body: Callable[[apsw.Connection, LeaseView], T]) -> T:
        """Run a query beside the writer, after everything that is due has been applied."""
        if self._store.memory:
            return await self._look(lambda state, _: body(self._store.writer, LeaseView(state)))
        held = await self._look(lambda state, _: LeaseView(state))
        return await self._read_committed(lambda connection: body(connection, held))

    async def _read_committed(self, body: Callable[[apsw.Connection], T]) -> T:
        """Run a query beside the writer on what is stored; leases, and whether one is due, do not matter to it."""
        if self._store.memory:
            return await self._look(lambda _state, _now: body(self._store.writer))
        self._running()
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run_read, body)

    def _run_read(self, body: Callable[[apsw.Connection], T]) -> T:
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        try:
            if connection is None:
                connection = self._local.connection = self._store.connect_reader()
                self._reader_connections.append(connection)
            return body(connection)
        except apsw.Error as error:
            raise EngineFailure(f"the store could not be read: {error}") from error

    async def _browse(self, body: Callable[[Browser], T]) -> T:
        return await self._read(lambda connection, held: body(Browser(connection, held, self._codec)))

    # Messages ----------------------------------------------------------------------------------------------

    async def push(self, requests: Sequence[Sequence[NewMessage]]) -> Answers[list[PushOutcome]]:
        """See `Engine.push`."""
        return cast("Answers[list[PushOutcome]]", await self._write(lambda t: push.push(t, requests)))

    async def pop(self, requests: Sequence[PopRequest]) -> Answers[PopResult]:
        """See `Engine.pop`."""
        future: asyncio.Future[Answers[PopResult]] = asyncio.get_running_loop().create_future()
        self._submit(Claim(future, requests))
        return await future

    async def settle(self, requests: Sequence[Sequence[Settlement]]) -> Answers[list[SettleOutcome]]:
        """See `Engine.settle`."""
        return cast("Answers[list[SettleOutcome]]", await self._write(lambda t: settle.settle(t, requests)))

    async def transact(self, requests: Sequence[Transaction]) -> Answers[TransactionOutcome]:
        """See `Engine.transact`."""
        return cast("Answers[TransactionOutcome]", await self._write(lambda t: settle.transact(t, requests)))

    async def renew(self, requests: Sequence[Renewal]) -> Answers[RenewOutcome]:
        """See `Engine.renew`."""
        return await self._look(lambda state, now: leases.renew(state, now, list(requests)))

    async def lease_ends(self, lease_ids: Sequence[str]) -> list[int | None]:
        """See `Engine.lease_ends`."""
        return await self._look(lambda state, now: leases.lease_ends(state, now, lease_ids))

    async def release(self, lease_ids: Sequence[str]) -> None:
        """See `Engine.release`."""
        await self._write(lambda t: expire.release(t, lease_ids))

    async def expire(self, limit: int = 1000) -> Expired:
        """See `Engine.expire`."""
        future: asyncio.Future[Expired] = asyncio.get_running_loop().create_future()
        self._submit(Expire(future, limit))
        return await future

    async def collect(self, limit: int = 1000) -> Collected:
        """See `Engine.collect`."""
        return await self._write(lambda t: self._collector.step(t, limit))

    async def read(self, requests: Sequence[Read]) -> Answers[ReadResult]:
        """See `Engine.read`."""
        return cast(
            "Answers[ReadResult]",
            await self._read_committed(lambda connection: read.read(connection, self._codec, requests)),
        )

    async def positions(
        self,
        queue: str,
        start: BrowseFrom,
        partition: str | None = None,
        touched_since: int | None = None,  # noqa: ARG002  # for those who share a store
    ) -> list[Position]:
        """See `Engine.positions`."""
        return await self._read_committed(lambda connection: read.positions(connection, queue, start, partition))

    async def cancel(self, message_ids: Sequence[str]) -> list[CancelOutcome]:
        """See `Engine.cancel`."""
        return await self._write(lambda t: messages.cancel(t, message_ids))

    async def delete_messages(self, message_ids: Sequence[str]) -> list[bool]:
        """See `Engine.delete_messages`."""
        return await self._write(lambda t: messages.delete_messages(t, message_ids))

    # Queues ------------------------------------------------------------------------------------------------

    async def configure(self, specs: Sequence[QueueSpec]) -> Answers[QueueInfo]:
        """See `Engine.configure`."""
        return cast("Answers[QueueInfo]", await self._write(lambda t: queues.configure(t, specs)))

    async def make_queues(self, specs: Sequence[QueueSpec]) -> None:
        """See `Engine.make_queues`."""
        await self._write(lambda t: queues.make_queues(t, specs))

    async def delete_queues(self, names: Sequence[str]) -> list[bool]:
        """See `Engine.delete_queues`."""
        return await self._write(lambda t: queues.delete_queues(t, names))

    async def purge(self, queue: str, group: str | None = None) -> int:
        """See `Engine.purge`."""
        return await self._write(lambda t: queues.purge(t, queue, group))

    async def pause(self, queue: str, group: str | None, paused: bool) -> bool:
        """See `Engine.pause`."""
        return await self._write(lambda t: queues.pause(t, queue, group, paused))

    async def queue_infos(self, names: Sequence[str] | None = None) -> list[QueueInfo]:
        """See `Engine.queue_infos`."""
        wanted = None if names is None else set(names)
        return await self._look(
            lambda state, _: [q.info for q in state.queues.values() if wanted is None or q.name in wanted]
        )

    async def queue_stats(self, name: str | None = None) -> list[QueueStats]:
        """See `Engine.queue_stats`."""
        infos = {info.name: info for info in await self.queue_infos()}
        return await self._read(lambda connection, held: views.queue_stats(connection, held, infos, name))

    async def partition_stats(
        self, queue: str, search: str | None = None, limit: int = 1000, offset: int = 0
    ) -> list[PartitionStats]:
        """See `Engine.partition_stats`."""
        return await self._read(
            lambda connection, held: views.partition_stats(connection, held, self._codec, queue, search, limit, offset)
        )

    # Groups ------------------------------------------------------------------------------------------------

    async def seek(self, requests: Sequence[Seek]) -> Answers[SeekOutcome]:
        """See `Engine.seek`."""
        return await self._write(lambda t: groups.seek(t, requests))

    async def delete_group(self, group: str, queue: str | None, forget_subscription: bool) -> GroupDeletion:
        """See `Engine.delete_group`."""
        return await self._write(lambda t: groups.delete_group(t, group, queue, forget_subscription))

    async def limit_group(self, queue: str, group: str, limits: Limits) -> bool:
        """See `Engine.limit_group`."""
        return await self._write(lambda t: groups.limit_group(t, queue, group, limits))

    async def resubscribe(self, group: str, since: int) -> int:
        """See `Engine.resubscribe`."""
        return await self._write(lambda t: groups.resubscribe(t, group, since))

    async def group_stats(self, group: str | None = None, queue: str | None = None) -> list[GroupStats]:
        """See `Engine.group_stats`."""
        return await self._read(lambda connection, held: views.group_stats(connection, held, group, queue))

    async def track_stats(
        self, group: str | None = None, queue: str | None = None, min_lag_seconds: int = 0, limit: int = 1000
    ) -> list[TrackStats]:
        """See `Engine.track_stats`."""
        before = self._clock.now() - min_lag_seconds * SECOND if min_lag_seconds else None
        return await self._read(
            lambda connection, held: views.track_stats(connection, held, self._codec, group, queue, before, limit)
        )

    # Dead letters ------------------------------------------------------------------------------------------

    async def dead_letters(self, where: DeadLetterFilter) -> DeadLetters:
        """See `Engine.dead_letters`."""
        return await self._browse(lambda browser: browser.dead_letters(where))

    async def requeue(self, ids: Sequence[str]) -> Answers[str]:
        """See `Engine.requeue`."""
        return await self._write(lambda t: deadletters.requeue(t, ids))

    async def delete_dead_letters(self, where: DeadLetterFilter) -> int:
        """See `Engine.delete_dead_letters`."""
        return await self._write(lambda t: deadletters.delete_dead_letters(t, where))

    # Looking -----------------------------------------------------------------------------------------------

    async def messages(self, where: MessageFilter) -> list[MessageView]:
        """See `Engine.messages`."""
        return await self._browse(lambda browser: browser.messages(where))

    async def message(self, partition_id: str, transaction_id: str) -> MessageView | None:
        """See `Engine.message`."""
        return await self._browse(lambda browser: browser.message(partition_id, transaction_id))

    async def trace(self, traces: Sequence[NewTrace]) -> Answers[str]:
        """See `Engine.trace`."""
        return await self._write(lambda t: messages.trace(t, traces))

    async def traces(
        self,
        partition_id: str | None = None,
        transaction_id: str | None = None,
        name: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[list[Trace], int]:
        """See `Engine.traces`."""
        return await self._browse(lambda browser: browser.traces(partition_id, transaction_id, name, limit, offset))

    async def trace_names(self, limit: int = 50, offset: int = 0) -> tuple[list[TraceName], int]:
        """See `Engine.trace_names`."""
        return await self._browse(lambda browser: browser.trace_names(limit, offset))

    # Other servers -----------------------------------------------------------------------------------------

    def hear(self, hints: Sequence[Hint]) -> list[Hint]:  # noqa: ARG002  # nobody else has this store
        """See `Engine.hear`."""
        return []

    async def peer_secret(self) -> bytes:
        """See `Engine.peer_secret`."""
        return self._peer_secret

    # The server's own notes --------------------------------------------------------------------------------

    async def read_flags(self) -> dict[str, bool]:
        """See `Engine.read_flags`."""

        def read(connection: apsw.Connection, _: LeaseView) -> dict[str, bool]:
            rows = rows_of(connection, "select key, value from meta where key like 'flag:%'")
            return {key.removeprefix(_FLAG): bool(value) for key, value in rows}

        return await self._read(read)

    async def write_flag(self, name: str, value: bool) -> None:
        """See `Engine.write_flag`."""
        await self._write(
            lambda t: run(t.connection, "insert or replace into meta values (?1, ?2)", _FLAG + name, int(value))
        )
