"""The log in the bucket: append is the commit, and the records of other processes are read and polled for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar

from hark.engine.core.verbs import Call
from hark.engine.s3 import objects, state
from hark.engine.s3.bucket import Bucket, BucketError, Refused, Stored, Taken, Unclear
from hark.engine.s3.bucket_client import IoThread
from hark.engine.s3.flush import Found, Wake
from hark.engine.s3.housekeeping import read_snapshot
from hark.engine.s3.objects import (
    PAYLOADS_AT,
    BucketRetries,
    Meta,
    Pointer,
    Record,
    Tries,
    check_epoch,
    load_newest,
    nonce_of,
    read_pointer,
)
from hark.engine.s3.payloads import PayloadCache
from hark.errors import EngineFailure, StoreUnusable
from hark.polling import Poller, PollingStrategy

T = TypeVar("T")
log = logging.getLogger(__name__)

# Records that a snapshot covers are removed one `grace` after that snapshot became the newest. A process that was
# suspended meanwhile (SIGSTOP, a suspended machine) knows the log up to n and finds no record n + 1, because it was
# removed. It would create n + 1 again and take that for a commit, but no process would ever read the record.
#
# The log is *fresh* at a moment at which no snapshot beyond what this process has applied was the newest one. Records
# beyond are then not removed before that moment plus `grace`. Until then:
#
# - If record n + 1 does not exist, it has never existed: a create that succeeds is a commit.
# - If record n + 1 exists, it is the true one. It is not a record that another suspended process has put in the place
#   of a removed one.
#
# These show that the log was fresh when the request was *sent* (an answer can be late, but its content is not older):
#
# - The pointer was read, and its newest snapshot is not beyond what is applied. If it is beyond, the process starts
#   again from the snapshot.
# - While the log was fresh, n + 1 did not exist or this process created it. Then n + 1 was not in any snapshot.
#
# That record n + 1 exists shows nothing: n + 2 can be in a snapshot that has been the newest for long.
#
# The age is measured by two clocks, and the larger value counts. The clock of the machine includes the time for which
# the machine was suspended, but not the time for which a virtual machine was suspended or copied from outside. The
# dates in the answers of the store include that, also the date of the create itself; the process that removes records
# uses them too. A tenth of the grace is kept for differences between clocks.


_STALE_AFTER = 0.5
_VOID_AFTER = 0.9


def boot_seconds() -> float:
    """Return the seconds since the machine started, including suspended time."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Moment(NamedTuple):
    """A moment by both clocks, in seconds. A later moment is larger."""

    boot: float
    store: float
    """The latest date in the answers of the store until then; the true time can be later, never earlier."""


_NEVER = Moment(float("-inf"), float("-inf"))


class LogFreshness:
    """The last moment at which the log was known to be fresh. Before the first, everything is stale and void."""

    def __init__(
        self, grace_seconds: float, store_clock: Callable[[], float], boot_clock: Callable[[], float] = boot_seconds
    ) -> None:
        self._grace = grace_seconds
        self._store_clock = store_clock
        self._boot_clock = boot_clock
        self._at = _NEVER

    @property
    def at(self) -> Moment:
        """The last fresh moment. Keep it before a request, for `is_void` after it."""
        return self._at

    def now(self) -> Moment:
        """Return the current moment. Call it before a request is sent, for `seen` after the answer."""
        return Moment(self._boot_clock(), self._store_clock())

    def seconds_since(self, moment: Moment) -> float:
        """Return the seconds since a moment, by the clock with the larger value."""
        now = self.now()
        return max(now.boot - moment.boot, now.store - moment.store)

    def seen(self, sent: Moment) -> None:
        """Note that the log was fresh when a request was sent. An older moment than the last one changes nothing."""
        self._at = max(self._at, sent)

    @property
    def is_stale(self) -> bool:
        """Older than half the grace: the pointer must be read before an append, and before a record is trusted."""
        return self.seconds_since(self._at) > self._grace * _STALE_AFTER

    def is_void(self, since: Moment) -> bool:
        """Return whether an answer that has just arrived proves nothing, because `since` is too long ago.

        A create that was answered this late can have won a removed number: it must not be acknowledged, and the pointer
        and the log must be read again. A record that was read, or found missing, this late proves nothing either.
        """
        return self.seconds_since(since) > self._grace * _VOID_AFTER

    def lose(self) -> None:
        """Forget the last fresh moment."""
        self._at = _NEVER


