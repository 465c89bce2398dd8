"""The stub as a bucket of Hark, without HTTP: the faults are the exceptions that the real client makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hark.clock import Clock
from hark.engine.s3.bucket import Refused, RequestCounter, ServerTime, Stored, Taken, Unclear, meaning
from tests.s3.stub.faults import Broken, Faults
from tests.s3.stub.store import Answer, Request, StubStore

MOST_DELETES = 1000


class StubBucket:
    """What one process sees of a store: several on one store are several processes.

    `clock` is the clock of the process; that of the store may say something else. `faults` are its own unless they are
    shared. It may be used from any thread and event loop.
    """

    def __init__(self, store: StubStore, clock: Clock, prefix: str = "", faults: Faults | None = None) -> None:
        self.store = store
        self.faults = Faults() if faults is None else faults
        self._clock = clock
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.requests = RequestCounter()
        self.time = ServerTime(clock)
        self._closed = False

    @property
    def name(self) -> str:
        """What people call it."""
        return f"s3://stub/{self._prefix}".rstrip("/")

    async def open(self) -> None:
        """Requests may be sent, also after a `close`."""
        self._closed = False

    async def close(self) -> None:
        """Requests are refused from now on."""
        self._closed = True

    async def get(self, key: str) -> Stored | None:
        """An object; None: there is none."""
        answer = await self._ask(Request(kind="get", key=self._prefix + key))
        return None if answer.status == 404 else Stored(answer.body, answer.etag)

    async def get_range(self, key: str, first: int, length: int) -> bytes | None:
        """A part of an object; None: there is no such object."""
        if length < 1:
            return b""
        last = first + length - 1
        answer = await self._ask(Request(kind="get", key=self._prefix + key, first=first, last=last))
        if answer.status == 404:
            return None
        if len(answer.body) != length:
            raise Refused(f"{key} has {answer.size} bytes and not the {first + length} that it should have")
        return answer.body

    async def create(self, key: str, body: bytes) -> str:
        """Store an object where there is none."""
        return (await self._ask(Request(kind="put", key=self._prefix + key, body=body, if_absent=True))).etag

    async def replace(self, key: str, body: bytes, etag: str) -> str:
        """Store an object in the place of the one with that ETag."""
        answer = await self._ask(Request(kind="put", key=self._prefix + key, body=body, if_match=etag))
        if answer.status == 404:
            raise Taken(f"{key} is gone")
        return answer.etag

    async def put(self, key: str, body: bytes) -> str:
        """Store an object, whatever was there."""
        return (await self._ask(Request(kind="put", key=self._prefix + key, body=body))).etag

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, a thousand with each request."""
        full = [self._prefix + key for key in keys]
        for start in range(0, len(full), MOST_DELETES):
            some = tuple(full[start : start + MOST_DELETES])
            await self._ask(Request(kind="delete", key=some[0], keys=some))

    async def _ask(self, request: Request) -> Answer:
        """Send a request and make of its answer what the real client does."""
        what = f"{request.kind} {request.key}"
        if self._closed:
            raise Refused(f"{what}: the bucket is not open")
        sent = self._clock.now()
        self.requests.sent(request.kind, up=len(request.body))
        try:
            answer = await self.faults.perform(self.store, request)
        except Broken as error:
            self.requests.failed(request.kind)
            raise Unclear(f"{what}: no answer ({error})") from error
        except asyncio.CancelledError:
            self.requests.failed(request.kind)
            raise
        self.time.note(self.store.date(), sent, self._clock.now())
        if answer.status < 300 or answer.status == 404:
            self.requests.received(len(answer.body))
            return answer
        failure = meaning(answer.status, answer.code, f"{what}: {answer.status} {answer.code}")
        if not isinstance(failure, Taken):
            self.requests.failed(request.kind)
        raise failure
