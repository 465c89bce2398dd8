"""A bucket of S3, or of a server that speaks its language."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from hark.clock import Clock
from hark.engine.s3.bucket import library
from hark.engine.s3.bucket.address import Address
from hark.engine.s3.bucket.answers import Missing, advice, date_of, meaning
from hark.engine.s3.bucket.api import Refused, Stored, Taken
from hark.engine.s3.bucket.counting import Kind, Prices, RequestCounter
from hark.engine.s3.bucket.dates import ServerTime
from hark.settings.s3 import S3

KEYS_PER_DELETE = 1000
_BYTES_PER_SECOND = 1_000_000
"""The slowest line on which a large body is not given up."""


class S3Bucket:
    """One prefix of one bucket. It belongs to the event loop in which it was opened."""

    def __init__(self, address: Address, clock: Clock, settings: S3) -> None:
        self.address = address
        self._clock = clock
        self._settings = settings
        self._seconds = settings.request_timeout_ms / 1000
        self._requests = RequestCounter(Prices.of(settings))
        self._time = ServerTime(clock)
        self._open = AsyncExitStack()
        self._client: library.Client | None = None

    @property
    def name(self) -> str:
        """What people call it: `s3://bucket/prefix`."""
        return self.address.text

    @property
    def requests(self) -> RequestCounter:
        """How many requests of each kind were sent."""
        return self._requests

    @property
    def time(self) -> ServerTime:
        """What the dates of its answers say."""
        return self._time

    async def open(self) -> None:
        """Make the connections; nothing is sent. Raises `Refused` when the configuration makes no sense."""
        made = library.make_client(self.address, self._settings)
        try:
            client = await self._open.enter_async_context(made)
        except (*library.FAILURES, ValueError) as error:
            raise Refused(f"{error}; correct the AWS configuration") from error
        library.prepare(client)
        self._client = client

    async def close(self) -> None:
        """Let go of the connections."""
        self._client = None
        await self._open.aclose()

    async def get(self, key: str) -> Stored | None:
        """An object; None: there is none."""
        return await self._get(key)

    async def get_range(self, key: str, first: int, length: int) -> bytes | None:
        """A part of an object; None: there is no such object. Raises `Refused` when the object is shorter."""
        if length < 1:
            return b""
        found = await self._get(key, Range=f"bytes={first}-{first + length - 1}")
        if found is not None and len(found.body) != length:
            raise Refused(
                f"get {key} of {self.name}: received {len(found.body)} bytes instead of {length} from {first}; the "
                "object is too short, or the store does not support range requests"
            )
        return None if found is None else found.body

    async def create(self, key: str, body: bytes) -> str:
        """Store an object where there is none (If-None-Match: *); its ETag. Raises `Taken`."""
        return await self._put(key, body, IfNoneMatch="*")

    async def replace(self, key: str, body: bytes, etag: str) -> str:
        """Store an object in the place of the one with that ETag (If-Match); the new ETag. Raises `Taken`."""
        return await self._put(key, body, IfMatch=etag)

    async def put(self, key: str, body: bytes) -> str:
        """Store an object, whatever was there; its ETag."""
        return await self._put(key, body)

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there are no error. One request for each 1,000."""
        for start in range(0, len(keys), KEYS_PER_DELETE):
            await self._delete(keys[start : start + KEYS_PER_DELETE])

    async def _get(self, key: str, **part: str) -> Stored | None:
        try:
            async with self._request("get", f"get {key}") as client:
                sent = self._clock.now()
                async with asyncio.timeout(self._seconds):
                    answer = await client.get_object(Bucket=self.address.bucket, Key=self.address.key(key), **part)
                self._note_date(_headers(answer), sent)
                # How long it takes depends on its size: only a pause in it is a failure.
                async with answer["Body"]:
                    body: bytes = await answer["Body"].read()
        except Missing:
            return None
        self._requests.received(len(body))
        return Stored(body, answer.get("ETag", ""))

    async def _put(self, key: str, body: bytes, **condition: str) -> str:
        try:
            async with self._request("put", f"put {key}", up=len(body)) as client:
                sent = self._clock.now()
                # While a body goes out, the library's own timeouts do not run.
                async with asyncio.timeout(self._seconds + len(body) / _BYTES_PER_SECOND):
                    answer = await client.put_object(
                        Bucket=self.address.bucket, Key=self.address.key(key), Body=body, **condition
                    )
                self._note_date(_headers(answer), sent)
        except Missing as error:
            if "IfMatch" in condition:
                raise Taken(str(error)) from error
            raise Refused(f"{error}; {advice(404, '')}") from error
        etag: str = answer.get("ETag", "")
        return etag

    async def _delete(self, keys: Sequence[str]) -> None:
        objects = [{"Key": self.address.key(key)} for key in keys]
        what = f"delete of {len(keys)} objects from {keys[0]}"
        try:
            async with self._request("delete", what) as client:
                sent = self._clock.now()
                async with asyncio.timeout(self._seconds):
                    answer = await client.delete_objects(
                        Bucket=self.address.bucket, Delete={"Objects": objects, "Quiet": True}
                    )
                self._note_date(_headers(answer), sent)
        except Missing as error:
            raise Refused(f"{error}; {advice(404, '')}") from error
        for failed in answer.get("Errors", ()):
            code = failed.get("Code", "")
            if code != "NoSuchKey":
                self._requests.failed("delete")
                # One answer for many objects has no status for each.
                raise meaning(0, code, f"{what} of {self.name}: {code} {failed.get('Message', '')}".rstrip(" ."))

    @asynccontextmanager
    async def _request(self, kind: Kind, what: str, *, up: int = 0) -> AsyncIterator[library.Client]:
        """Count one request, and say what its failure means."""
        if self._client is None:
            raise Refused(f"{what} of {self.name}: the bucket is not open")
        self._requests.sent(kind, up=up)
        sent = self._clock.now()
        try:
            yield self._client
        except library.FAILURES as error:
            self._note_date(library.headers_of(error), sent)
            failure = library.translated(error, f"{what} of {self.name}")
            if not isinstance(failure, Missing | Taken):
                self._requests.failed(kind)
            raise failure from error
        except asyncio.CancelledError:
            self._requests.failed(kind)
            raise

    def _note_date(self, headers: Mapping[str, str], sent: int) -> None:
        date = date_of(headers.get("date"))
        if date is not None:
            self._time.note(date, sent, self._clock.now())


def _headers(answer: Mapping[str, Any]) -> Mapping[str, str]:
    headers: Mapping[str, str] = answer["ResponseMetadata"]["HTTPHeaders"]
    return headers
