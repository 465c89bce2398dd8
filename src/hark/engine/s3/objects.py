"""The objects of a store: log records, snapshots, its description, and the pointer to the newest snapshot."""

from __future__ import annotations

import asyncio
import math
import random as random_module
import secrets
import struct
import time
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import msgspec

from hark.engine.s3.bucket import Bucket, BucketError, Refused
from hark.errors import EngineFailure, HarkError, StoreUnusable

T = TypeVar("T")

META = "meta.json"
POINTER = "snap/latest"


def record(seq: int) -> str:
    """Return the key of a log record."""
    return f"log/{seq:020d}"


def snapshot(seq: int) -> str:
    """Return the key of the snapshot up to a record."""
    return f"snap/{seq:020d}"


# kind (8 bytes) | first section | second section | header | lengths, crc32 of all before it, kind again
#
# The first section always begins at `FIRST_AT`, so the writer knows the offset of a part before the rest is known. The
# last byte of the kind is the version of the format.


FIRST_AT = 8
_LENGTHS = struct.Struct("<QQI")
_PROOF = struct.Struct("<I8s")
_FOOTER_BYTES = _LENGTHS.size + _PROOF.size


class Damaged(Exception):
    """The object is damaged; the text says how."""


class Newer(Exception):
    """The object has a format of a newer Hark."""


def seal(kind: bytes, first: bytes, second: bytes, header: bytes) -> bytes:
    """Return the bytes of an object."""
    before = b"".join((kind, first, second, header, _LENGTHS.pack(len(first), len(second), len(header))))
    return before + _PROOF.pack(zlib.crc32(before), kind)


def unseal(kind: bytes, body: bytes) -> tuple[memoryview, memoryview, memoryview]:
    """Return the first section, the second and the header; raises `Damaged` or `Newer`."""
    _check_kind(kind, body[:FIRST_AT])
    if len(body) < FIRST_AT + _FOOTER_BYTES:
        raise Damaged("it is cut off")
    view = memoryview(body)
    checksum, kind_again = _PROOF.unpack(view[-_PROOF.size :])
    if kind_again != kind:
        raise Damaged("it is cut off")
    if zlib.crc32(view[: -_PROOF.size]) != checksum:
        raise Damaged("its checksum is wrong")
    first, second, header = _LENGTHS.unpack(view[-_FOOTER_BYTES : -_PROOF.size])
    if FIRST_AT + first + second + header + _FOOTER_BYTES != len(body):
        raise Damaged("its lengths are wrong")
    second_at = FIRST_AT + first
    header_at = second_at + second
    return view[FIRST_AT:second_at], view[second_at:header_at], view[header_at : header_at + header]


def _check_kind(kind: bytes, found: bytes) -> None:
    if found == kind:
        return
    if len(found) == FIRST_AT and found[:-1] == kind[:-1] and found[-1] > kind[-1]:
        raise Newer(f"format {found[-1]}")
    raise Damaged("its first bytes are wrong")


class Header(msgspec.Struct, frozen=True):
    """The fields that the headers of records and snapshots have in common."""

    seq: int
    """The record, or the last one in the snapshot."""
    epoch: str
    """The store to which it belongs."""
    time: int
    """Of the record, in microseconds by the clock of the object store; never less than that of the record before."""
    nonce: str
    """Of the record: random, so that its writer recognises it."""
    schema: int
    """Version of the tables."""


H = TypeVar("H", bound=Header)


def open_object(
    kind: bytes, body: bytes, header: type[H], what: str, seq: int, store: str
) -> tuple[memoryview, memoryview, H]:
    """Return the sections and the header of an object. Raises `StoreUnusable` if it is damaged, too new or another."""
    try:
        first, second, head = unseal(kind, body)
        found = msgspec.json.decode(head, type=header)
    except Newer as error:
        text = f"{what} {seq} of {store} has {error}, which this Hark does not support; upgrade Hark"
        raise StoreUnusable(text) from None
    except Damaged as error:
        raise damaged(what, seq, store, str(error)) from None
    except msgspec.MsgspecError as error:
        raise damaged(what, seq, store, f"its header is wrong: {error}") from None
    if found.seq != seq:
        raise damaged(what, seq, store, f"it contains {what} {found.seq}")
    return first, second, found


