"""The SQLite engine, the default: it runs in the process of the server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import apsw

from hark.clock import Clock, ShiftedClock
from hark.engine.api import KeyListener, Listener, ignore_keys
from hark.engine.core.collect import Collector
from hark.engine.core.explain import LeaseView
from hark.engine.core.state import State
from hark.engine.core.verbs import Readers, Stop, TableVerbs, refuse, stopping
from hark.engine.sqlite import files
from hark.engine.sqlite.files import resume
from hark.engine.sqlite.store import AUTO, Store
from hark.engine.sqlite.threads import StoreThreads
from hark.ids import IdSource
from hark.model import Hint

T = TypeVar("T")
_SECRET_BYTES = 32


class SqliteEngine(TableVerbs):
    """An engine with one database file (or `:memory:`) for one server."""

    shared = False
    follows = False
    inbox = None

    def __init__(
        self,
        path: str,
        *,
        clock: Clock,
        completed_retention_seconds: int = 7 * 86400,
        idle_group_seconds: int = 30 * 86400,
        min_free_bytes: int = AUTO,
    ) -> None:
        super().__init__(clock)
        self._system_clock = clock
        self.ahead = 0
        self._store = Store(path, min_free_bytes)
        self._collector = Collector(completed_retention_seconds, idle_group_seconds)
        self._threads: StoreThreads | None = None
        self._peer_secret = secrets.token_bytes(_SECRET_BYTES)

    @property
    def path(self) -> Path | None:
        """The database file; None in memory."""
        return None if self._store.memory else Path(self._store.path)

    async def start(self, listener: Listener, key_listener: KeyListener = ignore_keys) -> None:
        self._store.open()
        self.ahead = resume(self._store, self._system_clock)
        if self.ahead:
            self._clock = ShiftedClock(self._system_clock, self.ahead)
        self._readers = Readers("hark-store-read", "the store", self._store.connect_reader, lambda: 0)
        self._threads = StoreThreads(self._store, self._clock, IdSource(self._clock), listener, key_listener)
        self._codec = self._threads.state.codec
        self._threads.start()
        self._submit, self._submit_write = self._threads.submit, self._threads.writes.put

    async def close(self) -> None:
        thread, self._threads = self._threads, None
        self._submit = self._submit_write = refuse
        if thread is None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        thread.submit(Stop(future))
        await future
        await asyncio.to_thread(thread.join)
        await asyncio.to_thread(self._readers.close)
        self._store.close()

    async def ping(self) -> None:
        # Both threads must work.
        await self._look(lambda _state, _now: self._store.reader.execute("select 1 from meta limit 1").get)
        await self._write(lambda _transaction: None)

    async def store_metrics(self) -> dict[str, float]:
        return await self._look(lambda state, _now: files.store_metrics(self._store, state))

    # Calls -------------------------------------------------------------------------------------------------

    def _running(self) -> StoreThreads:
        if self._threads is None:
            raise stopping()
        return self._threads

    def _memory(self) -> State:
        return self._running().state

    async def _examine(self, body: Callable[[apsw.Connection, State, int], T]) -> T:
        return await self._look(lambda state, now: body(self._store.reader, state, now))

    async def _read(self, body: Callable[[apsw.Connection, LeaseView], T]) -> T:
        """Run a query beside the writer, after due leases have been expired."""
        if self._store.memory:
            return await self._look(lambda state, now: body(self._store.writer, LeaseView(state, now)))
        leased = await self._look(LeaseView)
        return await self._read_committed(lambda connection: body(connection, leased))

    async def _read_committed(self, body: Callable[[apsw.Connection], T]) -> T:
        """Run a query beside the writer on committed rows, without leases."""
        if self._store.memory:
            return await self._look(lambda _state, _now: body(self._store.writer))
        self._running()
        return await self._readers.run(body)

    # Other servers -----------------------------------------------------------------------------------------

    def on_hints(self, hints: Sequence[Hint]) -> list[Hint]:  # noqa: ARG002  # no other server uses this store
        return []

    async def peer_secret(self) -> bytes:
        return self._peer_secret
