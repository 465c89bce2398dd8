"""A log record: which rows a batch of verbs changed, and the payloads that it brought.

Its object is a `frame`: the payloads as they are, so that each can be fetched by range, then the patchset, compressed
where that makes it smaller, then a header in JSON.
"""

from __future__ import annotations

import zlib

import msgspec

from hark.engine.s3.log import frame
from hark.errors import StoreUnusable

KIND = b"HarkLog\x01"
PAYLOADS_AT = frame.FIRST_AT
"""The offset of the first payload byte in the object: a row can say where its payload is before there is a record."""
_COMPRESSION_LEVEL = 1


class Record(msgspec.Struct, frozen=True):
    """What happened at one place of the log."""

    seq: int
    epoch: str
    """Which store it belongs to."""
    time: int
    """Microseconds, by the clock of the object store; never less than the record before."""
    writer: str
    nonce: str
    """Told by nobody else: whose record this is, is seen by it."""
    previous: str
    """The nonce of the record before; empty in the first."""
    schema: int
    """The version of the tables that the changes are for."""
    changes: bytes
    """An SQLite patchset."""
    payloads: bytes


class _Header(msgspec.Struct, frozen=True):
    seq: int
    epoch: str
    time: int
    writer: str
    nonce: str
    previous: str
    schema: int
    plain_bytes: int
    """How long the changes are when they are not compressed."""
    compressed: bool


def encode(record: Record) -> bytes:
    """The object of a record."""
    compressed = zlib.compress(record.changes, _COMPRESSION_LEVEL)
    smaller = len(compressed) < len(record.changes)
    header = _Header(
        seq=record.seq,
        epoch=record.epoch,
        time=record.time,
        writer=record.writer,
        nonce=record.nonce,
        previous=record.previous,
        schema=record.schema,
        plain_bytes=len(record.changes),
        compressed=smaller,
    )
    changes = compressed if smaller else record.changes
    return frame.seal(KIND, record.payloads, changes, msgspec.json.encode(header))


def decode(body: bytes, seq: int, store: str = "the store") -> Record:
    """The record of an object; `store`: the bucket's name, for the text of the `StoreUnusable` that it may raise."""
    payloads, changes, header = _open(body, seq, store)
    try:
        plain = zlib.decompress(changes, bufsize=max(1, header.plain_bytes)) if header.compressed else bytes(changes)
    except zlib.error as error:
        raise _damaged(seq, store, "its changes cannot be decompressed") from error
    if len(plain) != header.plain_bytes:
        raise _damaged(seq, store, "the length of its changes is wrong")
    return Record(
        seq=header.seq,
        epoch=header.epoch,
        time=header.time,
        writer=header.writer,
        nonce=header.nonce,
        previous=header.previous,
        schema=header.schema,
        changes=plain,
        payloads=bytes(payloads),
    )


def nonce_of(body: bytes, seq: int, store: str = "the store") -> str:
    """Whose record an object is, without unpacking it; raises `StoreUnusable` as `decode` does."""
    return _open(body, seq, store)[2].nonce


def _open(body: bytes, seq: int, store: str) -> tuple[memoryview, memoryview, _Header]:
    try:
        payloads, changes, head = frame.unseal(KIND, body)
        header = msgspec.json.decode(head, type=_Header)
    except frame.Newer as error:
        raise StoreUnusable(
            f"log record {seq} of {store} has {error}, which this Hark does not support; upgrade Hark"
        ) from None
    except frame.Damaged as error:
        raise _damaged(seq, store, str(error)) from None
    except msgspec.MsgspecError as error:
        raise _damaged(seq, store, f"its header is wrong: {error}") from None
    if header.seq != seq:
        raise _damaged(seq, store, f"it contains record {header.seq}")
    return payloads, changes, header


def _damaged(seq: int, store: str, why: str) -> StoreUnusable:
    return StoreUnusable(
        f"log record {seq} of {store} is damaged: {why}; restore the object from a backup or an older version of it; "
        "nothing was changed"
    )
