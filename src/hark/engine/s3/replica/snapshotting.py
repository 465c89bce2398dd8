"""A snapshot: the whole database up to a record, compressed, in one object.

It is copied by a connection that only reads: it sees one moment, and who writes goes on meanwhile. What moment that
was, the copy itself says.
"""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path

import apsw
import msgspec

from hark.engine.s3.log import frame
from hark.errors import StoreUnusable

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
        return header, frame.seal(KIND, _compressed(path), b"", msgspec.json.encode(header))


def read_snapshot(body: bytes, seq: int, store: str = "the store") -> tuple[SnapshotHeader, bytes]:
    """The header and the database file of a snapshot; `seq`, `store`: which one, also for the text of an error.

    Raises `StoreUnusable` when it is damaged or too new.
    """
    try:
        packed, _, head = frame.unseal(KIND, body)
        header = msgspec.json.decode(head, type=SnapshotHeader)
        database = zlib.decompress(packed, bufsize=max(1, header.database_bytes))
    except frame.Newer as error:
        raise StoreUnusable(
            f"snapshot {seq} of {store} has {error}, which this Hark does not support; upgrade Hark"
        ) from None
    except (frame.Damaged, msgspec.MsgspecError, zlib.error) as error:
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
    try:
        seq, time, nonce = next(copy.execute("select seq, time, nonce from replica"))
        schema = copy.pragma("user_version")
    finally:
        copy.close()
    return SnapshotHeader(seq, time, nonce, epoch, schema, path.stat().st_size)


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
