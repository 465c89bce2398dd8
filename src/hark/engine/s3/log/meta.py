"""What a store is, written once: its format, its name among all stores, and what all its processes share."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

from hark.engine.s3.bucket.api import Bucket, BucketError, Refused, Unclear
from hark.engine.s3.log import places
from hark.engine.s3.log.patience import Patience
from hark.errors import EngineFailure, StoreUnusable

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
    patience: Patience | None = None,
) -> Meta:
    """The meta of a store; who comes first makes it, and all who come at once agree on one.

    Raises `StoreUnusable` when the bucket can't be used as it is, `EngineFailure` when it does not answer.
    """
    tries = (patience or Patience()).begin()
    wanted: bytes | None = None
    while True:
        try:
            stored = await bucket.get(places.META)
            if stored is not None:
                return _decode(stored.body, bucket.name)
            if wanted is None:
                await _refuse_remains(bucket)
                wanted = msgspec.json.encode(_new(now, grace_seconds, token))
            # Also after this the answer is what is read: then it does not matter who made it, nor what was lost.
            await bucket.create(places.META, wanted)
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
    for key in (places.POINTER, places.record(1)):
        # Somebody may have made the store since we looked for its meta, and may have filled it.
        if await bucket.get(key) is not None and await bucket.get(places.META) is None:
            raise StoreUnusable(
                f"{bucket.name} has {key} but no {places.META}, which was removed; restore it, choose another prefix, "
                "or remove everything under this prefix to start with an empty store"
            )


def _decode(body: bytes, store: str) -> Meta:
    try:
        version = msgspec.json.decode(body, type=_Format).format
        if version == FORMAT:
            return msgspec.json.decode(body, type=Meta)
    except msgspec.MsgspecError as error:
        raise StoreUnusable(
            f"{places.META} of {store} is damaged or not from Hark ({error}); restore it, or choose another prefix"
        ) from None
    raise StoreUnusable(
        f"{store} has format {version}, but this Hark supports {FORMAT}; upgrade Hark, or choose another prefix"
    )
