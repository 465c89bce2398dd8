"""Reads the log and applies the records of other processes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from hark.engine.core.verbs import Call, Outbox
from hark.engine.hints import HintBook
from hark.engine.s3 import objects, scratch
from hark.engine.s3 import objects as records
from hark.engine.s3.bucket import Bucket, BucketError, Stored
from hark.engine.s3.bucket_client import IoThread
from hark.engine.s3.flush import Found, Wake, WritePacing
from hark.engine.s3.housekeeping import read_snapshot
from hark.engine.s3.log import MOST_AT_ONCE, LogFreshness, append, read_records
from hark.engine.s3.objects import (
    PAYLOADS_AT,
    BucketRetries,
    Meta,
    Pointer,
    Record,
    check_epoch,
    load_newest,
    read_pointer,
)
from hark.engine.s3.payloads import PayloadCache
from hark.engine.s3.state import Change, Head, LocalState
from hark.errors import EngineFailure, StoreUnusable
from hark.polling import Poller, PollingStrategy

# `LogClient` also ensures that a removed number is never won again (see `log.py`).


T = TypeVar("T")


class Overslept(EngineFailure):
    """A request took so long that its record may already be removed, so the pointer must be read first.

    `is_ours`: the record was stored, but perhaps in the place of a removed one. These cases cannot be distinguished any
    more, so it can neither be acknowledged nor repeated.
    """

    def __init__(self, name: str, *, is_ours: bool) -> None:
        super().__init__(
            f"{name}: this server was suspended too long during a commit, so it is unknown whether the request took "
            "effect; check before you send it again",
            code="outcome_unknown",
        )
        self.is_ours = is_ours


class LogClient:
    """The log of one store."""

    def __init__(
        self,
        bucket: Bucket,
        io: IoThread,
        meta: Meta,
        *,
        retries: BucketRetries,
        freshness: LogFreshness,
        cache: PayloadCache,
    ) -> None:
        self._bucket = bucket
        self._io = io
        self._retries = retries
        self.freshness = freshness
        self._cache = cache
        self.epoch = meta.epoch
        self.name = bucket.name
        """The name of the store in messages."""

    def append(self, record: Record, body: bytes) -> Stored | None:
        """Write a record to the log. Returns None on success, else the record that another process wrote first.

        Raises `EngineFailure` if the outcome is unknown, and `Overslept` if that is because it took too long.
        """
        since, sent = self.freshness.at, self.freshness.now()
        stored = self._io.run(append(self._bucket, self._retries, record.seq, body, record.nonce))
        if not self.freshness.is_void(since):
            if stored is None:
                self.freshness.seen(sent)
            return stored
        # The number may have been removed before it was won, or before another record was read there.
        self.freshness.lose()
        try:
            if self.covers(record.seq - 1):
                return stored
        except EngineFailure as error:
            raise Overslept(self.name, is_ours=stored is None) from error
        raise Overslept(self.name, is_ours=stored is None)

    def read(self, seq: int, number: int) -> list[Stored] | None:
        """Return records from `seq`, at most `number`; None: the pointer must be read first."""
        since, sent = self.freshness.at, self.freshness.now()
        if self.freshness.is_stale:
            return None
        found = self._io.run(read_records(self._bucket, self._retries, seq, number))
        if self.freshness.is_void(since):
            return None
        if len(found) < number:
            self.freshness.seen(sent)
        return found

    def covers(self, seq: int) -> bool:
        """Return whether all records after this one can still be read from the log, which is then fresh."""
        sent = self.freshness.now()
        found = self._ask(lambda: read_pointer(self._bucket))
        if found is not None:
            check_epoch(found[0], self.epoch, self.name)
            if found[0].seq > seq:
                return False
        self.freshness.seen(sent)
        return True

    def begin_with_newest(self, begin: Callable[[bytes | None], None]) -> None:
        """Start from the database of the newest snapshot (None: there is none, and the log has all records).

        The log is fresh once this has succeeded. If it fails, the state is unchanged.
        """
        sent = self.freshness.now()
        found = self._ask(lambda: load_newest(self._bucket))
        begin(None if found is None else self._database_in(*found))
        self.freshness.seen(sent)

    def _database_in(self, pointer: Pointer, body: bytes) -> bytes:
        header, database = read_snapshot(body, pointer.seq, self.name)
        self._check_store(f"the snapshot of record {header.seq}", header)
        return database

    def _ask(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Repeat a read until it is answered."""
        return self._io.run(
            self._retries.repeat(
                request, lambda error: EngineFailure(f"cannot read {self.name}: {error}; retry", retry_after=1)
            )
        )

    def check(self, record: Record, previous: str) -> None:
        """Raise unless this is the next record of this store."""
        self._check_store(f"log record {record.seq}", record)
        if record.previous != previous:
            raise StoreUnusable(
                f"log record {record.seq} of {self.name} does not follow the record before it; restore the original"
            )

    def _check_store(self, what: str, header: objects.Header) -> None:
        if header.epoch != self.epoch:
            raise StoreUnusable(f"{what} belongs to another store than {self.name}; restore the original")
        if header.schema > scratch.VERSION:
            raise StoreUnusable(
                f"{what} has version {header.schema} of the tables, but this Hark supports up to {scratch.VERSION}; "
                "upgrade Hark"
            )

    def keep_payloads(self, record: Record) -> None:
        """Cache the payloads, so that pops need not fetch them."""
        self._cache.put_record(record.seq, PAYLOADS_AT, record.payloads)


