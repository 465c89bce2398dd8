"""Snapshots, and the removal of what they make superfluous, in a separate thread."""

from __future__ import annotations

import logging
import tempfile
import threading
import zlib
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import apsw
import msgspec

from hark.clock import SECOND
from hark.engine.core import schema
from hark.engine.core.store import for_each, scalar
from hark.engine.core.transaction import WriteTransaction
from hark.engine.core.verbs import Call
from hark.engine.s3 import objects, state
from hark.engine.s3.bucket import Bucket, BucketError
from hark.engine.s3.bucket_client import IoThread
from hark.engine.s3.flush import Chore
from hark.engine.s3.objects import UNWITNESSED, Meta, Pointer, advance, publish, read_pointer
from hark.engine.s3.state import Head, Scratch
from hark.errors import HarkError
from hark.settings.sections import S3

# A connection that only reads makes the copy: it sees one moment, and writes go on meanwhile. The copy itself contains
# that moment.

KIND = b"HarkSnp\x01"
_COMPRESSION_LEVEL = 1
_CHUNK_BYTES = 1 << 20


class SnapshotHeader(objects.Header, frozen=True):
    """The header of a snapshot."""

    database_bytes: int


def make_snapshot(connection: apsw.Connection, epoch: str) -> tuple[SnapshotHeader, bytes]:
    """Return what is committed now, as an object. This takes long.

    `connection` reads, is outside of a transaction, and is not used otherwise meanwhile.
    """
    with tempfile.TemporaryDirectory(prefix="hark-snapshot-") as folder:
        path = Path(folder) / "copy.db"
        # For SQLite a copy is a write, so `query_only` forbids it.
        was_query_only = connection.pragma("query_only")
        connection.pragma("query_only", False)
        try:
            connection.execute("vacuum into ?", (str(path),))
        finally:
            connection.pragma("query_only", was_query_only)
        copy = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        schema.distrust(copy)
        try:
            seq, time, nonce = next(copy.execute("select seq, time, nonce from replica"))
        finally:
            copy.close()
        header = SnapshotHeader(seq, epoch, time, nonce, state.VERSION, path.stat().st_size)
        return header, objects.seal(KIND, _compressed(path), b"", msgspec.json.encode(header))


def read_snapshot(body: bytes, seq: int, store: str = "the store") -> tuple[SnapshotHeader, bytes]:
    """Return the header and the database file of a snapshot. `seq` and `store` name it in errors.

    Raises `StoreUnusable` if it is damaged or too new.
    """
    packed, _, header = objects.open_object(KIND, body, SnapshotHeader, "snapshot", seq, store)
    try:
        database = zlib.decompress(packed, bufsize=max(1, header.database_bytes))
    except zlib.error as error:
        raise objects.damaged("snapshot", seq, store, str(error)) from None
    if len(database) != header.database_bytes:
        raise objects.damaged("snapshot", seq, store, "the length of its database is wrong")
    return header, database


def _compressed(path: Path) -> bytes:
    packer = zlib.compressobj(_COMPRESSION_LEVEL)
    parts = bytearray()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            parts += packer.compress(chunk)
    parts += packer.flush()
    return bytes(parts)


# A record that a snapshot covers is removed once that snapshot has been the newest, or older, for the grace: this is
# the *watermark*. Records with payloads ("segments") stay until no message and no dead letter refers to them, and for
# another grace.
#
# The order is promise, remove, confirm. The process can be killed between any two steps:
#
# 1. *Promise*: the pointer gets `collected`, before anything is removed. A process that is behind learns from it to
#    start again from the snapshot. No process trusts a number at or below it from then on, whatever object it finds.
# 2. *Remove* everything between `removed` and `collected` except segments, and the snapshots before the watermark.
# 3. *Confirm*: the pointer gets `removed`. If a process dies before, the next one sees in the pointer what is left and
#    removes it again. To remove a missing object is no error.
#
# To remove objects first would leave readers with an unexplained gap; a promise alone would leave the objects. Segments
# follow the same order: first the object, then the row (`forget`), because the row remembers the object.
#
# Several processes can do this at once, also one whose state is old: dead segments stay dead, because a reference only
# moves from a message to a dead letter and back, and the references to a record are created with it.


# In one step of SQLite, however many messages there are: see hark.engine.core.store.
_USED = """
with used (seq) as materialized (
    select extra ->> '$.r[0]' from messages where extra ->> '$.r[0]' is not null
    union
    select extra ->> '$.r[0]' from dead_letters where extra ->> '$.r[0]' is not null
)
"""


