"""The stub behaves as S3 does: the same cases in process, over HTTP, and on a server that others wrote."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from hashlib import md5
from typing import Any

import httpx
import msgspec
import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import ClientError

from hark.clock import FakeClock, SystemClock
from hark.engine.s3.bucket import Address, Bucket, BucketError
from hark.engine.s3.bucket_client import S3Bucket
from hark.settings.sections import S3
from tests.s3.ministack import Ministack
from tests.s3.stub.faults import Fault, Faults
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.server import BUCKET, StubServer
from tests.s3.stub.store import Request, StubStore

CREATORS = 50


def etag_of(body: bytes) -> str:
    """What S3 calls these bytes."""
    return f'"{md5(body, usedforsecurity=False).hexdigest()}"'


class Received(msgspec.Struct, frozen=True):
    """What a client heard. `date`: the header with the server's time."""

    status: int
    code: str = ""
    body: bytes = b""
    etag: str = ""
    date: str = ""


class Door:
    """One way to one empty bucket, in the words of HTTP: statuses, bodies, ETags."""

    def __init__(self, ask: Callable[[Request], Awaitable[Received]]) -> None:
        self._send = ask

    async def _ask(self, request: Request) -> Received:
        received = await self._send(request)
        assert parsedate_to_datetime(received.date).utcoffset() is not None, "every answer bears the time of the server"
        return received

    async def put(self, key: str, body: bytes, *, if_absent: bool = False, if_match: str | None = None) -> Received:
        """Store an object."""
        return await self._ask(Request(kind="put", key=key, body=body, if_absent=if_absent, if_match=if_match))

    async def get(self, key: str, first: int | None = None, last: int | None = None) -> Received:
        """Read an object or a part of it."""
        return await self._ask(Request(kind="get", key=key, first=first, last=last))

    async def delete(self, key: str, *more: str) -> Received:
        """Remove an object, or several with one request."""
        return await self._ask(Request(kind="delete", key=key, keys=(key, *more) if more else ()))


def in_process(store: StubStore) -> Door:
    """The store itself."""
    faults = Faults()

    async def ask(request: Request) -> Received:
        answer = await faults.perform(store, request)
        status = 200 if request.keys else answer.status
        return Received(status, answer.code, answer.body, answer.etag, store.date_header())

    return Door(ask)


@asynccontextmanager
async def over_http(endpoint: str, bucket: str) -> AsyncIterator[Door]:
    """A bucket of a server, by the library that Hark's own client uses, which repeats nothing."""
    config = AioConfig(
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        max_pool_connections=64,
    )
    async with get_session().create_client("s3", endpoint_url=endpoint, config=config) as client:

        async def ask(request: Request) -> Received:
            try:
                answer = await _send(client, bucket, request)
            except ClientError as error:
                failed: Any = error.response
                meta = failed["ResponseMetadata"]
                return Received(
                    meta["HTTPStatusCode"], failed["Error"]["Code"], date=meta["HTTPHeaders"].get("date", "")
                )
            meta = answer["ResponseMetadata"]
            body = await answer["Body"].read() if "Body" in answer else b""
            return Received(
                meta["HTTPStatusCode"], "", body, answer.get("ETag", ""), meta["HTTPHeaders"].get("date", "")
            )

        yield Door(ask)


# The clients of botocore are made at run time: there is no type to name.
async def _send(client: Any, bucket: str, request: Request) -> Any:
    if request.keys:
        keys = [{"Key": key} for key in request.keys]
        return await client.delete_objects(Bucket=bucket, Delete={"Objects": keys})
    where = {"Bucket": bucket, "Key": request.key}
    if request.kind == "delete":
        return await client.delete_object(**where)
    if request.kind == "get":
        last = "" if request.last is None else request.last
        return await client.get_object(
            **where, **({} if request.first is None else {"Range": f"bytes={request.first}-{last}"})
        )
    conditions = {"IfNoneMatch": "*"} if request.if_absent else {}
    if request.if_match is not None:
        conditions["IfMatch"] = request.if_match
    return await client.put_object(**where, Body=request.body, **conditions)


@pytest.fixture(params=["in-process", "http", "ministack"])
async def door(request: pytest.FixtureRequest, stub_store: StubStore) -> AsyncIterator[Door]:
    """An empty bucket, three ways."""
    if request.param == "in-process":
        yield in_process(stub_store)
        return
    server = request.getfixturevalue("stub_server" if request.param == "http" else "ministack")
    assert isinstance(server, StubServer | Ministack)
    bucket = BUCKET if isinstance(server, StubServer) else server.make_bucket()
    async with over_http(server.url, bucket) as door:
        yield door


