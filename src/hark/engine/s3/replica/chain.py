"""The log as the thread of the state sees it: functions that wait, instead of requests.

Here is also what makes sure that a removed number is never won again (see `log/sight.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hark.engine.s3.bucket.api import Bucket, BucketError, Conflicting, Stored, Unclear
from hark.engine.s3.bucket.thread import IoThread
from hark.engine.s3.log.append import Appender
from hark.engine.s3.log.meta import Meta
from hark.engine.s3.log.patience import Patience
from hark.engine.s3.log.pointer import Pointer, read_pointer
from hark.engine.s3.log.reading import LogReader
from hark.engine.s3.log.record import PAYLOADS_AT, Record
from hark.engine.s3.log.sight import Sight
from hark.engine.s3.log.snapshot import load_newest
from hark.engine.s3.payloads.cache import PayloadCache
from hark.engine.s3.replica.snapshotting import read_snapshot
from hark.engine.sqlite import schema
from hark.errors import EngineFailure, StoreUnusable

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


class Chain:
    """One store's log."""

    def __init__(
        self,
        bucket: Bucket,
        io: IoThread,
        meta: Meta,
        *,
        appender: Appender,
        reader: LogReader,
        patience: Patience,
        sight: Sight,
        cache: PayloadCache,
    ) -> None:
        self._bucket = bucket
        self._io = io
        self._appender = appender
        self._reader = reader
        self._patience = patience
        self._sight = sight
        self._cache = cache
        self.epoch = meta.epoch

    @property
    def name(self) -> str:
        """What people call the store."""
        return self._bucket.name

    @property
    def is_stale(self) -> bool:
        """Whether the pointer has to be read before anything is appended or trusted."""
        return self._sight.is_stale

    def seconds_since_sight(self) -> float:
        """How old the last sight of the head is."""
        return self._sight.now() - self._sight.at

    def append(self, record: Record, body: bytes) -> Stored | None:
        """Put a record into the log; None: it is there, else what is there instead.

        Raises `EngineFailure` when nobody can say, and `Overslept` when that is so because it took too long.
        """
        since, sent = self._sight.at, self._sight.now()
        stored = self._io.run(self._appender.append(record.seq, body, record.nonce))
        if not self._sight.is_void(since):
            if stored is None:
                self._sight.seen(sent)
            return stored
        # The number may have been removed before it was won, or before somebody else's record was read there.
        self._sight.lose()
        try:
            if self.covers(record.seq - 1):
                return stored
        except EngineFailure as error:
            raise Overslept(self.name, is_ours=stored is None) from error
        raise Overslept(self.name, is_ours=stored is None)

    def read(self, seq: int, number: int) -> list[Stored] | None:
        """The records from `seq` on, so many at most; None: look at the pointer first."""
        since, sent = self._sight.at, self._sight.now()
        if self._sight.is_stale:
            return None
        found = self._io.run(self._reader.read_many(seq, number))
        if self._sight.is_void(since):
            return None
        if len(found) < number:
            self._sight.seen(sent)
        return found

    def covers(self, seq: int) -> bool:
        """Whether all that comes after a record can still be read from the log; if so, that is a sight."""
        sent = self._sight.now()
        found = self._ask(lambda: read_pointer(self._bucket))
        if found is not None and found[0].epoch != self.epoch:
            raise StoreUnusable(
                f"{self.name} was removed and created again while this server used it; restart the server"
            )
        if found is not None and found[0].seq > seq:
            return False
        self._sight.seen(sent)
        return True

    def begin_with_newest(self, begin: Callable[[bytes | None], None]) -> None:
        """Begin with the database of the newest snapshot (None: there is none, the log has everything).

        That is a sight once it has been done: if it can't be, the state is still what it was.
        """
        sent = self._sight.now()
        found = self._ask(lambda: load_newest(self._bucket))
        begin(None if found is None else self._database_in(*found))
        self._sight.seen(sent)

    def _database_in(self, pointer: Pointer, body: bytes) -> bytes:
        header, database = read_snapshot(body, pointer.seq, self.name)
        if header.epoch != self.epoch:
            raise StoreUnusable(
                f"the snapshot of record {header.seq} belongs to another store than {self.name}; restore the original"
            )
        _check_schema(f"the snapshot of record {header.seq}", header.schema)
        return database

    def _ask(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask until there is an answer: reading changes nothing."""

        async def ask() -> T:
            tries = self._patience.begin()
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
        _check_schema(f"log record {record.seq}", record.schema)

    def keep_payloads(self, record: Record) -> None:
        """Those who pop soon need not fetch them."""
        self._cache.put_record(record.seq, PAYLOADS_AT, record.payloads)


def _check_schema(what: str, version: int) -> None:
    if version != schema.CURRENT_VERSION:
        other = "newer" if version > schema.CURRENT_VERSION else "older"
        raise StoreUnusable(
            f"{what} has schema version {version}, but this Hark supports {schema.CURRENT_VERSION}; "
            f"use the {other} Hark that wrote it"
        )