# Segments: in the state, so that all processes know them ----------------------------------------------------


def unreferenced(connection: apsw.Connection, limit: int) -> list[int]:
    """Return unreferenced segments that are not marked yet, oldest first.

    This reads all messages, so use a connection that only reads: the result stays true.
    """
    sql = "select seq from segments where dead_since is null and seq not in used order by seq limit ?"
    return _numbers(connection, _USED + sql, limit)


def mark_dead(connection: apsw.Connection, seqs: Sequence[int], now: int) -> None:
    """Mark segments as unreferenced from now on. Marked ones keep their time."""
    connection.execute(
        "update segments set dead_since = ?1 where dead_since is null and seq in (select value from json_each(?2))",
        (now, msgspec.json.encode(seqs).decode()),
    )


def removable(connection: apsw.Connection, now: int, grace: int, up_to_seq: int, limit: int) -> list[int]:
    """Return segments whose objects can be removed: dead for the grace, and at or below `collected` (`up_to_seq`)."""
    sql = "select seq from segments where dead_since <= ?1 and seq <= ?2 order by seq limit ?3"
    return _numbers(connection, sql, now - grace, up_to_seq, limit)


def forget(connection: apsw.Connection, seqs: Sequence[int]) -> None:
    """Delete the rows of segments whose objects were removed."""
    for_each(connection, "delete from segments where seq in (select value from json_each(?1))", seqs)


def segments_between(connection: apsw.Connection, after: int, up_to: int) -> frozenset[int]:
    """Return the segments in (after, up_to]."""
    return frozenset(_numbers(connection, "select seq from segments where seq > ?1 and seq <= ?2", after, up_to))


# The log: in the pointer ------------------------------------------------------------------------------------


def watermark(pointer: Pointer, now: int, grace: int, applied: int) -> int:
    """Return up to where the log can be removed: the last snapshot that was the newest one grace ago.

    Never beyond the last applied record, because segments beyond it are unknown. `now` is the time of the object store.
    """
    old = (
        kept.seq
        for kept in pointer.snapshots
        if kept.since != UNWITNESSED and kept.since + grace <= now and kept.seq <= applied
    )
    return max(old, default=pointer.collected)


def promised(pointer: Pointer, now: int, grace: int, applied: int) -> Pointer:
    """The change of the pointer before anything is removed."""
    mark = max(pointer.collected, watermark(pointer, now, grace, applied))
    return msgspec.structs.replace(pointer, collected=mark)


def removable_records(pointer: Pointer, applied: int, segments: Collection[int]) -> list[int]:
    """Return the promised records that may not be removed yet, except `segments`.

    Empty if this state is behind the promise, see `watermark`.
    """
    if applied < pointer.collected:
        return []
    return [seq for seq in range(pointer.removed + 1, pointer.collected + 1) if seq not in segments]


def removable_snapshots(pointer: Pointer) -> list[int]:
    """Return the snapshots before the watermark, including announced ones that were perhaps never written."""
    known = {*(kept.seq for kept in pointer.snapshots), *pointer.announced}
    return sorted(seq for seq in known if seq < pointer.collected)


def confirmed(pointer: Pointer, done: Pointer) -> Pointer:
    """The change of the pointer after everything that `done` promised was removed."""
    if pointer.collected < done.collected:  # It was removed meanwhile.
        return pointer
    gone = {*removable_snapshots(done)}
    return msgspec.structs.replace(
        pointer,
        removed=max(pointer.removed, done.collected),
        snapshots=tuple(kept for kept in pointer.snapshots if kept.seq not in gone),
        announced=tuple(seq for seq in pointer.announced if seq not in gone),
    )


async def collect(
    bucket: Bucket,
    epoch: str,
    *,
    applied: int,
    grace: int,
    now: Callable[[], int],
    segments: Callable[[int, int], Collection[int]],
) -> int:
    """Run the three steps once; return the number of removed objects.

    `applied` is the last record of the state that `segments` reads, with `segments_between`. `now` and `grace` are
    microseconds by the clock of the object store. After a `BucketError` or `EngineFailure` the next round continues.
    """
    done = await advance(bucket, epoch, lambda pointer: promised(pointer, now(), grace, applied), now)
    if applied < done.collected:
        return 0
    if done.removed == done.collected and not removable_snapshots(done):
        return 0
    staying = segments(done.removed, done.collected)
    keys = [objects.record(seq) for seq in removable_records(done, applied, staying)]
    keys += [objects.snapshot(seq) for seq in removable_snapshots(done)]
    if keys:
        await bucket.delete(keys)
    await advance(bucket, epoch, lambda pointer: confirmed(pointer, done), now)
    return len(keys)


