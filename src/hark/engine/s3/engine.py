"""The S3 engine: the verbs of `engine/core` over a state that follows a log in a bucket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import apsw

from hark import model
from hark.batching import Answer
from hark.clock import SECOND, Clock
from hark.engine.api import Answers, KeyListener, Listener, ignore_keys
from hark.engine.core import explain
from hark.engine.core.collect import Collector
from hark.engine.core.explain import LeaseView
from hark.engine.core.state import State
from hark.engine.core.store import PayloadLocation
from hark.engine.core.transaction import WriteTransaction
from hark.engine.core.verbs import Call, Outbox, Readers, Stop, TableVerbs, refuse, stopping
from hark.engine.s3.bucket import Address, Bucket, BucketError, Refused, Unclear
from hark.engine.s3.bucket_client import IoThread, S3Bucket, probe
from hark.engine.s3.flush import Chore, Confirm, Renew, WritePacing
from hark.engine.s3.housekeeping import Housekeeper
from hark.engine.s3.log import LogClient, LogFreshness, Tail
from hark.engine.s3.objects import BucketRetries, Meta, Pause, Tries, read_or_create, read_pointer
from hark.engine.s3.payloads import Filler, PayloadCache, Payloads
from hark.engine.s3.state import Head, LocalState
from hark.engine.s3.thread import ReplicaThread
from hark.errors import StoreUnusable
from hark.ids import IdSource
from hark.polling import Poller, PollingStrategy, PollMetrics
from hark.settings.sections import S3

T = TypeVar("T")
_WRITER_BYTES = 8
_PROBE_BYTES = 12
_PROBE_SECONDS = 1.0
log = logging.getLogger(__name__)


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
        # Its own random generator, because its threads draw at unpredictable moments.
        self._chance = random.Random().random
        self._retries = BucketRetries(
            seconds=settings.retry_timeout_ms / 1000, pause=pause, random=self._chance, on_silence=self._note_silence
        )
        self._pacing = WritePacing(settings.linger_ms / 1000, self._chance)
        self._probing: asyncio.Task[None] | None = None
        self._tailing: Future[None] | None = None
        self._is_built = False
        """Whether `_open` has come as far as to the local state, the threads and the tail."""
        self._started = False

    async def start(self, listener: Listener, key_listener: KeyListener = ignore_keys) -> None:
        """Open and test the bucket, and load the state."""
        self._io = IoThread()
        opening = asyncio.ensure_future(asyncio.to_thread(self._open, Outbox(listener, key_listener)))
        try:
            await asyncio.shield(opening)
        except Refused as error:
            await self._abandon(opening)
            raise StoreUnusable(f"cannot use {self._bucket.name}: {error}") from error
        except BaseException:
            await self._abandon(opening)
            raise
        scratch = self.local.scratch
        self._readers = Readers(
            "hark-s3-read", "the local copy of the state", scratch.connect_reader, lambda: scratch.generation
        )
        self._codec = self.local.state.codec
        self._filler = Filler(self._cache, self._fetch)
        self._started = True
        self._submit = self._submit_write = self._thread.submit

    async def close(self) -> None:
        """Finish accepted calls and close."""
        started, self._started = self._started, False
        self._submit = self._submit_write = refuse
        if not started:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._thread.submit(Stop(future))
        await future
        await asyncio.to_thread(self._readers.close)
        await asyncio.to_thread(self._shut)

    async def ping(self) -> None:
        """Raise unless the bucket answers."""
        await self._confirm()

    async def store_metrics(self) -> dict[str, float]:
        self._check_running()
        return {
            "database_bytes": self.local.scratch.size(),
            "s3_log_records": self.local.head.seq,
            "s3_linger_seconds": self._pacing.apart,
            "s3_round_trip_seconds": self._pacing.round_trip,
            "s3_snapshots": self._keeper.snapshots,
            "s3_objects_removed": self._keeper.removed,
            "s3_clock_offset_seconds": self._bucket.time.offset() / SECOND,
            **self.local.state.metrics(),
            **self._bucket.requests.as_metrics(),
            **self._cache.as_metrics(),
        }

    def poll_as(self, strategy: PollingStrategy) -> PollMetrics:
        """Poll the log with this strategy from now on; return the counters of the polls. For any thread."""
        self._polling = strategy
        if self._started:
            self._io.call(lambda: self._tail.follow(strategy))
        return self._poll_metrics

    # How calls travel --------------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if not self._started:
            raise stopping()

    async def _wait_for(self, make: Callable[[asyncio.Future[T]], Call]) -> T:
        answer: Answer[T] = Answer()
        self._submit(make(answer))
        return await answer

    async def _chore(self, body: Callable[[WriteTransaction], T]) -> T:
        return await self._wait_for(lambda future: Chore(future, body))

    def _memory(self) -> State:
        self._check_running()
        return self.local.state

    async def _examine(self, body: Callable[[apsw.Connection, State, int], T]) -> T:
        """Examine the state at the current end of the log."""
        await self._confirm()
        return await self._look(lambda state, now: body(self.local.scratch.writer, state, now))

    def _wait_here(self) -> None:
        """Note a read that will be repeated, so that the log is polled for it."""
        self._check_running()
        self._tail.wait_here()

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
        self._check_running()
        return await self._readers.run(body)

    # Verbs that differ -------------------------------------------------------------------------------------

    async def renew(self, requests: Sequence[model.Renewal]) -> Answers[model.RenewOutcome]:
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

    async def queue_infos(self, names: Sequence[str] | None = None) -> list[model.QueueInfo]:
        await self._confirm()
        return await super().queue_infos(names)

    async def pop(self, requests: Sequence[model.PopRequest]) -> Answers[model.PopResult]:
        self._wait_here()
        answers = await super().pop(requests)
        results = [answer for answer in answers if isinstance(answer, model.PopResult) and answer.messages]
        failures = await self._filler.fill_each([result.messages for result in results])
        if not any(failures):
            return answers
        failed = {id(result): failure for result, failure in zip(results, failures, strict=True) if failure is not None}
        # Messages that were not received are redelivered, without using an attempt.
        await self.release([result.lease_id for result in results if id(result) in failed and result.lease_id])
        return [failed.get(id(answer), answer) for answer in answers]

    async def read(self, requests: Sequence[model.Read]) -> Answers[model.ReadResult]:
        self._wait_here()
        answers = await super().read(requests)
        await self._filler.fill_found(
            [one for answer in answers if isinstance(answer, model.ReadResult) for one in answer.messages]
        )
        return answers

    async def message(self, partition_id: str, transaction_id: str) -> model.MessageView | None:
        view = await super().message(partition_id, transaction_id)
        await self._filler.fill_found([] if view is None else [view])
        return view

    async def dead_letters(self, where: model.DeadLetterFilter) -> model.DeadLetters:
        found = await super().dead_letters(where)
        await self._filler.fill_found(found.items)
        return found

    async def traces(self, *which: Any, **named: Any) -> tuple[list[model.Trace], int]:
        found = await super().traces(*which, **named)
        await self._filler.fill_found(found[0])
        return found

    async def read_keys(self, keys: Sequence[model.Key]) -> list[model.KeyEntry | None]:
        self._wait_here()
        await self._confirm()
        return await super().read_keys(keys)

    async def list_keys(self, ranges: Sequence[model.KeyRange]) -> list[list[model.KeyEntry]]:
        self._wait_here()
        await self._confirm()
        return await super().list_keys(ranges)

    async def count_keys(self, prefix: model.Key) -> int:
        await self._confirm()
        return await super().count_keys(prefix)

    # Other servers -----------------------------------------------------------------------------------------

    def on_hints(self, hints: Sequence[model.Hint]) -> list[model.Hint]:
        """See `Engine.on_hints`: what others did is in the log, so look there."""
        if hints and self._started:
            self._io.call(self._tail.poke)
        return []

    async def peer_secret(self) -> bytes:
        self._check_running()
        return self._secret

    # Opening, closing, silence -----------------------------------------------------------------------------

    def _open(self, outbox: Outbox) -> None:
        """Test the bucket, load the state and start. This blocks; call `_shut` also after a failure."""
        self._io.start()
        meta = self._io.run(self._prepare())
        self._secret = bytes.fromhex(meta.secret)
        time = self._bucket.time
        freshness = LogFreshness(meta.grace_seconds, lambda: time.now() / SECOND)
        log_client = LogClient(
            self._bucket, self._io, meta, retries=self._retries, freshness=freshness, cache=self._cache
        )
        writer = secrets.token_hex(_WRITER_BYTES)
        self.local = LocalState(IdSource(time), meta.tag, writer, self._settings.skew_margin_ms * SECOND // 1000)
        self._thread = ReplicaThread(
            log_client,
            self.local,
            outbox,
            writer=writer,
            now=time.now,
            pacing=self._pacing,
            most_bytes=self._settings.max_record_bytes,
            on_head=self._note_head,
            on_missed=lambda: self._io.call(self._tail.missed),
        )
        submit = self._thread.submit
        self._keeper = Housekeeper(
            self._bucket, self._io, self.local.scratch, self._settings, meta=meta, now=time.now, submit=submit
        )
        poller = Poller(self._polling, metrics=self._poll_metrics, random=self._chance)
        self._tail = Tail(self._bucket, poller, freshness, meta.grace_seconds, submit)
        self._is_built = True
        self._thread.start()
        self._keeper.start()
        self._tailing = self._io.submit(self._tail.run())

    async def _prepare(self) -> Meta:
        await self._bucket.open()
        await probe(self._bucket, secrets.token_hex(_PROBE_BYTES), pause=self._pause)
        self._payloads = Payloads(self._bucket, self._cache, pause=self._pause, random=self._chance)
        grace = self._settings.grace_seconds
        now = self._bucket.time.now()
        meta = await read_or_create(self._bucket, now, grace_seconds=grace, retries=self._retries)
        if meta.grace_seconds != grace:
            text = "%s keeps log records for %d s, as set when it was created; s3.grace_seconds = %d has no effect"
            log.warning(text, self._bucket.name, meta.grace_seconds, grace)
        return meta

    async def _abandon(self, opening: asyncio.Future[None]) -> None:
        """End what could not be opened, or whose opening was cancelled."""
        if not opening.done():
            await asyncio.to_thread(self._interrupt)
            await asyncio.wait([opening])
        if not opening.cancelled():
            opening.exception()  # The caller was cancelled and does not need the error.
        await asyncio.to_thread(self._shut)

    def _interrupt(self) -> None:
        """Interrupt an `_open` that waits for the bucket, from another thread."""
        with contextlib.suppress(RuntimeError):  # It has not begun.
            self._io.run(self._bucket.close())
        self._io.stop()

    def _shut(self) -> None:
        """Stop everything, after a `Stop` was answered, or after an `_open` that failed or was interrupted."""
        if self._is_built:
            self._keeper.stop()
        with contextlib.suppress(RuntimeError):  # It was interrupted.
            if self._is_built:
                self._io.call(self._tail.stop)
            if self._tailing is not None:
                self._tailing.exception()
            if self._probing is not None:
                self._io.call(self._probing.cancel)
            self._io.run(self._bucket.close())
        self._io.stop()
        if self._is_built:
            self._thread.end()
            self.local.close()

    async def _fetch(self, locations: Sequence[PayloadLocation]) -> list[bytes]:
        return await asyncio.wrap_future(self._io.submit(self._payloads.fetch(locations)))

    def _note_silence(self) -> None:
        """Refuse calls at once, and probe the bucket until it answers. In the event loop of the requests."""
        if self._is_built and (self._probing is None or self._probing.done()):
            self._thread.refuse()
            self._probing = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        tries = Tries(BucketRetries(seconds=float("inf"), pause=self._pause, random=self._chance))
        while True:
            await tries.rest()
            try:
                # A probe that hangs must not hide that the bucket answers again.
                async with asyncio.timeout(_PROBE_SECONDS + tries.rest_seconds):
                    await read_pointer(self._bucket)
            except (TimeoutError, Unclear):
                continue
            except BucketError:
                pass  # It answers.
            break
        self._thread.resume()

    def _note_head(self, head: Head, size: int, own: bool) -> None:
        self._keeper.note(head, size, own)
        self._io.call(lambda: self._tail.head(head.seq, own))
