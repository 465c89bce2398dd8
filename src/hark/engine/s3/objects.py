"""Log records and snapshots as objects; what a store is, and the pointer to its newest snapshot."""

from __future__ import annotations

import asyncio
import random as random_module
import secrets
import struct
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Self

import msgspec

from hark.engine.s3.bucket import Bucket, BucketError, Refused, Unclear
from hark.errors import EngineFailure, StoreUnusable

META = "meta.json"
POINTER = "snap/latest"


def record(seq: int) -> str:
    """The key of a log record."""
    return f"log/{seq:020d}"


def snapshot(seq: int) -> str:
    """The key of the snapshot of the state up to a record."""
    return f"snap/{seq:020d}"


# kind (8 bytes) | first section | second section | header | lengths, crc32 of all before it, kind again
#
# The first section begins at `FIRST_AT`, whatever follows it: who writes an object can say where a part of it will be
# before the rest is known. The last byte of the kind is the version of the format.


FIRST_AT = 8
_LENGTHS = struct.Struct("<QQI")
_PROOF = struct.Struct("<I8s")
_FOOTER_BYTES = _LENGTHS.size + _PROOF.size


class Damaged(Exception):
    """The object is not what was written; the text says in what way."""


class Newer(Exception):
    """The object has a format that this Hark does not know."""


def seal(kind: bytes, first: bytes, second: bytes, header: bytes) -> bytes:
    """The bytes of an object."""
    before = b"".join((kind, first, second, header, _LENGTHS.pack(len(first), len(second), len(header))))
    return before + _PROOF.pack(zlib.crc32(before), kind)


def unseal(kind: bytes, body: bytes) -> tuple[memoryview, memoryview, memoryview]:
    """The first section, the second and the header; raises `Damaged` or `Newer`."""
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


# Its object is a `frame`: the payloads as they are, so that each can be fetched by range, then the patchset,
# compressed
# where that makes it smaller, then a header in JSON.


pass

KIND = b"HarkLog\x01"
PAYLOADS_AT = FIRST_AT
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
    return seal(KIND, record.payloads, changes, msgspec.json.encode(header))


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
        payloads, changes, head = unseal(KIND, body)
        header = msgspec.json.decode(head, type=_Header)
    except Newer as error:
        raise StoreUnusable(
            f"log record {seq} of {store} has {error}, which this Hark does not support; upgrade Hark"
        ) from None
    except Damaged as error:
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


pass

Pause = Callable[[float], Awaitable[None]]
"""Waits for so many seconds."""

FIRST_REST_SECONDS = 0.05
LONGEST_REST_SECONDS = 2.0
# A store that asks for less counts requests by the second: coming back within one makes it worse.
FIRST_SLOW_REST_SECONDS = 1.0
LONGEST_SLOW_REST_SECONDS = 10.0
DEFAULT_SECONDS = 30.0
AWAY_AFTER_SECONDS = 1.0
"""A bucket that has not answered one duty for so long is away (rule 29)."""


class BucketRetries:
    """How long a duty of several requests goes on when the store does not answer as it should."""

    def __init__(
        self,
        seconds: float = DEFAULT_SECONDS,
        *,
        pause: Pause = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
        monotonic: Callable[[], float] = time.monotonic,
        on_silence: Callable[[], None] = lambda: None,
    ) -> None:
        self.seconds = seconds
        self._pause = pause
        self._random = random
        self._monotonic = monotonic
        self._on_silence = on_silence
        """Called at each failed try of a duty that has lasted for `AWAY_AFTER_SECONDS`."""

    def begin(self) -> Tries:
        """Start counting, for one duty."""
        return Tries(self.seconds, self._pause, self._random, self._monotonic, self._on_silence)


class Tries:
    """The tries of one duty."""

    def __init__(
        self,
        seconds: float,
        pause: Pause,
        random: Callable[[], float],
        monotonic: Callable[[], float],
        on_silence: Callable[[], None],
    ) -> None:
        self._pause = pause
        self._random = random
        self._monotonic = monotonic
        self._on_silence = on_silence
        self._began = monotonic()
        self._ends = self._began + seconds
        self._rests = 0
        self.rest_seconds = 0.0
        """The last rest as it was meant, before jitter: a caller who gives up can ask to be left alone for as long."""

    async def rest(self, slow_down: bool = False) -> bool:
        """Rest before the next try, longer each time; False: patience is over. The last try is at its very end."""
        first, longest = FIRST_REST_SECONDS, LONGEST_REST_SECONDS
        if slow_down:
            first, longest = FIRST_SLOW_REST_SECONDS, LONGEST_SLOW_REST_SECONDS
        now = self._monotonic()
        if not slow_down and now - self._began >= AWAY_AFTER_SECONDS:
            self._on_silence()
        left = self._ends - now
        if left <= 0:
            return False
        # Beyond 2**10 both are at their longest, and a float overflows at 2**1024.
        self.rest_seconds = min(longest, first * 2 ** min(self._rests, 10))
        self._rests += 1
        # Between half and all of it: those who failed together do not come back together.
        await self._pause(min(left, self.rest_seconds * (0.5 + self._random() / 2)))
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
    """Random; no two stores have the same, also not one that was wiped and the one that came after it."""
    tag: int
    """The bits of message ids by which those of different stores differ."""
    secret: str
    """Hexadecimal; what one process signs with it the others believe."""
    created_at: int
    grace_seconds: int
    """How long what snapshots cover is kept. All processes go by the one of who made the store: who slept for longer
    than others wait could win a number that they removed."""


