"""The stub over HTTP: what only a server has, and that the real client hears of it what the bucket in process says."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from hark.clock import SystemClock
from hark.engine.s3.bucket.address import Address
from hark.engine.s3.bucket.api import Bucket, BucketError
from hark.engine.s3.bucket.client import S3Bucket
from hark.engine.s3.bucket.probing import probe
from hark.settings.s3 import S3
from tests.s3.stub.faults import Fault, Faults
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.server import BUCKET, StubServer
from tests.s3.stub.store import StubStore

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
    heard = await http.put(url, content=b"one", headers=CREATE)
    assert (heard.status_code, f"<Code>{code}</Code>" in heard.text, "Date" in heard.headers) == (status, True, True)


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
    heard: list[object] = []

    async def note(work: Awaitable[object]) -> str:
        try:
            heard.append(await work)
        except BucketError as error:
            heard.append((type(error), getattr(error, "slow_down", None)))
        return heard[-1] if isinstance(heard[-1], str) else '"none"'

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
    return [*heard, bucket.requests.as_metrics()]


@pytest.mark.parametrize("rate", [0.0, 0.3])
async def test_the_bucket_in_process_and_the_real_client_hear_the_same_of_the_same_faults(
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


async def test_a_fresh_bucket_is_empty_and_hark_can_use_it(fresh_bucket: str) -> None:
    bucket = S3Bucket(Address.parse(fresh_bucket), SystemClock(), S3())
    await bucket.open()
    try:
        assert await bucket.get("meta.json") is None
        await probe(bucket, "unique")
    finally:
        await bucket.close()


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
        counted = {"put": 2, "get": 1, "list": 0, "delete": 0, "objects": 1, "bytes": 3}
        assert json.loads(client.get("/_stub/counts").content) == counted
        assert client.post("/_stub/reset").status_code == 204
        assert set(client.get("/_stub/counts").json().values()) == {0}


def test_a_process_fails_the_share_of_requests_that_it_is_told() -> None:
    answers: set[int] = set()
    with process("--faults", "1", "--seed", "7") as client:
        for _ in range(20):
            try:
                answers.add(client.get(f"/{BUCKET}/log/1").status_code)
            except httpx.TransportError:
                answers.add(0)
    assert answers == {0, 500, 503}
