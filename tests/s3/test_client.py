"""The client: what it sends, and what it notes."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib
import logging
import sys
from collections.abc import AsyncIterator

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.s3.bucket.address import Address
from hark.engine.s3.bucket.api import BucketError, Refused, Stored, Unclear
from hark.engine.s3.bucket.client import S3Bucket
from hark.errors import StoreUnusable
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


# What is sent ----------------------------------------------------------------------------------------------


async def test_create_asks_that_there_be_none(server: ScriptedServer, bucket: S3Bucket) -> None:
    server.will(200, ETag='"e"')
    assert await bucket.create("log/1", b"body") == '"e"'
    [(method, path, headers, body)] = server.asked
    assert (method, path, body) == ("PUT", "/queues/p/log/1", b"body")
    assert (headers["If-None-Match"], headers.get("If-Match")) == ("*", None)
    # Other servers than AWS know neither checksums of its kind nor bodies in signed chunks; a question whether the body
    # is welcome would cost a round trip.
    assert not [name for name in headers if "checksum" in name.lower() or name in ("Expect", "Content-Encoding")]


async def test_replace_names_the_etag_and_put_asks_nothing(server: ScriptedServer, bucket: S3Bucket) -> None:
    server.will(200, ETag='"f"')
    server.will(200, ETag='"g"')
    assert await bucket.replace("snap/latest", b"body", '"e"') == '"f"'
    assert await bucket.put("snap/1", b"") == '"g"'
    first, second = (headers for _, _, headers, _ in server.asked)
    assert (first["If-Match"], first.get("If-None-Match")) == ('"e"', None)
    assert not {"If-Match", "If-None-Match"} & set(second)


async def test_a_large_body_goes_and_comes_whole(server: ScriptedServer, bucket: S3Bucket) -> None:
    body = bytes(range(256)) * 16 * 1024
    server.will(200, ETag='"e"')
    server.will(200, body, ETag='"e"')
    await bucket.put("log/1", body)
    found = await bucket.get("log/1")
    assert (server.asked[0][3], found) == (body, Stored(body, '"e"'))


async def test_get_gives_body_and_etag(server: ScriptedServer, bucket: S3Bucket) -> None:
    server.will(200, b"body", ETag='"e"')
    assert await bucket.get("log/1") == Stored(b"body", '"e"')
    assert server.asked[0][:2] == ("GET", "/queues/p/log/1")


async def test_a_range_is_asked_for_by_its_ends(server: ScriptedServer, bucket: S3Bucket) -> None:
    server.will(206, b"dy", ETag='"e"')
    assert await bucket.get_range("log/1", 2, 2) == b"dy"
    assert server.asked[0][2]["Range"] == "bytes=2-3"


async def test_a_range_of_nothing_needs_no_request(server: ScriptedServer, bucket: S3Bucket) -> None:
    assert await bucket.get_range("log/1", 2, 0) == b""
    assert server.asked == []


@pytest.mark.parametrize("status", [200, 206])
async def test_a_range_that_is_longer_or_shorter_is_refused(
    server: ScriptedServer, bucket: S3Bucket, status: int
) -> None:
    server.will(status, b"whole body" if status == 200 else b"w", ETag='"e"')
    with pytest.raises(Refused, match="instead of the 2 from 3"):
        await bucket.get_range("log/1", 3, 2)


async def test_a_range_behind_the_end_is_refused(server: ScriptedServer, bucket: S3Bucket) -> None:
    server.will_refuse(416, "InvalidRange")
    with pytest.raises(Refused, match="416 InvalidRange"):
        await bucket.get_range("log/1", 3, 2)


async def test_a_thousand_keys_are_deleted_by_one_request_with_the_sum_that_older_servers_want(
    server: ScriptedServer, bucket: S3Bucket
) -> None:
    for _ in range(2):
        server.will(200, b"<DeleteResult/>")
    await bucket.delete([f"log/{number}" for number in range(1001)])
    assert [body.count(b"<Key>p/log/") for *_, body in server.asked] == [1000, 1]
    for method, path, headers, body in server.asked:
        assert (method, path) == ("POST", "/queues?delete")
        assert headers["Content-MD5"] == base64.b64encode(hashlib.md5(body).digest()).decode()
    assert bucket.requests.count("delete") == 2


async def test_deleting_nothing_sends_nothing(server: ScriptedServer, bucket: S3Bucket) -> None:
    await bucket.delete([])
    assert server.asked == []


@pytest.mark.parametrize(
    ("code", "kind"), [("AccessDenied", Refused), ("InternalError", Unclear), ("SlowDown", Unclear)]
)
async def test_an_object_that_could_not_be_deleted_is_an_error(
    server: ScriptedServer, bucket: S3Bucket, code: str, kind: type[BucketError]
) -> None:
    error = f"<Error><Key>p/a</Key><Code>{code}</Code><Message>no.</Message></Error>"
    server.will(200, f"<DeleteResult>{error}</DeleteResult>".encode())
    with pytest.raises(kind, match=f"{code} no"):
        await bucket.delete(["a"])
    assert bucket.requests.failures("delete") == 1


async def test_an_object_that_was_not_there_to_be_deleted_is_none(server: ScriptedServer, bucket: S3Bucket) -> None:
    error = "<Error><Key>p/a</Key><Code>NoSuchKey</Code><Message>no</Message></Error>"
    server.will(200, f"<DeleteResult>{error}</DeleteResult>".encode())
    await bucket.delete(["a"])


async def test_the_settings_say_endpoint_and_region_when_the_address_does_not(server: ScriptedServer) -> None:
    bucket = S3Bucket(Address("queues"), FakeClock(), S3(endpoint_url=server.url, region="eu-central-1"))
    await bucket.open()
    server.will(200, ETag='"e"')
    await bucket.put("a", b"")
    await bucket.close()
    assert server.asked[0][1] == "/queues/a"
    assert "/eu-central-1/s3/" in server.asked[0][2]["Authorization"]


async def test_an_endpoint_that_the_aws_tools_know_is_used_with_the_bucket_in_the_path(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url.replace("127.0.0.1", "localhost"))
    bucket = S3Bucket(Address("queues"), FakeClock(), S3())
    await bucket.open()
    server.will(200, ETag='"e"')
    await bucket.put("a", b"")
    await bucket.close()
    assert server.asked[0][1] == "/queues/a"


async def test_where_the_library_found_its_configuration_is_no_news(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
    server.will(200, b"body", ETag='"e"')
    bucket = S3Bucket(Address.parse("s3://queues/p"), FakeClock(), S3())
    await bucket.open()
    try:
        await bucket.get("log/1")
    finally:
        await bucket.close()
    assert [record for record in caplog.records if "botocore" in record.name] == []


async def test_the_address_says_the_region_before_the_settings_and_the_environment(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "from-environment")
    for region, expected in (("from-address", "from-address"), (None, "from-environment")):
        bucket = S3Bucket(Address("queues", "", server.url, region), FakeClock(), S3())
        await bucket.open()
        server.will(200, ETag='"e"')
        await bucket.put("a", b"")
        await bucket.close()
        assert f"/{expected}/s3/" in server.asked[-1][2]["Authorization"]


# What is noted ---------------------------------------------------------------------------------------------


async def test_requests_and_bytes_are_counted(server: ScriptedServer, bucket: S3Bucket) -> None:
    server.will(200, ETag='"e"')
    server.will(200, b"1234", ETag='"e"')
    await bucket.put("a", b"123456")
    await bucket.get("a")
    assert (bucket.requests.count("put"), bucket.requests.count("get")) == (1, 1)
    assert (bucket.requests.bytes_up, bucket.requests.bytes_down) == (6, 4)


async def test_prices_come_from_the_settings(server: ScriptedServer) -> None:
    async with opened(server.url, put_dollars=1_000_000) as bucket:
        server.will(200, ETag='"e"')
        await bucket.put("a", b"")
        assert bucket.requests.dollars() == 1


@pytest.mark.parametrize("status", [200, 404, 412, 500])
@pytest.mark.parametrize("verb", ["get", "put", "delete"])
async def test_the_date_of_every_answer_is_noted(
    server: ScriptedServer, bucket: S3Bucket, verb: str, status: int
) -> None:
    server.will(status, b"<DeleteResult/>", ETag='"e"')
    requests = {"get": bucket.get("a"), "put": bucket.put("a", b""), "delete": bucket.delete(["a"])}
    with contextlib.suppress(BucketError):
        await requests.pop(verb)
    for unused in requests.values():
        unused.close()
    assert bucket.time.offset() == 60 * SECOND


async def test_a_date_that_makes_no_sense_is_not_noted(server: ScriptedServer, bucket: S3Bucket) -> None:
    server.will(200, ETag='"e"', Date="yesterday")
    await bucket.put("a", b"")
    assert bucket.time.allowed() is None


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiobotocore.session", None)
    monkeypatch.delitem(sys.modules, "hark.engine.s3.bucket.library")
    with pytest.raises(StoreUnusable, match=r"pip install 'hark\[s3\]'"):
        importlib.import_module("hark.engine.s3.bucket.library")
