"""A bucket of S3 or of a compatible server, by aiobotocore in a thread, and its self-test."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from aiohttp import ClientConnectorError

from hark.clock import Clock
from hark.engine.s3.bucket import (
    Address,
    Bucket,
    BucketError,
    Conflicting,
    Kind,
    Missing,
    Refused,
    RequestCounter,
    ServerTime,
    Stored,
    Taken,
    Unclear,
    advice,
    date_of,
    meaning,
)
from hark.errors import StoreUnusable
from hark.settings.sections import S3

try:
    import aiohttp
    from aiobotocore.config import AioConfig
    from aiobotocore.httpsession import AIOHTTPSession
    from aiobotocore.session import get_session
    from botocore import exceptions
    from botocore.parsers import ResponseParserError
except ImportError as error:
    raise StoreUnusable("aiobotocore for the S3 engine is missing; install it: pip install 'hark-mq[s3]'") from error

CONNECTIONS = 32
"""Maximum number of concurrent requests; further ones wait."""

_ANY_REGION = "us-east-1"
"""Signatures contain a region, also for servers without regions."""

_NOT_SENT = (
    exceptions.ConfigParseError,
    exceptions.NoCredentialsError,
    exceptions.NoRegionError,
    exceptions.ParamValidationError,
    exceptions.PartialCredentialsError,
    exceptions.ProfileNotFound,
    exceptions.UnauthorizedSSOTokenError,
)
_NO_ANSWER = (exceptions.BotoCoreError, ResponseParserError, aiohttp.ClientError, OSError, TimeoutError)
FAILURES = (exceptions.ClientError, *_NO_ANSWER)
"""Exceptions of a request that are no defect of Hark."""

Client = Any
"""An S3 client. aiobotocore creates its methods at run time, so they have no types."""


class _OnceSession(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore has no types.
    """Connections that never send a request twice.

    aiohttp repeats a PUT if a kept-open connection is closed without an answer. But the store may have executed the
    first one: then the second finds the key taken, and the winner would take that for a loss.
    """

    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)
        session._retry_connection = False
        return session


def make_client(address: Address, settings: S3) -> AbstractAsyncContextManager[Client]:
    """Return a client for a bucket."""
    # The library logs the origin of credentials and endpoint at every start; that is for debugging only.
    for name in ("aiobotocore.credentials", "botocore.configprovider"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET and not logger.isEnabledFor(logging.DEBUG):
            logger.setLevel(logging.WARNING)
    session = get_session()
    region = address.region or settings.region or session.get_config_variable("region") or _ANY_REGION
    endpoint = address.endpoint or settings.endpoint_url or None
    seconds = settings.request_timeout_ms / 1000
    config = AioConfig(
        http_session_cls=_OnceSession,
        connect_timeout=seconds,
        read_timeout=seconds,
        max_pool_connections=CONNECTIONS,
        retries={"total_max_attempts": 1, "mode": "standard"},
        # Only AWS supports the checksums that the library would add to each request.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    made: AbstractAsyncContextManager[Client] = session.create_client(
        "s3", region_name=region, endpoint_url=endpoint, config=config
    )
    return made


def _send_at_once(request: Any, **_: object) -> None:
    # `Expect` would cost each commit a round trip, and some servers do not answer it.
    del request.headers["Expect"]


def _add_md5(request: Any, **_: object) -> None:
    # Some servers need it.
    digest = hashlib.md5(request.body, usedforsecurity=False).digest()
    request.headers["Content-MD5"] = base64.b64encode(digest).decode()


def translated(error: Exception, what: str) -> BucketError:
    """Translate an exception of the library; `what` names the request."""
    if isinstance(error, exceptions.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        about = error.response.get("Error", {})
        code, message = str(about.get("Code", "")), str(about.get("Message", "")).rstrip(".")
        text = " ".join(dict.fromkeys(word for word in (str(status), code, message) if word))
        return meaning(status, code, f"{what}: {text}")
    if isinstance(error, _NOT_SENT):
        return Refused(f"{what}: {_credentials_advice(error)}")
    if isinstance(error, TimeoutError) and not str(error):
        return Unclear(f"{what}: no response in time")
    # The library has one exception for a failed connection and for later failures; its cause distinguishes them.
    return Unclear(f"{what}: {error}", was_sent=not isinstance(error.__context__, ClientConnectorError))


def _credentials_advice(error: Exception) -> str:
    if isinstance(error, exceptions.NoCredentialsError):
        return (
            "no credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or use a role of "
            "the machine"
        )
    return f"{error}; correct the AWS configuration"


KEYS_PER_DELETE = 1000
_BYTES_PER_SECOND = 1_000_000
"""Minimum rate of a large body before the request is aborted."""


class S3Bucket:
    """One prefix of one bucket; see `Bucket`. Only the event loop in which it was opened uses it."""

    def __init__(self, address: Address, clock: Clock, settings: S3) -> None:
        self.address = address
        self._clock = clock
        self._settings = settings
        self._seconds = settings.request_timeout_ms / 1000
        self.name = address.text
        self.requests = RequestCounter(settings.put_dollars, settings.get_dollars)
        self.time = ServerTime(clock)
        self._open = AsyncExitStack()
        self._client: Client | None = None

    async def open(self) -> None:
        try:
            client = await self._open.enter_async_context(make_client(self.address, self._settings))
        except (*FAILURES, ValueError) as error:
            raise Refused(f"{error}; correct the AWS configuration") from error
        client.meta.events.register("before-sign.s3.PutObject", _send_at_once)
        client.meta.events.register("before-sign.s3.DeleteObjects", _add_md5)
        self._client = client

    async def close(self) -> None:
        self._client = None
        await self._open.aclose()

    async def get(self, key: str, **part: str) -> Stored | None:
        """Return an object, or a part of it; None: it does not exist."""
        try:
            async with self._request("get", f"get {key}") as client:
                request = client.get_object(Bucket=self.address.bucket, Key=self.address.key(key), **part)
                answer = await self._answer(request, self._seconds)
                # The duration depends on the size, so only a pause in it is a failure.
                async with answer["Body"]:
                    body: bytes = await answer["Body"].read()
        except Missing:
            return None
        self.requests.received(len(body))
        return Stored(body, answer.get("ETag", ""))

    async def get_range(self, key: str, first: int, length: int) -> bytes | None:
        if length < 1:
            return b""
        found = await self.get(key, Range=f"bytes={first}-{first + length - 1}")
        if found is not None and len(found.body) != length:
            raise Refused(
                f"get {key} of {self.name}: received {len(found.body)} bytes instead of {length} from {first}; the "
                "object is too short, or the store does not support range requests"
            )
        return None if found is None else found.body

    async def create(self, key: str, body: bytes) -> str:
        return await self.put(key, body, IfNoneMatch="*")

    async def replace(self, key: str, body: bytes, etag: str) -> str:
        return await self.put(key, body, IfMatch=etag)

    async def put(self, key: str, body: bytes, **condition: str) -> str:
        """Store an object, unconditionally without a condition, and return its ETag."""
        try:
            async with self._request("put", f"put {key}", up=len(body)) as client:
                request = client.put_object(
                    Bucket=self.address.bucket, Key=self.address.key(key), Body=body, **condition
                )
                # The timeouts of the library do not run while a body is sent.
                answer = await self._answer(request, self._seconds + len(body) / _BYTES_PER_SECOND)
        except Missing as error:
            if "IfMatch" in condition:
                raise Taken(str(error)) from error
            raise Refused(f"{error}; {advice(404, '')}") from error
        etag: str = answer.get("ETag", "")
        return etag

    async def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), KEYS_PER_DELETE):
            await self._delete(keys[start : start + KEYS_PER_DELETE])

    async def _delete(self, keys: Sequence[str]) -> None:
        objects = [{"Key": self.address.key(key)} for key in keys]
        what = f"delete of {len(keys)} objects from {keys[0]}"
        try:
            async with self._request("delete", what) as client:
                request = client.delete_objects(Bucket=self.address.bucket, Delete={"Objects": objects, "Quiet": True})
                answer = await self._answer(request, self._seconds)
        except Missing as error:
            raise Refused(f"{error}; {advice(404, '')}") from error
        for failed in answer.get("Errors", ()):
            code = failed.get("Code", "")
            if code != "NoSuchKey":
                self.requests.failed("delete")
                # One answer for many objects has no status code per object.
                raise meaning(0, code, f"{what} of {self.name}: {code} {failed.get('Message', '')}".rstrip(" ."))

    @asynccontextmanager
    async def _request(self, kind: Kind, what: str, *, up: int = 0) -> AsyncIterator[Client]:
        """Count a request and translate its failure."""
        if self._client is None:
            raise Refused(f"{what} of {self.name}: the bucket is not open")
        self.requests.sent(kind, up=up)
        sent = self._clock.now()
        try:
            yield self._client
        except FAILURES as error:
            if isinstance(error, exceptions.ClientError):
                self._note_date(error.response, sent)
            failure = translated(error, f"{what} of {self.name}")
            if not isinstance(failure, Missing | Taken):
                self.requests.failed(kind)
            raise failure from error
        except asyncio.CancelledError:
            self.requests.failed(kind)
            raise

    async def _answer(self, request: Awaitable[Mapping[str, Any]], seconds: float) -> Mapping[str, Any]:
        sent = self._clock.now()
        async with asyncio.timeout(seconds):
            answer = await request
        self._note_date(answer, sent)
        return answer

    def _note_date(self, answer: Mapping[str, Any], sent: int) -> None:
        date = date_of(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date"))
        if date is not None:
            self.time.note(date, sent, self._clock.now())


# Requests have their own event loop: a program that blocks its main loop must not stall the store, and the state thread
# can wait for a request like for a function.


T = TypeVar("T")


class IoThread:
    """An event loop in its own thread. Other threads use its methods; any thread can use `submit` and `call`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        # `asyncio.run` cancels the remaining tasks at its end, and waits for generators and helper threads.
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._until_stopped()), name="hark-s3-io", daemon=True
        )

    def start(self) -> None:
        """Start the loop, and wait until it runs."""
        self._thread.start()
        self._ready.wait()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for its result.

        Raises `concurrent.futures.CancelledError` when the thread is stopped meanwhile.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("run() would wait for its own thread for ever")
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            # Also if this thread is interrupted, because the result is not needed any more.
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop; cancelling the future cancels it."""
        with self._lock:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise RuntimeError("the thread of the bucket does not run")

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the loop soon."""
        with self._lock:
            if self._loop is None:
                raise RuntimeError("the thread of the bucket does not run")
            self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Cancel all tasks, wait for their end and close the loop. A second call does nothing."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("stop() would wait for its own thread for ever")
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None and self._stopping is not None:
                loop.call_soon_threadsafe(self._stopping.set)
        if self._thread.ident is not None:
            self._thread.join()

    async def _until_stopped(self) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._stopping.wait()


