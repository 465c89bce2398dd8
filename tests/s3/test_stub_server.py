"""The stub over HTTP: what only a server has."""

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
from tests.s3.stub.doors import Door, etag_of, http_door
from tests.s3.stub.faults import Fault, Faults
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.server import BUCKET, StubServer
from tests.s3.stub.store import StubStore


@pytest.fixture
async def door(stub_server: StubServer) -> AsyncIterator[Door]:
    """The bucket of `stub_server`."""
    async with http_door(stub_server.url, BUCKET) as door:
        yield door


async def test_a_bucket_that_is_not_there_is_named_so(stub_server: StubServer) -> None:
    async with http_door(stub_server.url, "other") as door:
        heard = await door.get("log/1")
    assert (heard.status, heard.code, heard.date != "") == (404, "NoSuchBucket", True)


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Fault.CONFLICT, 409, "ConditionalRequestConflict"),
        (Fault.LOST_ERROR, 500, "InternalError"),
        (Fault.SLOW_DOWN, 503, "SlowDown"),
        (Fault.TWICE, 412, "PreconditionFailed"),
    ],
    ids=str,
)
async def test_faults_are_answers_with_codes_as_s3_has_them(
    stub_server: StubServer, door: Door, fault: Fault, status: int, code: str
) -> None:
    stub_server.faults.next(fault, kind="put")
    heard = await door.put("log/1", b"one", if_absent=True)
    assert (heard.status, heard.code, heard.date != "") == (status, code, True)


@pytest.mark.parametrize(("fault", "there"), [(Fault.RESET, True), (Fault.DROP, False)], ids=["lost-reset", "drop"])
def test_a_broken_connection_is_an_error_of_the_client_whether_or_not_it_happened(
    stub_server: StubServer, fault: Fault, there: bool
) -> None:
    stub_server.faults.next(fault, kind="put")
    # Not by aiohttp: it sends a PUT again when a connection breaks, and so would hide the fault.
    with pytest.raises(httpx.TransportError):
        httpx.put(f"{stub_server.url}/{BUCKET}/log/1", content=b"one", headers={"If-None-Match": "*"})
    assert (stub_server.store.read("log/1") == b"one") is there
    assert stub_server.store.log == [("put", "log/1", 0)]


async def test_a_timeout_keeps_the_client_waiting_until_it_gives_up(stub_server: StubServer, door: Door) -> None:
    stub_server.faults.next(Fault.LOST_TIMEOUT, kind="put")
    happened = stub_server.faults.stop("after", kind="put")
    waiting = asyncio.create_task(door.put("log/1", b"one"))
    await happened.reached()
    happened.go()
    # A later request is answered first: the silent one has had every chance.
    assert (await door.get("log/1")).body == b"one"
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_slow_request_does_not_hold_up_others(stub_server: StubServer, door: Door) -> None:
    stop = stub_server.faults.stop("before", key="log/1")
    slow = asyncio.create_task(door.put("log/1", b"slow"))
    await stop.reached()
    assert (await door.put("log/2", b"quick")).status == 200
    assert not slow.done()
    stop.go()
    assert (await slow).status == 200


def test_lists_are_counted_and_refused(stub_server: StubServer) -> None:
    answer = httpx.get(f"{stub_server.url}/{BUCKET}?list-type=2&prefix=log/")
    assert (answer.status_code, stub_server.store.counts["list"]) == (501, 1)


def test_a_range_says_where_it_is_in_the_object(stub_server: StubServer) -> None:
    url = f"{stub_server.url}/{BUCKET}/log/1"
    httpx.put(url, content=b"0123456789")
    answer = httpx.get(url, headers={"Range": "bytes=3-5"})
    assert (answer.status_code, answer.headers["Content-Range"], answer.text) == (206, "bytes 3-5/10", "345")


def test_head_tells_the_size_without_the_body_and_counts_as_a_get(stub_server: StubServer) -> None:
    url = f"{stub_server.url}/{BUCKET}/log/1"
    httpx.put(url, content=b"0123456789")
    there, missing = httpx.head(url), httpx.head(f"{url}0")
    assert (there.status_code, there.headers["Content-Length"], there.content) == (200, "10", b"")
    assert (missing.status_code, stub_server.store.counts["get"]) == (404, 2)