log = logging.getLogger(__name__)
_FEW = 2
"""Number of records to request at once if there is probably a new one."""
_MUCH_BYTES = 16 << 20
"""After this number of bytes, the number of records per request is not raised."""

OnHead = Callable[[Head, int, bool], None]
"""Called for each applied record, with the new head, the size, and whether this process wrote it."""


class Follower:
    """Brings the state to the end of the log. Only the state thread uses it."""

    def __init__(
        self, log_client: LogClient, local: LocalState, outbox: Outbox, pacing: WritePacing, on_head: OnHead
    ) -> None:
        self._log_client = log_client
        self._local = local
        self._outbox = outbox
        self._pacing = pacing
        self._on_head = on_head
        self.in_doubt = False
        """It is unknown whether the last record is in the log, so the log must be read before the next one."""

    def make_sure(self) -> None:
        """Ensure before an append that the head is known and that its number was not removed."""
        freshness = self._log_client.freshness
        if freshness.is_stale:
            self.check_pointer()
        if self.in_doubt or self._pacing.is_likely_behind(time.monotonic(), freshness.seconds_since(freshness.at)):
            self.read_on(_FEW)
            self.in_doubt = False

    def check_pointer(self) -> None:
        """Restart from the newest snapshot if records that this process needs may be removed."""
        if not self._log_client.covers(self._local.head.seq):
            self.restart()

    def restart(self) -> None:
        """Discard the state and start from the newest snapshot, or empty."""
        again = self._local.head.seq > 0
        self._log_client.begin_with_newest(self._local.open)
        if again:
            log.info(
                "%s: reloaded the state from the snapshot of record %d", self._log_client.name, self._local.head.seq
            )
        self.notify_all()
        self._on_head(self._local.head, 0, False)

    def notify_all(self) -> None:
        """Notify all waiting consumers, because anything can have changed."""
        hints = HintBook()
        for queue in self._local.state.queues:
            hints.add(queue, None, None)
        self._outbox.post([], hints.hints())

    def read_on(self, number: int = 1) -> bool:
        """Apply all new records, `number` per request; return whether there was one."""
        any_new, next_number = False, 1
        while True:
            found = self._log_client.read(self._local.head.seq + 1, number)
            if found is None:
                self.check_pointer()
                continue
            self.apply(found)
            any_new = any_new or bool(found)
            if len(found) < number:
                return any_new
            if sum(len(stored.body) for stored in found) > _MUCH_BYTES:
                next_number = 1  # They must fit into memory together.
            number, next_number = next_number, min(2 * next_number, MOST_AT_ONCE)

    def apply(self, found: Sequence[Stored]) -> None:
        """Apply the next records."""
        for stored in found:
            head = self._local.head
            record = records.decode(stored.body, head.seq + 1, self._log_client.name)
            self._log_client.check(record, head.nonce)
            change: Change = self._local.apply(record)
            self._log_client.keep_payloads(record)
            self._outbox.post([], change.hints, change.keys)
            self._pacing.saw_other(time.monotonic())
            self._on_head(self._local.head, len(stored.body), False)