class _Format(msgspec.Struct):
    format: int


async def read_or_create(
    bucket: Bucket,
    now: int,
    *,
    grace_seconds: int = DEFAULT_GRACE_SECONDS,
    token: Callable[[int], bytes] = secrets.token_bytes,
    retries: BucketRetries | None = None,
) -> Meta:
    """The meta of a store; who comes first makes it, and all who come at once agree on one.

    Raises `StoreUnusable` when the bucket can't be used as it is, `EngineFailure` when it does not answer.
    """
    tries = (retries or BucketRetries()).begin()
    wanted: bytes | None = None
    while True:
        try:
            stored = await bucket.get(META)
            if stored is not None:
                return _decode(stored.body, bucket.name)
            if wanted is None:
                await _refuse_remains(bucket)
                wanted = msgspec.json.encode(_new(now, grace_seconds, token))
            # Also after this the answer is what is read: then it does not matter who made it, nor what was lost.
            await bucket.create(META, wanted)
        except Refused as error:
            raise StoreUnusable(
                f"cannot use {bucket.name}: {error}; check that the bucket exists and that you can read and write it"
            ) from error
        except BucketError as error:
            if not await tries.rest(isinstance(error, Unclear) and error.slow_down):
                raise EngineFailure(
                    f"{bucket.name} does not respond: {error}; check its address and the network, then start again"
                ) from error


def _new(now: int, grace_seconds: int, token: Callable[[int], bytes]) -> Meta:
    tag = int.from_bytes(token(4)) & ((1 << TAG_BITS) - 1)
    return Meta(
        format=FORMAT,
        epoch=token(_EPOCH_BYTES).hex(),
        tag=tag,
        secret=token(_SECRET_BYTES).hex(),
        created_at=now,
        grace_seconds=grace_seconds,
    )


async def _refuse_remains(bucket: Bucket) -> None:
    """A log without its meta is not a new store: one made on top of it would bury what is there."""
    for key in (POINTER, record(1)):
        # Somebody may have made the store since we looked for its meta, and may have filled it.
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


# It is found without a LIST, and replaced only by who has read it (If-Match), so that no change is lost.
#
# A snapshot is *announced* before it is written, so that one whose writer died can be removed, and *promoted* to the
# newest after it. From when on it was the newest, its writer can't say: it may sleep between looking at its clock and
# the moment at which the store carries out the request. So the next who changes the pointer says it: that moment is
# surely after.


UNWITNESSED = 0
_NONCE_BYTES = 12


class Kept(msgspec.Struct, frozen=True):
    """A snapshot that is, or was, the newest."""

    seq: int
    since: int
    """It has been the newest, or older than the newest, at least since then: microseconds; `UNWITNESSED`: not known."""


class Pointer(msgspec.Struct, frozen=True):
    """The contents of `snap/latest`."""

    epoch: str
    seq: int = 0
    """The newest snapshot; 0: there is none yet."""
    snapshots: tuple[Kept, ...] = ()
    """Those that were promoted and not yet removed, in order."""
    announced: tuple[int, ...] = ()
    """Those that somebody writes, or died over."""
    collected: int = 0
    """What is at or below it may be gone and is not to be trusted; payloads that are referred to stay."""
    removed: int = 0
    """What is at or below it is gone, but for what holds payloads."""
    nonce: str = ""

    def witnessed(self, now: int) -> Self:
        """The same, with the moment noted at which the newest snapshot was seen to be the newest."""
        kept = tuple(Kept(one.seq, now) if one.since == UNWITNESSED else one for one in self.snapshots)
        return self if kept == self.snapshots else msgspec.structs.replace(self, snapshots=kept)


Change = Callable[[Pointer | None], Pointer | None]
"""What to make of the pointer; None or the same: nothing. May be called again on its own result."""


def of_store(pointer: Pointer | None, epoch: str) -> Pointer:
    """What to change for who believes to be in that store; `advance` refuses it if the pointer is another store's."""
    return Pointer(epoch) if pointer is None else msgspec.structs.replace(pointer, epoch=epoch)


def announce(epoch: str, seq: int) -> Change:
    """Say that a snapshot is about to be written. Nothing changes where it would be of no use."""

    def change(pointer: Pointer | None) -> Pointer | None:
        pointer = of_store(pointer, epoch)
        if seq <= pointer.seq or seq in pointer.announced:
            return pointer
        return msgspec.structs.replace(pointer, announced=tuple(sorted((*pointer.announced, seq))))

    return change