# The hard case is a missing answer. Then the record may exist, may exist soon, or never. So the same bytes are sent
# again and the object is read: its nonce tells whose record it is. An attempt that seemed lost can arrive later and
# make the next one fail with 412; that 412 is a success. No caller gets an answer before the outcome is known.


_SHORTEST_RETRY_AFTER_SECONDS = 1.0


async def append(bucket: Bucket, retries: BucketRetries, seq: int, body: bytes, nonce: str) -> Stored | None:
    """Write a record to the log. Returns None if it is there, else the record that another process wrote first.

    Raises `EngineFailure` if it is not in the log and never will be. With the code `outcome_unknown` it may be or may
    still get there: the log must be read before the next append.
    """
    key, name, tries = objects.record(seq), bucket.name, Tries(retries)
    # Whether an attempt may have written the record, or may still do so.
    may_be_there = False
    # Whether the number was taken. It is never tried again: if it cannot be read now, it was removed, and a record with
    # a removed number would never be read.
    is_taken = False
    while True:
        found, failure = None, BucketError(f"record {seq} is taken")
        try:
            if not is_taken:
                await bucket.create(key, body)
                return None
        except BucketError as error:
            failure = error
            # Also on the first attempt a taken number can be our own: a proxy may have sent the request twice.
            is_taken = isinstance(error, Taken)
            may_be_there = may_be_there or is_taken or (isinstance(error, Unclear) and error.was_sent)
        if not isinstance(failure, Refused):
            try:
                found = await bucket.get(key)
            except BucketError as error:
                failure = error
        if found is not None:
            return None if nonce_of(found.body, seq, name) == nonce else found
        if isinstance(failure, Refused) or not await tries.rest(failure.slow_down):
            break
    retry_after = max(_SHORTEST_RETRY_AFTER_SECONDS, tries.rest_seconds)
    if may_be_there:
        raise EngineFailure(
            f"{name} did not confirm log record {seq} ({failure}); it is unknown whether the request took effect; "
            "check before you send it again",
            code="outcome_unknown",
            retry_after=retry_after,
        ) from failure
    text = f"{name} could not store log record {seq}: {failure}; the request had no effect; retry"
    if isinstance(failure, Refused):
        text = f"{name} rejects log record {seq}: {failure}; the request had no effect; check the bucket policy"
    raise EngineFailure(text, retry_after=retry_after) from failure


MOST_AT_ONCE = 32
"""Maximum number of records that are requested together."""


async def read_records(bucket: Bucket, retries: BucketRetries, seq: int, number: int) -> list[Stored]:
    """Return records from `seq` up to the first missing one. Reads are repeated until they are answered."""

    def failure(error: BucketError) -> EngineFailure:
        if isinstance(error, Refused):
            return EngineFailure(f"{bucket.name} rejects a read of the log: {error}")
        return EngineFailure(f"cannot read {bucket.name}: {error}; the request had no effect; retry", retry_after=1)

    keys = [objects.record(one) for one in range(seq, seq + number)]
    found = await asyncio.gather(*(retries.repeat(partial(bucket.get, key), failure) for key in keys))
    return [stored for stored in takewhile(lambda one: one is not None, found) if stored is not None]


# The client also ensures that a removed number is never won again.


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

        def failure(error: BucketError) -> EngineFailure:
            return EngineFailure(f"cannot read {self.name}: {error}; retry", retry_after=1)

        return self._io.run(self._retries.repeat(request, failure))

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
        if header.schema > state.VERSION:
            raise StoreUnusable(
                f"{what} has version {header.schema} of the tables, but this Hark supports up to {state.VERSION}; "
                "upgrade Hark"
            )

    def keep_payloads(self, record: Record) -> None:
        """Cache the payloads, so that pops need not fetch them."""
        self._cache.put_record(record.seq, PAYLOADS_AT, record.payloads)


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
