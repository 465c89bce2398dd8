"""Snapshots, and the removal of what they make superfluous, in a separate thread."""

from __future__ import annotations

import logging
import tempfile
import threading
import zlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

import apsw
import msgspec

from hark.clock import SECOND
from hark.engine.core import schema
from hark.engine.core.store import for_each, scalar
from hark.engine.core.verbs import Call
from hark.engine.s3 import objects, scratch
from hark.engine.s3.bucket import Bucket, BucketError
from hark.engine.s3.bucket_client import IoThread
from hark.engine.s3.flush import Chore
from hark.engine.s3.objects import UNWITNESSED, Change, Meta, Pointer, advance, of_store, publish, read_pointer
from hark.engine.s3.scratch import Scratch
from hark.engine.s3.state import Head
from hark.errors import HarkError, StoreUnusable
from hark.settings.sections import S3

# It is copied by a connection that only reads: it sees one moment, and who writes goes on meanwhile. What moment that
# was, the copy itself says.


KIND = b"HarkSnp\x01"
_COMPRESSION_LEVEL = 1
_CHUNK_BYTES = 1 << 20


class SnapshotHeader(msgspec.Struct, frozen=True):
    """What a snapshot says of itself."""

    seq: int
    """The last record that is in it."""
    time: int
    """That record's time."""
    nonce: str
    """That record's nonce."""
    epoch: str
    schema: int
    """The version of its tables."""
    database_bytes: int


def make_snapshot(connection: apsw.Connection, epoch: str) -> tuple[SnapshotHeader, bytes]:
    """What is committed now, as an object; it takes a while.

    `connection`: one that reads, outside of a transaction, and that nobody else uses meanwhile.
    """
    with tempfile.TemporaryDirectory(prefix="hark-snapshot-") as folder:
        path = Path(folder) / "copy.db"
        _copy(connection, path)
        header = _header_of(path, epoch)
        return header, objects.seal(KIND, _compressed(path), b"", msgspec.json.encode(header))


def read_snapshot(body: bytes, seq: int, store: str = "the store") -> tuple[SnapshotHeader, bytes]:
    """The header and the database file of a snapshot; `seq`, `store`: which one, also for the text of an error.

    Raises `StoreUnusable` when it is damaged or too new.
    """
    try:
        packed, _, head = objects.unseal(KIND, body)
        header = msgspec.json.decode(head, type=SnapshotHeader)
        database = zlib.decompress(packed, bufsize=max(1, header.database_bytes))
    except objects.Newer as error:
        raise StoreUnusable(
            f"snapshot {seq} of {store} has {error}, which this Hark does not support; upgrade Hark"
        ) from None
    except (objects.Damaged, msgspec.MsgspecError, zlib.error) as error:
        raise _damaged(seq, store, str(error)) from None
    if header.seq != seq:
        raise _damaged(seq, store, f"it contains snapshot {header.seq}")
    if len(database) != header.database_bytes:
        raise _damaged(seq, store, "the length of its database is wrong")
    return header, database


def _copy(connection: apsw.Connection, path: Path) -> None:
    # To SQLite also a copy is something written, so `query_only` forbids it.
    was_query_only = connection.pragma("query_only")
    connection.pragma("query_only", False)
    try:
        connection.execute("vacuum into ?", (str(path),))
    finally:
        connection.pragma("query_only", was_query_only)


def _header_of(path: Path, epoch: str) -> SnapshotHeader:
    copy = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    schema.distrust(copy)
    try:
        seq, time, nonce = next(copy.execute("select seq, time, nonce from replica"))
    finally:
        copy.close()
    return SnapshotHeader(seq, time, nonce, epoch, scratch.VERSION, path.stat().st_size)


def _compressed(path: Path) -> bytes:
    packer = zlib.compressobj(_COMPRESSION_LEVEL)
    parts = bytearray()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            parts += packer.compress(chunk)
    parts += packer.flush()
    return bytes(parts)


def _damaged(seq: int, store: str, why: str) -> StoreUnusable:
    return StoreUnusable(
        f"snapshot {seq} of {store} is damaged: {why}; restore the object from a backup or an older version of it; "
        "nothing was changed"
    )