def test_bodies_in_chunks_of_aws_are_unwrapped(stub_server: StubServer) -> None:
    chunks = b"5;chunk-signature=ab\r\n01234\r\n5\r\n56789\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"
    url = f"{stub_server.url}/{BUCKET}/log/1"
    httpx.put(url, content=chunks, headers={"Content-Encoding": "aws-chunked"})
    assert stub_server.store.read("log/1") == b"0123456789"


def test_who_expects_a_100_before_the_body_gets_it(stub_server: StubServer) -> None:
    port = int(stub_server.url.rpartition(":")[2])
    statuses = asyncio.run(_put_with_expect(port))
    assert statuses == ["HTTP/1.1 100 Continue", "HTTP/1.1 200 OK"]
    assert stub_server.store.read("log/1") == b"one"


async def _put_with_expect(port: int) -> list[str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"PUT /{BUCKET}/log/1 HTTP/1.1\r\nHost: stub\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    writer.write(head.encode())
    first = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[0]
    writer.write(b"one")
    second = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[0]
    writer.close()
    await writer.wait_closed()
    return [first, second]


# The bucket in process and the real client -----------------------------------------------------------------


async def outcomes(bucket: Bucket) -> list[object]:
    """What the same requests end with, one after the other, and what was counted of them."""
    heard: list[object] = []

    async def note(work: Awaitable[object]) -> None:
        try:
            heard.append(await work)
        except BucketError as error:
            heard.append((type(error), getattr(error, "slow_down", None)))

    for number in range(100):
        key, body = f"log/{number}", b"record %d" % number
        await note(bucket.create(key, body))
        await note(bucket.create(key, b"other"))
        await note(bucket.get(key))
        await note(bucket.get_range(key, 3, 4))
        await note(bucket.get_range(key, 6, 100))
        await note(bucket.get_range(key, 3000, 4))
        await note(bucket.get_range(key, 3, 0))
        await note(bucket.replace(key, b"new", etag_of(body)))
        await note(bucket.replace(key, b"newer", etag_of(body)))
        await note(bucket.delete([key, "missing"]))
        await note(bucket.replace(key, b"newest", etag_of(b"new")))
        await note(bucket.delete([]))
    counted = bucket.requests.as_metrics()
    return [*heard, counted]


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
def process(*arguments: str) -> Iterator[str]:
    """Run it as a benchmark does; its URL."""
    command = [sys.executable, "-m", "tests.s3.stub.server", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield running.stdout.readline().strip()
        finally:
            running.terminate()


def test_a_process_says_where_it_is_and_what_it_counted_and_can_be_as_new() -> None:
    with process("--latency-ms", "1") as url, httpx.Client(base_url=url) as client:
        for _ in range(2):
            client.put(f"/{BUCKET}/log/1", content=b"one", headers={"If-None-Match": "*"})
        client.get(f"/{BUCKET}/log/1")
        counted = {"put": 2, "get": 1, "list": 0, "delete": 0, "objects": 1, "bytes": 3}
        assert json.loads(client.get("/_stub/counts").content) == counted
        assert client.post("/_stub/reset").status_code == 204
        assert set(client.get("/_stub/counts").json().values()) == {0}


def test_a_process_fails_the_share_of_requests_that_it_is_told() -> None:
    with process("--faults", "1", "--seed", "7") as url, httpx.Client(base_url=url) as client:
        answers: set[int] = set()
        for _ in range(20):
            try:
                answers.add(client.get(f"/{BUCKET}/log/1").status_code)
            except httpx.TransportError:
                answers.add(0)
    assert answers == {0, 500, 503}


def test_a_process_may_ignore_conditions() -> None:
    with process("--ignore-conditions") as url, httpx.Client(base_url=url) as client:
        statuses = [
            client.put(f"/{BUCKET}/log/1", content=b"one", headers={"If-None-Match": "*"}).status_code for _ in range(2)
        ]
    assert statuses == [200, 200]