def damaged(what: str, seq: int, store: str, why: str) -> StoreUnusable:
    """The error for a damaged object."""
    return StoreUnusable(
        f"{what} {seq} of {store} is damaged: {why}; restore the object from a backup or an older version of it; "
        "nothing was changed"
    )


# The object of a record: the payloads as they are, so that each can be fetched by range, then the patchset, compressed
# where that makes it smaller, then a header in JSON.


KIND = b"HarkLog\x01"
_WHAT = "log record"
PAYLOADS_AT = FIRST_AT
"""Offset of the first payload byte in the object. Rows refer to payloads before the record exists."""
_COMPRESSION_LEVEL = 1


class _Written(Header, frozen=True):
    writer: str
    previous: str
    """The nonce of the previous record; empty in the first."""


class Record(_Written, frozen=True):
    """One record of the log."""

    changes: bytes
    """An SQLite patchset."""
    payloads: bytes


class _RecordHeader(_Written, frozen=True):
    plain_bytes: int
    """Size of the uncompressed changes."""
    compressed: bool


def encode(record: Record) -> bytes:
    """Return the object of a record."""
    compressed = zlib.compress(record.changes, _COMPRESSION_LEVEL)
    smaller = len(compressed) < len(record.changes)
    header = _RecordHeader(*_fields(record, len(record.changes), smaller))
    return seal(KIND, record.payloads, compressed if smaller else record.changes, msgspec.json.encode(header))


def decode(body: bytes, seq: int, store: str = "the store") -> Record:
    """Return the record of an object; raises `StoreUnusable`, whose text names the store."""
    payloads, changes, header = open_object(KIND, body, _RecordHeader, _WHAT, seq, store)
    try:
        plain = zlib.decompress(changes, bufsize=max(1, header.plain_bytes)) if header.compressed else bytes(changes)
    except zlib.error as error:
        raise damaged(_WHAT, seq, store, "its changes cannot be decompressed") from error
    if len(plain) != header.plain_bytes:
        raise damaged(_WHAT, seq, store, "the length of its changes is wrong")
    return Record(*_fields(header, plain, bytes(payloads)))


def nonce_of(body: bytes, seq: int, store: str = "the store") -> str:
    """Return the nonce of an object without decompressing it; raises `StoreUnusable`."""
    return open_object(KIND, body, _RecordHeader, _WHAT, seq, store)[2].nonce


def _fields(written: _Written, *rest: object) -> tuple[Any, ...]:
    """The common fields of a record and its header, and those that only one of them has."""
    return (*msgspec.structs.astuple(written)[: len(_Written.__struct_fields__)], *rest)


Pause = Callable[[float], Awaitable[None]]
"""Waits for a number of seconds."""

# Stores count requests per second, so a retry within the same second makes throttling worse.
FIRST_SLOW_REST_SECONDS = 1.0
DEFAULT_SECONDS = 30.0
AWAY_AFTER_SECONDS = 1.0
"""A bucket that has not completed an operation for this time counts as unavailable (rule 29)."""


@dataclass(kw_only=True)
class BucketRetries:
    """How long, and with which pauses, an operation of several requests is retried."""

    seconds: float = DEFAULT_SECONDS
    attempts: float = math.inf
    first_rest: float = 0.05
    longest_rest: float = 2.0
    longest_slow_rest: float = 10.0
    """After an answer that asks for fewer requests."""
    pause: Pause = asyncio.sleep
    random: Callable[[], float] = random_module.random
    monotonic: Callable[[], float] = time.monotonic
    on_silence: Callable[[], None] = lambda: None
    """Called after each failed attempt of an operation that has lasted for `AWAY_AFTER_SECONDS`."""

    async def repeat(self, attempt: Callable[[], Awaitable[T]], failure: Callable[[BucketError], Exception]) -> T:
        """Repeat an attempt until it succeeds. `failure` makes the error after a refusal or the last attempt."""
        tries = Tries(self)
        while True:
            try:
                return await attempt()
            except BucketError as error:
                if isinstance(error, Refused) or not await tries.rest(error.slow_down):
                    raise failure(error) from error