async def test_what_was_put_last_is_read_with_the_md5_of_its_bytes_as_etag(door: Door) -> None:
    missing = await door.get("log/1")
    assert (missing.status, missing.code) == (404, "NoSuchKey")
    bodies = (b"one", b"two", bytes(range(256)) * 4096 * 3)
    for key in ("log/1", "a b/ä+%2F", "deep/er/and/deeper"):
        for body in bodies:
            put = await door.put(key, body)
            read = await door.get(key)
            assert (put.status, put.etag) == (200, etag_of(body))
            assert (read.status, read.body, read.etag) == (200, body, etag_of(body))


async def test_only_the_first_create_of_a_key_wins_until_it_is_deleted(door: Door) -> None:
    first = await door.put("log/1", b"first", if_absent=True)
    second = await door.put("log/1", b"second", if_absent=True)
    assert (first.status, second.status, second.code) == (200, 412, "PreconditionFailed")
    assert (await door.get("log/1")).body == b"first"
    await door.delete("log/1")
    assert (await door.put("log/1", b"third", if_absent=True)).status == 200


async def test_a_replacement_needs_the_etag_of_what_is_there(door: Door) -> None:
    nothing = await door.put("pointer", b"new", if_match=etag_of(b"old"))
    assert (nothing.status, nothing.code) == (404, "NoSuchKey")
    assert (await door.get("pointer")).status == 404
    before = (await door.put("pointer", b"old")).etag
    wrong = await door.put("pointer", b"wrong", if_match=etag_of(b"other"))
    right = await door.put("pointer", b"right", if_match=before)
    again = await door.put("pointer", b"again", if_match=before)
    assert (wrong.status, wrong.code, right.status, again.status) == (412, "PreconditionFailed", 200, 412)
    assert (await door.get("pointer")).body == b"right"


async def test_of_many_creates_or_replacements_at_once_exactly_one_wins(door: Door) -> None:
    before = (await door.put("pointer", b"old")).etag
    bodies = [b"writer %d" % number for number in range(CREATORS)]
    conditions: Sequence[tuple[str, dict[str, Any]]] = [
        ("log/1", {"if_absent": True}),
        ("pointer", {"if_match": before}),
    ]
    for key, condition in conditions:
        received = await asyncio.gather(*(door.put(key, body, **condition) for body in bodies))
        assert Counter(each.status for each in received) == {200: 1, 412: CREATORS - 1}
        winner = bodies[[each.status for each in received].index(200)]
        assert (await door.get(key)).body == winner


async def test_a_range_is_206_with_the_bytes_that_there_are(door: Door) -> None:
    assert (await door.get("log/1", 0, 3)).status == 404
    await door.put("log/1", b"0123456789")
    # One byte, the middle, with an open end, beyond the end.
    for first, last, part in ((0, 0, b"0"), (2, 5, b"2345"), (7, None, b"789"), (8, 100, b"89")):
        received = await door.get("log/1", first, last)
        assert (received.status, received.body) == (206, part)
    behind = await door.get("log/1", 10, 12)
    assert (behind.status, behind.code) == (416, "InvalidRange")


async def test_deleted_objects_are_gone_and_to_delete_nothing_is_no_error(door: Door) -> None:
    for key in ("log/1", "log/2", "log/3", "log/4"):
        await door.put(key, b"record")
    assert [(await door.delete("log/4")).status for _ in range(2)] == [204, 204]
    assert (await door.delete("log/1", "log/3", "log/5 & more")).status == 200
    assert [(await door.get(f"log/{number}")).status for number in range(1, 5)] == [404, 200, 404, 404]


# The switches of the stub ----------------------------------------------------------------------------------


async def test_a_stub_may_be_one_of_the_servers_that_ignore_conditions(clock: FakeClock) -> None:
    door = in_process(StubStore(clock, ignores_conditions=True))
    statuses = [(await door.put("log/1", body, if_absent=True)).status for body in (b"first", b"second")]
    statuses.append((await door.put("log/1", b"third", if_match=etag_of(b"other"))).status)
    assert statuses == [200, 200, 200]
    assert (await door.get("log/1")).body == b"third"


