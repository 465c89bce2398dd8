"""The self-test: does the store keep the promises on which everything rests?

Some servers take the conditions of a request and ignore them. On such a one two processes would both believe that
they committed, so Hark refuses it before the first message.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hark.engine.s3.bucket.api import Bucket, BucketError, Conflicting, Refused, Taken, Unclear
from hark.errors import StoreUnusable

ATTEMPTS = 6
"""A store may be busy; a promise is judged only by a run in which every request was answered."""

CERTAIN = 2
"""A proxy that sends a request twice makes a good store look bad, but not with every key."""

_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 2.0
_FIRST = b"Hark asks: who was first? The first."
_SECOND = b"Hark asks: who was first? The second."
_THIRD = b"Hark asks: who was first? Nobody any more."
_PART = (5, 4)
_AT_ONCE = 5
_TRIES = 3
T = TypeVar("T")


class _Broken(Exception):
    """A promise that the store does not keep."""


async def probe(bucket: Bucket, unique: str, *, pause: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
    """Try the store with keys that nobody else uses (`unique` is random); raises `StoreUnusable` with what to do."""
    broken = 0
    for attempt in range(1, ATTEMPTS + 1):
        # A key whose fate is unclear proves nothing more, so each attempt has its own.
        key = f"probe/{unique}" if attempt == 1 else f"probe/{unique}-{attempt}"
        try:
            await _try(bucket, key)
            return
        except (Unclear, Conflicting) as error:
            await _clean(bucket, key)
            if attempt == ATTEMPTS:
                raise StoreUnusable(
                    f"cannot reach {bucket.name}, or it responds with errors: {error}; check the network, the "
                    "endpoint, and whether the store is healthy"
                ) from error
            await pause(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (attempt - 1)))
        except Refused as error:
            raise StoreUnusable(f"cannot use {bucket.name}: {error}") from error
        except _Broken as error:
            await _clean(bucket, key)
            broken += 1
            if broken < CERTAIN:
                continue
            raise StoreUnusable(
                f"cannot use {bucket.name}: {error}; Hark needs a store with conditional writes, such as S3, or "
                "messages would be lost"
            ) from error


async def _try(bucket: Bucket, key: str) -> None:
    etag = await _creates_once(bucket, key)
    await _reads(bucket, key)
    await _replaces_what_it_names(bucket, key, etag)
    raced = f"{key}-raced"
    await _creates_one_of_several(bucket, raced)
    await _again(lambda: bucket.delete([key, raced]))
    if await _again(lambda: bucket.get(key)) is not None:
        raise _Broken("a deleted object still exists")


async def _creates_once(bucket: Bucket, key: str) -> str:
    try:
        etag = await bucket.create(key, _FIRST)
    except Taken as error:
        raise _Broken("it reports that an unused key exists (If-None-Match)") from error
    try:
        await bucket.create(key, _SECOND)
    except Taken:
        return etag
    raise _Broken("it ignores the condition If-None-Match: it created two objects under one key")


async def _creates_one_of_several(bucket: Bucket, key: str) -> None:
    """Some servers look and then write: one after the other that works."""

    async def create(number: int) -> int:
        try:
            await bucket.create(key, b"Hark asks: who was first? %d." % number)
        except (Taken, Conflicting, Unclear):
            return 0  # Who does not know whether it won is no proof against the store.
        return 1

    winners = sum(await asyncio.gather(*(create(number) for number in range(_AT_ONCE))))
    if winners == 0:
        raise Conflicting(f"{key}: none of several concurrent creations succeeded")
    if winners > 1:
        raise _Broken("it ignores the condition If-None-Match when several requests create one key concurrently")


async def _reads(bucket: Bucket, key: str) -> None:
    found = await _again(lambda: bucket.get(key))
    if found is None:
        raise _Broken("a stored object cannot be read")
    if found.body != _FIRST:
        raise _Broken("it rejected the creation of an existing object (If-None-Match), but replaced the object")
    first, length = _PART
    if await _again(lambda: bucket.get_range(key, first, length)) != _FIRST[first : first + length]:
        raise _Broken("it returns wrong bytes for a range request (Range)")


async def _replaces_what_it_names(bucket: Bucket, key: str, etag: str) -> None:
    try:
        newer = await bucket.replace(key, _SECOND, etag)
    except Taken as error:
        raise _Broken("it rejects the replacement of an object with a matching ETag (If-Match)") from error
    # The ETag of an object that was replaced is as wrong as one can be, and has the form that the store likes.
    try:
        await bucket.replace(key, _THIRD, etag)
    except Taken:
        pass
    else:
        raise _Broken("it ignores the condition If-Match: it replaced an object with another ETag")
    found = await _again(lambda: bucket.get(key))
    if found is None or (found.body, found.etag) != (_SECOND, newer):
        raise _Broken("it rejected the replacement of an object (If-Match), but replaced the object")


async def _again(request: Callable[[], Awaitable[T]]) -> T:
    """Ask several times: to read or to delete twice changes nothing."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(Unclear, Conflicting):
            return await request()
    return await request()


async def _clean(bucket: Bucket, key: str) -> None:
    # What matters is why the test failed; a few bytes under probe/ hurt nobody.
    with contextlib.suppress(BucketError):
        await bucket.delete([key, f"{key}-raced"])
