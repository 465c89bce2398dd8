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
from hark.engine.core.verbs import Outbox
from hark.engine.s3.bucket import Bucket, BucketError, Unclear
from hark.engine.s3.bucket_client import IoThread, probe
from hark.engine.s3.flush import WritePacing
from hark.engine.s3.following import LogClient, Tail
from hark.engine.s3.housekeeping import Housekeeper
from hark.engine.s3.log import LogFreshness
from hark.engine.s3.objects import BucketRetries, Meta, Pause, Tries, read_or_create, read_pointer
from hark.engine.s3.payloads import PayloadCache, PayloadLocation, Payloads
from hark.engine.s3.state import Head, LocalState
from hark.engine.s3.thread import ReplicaThread
from hark.ids import IdSource
from hark.polling import Poller, PollingStrategy, PollMetrics
from hark.settings.sections import S3

log = logging.getLogger(__name__)
_PROBE_BYTES = 12
_PROBE_SECONDS = 1.0


class Replica:
    """What one process has of a store."""

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
        self._retries = BucketRetries(
            seconds=settings.retry_timeout_ms / 1000, pause=pause, random=self._chance, on_silence=self._note_silence
        )
        self._probing: asyncio.Task[None] | None = None
        self._pacing = WritePacing(settings.linger_ms / 1000, self._chance)
        self._is_built = False
        """Whether `open` has come as far as to the local state, the threads and the tail."""
        self._tailing: Future[None] | None = None

    def open(self) -> None:
        """Test the bucket, load the state and start. This blocks; call `close` also after a failure."""
        self._io.start()
        meta = self._io.run(self._prepare())
        self.secret = bytes.fromhex(meta.secret)
        time = self._bucket.time
        freshness = LogFreshness(meta.grace_seconds, lambda: time.now() / SECOND)
        log_client = LogClient(
            self._bucket, self._io, meta, retries=self._retries, freshness=freshness, cache=self._cache
        )
        self.local = LocalState(IdSource(time), meta.tag, self._writer, self._settings.skew_margin_ms * SECOND // 1000)
        self._thread = ReplicaThread(
            log_client,
            self.local,
            self._outbox,
            writer=self._writer,
            now=time.now,
            pacing=self._pacing,
            most_bytes=self._settings.max_record_bytes,
            on_head=self._note_head,
            on_missed=lambda: self._io.call(self.tail.missed),
        )
        self.submit = self._thread.submit
        self._keeper = Housekeeper(
            self._bucket,
            self._io,
            self.local.scratch,
            self._settings,
            meta=meta,
            now=time.now,
            submit=self.submit,
        )
        poller = Poller(self._polling, metrics=self._poll_metrics, random=self._chance)
        self.tail = Tail(self._bucket, poller, freshness, meta.grace_seconds, self.submit)
        self._is_built = True
        self._thread.start()
        self._keeper.start()
        self._tailing = self._io.submit(self.tail.run())

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

    def interrupt(self) -> None:
        """Interrupt an `open` that waits for the bucket, from another thread; then call `close`."""
        with contextlib.suppress(RuntimeError):  # It has not begun.
            self._io.run(self._bucket.close())
        self._io.stop()

    def close(self) -> None:
        """Stop everything, after a `Stop` was answered, or after an `open` that failed or was interrupted."""
        if self._is_built:
            self._keeper.stop()
        with contextlib.suppress(RuntimeError):  # It was interrupted.
            if self._is_built:
                self._io.call(self.tail.stop)
            if self._tailing is not None:
                self._tailing.exception()
            if self._probing is not None:
                self._io.call(self._probing.cancel)
            self._io.run(self._bucket.close())
        self._io.stop()
        if self._is_built:
            self._thread.end()
            self.local.close()

    def poke(self) -> None:
        """Poll the log soon."""
        self._io.call(self.tail.poke)

    def poll_as(self, strategy: PollingStrategy) -> None:
        """Poll the log with this strategy."""
        self._io.call(lambda: self.tail.follow(strategy))

    async def fetch(self, locations: Sequence[PayloadLocation]) -> list[bytes]:
        """Return payloads; from any event loop."""
        return await asyncio.wrap_future(self._io.submit(self._payloads.fetch(locations)))

    def metrics(self) -> dict[str, float]:
        """Return the position and the counters of this process."""
        return {
            "database_bytes": self.local.scratch.size(),
            "s3_log_records": self.local.head.seq,
            "s3_linger_seconds": self._pacing.apart,
            "s3_round_trip_seconds": self._pacing.round_trip,
            "s3_snapshots": self._keeper.snapshots,
            "s3_objects_removed": self._keeper.removed,
            "s3_clock_offset_seconds": self._bucket.time.offset() / SECOND,
            **self.local.state.metrics(),
        }

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
        self._io.call(lambda: self.tail.head(head.seq, own))
