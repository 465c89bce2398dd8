"""Following the log: records of other processes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from hark.engine.core.verbs import Outbox
from hark.engine.hints import HintBook
from hark.engine.s3 import objects, scratch
from hark.engine.s3 import objects as records
from hark.engine.s3.bucket import Bucket, BucketError, Conflicting, Stored, Unclear
from hark.engine.s3.bucket_client import IoThread
from hark.engine.s3.flush import WritePacing
from hark.engine.s3.housekeeping import read_snapshot
from hark.engine.s3.log import Appender, LogFreshness, LogReader, more_at_once
from hark.engine.s3.objects import PAYLOADS_AT, BucketRetries, Meta, Pointer, Record, load_newest, read_pointer
from hark.engine.s3.payloads import PayloadCache
from hark.engine.s3.state import Change, Head, LocalState
from hark.errors import EngineFailure, StoreUnusable
from hark.polling import Poller, PollingStrategy

# A process that only pushes learns nothing from the records of others, and polls for them as seldom as it may.


LASTS_SECONDS = 120.0
"""Longer than a consumer waits before it asks again."""


class Interest:
    """Noted by those who ask and will ask again. For any thread: it is one number."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._noted = float("-inf")

    def note(self) -> None:
        """Somebody waits."""
        self._noted = self._monotonic()

    def is_there(self) -> bool:
        """Whether somebody has waited lately."""
        return self._monotonic() - self._noted < LASTS_SECONDS


# Here is also what makes sure that a removed number is never won again (see `log.py`).


T = TypeVar("T")


class Overslept(EngineFailure):
    """A request took so long that the log may have been collected beyond it: the pointer has to be read first.

    `is_ours`: our record was stored, in time or where one had been removed. That is not to be told apart any more, so
    it can neither be acknowledged nor tried again.
    """

    def __init__(self, name: str, *, is_ours: bool) -> None:
        super().__init__(
            f"{name}: this server was suspended too long during a commit, so it is unknown whether the request took "
            "effect; check before you send it again",
            code="outcome_unknown",
        )
        self.is_ours = is_ours