# Of the log, what a snapshot covers goes when that snapshot has been the newest, or older, for a grace: the
# *watermark*.
# Records with payloads ("segments") stay until no message and no dead letter refers to them, and a grace longer.
#
# The order is promise, remove, confirm. It is safe to be killed between any two steps:
#
# 1. *Promise*: the pointer says `collected`, before anything goes. Who is behind learns from it to start again from
# the
# snapshot, and no number at or below it is trusted from then on, whatever is found there.
# 2. *Remove* everything between `removed` and `collected` but segments, and the snapshots before the watermark.
# 3. *Confirm*: the pointer says `removed`. Who dies before that leaves a pointer from which the next one sees what is
# left, and removes it again: to remove what is not there is no error.
#
# Objects first would leave readers with a gap that nobody told them of; the promise alone would leave objects for
# ever.
# Segments follow the same thought: the object goes first, then the row (`forget`). The row is what remembers the
# object.
#
# All of it may be done by several processes at once, and by one whose state is old: what was dead stays dead, because
# a
# reference only moves from a message to a dead letter and back, and a record's references are made with it.


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
    """Segments that nobody refers to and that are not marked yet, oldest first.

    It reads all messages, so ask it of a connection that only reads: what it says stays true.
    """
    return _numbers(
        connection,
        _USED + "select seq from segments where dead_since is null and seq not in used order by seq limit ?",
        limit,
    )


def mark_dead(connection: apsw.Connection, seqs: Sequence[int], now: int) -> None:
    """Note since when nobody refers to some segments; those that are marked already keep their time."""
    connection.execute(
        "update segments set dead_since = ?1 where dead_since is null and seq in (select value from json_each(?2))",
        (now, msgspec.json.encode(seqs).decode()),
    )


def removable(connection: apsw.Connection, now: int, grace: int, up_to_seq: int, limit: int) -> list[int]:
    """Segments whose objects may go: dead for a grace, and covered by a snapshot (`up_to_seq`: the `collected`)."""
    return _numbers(
        connection,
        "select seq from segments where dead_since <= ?1 and seq <= ?2 order by seq limit ?3",
        now - grace,
        up_to_seq,
        limit,
    )


def forget(connection: apsw.Connection, seqs: Sequence[int]) -> None:
    """Remove the rows of segments whose objects are gone."""
    for_each(connection, "delete from segments where seq in (select value from json_each(?1))", seqs)


def segments_between(connection: apsw.Connection, after: int, up_to: int) -> frozenset[int]:
    """The segments in (after, up_to]."""
    return frozenset(_numbers(connection, "select seq from segments where seq > ?1 and seq <= ?2", after, up_to))


# The log: in the pointer ------------------------------------------------------------------------------------


def watermark(pointer: Pointer, now: int, grace: int, applied: int) -> int:
    """Up to where the log may go: the last snapshot that was the newest a grace ago.

    Never beyond what is applied here: which records are segments is not known there. `now` is the object store's time.
    """
    old = (
        kept.seq
        for kept in pointer.snapshots
        if kept.since != UNWITNESSED and kept.since + grace <= now and kept.seq <= applied
    )
    return max(old, default=pointer.collected)


def promise(epoch: str, now: Callable[[], int], grace: int, applied: int) -> Change:
    """The change of the pointer that comes before anything is removed."""

    def change(pointer: Pointer | None) -> Pointer | None:
        if pointer is None:
            return None
        mark = max(pointer.collected, watermark(pointer, now(), grace, applied))
        return msgspec.structs.replace(of_store(pointer, epoch), collected=mark)

    return change


def removable_records(pointer: Pointer, applied: int, segments: Collection[int]) -> list[int]:
    """The records that were promised to go and may not be gone yet; `segments`: those of them that stay.

    None where the state here is behind the promise, see `watermark`.
    """
    if applied < pointer.collected:
        return []
    return [seq for seq in range(pointer.removed + 1, pointer.collected + 1) if seq not in segments]