# The polling strategy decides how often the log is read. An append shows as much as a read, so a process that writes
# does not read. The pointer is read from time to time instead, in case the records up to here were removed. A process
# that only pushes does not need the records of other processes, and polls for them as rarely as allowed.


_INTEREST_SECONDS = 120.0
"""Longer than the time between two pops of a waiting consumer."""
_CHECK_SHARE = 0.25
"""How much of the grace may pass before an idle process reads the pointer."""


class Tail:
    """Polls the log, in the event loop of the bucket requests."""

    def __init__(
        self,
        bucket: Bucket,
        poller: Poller,
        freshness: LogFreshness,
        grace_seconds: float,
        submit: Callable[[Call], None],
    ) -> None:
        self._bucket = bucket
        self._poller = poller
        self._freshness = freshness
        self._check_seconds = grace_seconds * _CHECK_SHARE
        self._submit = submit
        self._wanted_at = float("-inf")
        """When a consumer of this process was last seen, by `time.monotonic`."""
        self._checked = freshness.now()
        self._seq = 0
        self._moved = asyncio.Event()
        self._written = False
        """This process has appended a record since the last read."""
        self._poked = False
        """Another process has announced a record since the last read began."""

    def head(self, seq: int, own: bool) -> None:
        """Note the last applied record, and whether this process wrote it."""
        self._seq = seq
        self._moved.set()
        self._written = self._written or own

    def wait_here(self) -> None:
        """Note a pop or another read that will be repeated. From any thread."""
        self._wanted_at = time.monotonic()

    def missed(self) -> None:
        """Note that the state could not apply a record, so it must be read again."""
        self._moved.set()

    def poke(self) -> None:
        """Note that another process has announced a record."""
        self._poked = True
        self._poller.wake()

    def follow(self, strategy: PollingStrategy) -> None:
        """Use another polling strategy from now on."""
        self._poller.follow(strategy)

    def stop(self) -> None:
        """End `run`, also while it waits for the state."""
        self._poller.stop()
        self._moved.set()

    async def run(self) -> None:
        """Poll until `stop`."""
        while not self._poller.stopped:
            if self._written and not self._poked:
                self._written = False  # The append has shown the head.
                self._poller.skip()
            else:
                await self._poll()
            await self._poller.rest()

    async def _poll(self) -> None:
        self._poller.begin()
        self._poked = False
        try:
            found = await self._look()
        except BucketError as error:
            fields = {"store": "away", "bucket": self._bucket.name}
            text = "%s: cannot read the log; retrying, check the bucket and the network: %s"
            log.warning(text, self._bucket.name, error, extra={"fields": fields})
            self._poller.failed(1.0 if error.slow_down else None)
            return
        except Exception:
            # Polling must continue after any error, or this process would miss the records of all others.
            log.exception("%s: cannot read the log because of a bug; retrying, please report it", self._bucket.name)
            self._poller.failed()
            return
        # A process without consumers does not need more records soon.
        self._poller.saw(found and time.monotonic() - self._wanted_at < _INTEREST_SECONDS)
        if found and not self._poked:
            self._poller.skip()  # It has read to the end of the log.

    async def _look(self) -> bool:
        """Read to the end of the log; return whether there was a new record."""
        found = False
        while not self._poller.stopped:
            sent = self._freshness.now()
            if self._freshness.is_stale or self._freshness.seconds_since(self._checked) > self._check_seconds:
                self._checked = sent
                self._submit(Wake(None))
                break
            seq, since = self._seq + 1, self._freshness.at
            self._moved.clear()
            stored = await self._bucket.get(objects.record(seq))
            if stored is None:
                if not self._freshness.is_void(since) and self._seq + 1 == seq:
                    self._freshness.seen(sent)
                break
            found = True
            self._submit(Found(None, seq, stored))
            if self._seq < seq:
                await self._moved.wait()
            if self._seq < seq:
                break
        return found
