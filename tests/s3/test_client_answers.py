"""The client: what answers mean, also when there is none, and that nothing is sent twice."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from hark.clock import FakeClock
from hark.engine.s3.bucket.address import Address
from hark.engine.s3.bucket.api import Conflicting, Refused, Taken, Unclear
from hark.engine.s3.bucket.client import S3Bucket
from hark.settings.s3 import S3
from tests.s3.scripted import ScriptedServer, opened, serving


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """A server on a free port."""
    async with serving() as server:
        yield server


@pytest.fixture
async def bucket(server: ScriptedServer) -> AsyncIterator[S3Bucket]:
    """A bucket on the server."""
    async with opened(server.url) as bucket:
        yield bucket


# What answers mean -----------------------------------------------------------------------------------------


async def test_what_is_missing_is_none_and_no_failure(server: ScriptedServer, bucket: S3Bucket) -> None:
    server.will_refuse(404, "NoSuchKey")
    server.will(404)
    server.will_refuse(404, "NoSuchKey")
    assert await bucket.get("log/1") is None
    assert await bucket.get("log/1") is None
    assert await bucket.get_range("log/1", 0, 5) is None
    assert (bucket.requests.count("get"), bucket.requests.failures()) == (3, 0)


async def test_a_condition_that_does_not_hold_is_taken_and_no_failure(server: ScriptedServer, bucket: S3Bucket) -> None:
    server.will_refuse(412, "PreconditionFailed")
    server.will_refuse(412, "PreconditionFailed")
    server.will_refuse(404, "NoSuchKey")
    with pytest.raises(Taken):
        await bucket.create("log/1", b"")
    with pytest.raises(Taken):
        await bucket.replace("snap/latest", b"", '"e"')
    with pytest.raises(Taken):
        await bucket.replace("snap/latest", b"", '"e"')
    assert (bucket.requests.count("put"), bucket.requests.failures()) == (3, 0)


async def test_a_conflict_is_to_be_tried_again(server: ScriptedServer, bucket: S3Bucket) -> None:
    server.will_refuse(409, "ConditionalRequestConflict")
    with pytest.raises(Conflicting):
        await bucket.create("log/1", b"")
    assert bucket.requests.failures("put") == 1


@pytest.mark.parametrize(
    ("status", "code", "slow_down"),
    [
        (500, "InternalError", False),
        (502, "", False),
        (503, "SlowDown", True),
        (503, "", True),
        (429, "TooManyRequests", True),
        (400, "RequestTimeout", False),
        (408, "", False),
    ],
)
async def test_an_error_of_the_server_leaves_the_outcome_unclear_and_nothing_is_sent_again(
    server: ScriptedServer, bucket: S3Bucket, status: int, code: str, slow_down: bool
) -> None:
    for _ in range(2):
        if code:
            server.will_refuse(status, code)
        else:
            server.will(status, b"<html>the proxy says no</html>")
    with pytest.raises(Unclear) as put:
        await bucket.create("log/1", b"")
    with pytest.raises(Unclear) as got:
        await bucket.get("log/1")
    assert (put.value.slow_down, got.value.slow_down) == (slow_down, slow_down)
    assert str(put.value).startswith(f"put log/1 of s3://queues/p: {status}")
    assert (len(server.asked), bucket.requests.failures()) == (2, 2)


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (404, "NoSuchBucket", "create it, or correct its name"),
        (403, "AccessDenied", "s3:ListBucket"),
        (403, "SomethingElse", "s3:ListBucket"),
        (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "AWS_ACCESS_KEY_ID"),
        (403, "RequestTimeTooSkewed", "the clock of this machine is wrong"),
        (400, "ExpiredToken", "expired"),
        (400, "InvalidArgument", "is that an S3 server"),
        (501, "NotImplemented", "can't be used on it"),
    ],
)
async def test_a_refusal_says_what_to_do(
    server: ScriptedServer, bucket: S3Bucket, status: int, code: str, advice: str
) -> None:
    requests: list[Callable[[], Awaitable[object]]] = [
        lambda: bucket.get("a"),
        lambda: bucket.create("a", b""),
        lambda: bucket.replace("a", b"", '"e"'),
        lambda: bucket.delete(["a"]),
    ]
    for request in requests:
        server.will_refuse(status, code)
        with pytest.raises(Refused) as caught:
            await request()
        assert f"of s3://queues/p: {status} {code} as asked; " in str(caught.value)
        assert advice in str(caught.value)
    assert (len(server.asked), bucket.requests.failures()) == (4, 4)


async def test_a_server_that_is_no_store_is_refused(server: ScriptedServer, bucket: S3Bucket) -> None:
    server.will(404, b"<html>not here</html>")
    server.will(404)
    with pytest.raises(Refused, match="is that an S3 server"):
        await bucket.put("a", b"")
    with pytest.raises(Refused, match="is that an S3 server"):
        await bucket.delete(["a"])


async def test_without_credentials_nothing_is_sent(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    async with opened(server.url) as bucket:
        with pytest.raises(Refused, match="AWS_ACCESS_KEY_ID"):
            await bucket.get("a")
    assert server.asked == []


async def test_a_profile_that_does_not_exist_is_refused(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(Refused, match="nobody"):
        async with opened(server.url):
            pass


async def test_a_bucket_that_is_not_open_sends_nothing() -> None:
    bucket = S3Bucket(Address("queues", "p", "http://127.0.0.1:9"), FakeClock(), S3())
    with pytest.raises(Refused, match="not open"):
        await bucket.get("a")


# No answer -------------------------------------------------------------------------------------------------


async def test_without_a_connection_the_outcome_is_unclear(unused_port: int) -> None:
    async with opened(f"http://127.0.0.1:{unused_port}") as bucket:
        with pytest.raises(Unclear, match=str(unused_port)):
            await bucket.create("log/1", b"")
        assert bucket.requests.failures("put") == 1


@pytest.fixture
async def unused_port() -> int:
    """A port at which nobody listens."""
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port: int = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    return port


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
    assert [path for _, path, _, _ in server.asked] == ["/queues/p/log/1", "/queues/p/log/2"]


async def test_a_server_that_does_not_answer_in_time_leaves_the_outcome_unclear(server: ScriptedServer) -> None:
    over = asyncio.Event()

    async def wait(_: web.Request) -> web.StreamResponse:
        await over.wait()
        return web.Response()

    async with opened(server.url, request_timeout_ms=100) as bucket:
        for request in (bucket.get("a"), bucket.create("a", b""), bucket.delete(["a"])):
            server.answers.append(wait)
            with pytest.raises(Unclear):
                await request
        assert bucket.requests.failures() == 3
    over.set()


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


async def test_a_request_that_is_cancelled_counts_as_failed(server: ScriptedServer, bucket: S3Bucket) -> None:
    arrived, over = asyncio.Event(), asyncio.Event()

    async def wait(_: web.Request) -> web.StreamResponse:
        arrived.set()
        await over.wait()
        return web.Response()

    server.answers.append(wait)
    task = asyncio.create_task(bucket.get("a"))
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    over.set()
    assert bucket.requests.failures("get") == 1


async def test_whether_a_request_was_sent_is_known_where_there_was_no_connection(server: ScriptedServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Bound and not listening: nobody else gets the port, and nobody answers there.
        async with opened(f"http://127.0.0.1:{taken.getsockname()[1]}") as bucket:
            with pytest.raises(Unclear) as failure:
                await bucket.create("log/1", b"body")
    assert not failure.value.was_sent
    server.will_refuse(500, "InternalError")
    async with opened(server.url) as bucket:
        with pytest.raises(Unclear) as failure:
            await bucket.create("log/1", b"body")
    assert failure.value.was_sent
