"""The parts of one process's replica, put together: requests, state, tail, housekeeping."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Sequence
from concurrent.futures import Future

from hark.clock import SECOND
from hark.engine.core.verbs import Call, Outbox
from hark.engine.s3.bucket import Bucket, BucketError, Stored, Unclear
from hark.engine.s3.bucket_client import IoThread, probe
from hark.engine.s3.flush import Found, Wake, WritePacing
from hark.engine.s3.following import Interest, LogClient, Tail
from hark.engine.s3.housekeeping import Housekeeper
from hark.engine.s3.log import Appender, LogFreshness, LogReader
from hark.engine.s3.objects import BucketRetries, Meta, Pause, read_or_create, read_pointer
from hark.engine.s3.payloads import PayloadCache, PayloadLocation, Payloads
from hark.engine.s3.state import Head, LocalState
from hark.engine.s3.thread import ReplicaThread
from hark.ids import IdSource
from hark.polling import Poller, PollingStrategy, PollMetrics
from hark.settings.sections import S3

log = logging.getLogger(__name__)
_PROBE_BYTES = 12
_PROBE_SECONDS = 1.0
_CHECK_SHARE = 0.25
"""How much of the grace may pass before an idle process reads the pointer."""


class Replica:
    """What one process has of a store."""

    local: LocalState

    def __init__(
        self,
        bucket: Bucket,
        settings: S3,
        cache: PayloadCache,
        outbox: Outbox,
        *,
        writer: str,
        polling: PollingStrategy,
        poll_metrics: PollMetrics,
        pause: Pause,
    ) -> None:
        self._bucket = bucket
        self._settings = settings
        self._cache = cache
        self._outbox = outbox
        self._writer = writer
        self._polling = polling
        self._poll_metrics = poll_metrics
        self._pause = pause
        self._io = IoThread()
        # Its own random generator, because these threads draw at unpredictable moments.
        self._chance = random.Random().random
        self._interest = Interest()
        self._retries = BucketRetries(
            settings.retry_timeout_ms / 1000, pause=pause, random=self._chance, on_silence=self._note_silence
        )
        self._probing: asyncio.Task[None] | None = None
        self._pacing = WritePacing(settings.linger_ms / 1000, self._chance)
        self._thread: ReplicaThread | None = None
        self._tail: Tail | None = None
        self._tailing: Future[None] | None = None
        self._keeper: Housekeeper | None = None
        self._local_is_open = False

    def open(self) -> None:
        """Test the bucket, load the state and start. This blocks; call `close` also after a failure."""
        self._io.start()
        meta = self._io.run(self._prepare())
        self.secret = bytes.fromhex(meta.secret)
        time = self._bucket.time
        freshness = LogFreshness(meta.grace_seconds, lambda: time.now() / SECOND)
        log_client = LogClient(
            self._bucket,
            self._io,
            meta,
            appender=Appender(
                self._bucket,
                self._retries.seconds,
                pause=self._pause,
                random=self._chance,
                on_silence=self._note_silence,
            ),
            reader=LogReader(self._bucket, self._retries),
            retries=self._retries,
            freshness=freshness,
            cache=self._cache,
        )
        self.local = LocalState(IdSource(time), meta.tag, self._writer, self._settings.skew_margin_ms * SECOND // 1000)
        self._local_is_open = True
        self._keeper = Housekeeper(
            self._bucket,
            self._io,
            self.local.scratch,
            self._settings,
            meta=meta,
            now=time.now,
            submit=self.submit,
        )
        self._thread = ReplicaThread(
            log_client,
            self.local,
            self._outbox,
            writer=self._writer,
            now=time.now,
            pacing=self._pacing,
            most_bytes=self._settings.max_record_bytes,
            on_head=self._note_head,
            on_missed=self._note_missed,
        )
        self._tail = self._io.run(self._make_tail(freshness, meta.grace_seconds))
        self._thread.open()
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

    async def _make_tail(self, freshness: LogFreshness, grace_seconds: int) -> Tail:
        return Tail(
            self._bucket,
            Poller(self._polling, metrics=self._poll_metrics, random=self._chance),
            freshness,
            found=self._found,
            check=lambda: self.submit(Wake()),
            check_seconds=grace_seconds * _CHECK_SHARE,
            has_interest=self._interest.is_there,
        )

    def interrupt(self) -> None:
        """Interrupt an `open` that waits for the bucket, from another thread; then call `close`."""
        with contextlib.suppress(RuntimeError):  # It has not begun.
            self._io.run(self._bucket.close())
        self._io.stop()

    def close(self) -> None:
        """Stop everything, after a `Stop` was answered, or after an `open` that failed or was interrupted."""
        if self._keeper is not None:
            self._keeper.stop()
        with contextlib.suppress(RuntimeError):  # It was interrupted.
            if self._tail is not None:
                self._io.call(self._tail.stop)
            if self._tailing is not None:
                self._tailing.exception()
            if self._probing is not None:
                self._io.call(self._probing.cancel)
            self._io.run(self._bucket.close())
        self._io.stop()
        if self._thread is not None:
            self._thread.end()
        if self._local_is_open:
            self.local.close()

    def wait_here(self) -> None:
        """Note that this process waits for records of other processes."""
        self._interest.note()

    def submit(self, call: Call) -> None:
        """Queue a call, from any thread."""
        assert self._thread is not None
        self._thread.submit(call)

    def poke(self) -> None:
        """Poll the log soon."""
        if self._tail is not None:
            self._io.call(self._tail.poke)

    def poll_as(self, strategy: PollingStrategy) -> None:
        """Poll the log with this strategy."""
        tail = self._tail
        if tail is not None:
            self._io.call(lambda: tail.follow(strategy))

    async def fetch(self, locations: Sequence[PayloadLocation]) -> list[bytes]:
        """Return payloads; from any event loop."""
        return await asyncio.wrap_future(self._io.submit(self._payloads.fetch(locations)))

    def metrics(self) -> dict[str, float]:
        """Return the position and the counters of this process."""
        head, keeper = self.local.head, self._keeper
        return {
            "database_bytes": self.local.scratch.size(),
            "s3_log_records": head.seq,
            "s3_linger_seconds": self._pacing.apart,
            "s3_round_trip_seconds": self._pacing.round_trip,
            "s3_snapshots": 0 if keeper is None else keeper.snapshots,
            "s3_objects_removed": 0 if keeper is None else keeper.removed,
            "s3_clock_offset_seconds": self._bucket.time.offset() / SECOND,
            **self.local.state.metrics(),
        }

    def _note_silence(self) -> None:
        """Refuse calls at once, and probe the bucket until it answers. In the event loop of the requests."""
        if self._thread is not None and (self._probing is None or self._probing.done()):
            self._thread.refuse()
            self._probing = asyncio.create_task(self._probe(self._thread))

    async def _probe(self, thread: ReplicaThread) -> None:
        tries = BucketRetries(float("inf"), pause=self._pause, random=self._chance).begin()
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
        thread.resume()

    def _note_head(self, head: Head, size: int, own: bool) -> None:
        if self._keeper is not None:
            self._keeper.note(head, size, own)
        tail = self._tail
        if tail is not None:
            self._io.call(lambda: tail.head(head.seq, own))

    def _note_missed(self) -> None:
        tail = self._tail
        if tail is not None:
            self._io.call(tail.missed)

    def _found(self, seq: int, stored: Stored) -> None:
        self.submit(Found(seq, stored))
