"""The client: what it sends, what answers mean, also when there is none, and what it notes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import importlib
import logging
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from typing import Any

import pytest
from aiohttp import web

from hark.clock import SECOND, FakeClock
from hark.engine.s3.bucket import Address, BucketError, Conflicting, Refused, Stored, Taken, Unclear
from hark.engine.s3.bucket_client import S3Bucket
from hark.errors import StoreUnusable
from hark.settings.sections import S3

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
EVERY_REQUEST: list[Callable[[S3Bucket], Awaitable[object]]] = [
    lambda bucket: bucket.get("a"),
    lambda bucket: bucket.create("a", b""),
    lambda bucket: bucket.replace("a", b"", '"e"'),
    lambda bucket: bucket.delete(["a"]),
]


class ScriptedServer:
    """A server that answers as a test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answers: list[Answer] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs, dict(request.headers), await request.read()))
        return await self.answers.pop(0)(request)

    def will(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Answer the next request so."""

        async def answer(_: web.Request) -> web.Response:
            return web.Response(status=status, body=body, headers=headers)

        self.answers.append(answer)

    def will_refuse(self, status: int, code: str, message: str = "as asked") -> None:
        """Answer the next request with an error of S3."""
        self.will(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """A server on a free port."""
    server = ScriptedServer()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = "http://{}:{}".format(*runner.addresses[0][:2])
    yield server
    await runner.cleanup()


@asynccontextmanager
async def opened(address: str | Address, **settings: Any) -> AsyncIterator[S3Bucket]:
    """A bucket on a server."""
    if isinstance(address, str):
        address = Address("queues", "p", address)
    bucket = S3Bucket(address, FakeClock(), S3(**settings))
    await bucket.open()
    try:
        yield bucket
    finally:
        await bucket.close()


@pytest.fixture
async def bucket(server: ScriptedServer) -> AsyncIterator[S3Bucket]:
    """A bucket on the server."""
    async with opened(server.url) as bucket:
        yield bucket


# What is sent ----------------------------------------------------------------------------------------------


async def test_a_create_asks_that_there_be_none_a_replace_names_the_etag_and_a_put_asks_nothing(
    server: ScriptedServer, bucket: S3Bucket
) -> None:
    for etag in ('"e"', '"f"', '"g"'):
        server.will(200, ETag=etag)
    assert await bucket.create("log/1", b"body") == '"e"'
    assert await bucket.replace("snap/latest", b"body", '"e"') == '"f"'
    assert await bucket.put("snap/1", b"") == '"g"'
    (method, path, created, body), (_, _, replaced, _), (_, _, put, _) = server.requests
    assert (method, path, body) == ("PUT", "/queues/p/log/1", b"body")
    assert (created["If-None-Match"], created.get("If-Match")) == ("*", None)
    # Other servers than AWS know neither checksums of its kind nor bodies in signed chunks; a question whether the body
    # is welcome would cost a round trip.
    assert not [name for name in created if "checksum" in name.lower() or name in ("Expect", "Content-Encoding")]
    assert (replaced["If-Match"], replaced.get("If-None-Match")) == ('"e"', None)
    assert not {"If-Match", "If-None-Match"} & set(put)


async def test_a_large_body_goes_and_comes_whole_and_requests_and_bytes_are_counted(
    server: ScriptedServer, bucket: S3Bucket
) -> None:
    body = bytes(range(256)) * 16 * 1024
    server.will(200, ETag='"e"')
    server.will(200, body, ETag='"e"')
    await bucket.put("log/1", body)
    found = await bucket.get("log/1")
    assert (server.requests[0][3], found) == (body, Stored(body, '"e"'))
    assert server.requests[1][:2] == ("GET", "/queues/p/log/1")
    assert (bucket.requests.count("put"), bucket.requests.count("get")) == (1, 1)
    assert (bucket.requests.bytes_up, bucket.requests.bytes_down) == (len(body), len(body))


async def test_a_range_is_requested_by_its_ends_and_has_to_be_there_whole(
    server: ScriptedServer, bucket: S3Bucket
) -> None:
    server.will(206, b"dy", ETag='"e"')
    assert await bucket.get_range("log/1", 2, 2) == b"dy"
    assert server.requests[0][2]["Range"] == "bytes=2-3"
    assert await bucket.get_range("log/1", 2, 0) == b""
    assert len(server.requests) == 1, "nothing needs no request"
    for status, body in ((200, b"whole body"), (206, b"w")):
        server.will(status, body, ETag='"e"')
        with pytest.raises(Refused, match="instead of 2 from 3"):
            await bucket.get_range("log/1", 3, 2)
    server.will_refuse(416, "InvalidRange")
    with pytest.raises(Refused, match="416 InvalidRange"):
        await bucket.get_range("log/1", 3, 2)


async def test_a_thousand_keys_are_deleted_by_one_request_with_the_sum_that_older_servers_want(
    server: ScriptedServer, bucket: S3Bucket
) -> None:
    for _ in range(2):
        server.will(200, b"<DeleteResult/>")
    await bucket.delete([])
    assert server.requests == []
    await bucket.delete([f"log/{number}" for number in range(1001)])
    assert [body.count(b"<Key>p/log/") for *_, body in server.requests] == [1000, 1]
    for method, path, headers, body in server.requests:
        assert (method, path) == ("POST", "/queues?delete")
        assert headers["Content-MD5"] == base64.b64encode(hashlib.md5(body).digest()).decode()
    assert bucket.requests.count("delete") == 2


async def test_an_object_that_could_not_be_deleted_is_an_error_and_one_that_was_not_there_is_none(
    server: ScriptedServer, bucket: S3Bucket
) -> None:
    kinds: dict[str, type[BucketError] | None] = {
        "AccessDenied": Refused,
        "InternalError": Unclear,
        "SlowDown": Unclear,
        "NoSuchKey": None,
    }
    for code, kind in kinds.items():
        error = f"<Error><Key>p/a</Key><Code>{code}</Code><Message>no.</Message></Error>"
        server.will(200, f"<DeleteResult>{error}</DeleteResult>".encode())
        with contextlib.nullcontext() if kind is None else pytest.raises(kind, match=f"{code} no"):
            await bucket.delete(["a"])
    assert bucket.requests.failures("delete") == 3


async def authorized(server: ScriptedServer, address: Address, **settings: Any) -> str:
    """The signature of a request, which names the region."""
    server.will(200, ETag='"e"')
    async with opened(address, **settings) as bucket:
        await bucket.put("a", b"")
    assert server.requests[-1][1] == "/queues/a"
    return server.requests[-1][2]["Authorization"]


async def test_endpoint_and_region_come_from_the_address_the_settings_or_the_environment(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    authorization = await authorized(server, Address("queues"), endpoint_url=server.url, region="eu-central-1")
    assert "/eu-central-1/s3/" in authorization
    monkeypatch.setenv("AWS_DEFAULT_REGION", "from-environment")
    for region, expected in (("from-address", "from-address"), (None, "from-environment")):
        assert f"/{expected}/s3/" in await authorized(server, Address("queues", "", server.url, region))
    # The endpoint that the tools of AWS know is used with the bucket in the path.
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url.replace("127.0.0.1", "localhost"))
    await authorized(server, Address("queues"))
    # Where the library found its configuration is no news.
    assert [record for record in caplog.records if "botocore" in record.name] == []


# What is noted ---------------------------------------------------------------------------------------------


async def test_prices_come_from_the_settings(server: ScriptedServer) -> None:
    async with opened(server.url, put_dollars=1_000_000) as bucket:
        server.will(200, ETag='"e"')
        await bucket.put("a", b"")
        assert bucket.requests.dollars() == 1


async def test_the_date_of_every_answer_is_noted(server: ScriptedServer, bucket: S3Bucket) -> None:
    server.will(200, ETag='"e"', Date="yesterday")
    await bucket.put("a", b"")
    assert bucket.time.allowed() is None, "a date that makes no sense"
    minutes = 0
    for status in (200, 404, 412, 500):
        for request in EVERY_REQUEST:
            minutes += 1
            date = formatdate(FakeClock().now() // SECOND + 60 * minutes, usegmt=True)
            server.will(status, b"<DeleteResult/>", ETag='"e"', Date=date)
            with contextlib.suppress(BucketError):
                await request(bucket)
            # The answers contradict each other, so the last one counts alone.
            assert bucket.time.offset() == 60 * minutes * SECOND


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiobotocore.session", None)
    monkeypatch.delitem(sys.modules, "hark.engine.s3.bucket_client")
    with pytest.raises(StoreUnusable, match=r"pip install 'hark-mq\[s3\]'"):
        importlib.import_module("hark.engine.s3.bucket_client")


# What answers mean -----------------------------------------------------------------------------------------


async def test_what_is_missing_is_none_and_no_failure(server: ScriptedServer, bucket: S3Bucket) -> None:
    server.will_refuse(404, "NoSuchKey")
    server.will(404)
    server.will_refuse(404, "NoSuchKey")
    assert await bucket.get("log/1") is None
    assert await bucket.get("log/1") is None
    assert await bucket.get_range("log/1", 0, 5) is None
    assert (bucket.requests.count("get"), bucket.requests.failures()) == (3, 0)


async def test_a_condition_that_does_not_hold_is_taken_and_no_failure_and_a_conflict_is_to_be_tried_again(
    server: ScriptedServer, bucket: S3Bucket
) -> None:
    server.will_refuse(412, "PreconditionFailed")
    with pytest.raises(Taken):
        await bucket.create("log/1", b"")
    for status, code in ((412, "PreconditionFailed"), (404, "NoSuchKey")):
        server.will_refuse(status, code)
        with pytest.raises(Taken):
            await bucket.replace("snap/latest", b"", '"e"')
    assert (bucket.requests.count("put"), bucket.requests.failures()) == (3, 0)
    server.will_refuse(409, "ConditionalRequestConflict")
    with pytest.raises(Conflicting):
        await bucket.create("log/1", b"")
    assert bucket.requests.failures("put") == 1


async def test_an_error_of_the_server_leaves_the_outcome_unclear_and_nothing_is_sent_again(
    server: ScriptedServer, bucket: S3Bucket
) -> None:
    errors = [
        (500, "InternalError", False),
        (502, "", False),
        (503, "SlowDown", True),
        (503, "", True),
        (429, "TooManyRequests", True),
        (400, "RequestTimeout", False),
        (408, "", False),
    ]
    for status, code, slow_down in errors:
        for _ in range(2):
            if code:
                server.will_refuse(status, code)
            else:
                server.will(status, b"<html>the proxy says no</html>")
        with pytest.raises(Unclear) as put:
            await bucket.create("log/1", b"")
        with pytest.raises(Unclear) as got:
            await bucket.get("log/1")
        assert (put.value.slow_down, got.value.slow_down) == (slow_down, slow_down), (status, code)
        assert str(put.value).startswith(f"put log/1 of s3://queues/p: {status}")
        assert server.answers == []
    assert (len(server.requests), bucket.requests.failures()) == (14, 14)


async def test_a_refusal_says_what_to_do(server: ScriptedServer, bucket: S3Bucket) -> None:
    advices = [
        (404, "NoSuchBucket", "create it, or correct its name"),
        (403, "AccessDenied", "s3:ListBucket"),
        (403, "SomethingElse", "s3:ListBucket"),
        (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "AWS_ACCESS_KEY_ID"),
        (403, "RequestTimeTooSkewed", "the clock of this machine is wrong"),
        (400, "ExpiredToken", "expired"),
        (400, "InvalidArgument", "names an S3 server"),
        (501, "NotImplemented", "Hark cannot use it"),
    ]
    for status, code, advice in advices:
        for request in EVERY_REQUEST:
            server.will_refuse(status, code)
            with pytest.raises(Refused) as caught:
                await request(bucket)
            assert f"of s3://queues/p: {status} {code} as asked; " in str(caught.value)
            assert advice in str(caught.value)
    assert (len(server.requests), bucket.requests.failures()) == (36, 36)


async def test_a_server_that_is_no_store_is_refused(server: ScriptedServer, bucket: S3Bucket) -> None:
    server.will(404, b"<html>not here</html>")
    server.will(404)
    for request in (bucket.put("a", b""), bucket.delete(["a"])):
        with pytest.raises(Refused, match="names an S3 server"):
            await request


async def test_without_credentials_a_profile_or_being_open_nothing_is_sent(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refused, match="not open"):
        await S3Bucket(Address("queues", "p", server.url), FakeClock(), S3()).get("a")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    async with opened(server.url) as bucket:
        with pytest.raises(Refused, match="AWS_ACCESS_KEY_ID"):
            await bucket.get("a")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(Refused, match="nobody"):
        async with opened(server.url):
            pass
    assert server.requests == []


# No answer -------------------------------------------------------------------------------------------------


async def test_whether_a_request_was_sent_is_known_where_there_was_no_connection(
    server: ScriptedServer, bucket: S3Bucket
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Bound and not listening: nobody else gets the port, and nobody answers there.
        port = taken.getsockname()[1]
        async with opened(f"http://127.0.0.1:{port}") as nowhere:
            with pytest.raises(Unclear, match=str(port)) as failure:
                await nowhere.create("log/1", b"body")
            assert nowhere.requests.failures("put") == 1
    assert not failure.value.was_sent
    server.will_refuse(500, "InternalError")
    with pytest.raises(Unclear) as failure:
        await bucket.create("log/1", b"body")
    assert failure.value.was_sent


async def test_a_put_is_not_sent_again_when_a_kept_connection_closes_without_an_answer(
    server: ScriptedServer, bucket: S3Bucket
) -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    server.will(200, ETag='"e"')
    server.answers.append(hang_up)
    server.will_refuse(412, "PreconditionFailed")
    await bucket.create("log/1", b"one")
    with pytest.raises(Unclear):
        await bucket.create("log/2", b"two")
    assert [path for _, path, _, _ in server.requests] == ["/queues/p/log/1", "/queues/p/log/2"]


async def test_a_body_that_ends_early_is_unclear(server: ScriptedServer, bucket: S3Bucket) -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "10", "ETag": '"e"'})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return response

    server.answers.append(break_off)
    with pytest.raises(Unclear):
        await bucket.get("a")


async def test_an_answer_that_does_not_come_leaves_the_outcome_unclear_and_one_not_waited_for_counts_as_failed(
    server: ScriptedServer, bucket: S3Bucket
) -> None:
    arrived, over = asyncio.Event(), asyncio.Event()

    async def wait(_: web.Request) -> web.StreamResponse:
        arrived.set()
        await over.wait()
        return web.Response()

    server.answers = [wait] * 4
    task = asyncio.create_task(bucket.get("a"))
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bucket.requests.failures("get") == 1
    async with opened(server.url, request_timeout_ms=100) as hasty:
        for request in (hasty.get("a"), hasty.create("a", b""), hasty.delete(["a"])):
            with pytest.raises(Unclear):
                await request
        assert hasty.requests.failures() == 3
    over.set()
