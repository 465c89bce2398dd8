"""The three ways to a bucket that `test_stub.py` compares, in the words of HTTP: statuses, bodies, ETags."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import md5
from typing import Any, Protocol

import msgspec
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import ClientError

from tests.s3.stub.faults import Faults
from tests.s3.stub.store import Answer, Request, StubStore


def etag_of(body: bytes) -> str:
    """What S3 calls these bytes."""
    return f'"{md5(body, usedforsecurity=False).hexdigest()}"'


class Heard(msgspec.Struct, frozen=True):
    """What a client heard. `date`: the header with the server's time."""

    status: int
    code: str = ""
    body: bytes = b""
    etag: str = ""
    date: str = ""


class Door(Protocol):
    """One way to one empty bucket."""

    async def put(self, key: str, body: bytes, *, if_absent: bool = False, if_match: str | None = None) -> Heard:
        """Store an object."""

    async def get(self, key: str, first: int | None = None, last: int | None = None) -> Heard:
        """Read an object or a part of it."""

    async def delete(self, key: str) -> Heard:
        """Remove an object."""

    async def delete_many(self, keys: Sequence[str]) -> Heard:
        """Remove objects with one request."""


class InProcessDoor:
    """The store itself."""

    def __init__(self, store: StubStore) -> None:
        self._store = store
        self._faults = Faults()

    async def put(self, key: str, body: bytes, *, if_absent: bool = False, if_match: str | None = None) -> Heard:
        """Store an object."""
        return await self._ask(Request(kind="put", key=key, body=body, if_absent=if_absent, if_match=if_match))

    async def get(self, key: str, first: int | None = None, last: int | None = None) -> Heard:
        """Read an object or a part of it."""
        return await self._ask(Request(kind="get", key=key, first=first, last=last))

    async def delete(self, key: str) -> Heard:
        """Remove an object."""
        return await self._ask(Request(kind="delete", key=key))

    async def delete_many(self, keys: Sequence[str]) -> Heard:
        """Remove objects with one request."""
        return await self._ask(Request(kind="delete", key=keys[0], keys=tuple(keys)))

    async def _ask(self, request: Request) -> Heard:
        answer: Answer = await self._faults.perform(self._store, request)
        return Heard(answer.status, answer.code, answer.body, answer.etag, self._store.date_header())


class HttpDoor:
    """A server, by the library that Hark's own client uses, which repeats nothing."""

    # The clients of botocore are made at run time: there is no type to name.
    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    async def put(self, key: str, body: bytes, *, if_absent: bool = False, if_match: str | None = None) -> Heard:
        """Store an object."""
        conditions = {"IfNoneMatch": "*"} if if_absent else {} if if_match is None else {"IfMatch": if_match}
        return await self._ask(self._client.put_object, Key=key, Body=body, **conditions)

    async def get(self, key: str, first: int | None = None, last: int | None = None) -> Heard:
        """Read an object or a part of it."""
        part = {} if first is None else {"Range": f"bytes={first}-{'' if last is None else last}"}
        return await self._ask(self._client.get_object, Key=key, **part)

    async def delete(self, key: str) -> Heard:
        """Remove an object."""
        return await self._ask(self._client.delete_object, Key=key)

    async def delete_many(self, keys: Sequence[str]) -> Heard:
        """Remove objects with one request."""
        return await self._ask(self._client.delete_objects, Delete={"Objects": [{"Key": key} for key in keys]})

    async def _ask(self, call: Callable[..., Awaitable[dict[str, Any]]], **arguments: object) -> Heard:
        try:
            answer = await call(Bucket=self._bucket, **arguments)
        except ClientError as error:
            failed: Any = error.response
            meta = failed["ResponseMetadata"]
            return Heard(meta["HTTPStatusCode"], failed["Error"]["Code"], date=meta["HTTPHeaders"].get("date", ""))
        meta = answer["ResponseMetadata"]
        body = await answer["Body"].read() if "Body" in answer else b""
        return Heard(meta["HTTPStatusCode"], "", body, answer.get("ETag", ""), meta["HTTPHeaders"].get("date", ""))


@asynccontextmanager
async def http_door(endpoint: str, bucket: str) -> AsyncIterator[HttpDoor]:
    """A door to a bucket of a server."""
    config = AioConfig(
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        max_pool_connections=64,
    )
    async with get_session().create_client("s3", endpoint_url=endpoint, config=config) as client:
        yield HttpDoor(client, bucket)
