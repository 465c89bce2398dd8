"""Snapshots in the bucket: writing one, and finding the newest.

A snapshot that was not announced, or that was overtaken while it was written, is no harm: nobody looks for it.
"""

from __future__ import annotations

from collections.abc import Callable

from hark.engine.s3.bucket.api import Bucket, BucketError, Refused, Unclear
from hark.engine.s3.log import places
from hark.engine.s3.log.patience import Patience
from hark.engine.s3.log.pointer import Pointer, advance, announce, promote, read_pointer
from hark.errors import EngineFailure, StoreUnusable


async def write(bucket: Bucket, seq: int, body: bytes, patience: Patience | None = None) -> None:
    """Store a snapshot; two processes that store the same one store the same state. Raises `EngineFailure`."""
    tries = (patience or Patience()).begin()
    while True:
        try:
            await bucket.put(places.snapshot(seq), body)
            return
        except Refused as error:
            raise EngineFailure(f"{bucket.name} rejects snapshot {seq}: {error}") from error
        except BucketError as error:
            if not await tries.rest(isinstance(error, Unclear) and error.slow_down):
                raise EngineFailure(f"{bucket.name} could not store snapshot {seq}: {error}") from error


async def publish(
    bucket: Bucket, epoch: str, seq: int, body: bytes, now: Callable[[], int], patience: Patience | None = None
) -> bool:
    """Announce, store and promote a snapshot; False: a newer one was faster, and this one is gone again.

    If the process dies between, what it wrote is removed with the snapshots before the one that comes next. Raises
    `EngineFailure`, and `BucketError` when one that was overtaken can't be removed.
    """
    announced = await advance(bucket, announce(epoch, seq), now, patience=patience)
    if announced is not None and seq <= announced.seq:
        return announced.seq == seq
    await write(bucket, seq, body, patience)
    promoted = await advance(bucket, promote(epoch, seq), now, patience=patience)
    if promoted is not None and any(kept.seq == seq for kept in promoted.snapshots):
        return promoted.seq == seq
    # It was overtaken. Who removes has perhaps passed the announcement before the object was there.
    await bucket.delete([places.snapshot(seq)])
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
        stored = await bucket.get(places.snapshot(pointer.seq))
        if stored is not None:
            return pointer, stored.body
        # It was removed while we looked for it, and then the pointer has moved on; if not, it is lost.
        if pointer.nonce == missed:
            raise StoreUnusable(
                f"snapshot {pointer.seq} of {bucket.name} is missing, although {places.POINTER} names it; "
                f"restore {places.snapshot(pointer.seq)} from a backup or an older version of it"
            )
        missed = pointer.nonce