_RETRIES = BucketRetries()


class Tries:
    """The attempts of one operation."""

    def __init__(self, retries: BucketRetries) -> None:
        self._retries = retries
        self._began = retries.monotonic()
        self._rests = 0
        self.rest_seconds = 0.0
        """The last pause without jitter, which suits as `Retry-After` of a failed operation."""

    async def rest(self, slow_down: bool = False) -> bool:
        """Pause before the next attempt, longer each time; False: it was the last. One comes at the end of the time."""
        retries = self._retries
        first, longest = retries.first_rest, retries.longest_rest
        if slow_down:
            first, longest = FIRST_SLOW_REST_SECONDS, retries.longest_slow_rest
        lasted = retries.monotonic() - self._began
        if not slow_down and lasted >= AWAY_AFTER_SECONDS:
            retries.on_silence()
        left = retries.seconds - lasted
        if left <= 0 or self._rests + 1 >= retries.attempts:
            return False
        # Both have their maximum before 2**10, and a float overflows at 2**1024.
        self.rest_seconds = min(longest, first * 2 ** min(self._rests, 10))
        self._rests += 1
        # Jitter, so that processes that failed together do not retry together.
        await retries.pause(min(left, self.rest_seconds * (0.5 + retries.random() / 2)))
        return True


FORMAT = 1
DEFAULT_GRACE_SECONDS = 3600
TAG_BITS = 30
_EPOCH_BYTES = 16
_SECRET_BYTES = 32


class Meta(msgspec.Struct, frozen=True):
    """The contents of `meta.json`."""

    format: int
    epoch: str
    """Random, so a store that was wiped and created again differs from the one before."""
    tag: int
    """The bits of message ids that identify the store."""
    secret: str
    """Hexadecimal key with which the processes sign notifications."""
    created_at: int
    grace_seconds: int
    """How long records are kept after a snapshot covers them. All processes use the value with which the store was
    created: with a longer one, a suspended process could win a number that another process has removed."""


class _Format(msgspec.Struct):
    format: int


async def read_or_create(
    bucket: Bucket,
    now: int,
    *,
    grace_seconds: int = DEFAULT_GRACE_SECONDS,
    token: Callable[[int], bytes] = secrets.token_bytes,
    retries: BucketRetries = _RETRIES,
) -> Meta:
    """Return the description of a store. The first process creates it; concurrent processes agree on one.

    Raises `StoreUnusable` when the bucket can't be used as it is, `EngineFailure` when it does not answer.
    """
    wanted = msgspec.json.encode(
        Meta(
            format=FORMAT,
            epoch=token(_EPOCH_BYTES).hex(),
            tag=int.from_bytes(token(4)) & ((1 << TAG_BITS) - 1),
            secret=token(_SECRET_BYTES).hex(),
            created_at=now,
            grace_seconds=grace_seconds,
        )
    )
    may_create = False

    async def attempt() -> Meta:
        nonlocal may_create
        while (stored := await bucket.get(META)) is None:
            if not may_create:
                await _refuse_remains(bucket)
                may_create = True
            # It is read again after this, so neither the winner nor a lost answer matters.
            await bucket.create(META, wanted)
        return _decode(stored.body, bucket.name)

    def failure(error: BucketError) -> HarkError:
        if isinstance(error, Refused):
            return StoreUnusable(
                f"cannot use {bucket.name}: {error}; check that the bucket exists and that you can read and write it"
            )
        return EngineFailure(
            f"{bucket.name} does not respond: {error}; check its address and the network, then start again"
        )

    return await retries.repeat(attempt, failure)