async def test_the_date_is_that_of_the_clock_in_whole_seconds_and_requests_are_written_down(
    clock: FakeClock, stub_store: StubStore
) -> None:
    clock.advance(2.75)
    door = in_process(stub_store)
    received = await door.put("log/1", b"one", if_absent=True)
    assert parsedate_to_datetime(received.date).timestamp() == 1_700_000_002
    await door.put("log/1", b"two", if_absent=True)
    await door.get("log/1")
    await door.delete("log/1")
    assert stub_store.counts == {"put": 2, "get": 1, "list": 0, "delete": 1}
    expected = [("put", 200), ("put", 412), ("get", 200), ("delete", 204)]
    assert stub_store.log == [(kind, "log/1", status) for kind, status in expected]
    stub_store.forget_requests()
    assert (sum(stub_store.counts.values()), stub_store.log) == (0, [])


def test_creates_from_many_threads_have_one_winner_each(stub_store: StubStore) -> None:
    def create(number: int) -> list[int]:
        door = in_process(stub_store)
        body = b"%d" % number
        return [asyncio.run(door.put(f"log/{key}", body, if_absent=True)).status for key in range(20)]

    with ThreadPoolExecutor(4) as threads:
        statuses = [status for received in threads.map(create, range(4)) for status in received]
    assert Counter(statuses) == {200: 20, 412: 60}


# What only a server has ------------------------------------------------------------------------------------


CREATE = {"If-None-Match": "*"}


@pytest.fixture
async def http(stub_server: StubServer) -> AsyncIterator[httpx.AsyncClient]:
    """The bucket of `stub_server`. Not by aiohttp: it sends a PUT again when a connection breaks, and hides faults."""
    async with httpx.AsyncClient(base_url=f"{stub_server.url}/{BUCKET}") as client:
        yield client


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Fault.CONFLICT, 409, "ConditionalRequestConflict"),
        (Fault.LOST_ERROR, 500, "InternalError"),
        (Fault.SLOW_DOWN, 503, "SlowDown"),
        (Fault.TWICE, 412, "PreconditionFailed"),
        (None, 404, "NoSuchBucket"),
    ],
    ids=str,
)
async def test_faults_are_answers_with_codes_as_s3_has_them(
    stub_server: StubServer, http: httpx.AsyncClient, fault: Fault | None, status: int, code: str
) -> None:
    if fault is not None:
        stub_server.faults.next(fault, kind="put")
    url = "/log/1" if fault is not None else f"{stub_server.url}/other/log/1"
    received = await http.put(url, content=b"one", headers=CREATE)
    assert (received.status_code, f"<Code>{code}</Code>" in received.text, "Date" in received.headers) == (
        status,
        True,
        True,
    )


@pytest.mark.parametrize(("fault", "there"), [(Fault.RESET, True), (Fault.DROP, False)], ids=["lost-reset", "drop"])
async def test_a_broken_connection_is_an_error_of_the_client_whether_or_not_it_happened(
    stub_server: StubServer, http: httpx.AsyncClient, fault: Fault, there: bool
) -> None:
    stub_server.faults.next(fault, kind="put")
    with pytest.raises(httpx.TransportError):
        await http.put("/log/1", content=b"one", headers=CREATE)
    assert (stub_server.store.read("log/1") == b"one") is there
    assert stub_server.store.log == [("put", "log/1", 0)]


async def test_neither_a_slow_request_nor_a_silent_one_holds_up_others(
    stub_server: StubServer, http: httpx.AsyncClient
) -> None:
    stub_server.faults.next(Fault.LOST_TIMEOUT, kind="put")
    happened = stub_server.faults.stop("after", kind="put")
    silent = asyncio.create_task(http.put("/log/1", content=b"one", timeout=None))
    await happened.reached()
    happened.go()
    stop = stub_server.faults.stop("before", key="log/2")
    slow = asyncio.create_task(http.put("/log/2", content=b"slow"))
    await stop.reached()
    # A later request is answered first: both have had every chance.
    assert (await http.get("/log/1")).content == b"one"
    assert (silent.done(), slow.done()) == (False, False)
    stop.go()
    assert (await slow).status_code == 200
    assert not silent.done()
    silent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await silent


async def test_ranges_heads_lists_and_chunks_are_as_s3_has_them(
    stub_server: StubServer, http: httpx.AsyncClient
) -> None:
    chunks = b"5;chunk-signature=ab\r\n01234\r\n5\r\n56789\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"
    await http.put("/log/1", content=chunks, headers={"Content-Encoding": "aws-chunked"})
    assert stub_server.store.read("log/1") == b"0123456789"
    part = await http.get("/log/1", headers={"Range": "bytes=3-5"})
    assert (part.status_code, part.headers["Content-Range"], part.text) == (206, "bytes 3-5/10", "345")
    there, missing = await http.head("/log/1"), await http.head("/log/10")
    assert (there.status_code, there.headers["Content-Length"], there.content) == (200, "10", b"")
    assert missing.status_code == 404
    listed = await http.get("?list-type=2&prefix=log/")
    assert (listed.status_code, stub_server.store.counts["list"]) == (501, 1)
    assert stub_server.store.counts["get"] == 3, "a HEAD counts as a GET, a LIST does not"


