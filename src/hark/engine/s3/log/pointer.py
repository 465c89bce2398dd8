"""The one object that is overwritten: where the newest snapshot is, and what of the log may be gone.

It is found without a LIST, and replaced only by who has read it (If-Match), so that no change is lost.

A snapshot is *announced* before it is written, so that one whose writer died can be removed, and *promoted* to the
newest after it. From when on it was the newest, its writer can't say: it may sleep between looking at its clock and
the moment at which the store carries out the request. So the next who changes the pointer says it: that moment is
surely after.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Self

import msgspec

from hark.engine.s3.bucket.api import Bucket, BucketError, Refused, Unclear
from hark.engine.s3.log import places
from hark.engine.s3.log.patience import Patience
from hark.errors import EngineFailure, StoreUnusable

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
    stored = await bucket.get(places.POINTER)
    if stored is None:
        return None
    try:
        return msgspec.json.decode(stored.body, type=Pointer), stored.etag
    except msgspec.MsgspecError as error:
        raise StoreUnusable(
            f"{places.POINTER} of {bucket.name} is damaged ({error}); restore the object from a backup or an older "
            "version of it"
        ) from None


async def advance(
    bucket: Bucket,
    change: Change,
    now: Callable[[], int],
    *,
    token: Callable[[int], str] = secrets.token_hex,
    patience: Patience | None = None,
) -> Pointer | None:
    """Change the pointer; the answer is how it stands then. A change that would turn it back is not made.

    `now`: the time by the clock of the object store. Raises `EngineFailure` when the store does not let it happen.
    """
    tries = (patience or Patience()).begin()
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
            raise EngineFailure(f"{bucket.name} rejects the update of {places.POINTER}: {error}") from error
        except BucketError as error:
            # Whether it was taken, is contended or nobody knows: what is there now decides.
            if not await tries.rest(isinstance(error, Unclear) and error.slow_down):
                raise EngineFailure(f"cannot update {places.POINTER} of {bucket.name}: {error}") from error


async def _store(bucket: Bucket, pointer: Pointer, etag: str | None) -> Pointer:
    body = msgspec.json.encode(pointer)
    if etag is None:
        await bucket.create(places.POINTER, body)
    else:
        await bucket.replace(places.POINTER, body, etag)
    return pointer


def _is_forward(current: Pointer | None, wanted: Pointer, store: str) -> bool:
    if current is None:
        return True
    if current.epoch != wanted.epoch:
        raise StoreUnusable(f"{store} was removed and created again while this server used it; restart the server")
    return wanted.seq >= current.seq and wanted.collected >= current.collected and wanted.removed >= current.removed