# Some servers accept conditional requests and ignore the conditions. Two processes could then both commit the same
# number, so Hark refuses such a server before the first message.


ATTEMPTS = 6
"""A store can be busy; only a run in which every request was answered proves anything."""

CERTAIN = 2
"""A proxy that sends a request twice makes a good store look broken, but not with every key."""

_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 2.0
_FIRST = b"Hark asks: who was first? The first."
_SECOND = b"Hark asks: who was first? The second."
_THIRD = b"Hark tests conditional writes, third object."
_PART = (5, 4)
_AT_ONCE = 5
_TRIES = 3


class _Broken(Exception):
    """A guarantee that the store does not give."""


async def probe(bucket: Bucket, unique: str, *, pause: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
    """Test the store with unused keys (`unique` is random); raises `StoreUnusable` with the remedy."""
    broken = 0
    for attempt in range(1, ATTEMPTS + 1):
        # An unclear outcome makes a key useless, so each attempt has its own.
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
    """Check concurrent creates: some servers check and write in two steps, which works only without concurrency."""

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
    # The ETag of a replaced object is wrong, but has the format that the store expects.
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
    """Repeat a read or a deletion until it is answered."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(Unclear, Conflicting):
            return await request()
    return await request()


async def _clean(bucket: Bucket, key: str) -> None:
    # The reason of the failure matters more than a few bytes that stay under probe/.
    with contextlib.suppress(BucketError):
        await bucket.delete([key, f"{key}-raced"])