async def test_who_expects_a_100_before_the_body_gets_it(stub_server: StubServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(stub_server.url.rpartition(":")[2]))
    head = f"PUT /{BUCKET}/log/1 HTTP/1.1\r\nHost: stub\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    statuses = []
    for text in (head.encode(), b"one"):
        writer.write(text)
        statuses.append((await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[0])
    writer.close()
    await writer.wait_closed()
    assert statuses == ["HTTP/1.1 100 Continue", "HTTP/1.1 200 OK"]
    assert stub_server.store.read("log/1") == b"one"


# The bucket in process and the real client -----------------------------------------------------------------


async def outcomes(bucket: Bucket) -> list[object]:
    """What the same requests end with, one after the other, and what was counted of them."""
    received: list[object] = []

    async def note(work: Awaitable[object]) -> str:
        try:
            received.append(await work)
        except BucketError as error:
            received.append((type(error), getattr(error, "slow_down", None)))
        return received[-1] if isinstance(received[-1], str) else '"none"'

    for number in range(40):
        key, body = f"log/{number}", b"record %d" % number
        etag = await note(bucket.create(key, body))
        await note(bucket.create(key, b"other"))
        await note(bucket.get(key))
        for first, length in ((3, 4), (6, 100), (3000, 4), (3, 0)):
            await note(bucket.get_range(key, first, length))
        replaced = await note(bucket.replace(key, b"new", etag))
        await note(bucket.replace(key, b"newer", etag))
        await note(bucket.delete([key, "missing"]))
        await note(bucket.replace(key, b"newest", replaced))
        await note(bucket.delete([]))
    await note(bucket.delete([f"log/{number}" for number in range(2001)]))
    await bucket.close()
    await note(bucket.get("log/1"))
    return [*received, bucket.requests.as_metrics()]


@pytest.mark.parametrize("rate", [0.0, 0.3])
async def test_the_bucket_in_process_and_the_real_client_receive_the_same_of_the_same_faults(
    stub_server: StubServer, rate: float
) -> None:
    stub_server.faults = Faults.by_chance(7, rate)
    clock = SystemClock()
    real = S3Bucket(Address.parse(stub_server.bucket_url("prefix")), clock, S3())
    await real.open()
    try:
        of_real = await outcomes(real)
    finally:
        await real.close()
    of_stub = await outcomes(StubBucket(StubStore(clock), clock, "prefix", Faults.by_chance(7, rate)))
    assert of_stub == of_real
    assert len({str(one) for one in of_stub}) > 40, "a lot was heard"


# As a process ----------------------------------------------------------------------------------------------


@contextmanager
def process(*arguments: str) -> Iterator[httpx.Client]:
    """Run it as a benchmark does; a client of it."""
    command = [sys.executable, "-m", "tests.s3.stub.server", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            with httpx.Client(base_url=running.stdout.readline().strip()) as client:
                yield client
        finally:
            running.terminate()


def test_a_process_says_where_it_is_and_what_it_counted_may_ignore_conditions_and_can_be_as_new() -> None:
    with process("--latency-ms", "1", "--ignore-conditions") as client:
        puts = [client.put(f"/{BUCKET}/log/1", content=b"one", headers=CREATE).status_code for _ in range(2)]
        assert puts == [200, 200]
        client.get(f"/{BUCKET}/log/1")
        counts = {"put": 2, "get": 1, "list": 0, "delete": 0, "objects": 1, "bytes": 3}
        assert json.loads(client.get("/_stub/counts").content) == counts
        assert client.post("/_stub/reset").status_code == 204
        assert set(client.get("/_stub/counts").json().values()) == {0}


def test_a_process_fails_the_share_of_requests_that_it_is_notified() -> None:
    answers: set[int] = set()
    with process("--faults", "1", "--seed", "7") as client:
        for _ in range(20):
            try:
                answers.add(client.get(f"/{BUCKET}/log/1").status_code)
            except httpx.TransportError:
                answers.add(0)
    assert answers == {0, 500, 503}
