"""What Hark asks of an object store, and how it may fail.

Keys are relative to the prefix of the store. Every method is one request, never repeated here: whether a request may be
sent again depends on what it was, which only its caller knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from hark.engine.s3.bucket.counting import RequestCounter
from hark.engine.s3.bucket.dates import ServerTime


class Stored(msgspec.Struct, frozen=True):
    """An object as it was read."""

    body: bytes
    etag: str


class BucketError(Exception):
    """A request that did not do what it should."""


class Taken(BucketError):
    """412: the condition does not hold. Somebody has the key, or has changed it."""


class Conflicting(BucketError):
    """409: another request for the same key was in flight; look again, then try again."""


class Unclear(BucketError):
    """No answer, or a 5xx (also 429): whether it happened, nobody can say.

    `slow_down`: the store asked for less. `was_sent`: False where there was no connection, so that nothing happened.
    """

    def __init__(self, text: str, *, slow_down: bool = False, was_sent: bool = True) -> None:
        super().__init__(text)
        self.slow_down = slow_down
        self.was_sent = was_sent


class Refused(BucketError):
    """Any other answer (no such bucket, access denied ...): it did not happen, and trying again will not help."""


class Bucket(Protocol):
    """One prefix of one bucket."""

    @property
    def name(self) -> str:
        """What people call it: `s3://bucket/prefix`."""

    @property
    def requests(self) -> RequestCounter:
        """How many requests of each kind were sent."""

    @property
    def time(self) -> ServerTime:
        """What the dates of its answers say."""

    async def open(self) -> None:
        """Make the connections; nothing is sent."""

    async def close(self) -> None:
        """Let go of the connections."""

    async def get(self, key: str) -> Stored | None:
        """An object; None: there is none."""

    async def get_range(self, key: str, first: int, length: int) -> bytes | None:
        """A part of an object; None: there is no such object. Raises `Refused` when the object is shorter."""

    async def create(self, key: str, body: bytes) -> str:
        """Store an object where there is none (If-None-Match: *); its ETag. Raises `Taken`."""

    async def replace(self, key: str, body: bytes, etag: str) -> str:
        """Store an object in the place of the one with that ETag (If-Match); the new ETag. Raises `Taken`."""

    async def put(self, key: str, body: bytes) -> str:
        """Store an object, whatever was there; its ETag."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there are no error. One request for each 1,000."""