def promote(epoch: str, seq: int) -> Change:
    """Make a snapshot that was written the newest, unless a newer one is."""

    def change(pointer: Pointer | None) -> Pointer | None:
        pointer = of_store(pointer, epoch)
        if seq <= pointer.seq:
            return pointer
        return msgspec.structs.replace(
            pointer,
            seq=seq,
            snapshots=(*pointer.snapshots, Kept(seq, UNWITNESSED)),
            announced=tuple(one for one in pointer.announced if one != seq),
        )

    return change


async def read_pointer(bucket: Bucket) -> tuple[Pointer, str] | None:
    """The pointer and its ETag; None: nobody has written one yet. Raises `BucketError`."""
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
    bucket: Bucket,
    change: Change,
    now: Callable[[], int],
    *,
    token: Callable[[int], str] = secrets.token_hex,
    retries: BucketRetries | None = None,
) -> Pointer | None:
    """Change the pointer; the answer is how it stands then. A change that would turn it back is not made.

    `now`: the time by the clock of the object store. Raises `EngineFailure` when the store does not let it happen.
    """
    tries = (retries or BucketRetries()).begin()
    nonce = token(_NONCE_BYTES)
    while True:
        try:
            read = await read_pointer(bucket)
            # After a lost answer: it was done.
            if read is not None and read[0].nonce == nonce:
                return read[0]
            current = None if read is None else read[0]
            # The clock is read after the pointer was: what the pointer says was so before.
            wanted = change(None if current is None else current.witnessed(now()))
            if wanted is None or wanted == current or not _is_forward(current, wanted, bucket.name):
                return current
            return await _store(bucket, msgspec.structs.replace(wanted, nonce=nonce), None if read is None else read[1])
        except Refused as error:
            raise EngineFailure(f"{bucket.name} rejects the update of {POINTER}: {error}") from error
        except BucketError as error:
            # Whether it was taken, is contended or nobody knows: what is there now decides.
            if not await tries.rest(isinstance(error, Unclear) and error.slow_down):
                raise EngineFailure(f"cannot update {POINTER} of {bucket.name}: {error}") from error


async def _store(bucket: Bucket, pointer: Pointer, etag: str | None) -> Pointer:
    body = msgspec.json.encode(pointer)
    if etag is None:
        await bucket.create(POINTER, body)
    else:
        await bucket.replace(POINTER, body, etag)
    return pointer


def _is_forward(current: Pointer | None, wanted: Pointer, store: str) -> bool:
    if current is None:
        return True
    if current.epoch != wanted.epoch:
        raise StoreUnusable(f"{store} was removed and created again while this server used it; restart the server")
    return wanted.seq >= current.seq and wanted.collected >= current.collected and wanted.removed >= current.removed


# A snapshot that was not announced, or that was overtaken while it was written, is no harm: nobody looks for it.


async def write(bucket: Bucket, seq: int, body: bytes, retries: BucketRetries | None = None) -> None:
    """Store a snapshot; two processes that store the same one store the same state. Raises `EngineFailure`."""
    tries = (retries or BucketRetries()).begin()
    while True:
        try:
            await bucket.put(snapshot(seq), body)
            return
        except Refused as error:
            raise EngineFailure(f"{bucket.name} rejects snapshot {seq}: {error}") from error
        except BucketError as error:
            if not await tries.rest(isinstance(error, Unclear) and error.slow_down):
                raise EngineFailure(f"{bucket.name} could not store snapshot {seq}: {error}") from error


async def publish(
    bucket: Bucket, epoch: str, seq: int, body: bytes, now: Callable[[], int], retries: BucketRetries | None = None
) -> bool:
    """Announce, store and promote a snapshot; False: a newer one was faster, and this one is gone again.

    If the process dies between, what it wrote is removed with the snapshots before the one that comes next. Raises
    `EngineFailure`, and `BucketError` when one that was overtaken can't be removed.
    """
    announced = await advance(bucket, announce(epoch, seq), now, retries=retries)
    if announced is not None and seq <= announced.seq:
        return announced.seq == seq
    await write(bucket, seq, body, retries)
    promoted = await advance(bucket, promote(epoch, seq), now, retries=retries)
    if promoted is not None and any(kept.seq == seq for kept in promoted.snapshots):
        return promoted.seq == seq
    # It was overtaken. Who removes has perhaps passed the announcement before the object was there.
    await bucket.delete([snapshot(seq)])
    return False


async def load_newest(bucket: Bucket) -> tuple[Pointer, bytes] | None:
    """The pointer and the snapshot that it names; None: there is no snapshot yet, the log begins at its first record.

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
        # It was removed while we looked for it, and then the pointer has moved on; if not, it is lost.
        if pointer.nonce == missed:
            raise StoreUnusable(
                f"snapshot {pointer.seq} of {bucket.name} is missing, although {POINTER} names it; "
                f"restore {snapshot(pointer.seq)} from a backup or an older version of it"
            )
        missed = pointer.nonce