async def _refuse_remains(bucket: Bucket) -> None:
    """Refuse a log without a description: a new store on top of it would hide its messages."""
    for key in (POINTER, record(1)):
        # Another process may have created the store since the first read, and filled it.
        if await bucket.get(key) is not None and await bucket.get(META) is None:
            raise StoreUnusable(
                f"{bucket.name} has {key} but no {META}, which was removed; restore it, choose another prefix, "
                "or remove everything under this prefix to start with an empty store"
            )


def _decode(body: bytes, store: str) -> Meta:
    try:
        version = msgspec.json.decode(body, type=_Format).format
        if version == FORMAT:
            return msgspec.json.decode(body, type=Meta)
    except msgspec.MsgspecError as error:
        raise StoreUnusable(
            f"{META} of {store} is damaged or not from Hark ({error}); restore it, or choose another prefix"
        ) from None
    raise StoreUnusable(
        f"{store} has format {version}, but this Hark supports {FORMAT}; upgrade Hark, or choose another prefix"
    )


# The pointer is found without a LIST, and replaced with If-Match, so that no change is lost.
#
# A snapshot is *announced* before it is written, so that it can be removed if its writer dies, and *promoted* to the
# newest afterwards. Its writer does not know since when it has been the newest: it can be suspended between reading its
# clock and the moment at which the store executes the request. So the next process that changes the pointer notes a
# time, which is certainly later.


UNWITNESSED = 0
_NONCE_BYTES = 12


class Kept(msgspec.Struct, frozen=True):
    """A snapshot that is, or was, the newest."""

    seq: int
    since: int
    """Time (microseconds) since which it has certainly been the newest or older; `UNWITNESSED`: unknown."""


class Pointer(msgspec.Struct, frozen=True):
    """The contents of `snap/latest`."""

    epoch: str
    seq: int = 0
    """The newest snapshot; 0: there is none yet."""
    snapshots: tuple[Kept, ...] = ()
    """Promoted snapshots that are not removed yet, in order."""
    announced: tuple[int, ...] = ()
    """Snapshots that are being written, or whose writer died."""
    collected: int = 0
    """Records up to here may be removed and must not be trusted; referenced payloads stay."""
    removed: int = 0
    """Records up to here are removed, except those with payloads."""
    nonce: str = ""

    def witnessed(self, now: int) -> Self:
        """Return a copy that notes the time at which the newest snapshot was seen to be the newest."""
        kept = tuple(Kept(one.seq, now) if one.since == UNWITNESSED else one for one in self.snapshots)
        return self if kept == self.snapshots else msgspec.structs.replace(self, snapshots=kept)


Change = Callable[[Pointer], Pointer]
"""Returns the changed pointer; the same: no change. Must be idempotent."""


def announced(pointer: Pointer, seq: int) -> Pointer:
    """Announce a snapshot. Nothing changes if a newer one exists."""
    if seq <= pointer.seq or seq in pointer.announced:
        return pointer
    return msgspec.structs.replace(pointer, announced=tuple(sorted((*pointer.announced, seq))))


def promoted(pointer: Pointer, seq: int) -> Pointer:
    """Promote a written snapshot to the newest, unless a newer one exists."""
    if seq <= pointer.seq:
        return pointer
    return msgspec.structs.replace(
        pointer,
        seq=seq,
        snapshots=(*pointer.snapshots, Kept(seq, UNWITNESSED)),
        announced=tuple(one for one in pointer.announced if one != seq),
    )


async def read_pointer(bucket: Bucket) -> tuple[Pointer, str] | None:
    """Return the pointer and its ETag; None: it was not written yet. Raises `BucketError`."""
    stored = await bucket.get(POINTER)
    if stored is None:
        return None
    try:
        return msgspec.json.decode(stored.body, type=Pointer), stored.etag
    except msgspec.MsgspecError as error:
        raise StoreUnusable(
            f"{POINTER} of {bucket.name} is damaged ({error}); restore the object from a backup or an older "
            "version of it"
        ) from None