class LogClient:
    """One store's log."""

    def __init__(
        self,
        bucket: Bucket,
        io: IoThread,
        meta: Meta,
        *,
        appender: Appender,
        reader: LogReader,
        retries: BucketRetries,
        freshness: LogFreshness,
        cache: PayloadCache,
    ) -> None:
        self._bucket = bucket
        self._io = io
        self._appender = appender
        self._reader = reader
        self._retries = retries
        self._freshness = freshness
        self._cache = cache
        self.epoch = meta.epoch

    @property
    def name(self) -> str:
        """What people call the store."""
        return self._bucket.name

    @property
    def is_stale(self) -> bool:
        """Whether the pointer has to be read before anything is appended or trusted."""
        return self._freshness.is_stale

    def seconds_since_seen(self) -> float:
        """How old the last sight of the head is."""
        return self._freshness.seconds_since(self._freshness.at)

    def append(self, record: Record, body: bytes) -> Stored | None:
        """Put a record into the log; None: it is there, else what is there instead.

        Raises `EngineFailure` when nobody can say, and `Overslept` when that is so because it took too long.
        """
        since, sent = self._freshness.at, self._freshness.now()
        stored = self._io.run(self._appender.append(record.seq, body, record.nonce))
        if not self._freshness.is_void(since):
            if stored is None:
                self._freshness.seen(sent)
            return stored
        # The number may have been removed before it was won, or before somebody else's record was read there.
        self._freshness.lose()
        try:
            if self.covers(record.seq - 1):
                return stored
        except EngineFailure as error:
            raise Overslept(self.name, is_ours=stored is None) from error
        raise Overslept(self.name, is_ours=stored is None)

    def read(self, seq: int, number: int) -> list[Stored] | None:
        """The records from `seq` on, so many at most; None: look at the pointer first."""
        since, sent = self._freshness.at, self._freshness.now()
        if self._freshness.is_stale:
            return None
        found = self._io.run(self._reader.read_many(seq, number))
        if self._freshness.is_void(since):
            return None
        if len(found) < number:
            self._freshness.seen(sent)
        return found

    def covers(self, seq: int) -> bool:
        """Whether all that comes after a record can still be read from the log; if so, that is a sight."""
        sent = self._freshness.now()
        found = self._ask(lambda: read_pointer(self._bucket))
        if found is not None and found[0].epoch != self.epoch:
            raise StoreUnusable(
                f"{self.name} was removed and created again while this server used it; restart the server"
            )
        if found is not None and found[0].seq > seq:
            return False
        self._freshness.seen(sent)
        return True

    def begin_with_newest(self, begin: Callable[[bytes | None], None]) -> None:
        """Begin with the database of the newest snapshot (None: there is none, the log has everything).

        That is a sight once it has been done: if it can't be, the state is still what it was.
        """
        sent = self._freshness.now()
        found = self._ask(lambda: load_newest(self._bucket))
        begin(None if found is None else self._database_in(*found))
        self._freshness.seen(sent)

    def _database_in(self, pointer: Pointer, body: bytes) -> bytes:
        header, database = read_snapshot(body, pointer.seq, self.name)
        if header.epoch != self.epoch:
            raise StoreUnusable(
                f"the snapshot of record {header.seq} belongs to another store than {self.name}; restore the original"
            )
        _check_version(f"the snapshot of record {header.seq}", header.schema)
        return database

    def _ask(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask until there is an answer: reading changes nothing."""

        async def ask() -> T:
            tries = self._retries.begin()
            while True:
                try:
                    return await request()
                except BucketError as error:
                    slow = isinstance(error, Unclear) and error.slow_down
                    if not isinstance(error, (Unclear, Conflicting)) or not await tries.rest(slow):
                        raise EngineFailure(f"cannot read {self.name}: {error}; retry", retry_after=1) from error

        return self._io.run(ask())

    def check(self, record: Record, previous: str) -> None:
        """Raise unless a record is the one that comes next in this store."""
        if record.epoch != self.epoch:
            raise StoreUnusable(
                f"log record {record.seq} belongs to another store than {self.name}; restore the original"
            )
        if record.previous != previous:
            raise StoreUnusable(
                f"log record {record.seq} of {self.name} does not follow the record before it; restore the original"
            )
        _check_version(f"log record {record.seq}", record.schema)

    def keep_payloads(self, record: Record) -> None:
        """Those who pop soon need not fetch them."""
        self._cache.put_record(record.seq, PAYLOADS_AT, record.payloads)


def _check_version(what: str, version: int) -> None:
    if version > scratch.VERSION:
        raise StoreUnusable(
            f"{what} has version {version} of the tables, but this Hark supports up to {scratch.VERSION}; upgrade Hark"
        )


log = logging.getLogger(__name__)
_FEW = 2
"""So many records are asked for at once where there is likely one."""
_MUCH_BYTES = 16 << 20
"""Where so much came at once, no more records are asked for at once."""

OnHead = Callable[[Head, int, bool], None]
"""Told of each record that was applied: where the state is, how large it was, and whether it was written here."""


class Follower:
    """Takes the state to the end of the log. It belongs to the thread of the state."""

    def __init__(
        self, log_client: LogClient, local: LocalState, outbox: Outbox, pacing: WritePacing, on_head: OnHead
    ) -> None:
        self._log_client = log_client
        self._local = local
        self._outbox = outbox
        self._pacing = pacing
        self._on_head = on_head
        self.in_doubt = False
        """The last record may be in the log or not: the log has to be read before the next."""

    def make_sure(self) -> None:
        """Before anything is appended: know where the head is, and that no number there was removed."""
        if self._log_client.is_stale:
            self.check_pointer()
        if self.in_doubt or self._pacing.is_likely_behind(time.monotonic(), self._log_client.seconds_since_seen()):
            self.read_on(_FEW)
            self.in_doubt = False

    def check_pointer(self) -> None:
        """Start again from the newest snapshot if the log up to here may be gone."""
        if not self._log_client.covers(self._local.head.seq):
            self.restart()

    def restart(self) -> None:
        """Throw the state away and begin with the newest snapshot, or with nothing."""
        again = self._local.head.seq > 0
        self._log_client.begin_with_newest(self._local.open)
        if again:
            log.info(
                "%s: reloaded the state from the snapshot of record %d", self._log_client.name, self._local.head.seq
            )
        self.notify_all()
        self._on_head(self._local.head, 0, False)

    def notify_all(self) -> None:
        """Whatever was known may be otherwise: everybody looks again."""
        hints = HintBook()
        for queue in self._local.state.queues:
            hints.add(queue, None, None)
        self._outbox.post([], hints.hints())

    def read_on(self, number: int = 1) -> bool:
        """Apply all that is in the log, asking for so many at once; whether there was something."""
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
                next_number = 1  # They have to fit into memory together.
            number, next_number = next_number, more_at_once(next_number)

    def apply(self, found: Sequence[Stored]) -> None:
        """Take over the records that come next."""
        for stored in found:
            head = self._local.head
            record = records.decode(stored.body, head.seq + 1, self._log_client.name)
            self._log_client.check(record, head.nonce)
            change: Change = self._local.apply(record)
            self._log_client.keep_payloads(record)
            self._outbox.post([], change.hints, change.keys)
            self._pacing.saw_other(time.monotonic())
            self._on_head(self._local.head, len(stored.body), False)


# How often is the polling strategy's business. An append of our own says as much as a look, so a process that writes
# does not look; and each while the pointer is read instead, in case that the log was collected up to here.


class Tail:
    """Belongs to the event loop of the requests; `head` and `poke` are for it too."""

    def __init__(
        self,
        bucket: Bucket,
        poller: Poller,
        freshness: LogFreshness,
        *,
        found: Callable[[int, Stored], None],
        check: Callable[[], None],
        check_seconds: float,
        has_interest: Callable[[], bool],
    ) -> None:
        self._bucket = bucket
        self._poller = poller
        self._freshness = freshness
        self._found = found
        self._check = check
        self._check_seconds = check_seconds
        self._has_interest = has_interest
        self._checked = freshness.now()
        self._seq = 0
        self._moved = asyncio.Event()
        self._written = False
        """Something was appended here since the last look."""
        self._poked = False
        """Somebody said that there is something new since the last look was begun."""

    def head(self, seq: int, own: bool) -> None:
        """The state has come to a record; whether we wrote it."""
        self._seq = seq
        self._moved.set()
        self._written = self._written or own

    def missed(self) -> None:
        """The state could not take over what was found: it has to be found again."""
        self._moved.set()

    def poke(self) -> None:
        """Somebody says that there is something new."""
        self._poked = True
        self._poller.wake()

    def follow(self, strategy: PollingStrategy) -> None:
        """Rest as another strategy says from now on."""
        self._poller.follow(strategy)

    def stop(self) -> None:
        """End `run`, also where it waits for the state."""
        self._poller.stop()
        self._moved.set()

    async def run(self) -> None:
        """Look until `stop`."""
        while not self._poller.stopped:
            if self._written and not self._poked:
                self._written = False  # Who wrote has seen the head.
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
            self._poller.failed(1.0 if isinstance(error, Unclear) and error.slow_down else None)
            return
        except Exception:
            # Polling must continue after any error, or this process would miss the records of all others.
            log.exception("%s: cannot read the log because of a bug; retrying, please report it", self._bucket.name)
            self._poller.failed()
            return
        # Who waits for nothing is in no hurry for more of it.
        self._poller.saw(found and self._has_interest())
        if found and not self._poked:
            self._poller.skip()  # It has read up to the end: there is nothing more to be had at once.

    async def _look(self) -> bool:
        """Read to the end of the log; whether there was a record that the state does not have."""
        found = False
        while not self._poller.stopped:
            sent = self._freshness.now()
            if self._freshness.is_stale or self._freshness.seconds_since(self._checked) > self._check_seconds:
                self._checked = sent
                self._check()
                break
            seq, since = self._seq + 1, self._freshness.at
            self._moved.clear()
            stored = await self._bucket.get(objects.record(seq))
            if stored is None:
                if not self._freshness.is_void(since) and self._seq + 1 == seq:
                    self._freshness.seen(sent)
                break
            found = True
            self._found(seq, stored)
            if self._seq < seq:
                await self._moved.wait()
            if self._seq < seq:
                break
        return found