def _numbers(connection: apsw.Connection, sql: str, *parameters: int) -> list[int]:
    found: str = scalar(connection, f"select json_group_array(seq) from ({sql})", *parameters)
    return msgspec.json.decode(found, type=list[int])


# The process that writes every `snapshot_records`-th record makes a snapshot, so one process is always responsible. If
# it dies meanwhile, the next one makes it. If records are large, the first process to notice makes it earlier.


log = logging.getLogger(__name__)
_SEGMENTS_AT_ONCE = 10_000
_FINISH_SECONDS = 5.0


class Housekeeper:
    """Makes snapshots and removes objects, in its own thread. The state thread reports every record to it."""

    def __init__(
        self,
        bucket: Bucket,
        io: IoThread,
        scratch: Scratch,
        settings: S3,
        *,
        meta: Meta,
        now: Callable[[], int],
        submit: Callable[[Call], None],
    ) -> None:
        self._bucket = bucket
        self._io = io
        self._scratch = scratch
        self._settings = settings
        self._epoch = meta.epoch
        self._grace = meta.grace_seconds * SECOND
        self._now = now
        self._submit = submit
        self._bytes = 0
        self._since = 0
        """The record after which bytes are counted."""
        self._wanted = threading.Event()
        self._only_if_large = False
        self._stopping = False
        self.snapshots = 0
        self.removed = 0
        self._thread = threading.Thread(target=self._run, name="hark-s3-keep", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, after its current work unless that takes long."""
        self._stopping = True
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join(_FINISH_SECONDS)

    def note(self, head: Head, size: int, own: bool) -> None:
        """Note an applied record, or (size 0) a restart of the state."""
        if not size:
            self._since, self._bytes = head.seq, 0
            return
        self._bytes += size
        regular = head.seq % self._settings.snapshot_records == 0
        if own and (regular or self._bytes >= self._settings.snapshot_bytes):
            self._only_if_large = not regular
            self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stopping:
                return
            try:
                self._keep_house()
            except (BucketError, HarkError) as error:
                log.warning("%s: cannot write a snapshot; retrying with a later record: %s", self._bucket.name, error)
            except Exception:
                if not self._stopping:  # Otherwise its requests were interrupted.
                    log.exception("%s: cannot write a snapshot because of a bug; please report it", self._bucket.name)

    def _keep_house(self) -> None:
        if self._only_if_large and self._is_covered():
            return
        reader = self._scratch.connect_reader()
        try:
            header, body = make_snapshot(reader, self._epoch)
            self._since, self._bytes = header.seq, 0
            if self._io.run(publish(self._bucket, self._epoch, header.seq, body, self._now)):
                self.snapshots += 1
                log.info("%s: wrote the snapshot of record %d (%d bytes)", self._bucket.name, header.seq, len(body))
        finally:
            reader.close()
        self.collect()

    def _is_covered(self) -> bool:
        """Return whether another process has made a snapshot of the counted records."""
        found = self._io.run(read_pointer(self._bucket))
        if found is None or found[0].seq <= self._since:
            return False
        self._since, self._bytes = found[0].seq, 0
        return True

    def collect(self) -> None:
        """Remove unneeded objects: records that snapshots cover, and unreferenced payloads."""
        reader = self._scratch.connect_reader()
        try:
            [(applied,)] = reader.execute("select seq from replica")
            work = collect(
                self._bucket,
                epoch=self._epoch,
                applied=applied,
                grace=self._grace,
                now=self._now,
                segments=partial(segments_between, reader),
            )
            self.removed += self._io.run(work)
            found = self._io.run(read_pointer(self._bucket))
            collected = 0 if found is None else found[0].collected
            now = self._now()
            dead = unreferenced(reader, _SEGMENTS_AT_ONCE)
            gone = removable(reader, now, self._grace, collected, _SEGMENTS_AT_ONCE)
        finally:
            reader.close()
        if gone:
            self._io.run(self._bucket.delete([objects.record(seq) for seq in gone]))
            self.removed += len(gone)
        if dead or gone:

            def note(transaction: WriteTransaction) -> None:
                mark_dead(transaction.connection, dead, now)
                forget(transaction.connection, gone)

            self._submit(Chore(None, note))