async def advance(
    bucket: Bucket, epoch: str, change: Change, now: Callable[[], int], retries: BucketRetries = _RETRIES
) -> Pointer:
    """Change the pointer of a store and return it. A change that would move it back is not made.

    `now`: the time by the clock of the object store. Raises `EngineFailure` when the store does not let it happen.
    """
    nonce = secrets.token_hex(_NONCE_BYTES)

    async def attempt() -> Pointer:
        current, etag = await read_pointer(bucket) or (Pointer(epoch), None)
        if current.nonce == nonce:  # The change was made, and its answer was lost.
            return current
        check_epoch(current, epoch, bucket.name)
        # The clock is read after the pointer, so the pointer was valid before that time.
        wanted = change(current.witnessed(now()))
        if wanted == current or not _is_forward(current, wanted):
            return current
        wanted = msgspec.structs.replace(wanted, nonce=nonce)
        if etag is None:
            await bucket.create(POINTER, msgspec.json.encode(wanted))
        else:
            await bucket.replace(POINTER, msgspec.json.encode(wanted), etag)
        return wanted

    def failure(error: BucketError) -> EngineFailure:
        if isinstance(error, Refused):
            return EngineFailure(f"{bucket.name} rejects the update of {POINTER}: {error}")
        return EngineFailure(f"cannot update {POINTER} of {bucket.name}: {error}")

    # Whether an attempt failed, conflicted or is unknown: the next read decides.
    return await retries.repeat(attempt, failure)


def check_epoch(pointer: Pointer, epoch: str, store: str) -> None:
    """Raise unless the pointer belongs to the store with this epoch."""
    if pointer.epoch != epoch:
        raise StoreUnusable(f"{store} was removed and created again while this server used it; restart the server")


def _is_forward(current: Pointer, wanted: Pointer) -> bool:
    return wanted.seq >= current.seq and wanted.collected >= current.collected and wanted.removed >= current.removed


# A snapshot that was not announced, or was overtaken during its write, does no harm: no process reads it.


async def write(bucket: Bucket, seq: int, body: bytes, retries: BucketRetries = _RETRIES) -> None:
    """Store a snapshot. Snapshots of the same record have the same state. Raises `EngineFailure`."""

    def failure(error: BucketError) -> EngineFailure:
        what = "rejects" if isinstance(error, Refused) else "could not store"
        return EngineFailure(f"{bucket.name} {what} snapshot {seq}: {error}")

    await retries.repeat(lambda: bucket.put(snapshot(seq), body), failure)


async def publish(
    bucket: Bucket, epoch: str, seq: int, body: bytes, now: Callable[[], int], retries: BucketRetries = _RETRIES
) -> bool:
    """Announce, store and promote a snapshot. False: a newer one was faster, and this one was removed again.

    If the process dies between, what it wrote is removed with the snapshots before the one that comes next. Raises
    `EngineFailure`, and `BucketError` when one that was overtaken can't be removed.
    """
    pointer = await advance(bucket, epoch, lambda pointer: announced(pointer, seq), now, retries)
    if seq <= pointer.seq:
        return pointer.seq == seq
    await write(bucket, seq, body, retries)
    pointer = await advance(bucket, epoch, lambda pointer: promoted(pointer, seq), now, retries)
    if any(kept.seq == seq for kept in pointer.snapshots):
        return pointer.seq == seq
    # It was overtaken. The removal may have passed the announcement before the object existed.
    await bucket.delete([snapshot(seq)])
    return False


async def load_newest(bucket: Bucket) -> tuple[Pointer, bytes] | None:
    """Return the pointer and its snapshot; None: there is no snapshot yet, and the log has all records.

    Raises `BucketError`, and `StoreUnusable` when the snapshot is missing.
    """
    missed = ""
    while True:
        read = await read_pointer(bucket)
        if read is None or read[0].seq == 0:
            return None
        pointer = read[0]
        stored = await bucket.get(snapshot(pointer.seq))
        if stored is not None:
            return pointer, stored.body
        # It was removed meanwhile if the pointer has moved on; otherwise it is lost.
        if pointer.nonce == missed:
            raise StoreUnusable(
                f"snapshot {pointer.seq} of {bucket.name} is missing, although {POINTER} names it; "
                f"restore {snapshot(pointer.seq)} from a backup or an older version of it"
            )
        missed = pointer.nonce
