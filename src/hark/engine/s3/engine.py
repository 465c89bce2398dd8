"""The S3 engine: the verbs of `engine/core` over a state that follows a log in a bucket."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import apsw

from hark.batching import Answer
from hark.clock import Clock
from hark.engine.api import Answers, KeyListener, Listener, ignore_keys
from hark.engine.core import explain
from hark.engine.core.collect import Collector
from hark.engine.core.explain import LeaseView
from hark.engine.core.state import State
from hark.engine.core.transaction import WriteTransaction
from hark.engine.core.verbs import Call, Outbox, Stop, TableVerbs, refuse, stopping
from hark.engine.s3.bucket import Address, Bucket, Refused
from hark.engine.s3.bucket_client import S3Bucket
from hark.engine.s3.flush import Chore, Confirm, Renew
from hark.engine.s3.objects import Pause
from hark.engine.s3.payloads import Filler, PayloadCache
from hark.engine.s3.replica import Replica
from hark.errors import EngineFailure, StoreUnusable
from hark.model import (
    DeadLetterFilter,
    DeadLetters,
    Hint,
    Key,
    KeyEntry,
    KeyRange,
    MessageView,
    PopRequest,
    PopResult,
    QueueInfo,
    Read,
    ReadResult,
    Renewal,
    RenewOutcome,
    Trace,
)
from hark.polling import PollingStrategy, PollMetrics
from hark.settings.sections import S3

T = TypeVar("T")
_READERS = 2
_WRITER_BYTES = 8


class S3Engine(TableVerbs):
    """One prefix of one bucket, shared by any number of processes."""

    shared = True
    follows = True
    inbox = None
    ahead = 0

    def __init__(
        self,
        address: str,
        *,
        clock: Clock,
        settings: S3 | None = None,
        completed_retention_seconds: int = 7 * 86400,
        idle_group_seconds: int = 30 * 86400,
        polling: PollingStrategy | None = None,
        bucket: Bucket | None = None,
        pause: Pause = asyncio.sleep,
    ) -> None:
        settings = S3() if settings is None else settings
        self._bucket = S3Bucket(Address.parse(address), clock, settings) if bucket is None else bucket
        super().__init__(self._bucket.time)
        self._collector = Collector(completed_retention_seconds, idle_group_seconds)
        self._settings = settings
        self._polling = polling or PollingStrategy.adaptive()
        self._poll_metrics = PollMetrics()
        self._pause = pause
        self._cache = PayloadCache(settings.cache_bytes)
        self._replica: Replica | None = None
        self._local = threading.local()
        self._reader_connections: list[apsw.Connection] = []

    async def start(self, listener: Listener, key_listener: KeyListener = ignore_keys) -> None:
        """Open and test the bucket, and load the state."""
        replica = Replica(
            self._bucket,
            self._settings,
            self._cache,
            Outbox(listener, key_listener),
            writer=secrets.token_hex(_WRITER_BYTES),
            polling=self._polling,
            poll_metrics=self._poll_metrics,
            pause=self._pause,
        )
        opening = asyncio.ensure_future(asyncio.to_thread(replica.open))
        try:
            await asyncio.shield(opening)
        except Refused as error:
            await _abandon(replica, opening)
            raise StoreUnusable(f"cannot use {self._bucket.name}: {error}") from error
        except BaseException:
            await _abandon(replica, opening)
            raise
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="hark-s3-read")
        self._codec = replica.local.state.codec
        self._filler = Filler(self._cache, replica.fetch)
        self._replica = replica
        self._submit = self._submit_write = replica.submit

    async def close(self) -> None:
        """Finish accepted calls and close."""
        replica, self._replica = self._replica, None
        self._submit = self._submit_write = refuse
        if replica is None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        replica.submit(Stop(future))
        await future
        await asyncio.to_thread(self._pool.shutdown)
        for connection in self._reader_connections:
            connection.close()
        self._reader_connections.clear()
        await asyncio.to_thread(replica.close)

    async def ping(self) -> None:
        """Raise unless the bucket answers."""
        await self._confirm()

    async def store_metrics(self) -> dict[str, float]:
        return self._running().metrics() | self._bucket.requests.as_metrics() | self._cache.as_metrics()

    def poll_as(self, strategy: PollingStrategy) -> PollMetrics:
        """Poll the log with this strategy from now on; return the counters of the polls. For any thread."""
        self._polling = strategy
        if self._replica is not None:
            self._replica.poll_as(strategy)
        return self._poll_metrics

    # How calls travel --------------------------------------------------------------------------------------

    def _running(self) -> Replica:
        if self._replica is None:
            raise stopping()
        return self._replica

    async def _wait_for(self, make: Callable[[asyncio.Future[T]], Call]) -> T:
        answer: Answer[T] = Answer()
        self._submit(make(answer))
        return await answer

    async def _chore(self, body: Callable[[WriteTransaction], T]) -> T:
        return await self._wait_for(lambda future: Chore(future, body))

    def _memory(self) -> State:
        return self._running().local.state

    async def _examine(self, body: Callable[[apsw.Connection, State, int], T]) -> T:
        """Examine the state at the current end of the log."""
        replica = self._running()
        await self._confirm()
        return await self._look(lambda state, now: body(replica.local.scratch.writer, state, now))

    def _wait_here(self) -> None:
        """Note a read that will be repeated, so that the log is polled for it."""
        self._running().tail.wait_here()

    async def _confirm(self) -> None:
        """Read the log to its current end."""
        await self._wait_for(Confirm)

    async def _read(self, body: Callable[[apsw.Connection, LeaseView], T]) -> T:
        """Run a query on the state at the current end of the log, with everything that is due applied."""
        await self._confirm()
        leased = await self._look(LeaseView)
        return await self._read_committed(lambda connection: body(connection, leased))

    async def _read_committed(self, body: Callable[[apsw.Connection], T]) -> T:
        """Run a query on the records that this process has applied."""
        replica = self._running()
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run_read, replica, body)

    def _run_read(self, replica: Replica, body: Callable[[apsw.Connection], T]) -> T:
        scratch = replica.local.scratch
        known: tuple[int, apsw.Connection] | None = getattr(self._local, "connection", None)
        try:
            if known is None or known[0] != scratch.generation:
                if known is not None:
                    self._reader_connections.remove(known[1])
                    known[1].close()
                known = self._local.connection = (scratch.generation, scratch.connect_reader())
                self._reader_connections.append(known[1])
            return body(known[1])
        except apsw.Error as error:
            raise EngineFailure(f"cannot read the local copy of the state: {error}; see the server log") from error

    # Verbs that differ -------------------------------------------------------------------------------------

    async def renew(self, requests: Sequence[Renewal]) -> Answers[RenewOutcome]:
        names = [request.lease_id for request in requests]
        return await self._wait_for(
            lambda future: Renew(future, names, lambda state, now: explain.renew(state, now, requests))
        )

    async def shorten(self, lease_ids: Sequence[str], microseconds: int) -> None:
        await self._wait_for(
            lambda future: Renew(
                future, lease_ids, lambda state, now: explain.shorten(state, now, lease_ids, microseconds)
            )
        )

    async def lease_ends(self, lease_ids: Sequence[str]) -> list[int | None]:
        ends = await super().lease_ends(lease_ids)
        if None not in ends:
            return ends
        await self._confirm()  # It may be a lease that another process has given.
        return await super().lease_ends(lease_ids)

    async def queue_infos(self, names: Sequence[str] | None = None) -> list[QueueInfo]:
        await self._confirm()
        return await super().queue_infos(names)

    async def pop(self, requests: Sequence[PopRequest]) -> Answers[PopResult]:
        self._wait_here()
        answers = await super().pop(requests)
        results = [answer for answer in answers if isinstance(answer, PopResult) and answer.messages]
        failures = await self._filler.fill_each([result.messages for result in results])
        if not any(failures):
            return answers
        failed = {id(result): failure for result, failure in zip(results, failures, strict=True) if failure is not None}
        # Messages that were not received are redelivered, without using an attempt.
        await self.release([result.lease_id for result in results if id(result) in failed and result.lease_id])
        return [failed.get(id(answer), answer) for answer in answers]

    async def read(self, requests: Sequence[Read]) -> Answers[ReadResult]:
        self._wait_here()
        answers = await super().read(requests)
        await self._filler.fill_found(
            [one for answer in answers if isinstance(answer, ReadResult) for one in answer.messages]
        )
        return answers

    async def message(self, partition_id: str, transaction_id: str) -> MessageView | None:
        view = await super().message(partition_id, transaction_id)
        await self._filler.fill_found([] if view is None else [view])
        return view

    async def dead_letters(self, where: DeadLetterFilter) -> DeadLetters:
        found = await super().dead_letters(where)
        await self._filler.fill_found(found.items)
        return found

    async def traces(self, *which: Any, **named: Any) -> tuple[list[Trace], int]:
        found = await super().traces(*which, **named)
        await self._filler.fill_found(found[0])
        return found

    async def read_keys(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        self._wait_here()
        await self._confirm()
        return await super().read_keys(keys)

    async def list_keys(self, ranges: Sequence[KeyRange]) -> list[list[KeyEntry]]:
        self._wait_here()
        await self._confirm()
        return await super().list_keys(ranges)

    async def count_keys(self, prefix: Key) -> int:
        await self._confirm()
        return await super().count_keys(prefix)

    # Other servers -----------------------------------------------------------------------------------------

    def on_hints(self, hints: Sequence[Hint]) -> list[Hint]:
        """See `Engine.on_hints`: what others did is in the log, so look there."""
        if hints and self._replica is not None:
            self._replica.poke()
        return []

    async def peer_secret(self) -> bytes:
        return self._running().secret


async def _abandon(replica: Replica, opening: asyncio.Future[None]) -> None:
    """End a replica that could not be opened, or whose opening was cancelled."""
    if not opening.done():
        await asyncio.to_thread(replica.interrupt)
        await asyncio.wait([opening])
    if not opening.cancelled():
        opening.exception()  # The caller was cancelled and does not need the error.
    await asyncio.to_thread(replica.close)