def removable_snapshots(pointer: Pointer) -> list[int]:
    """The snapshots before the watermark, and those before it that were announced and perhaps never written."""
    known = {*(kept.seq for kept in pointer.snapshots), *pointer.announced}
    return sorted(seq for seq in known if seq < pointer.collected)


def confirm(done: Pointer) -> Change:
    """The change of the pointer that comes after everything was removed that `done` has promised."""

    def change(pointer: Pointer | None) -> Pointer | None:
        if pointer is None:
            return None
        gone = {*removable_snapshots(done)}
        return msgspec.structs.replace(
            of_store(pointer, done.epoch),
            removed=max(pointer.removed, done.collected),
            snapshots=tuple(kept for kept in pointer.snapshots if kept.seq not in gone),
            announced=tuple(seq for seq in pointer.announced if seq not in gone),
        )

    return change


async def collect(
    bucket: Bucket,
    epoch: str,
    *,
    applied: int,
    grace: int,
    now: Callable[[], int],
    segments: Callable[[int, int], Awaitable[Collection[int]]],
) -> int:
    """Do the three steps once; how many objects were removed.

    `applied`: the last record in the state that `segments` looks into, by `segments_between`. `now`, `grace`:
    microseconds, by the clock of the object store. Raises `BucketError` or `EngineFailure`; then the next round goes on
    where this one ended.
    """
    pointer = await advance(bucket, promise(epoch, now, grace, applied), now)
    if pointer is None or applied < pointer.collected:
        return 0
    if pointer.removed == pointer.collected and not removable_snapshots(pointer):
        return 0
    staying = await segments(pointer.removed, pointer.collected)
    keys = [objects.record(seq) for seq in removable_records(pointer, applied, staying)]
    keys += [objects.snapshot(seq) for seq in removable_snapshots(pointer)]
    if keys:
        await bucket.delete(keys)
    await advance(bucket, confirm(pointer), now)
    return len(keys)


def _numbers(connection: apsw.Connection, sql: str, *parameters: int) -> list[int]:
    found: str = scalar(connection, f"select json_group_array(seq) from ({sql})", *parameters)
    return msgspec.json.decode(found, type=list[int])


# Who writes every so many-th record makes a snapshot: then it is always clear who does. If that process dies over it,
# the next one is as good. Where records are large it is made earlier, by whoever notices first.


pass

log = logging.getLogger(__name__)
_SEGMENTS_AT_ONCE = 10_000
_FINISH_SECONDS = 5.0


class Housekeeper:
    """Told of every record by the thread of the state; works in its own."""

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
        """The record from which on bytes are counted."""
        self._wanted = threading.Event()
        self._only_if_large = False
        self._stopping = False
        self.snapshots = 0
        self.removed = 0
        self._thread = threading.Thread(target=self._run, name="hark-s3-keep", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what is being done if that does not take long, and end."""
        self._stopping = True
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join(_FINISH_SECONDS)

    def note(self, head: Head, size: int, own: bool) -> None:
        """A record was applied, or (size 0) the state was made anew."""
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
                if not self._stopping:  # Else its requests were cut off.
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
        """Whether somebody made a snapshot of what was counted here."""
        found = self._io.run(read_pointer(self._bucket))
        if found is None or found[0].seq <= self._since:
            return False
        self._since, self._bytes = found[0].seq, 0
        return True

    def collect(self) -> None:
        """Remove what nobody needs any more: records that snapshots cover, and payloads that nobody refers to."""
        reader = self._scratch.connect_reader()
        try:
            [(applied,)] = reader.execute("select seq from replica")

            async def segments(after: int, up_to: int) -> frozenset[int]:
                return segments_between(reader, after, up_to)

            work = collect(
                self._bucket, epoch=self._epoch, applied=applied, grace=self._grace, now=self._now, segments=segments
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
            self._submit(Chore(None, lambda transaction: _note(transaction.connection, dead, gone, now)))


def _note(connection: apsw.Connection, dead: list[int], gone: list[int], now: int) -> None:
    mark_dead(connection, dead, now)
    forget(connection, gone)
