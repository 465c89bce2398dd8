"""The URL of a bucket: what it says, and what is refused."""

from __future__ import annotations

import pytest

from hark.engine.s3.bucket.address import Address
from hark.errors import InvalidSetting


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("s3://queues", Address("queues")),
        ("s3://queues/", Address("queues")),
        ("s3://queues/some/prefix", Address("queues", "some/prefix")),
        ("s3://queues/some/prefix/", Address("queues", "some/prefix")),
        ("s3://my.queues-1/a_b.c=d", Address("my.queues-1", "a_b.c=d")),
        ("s3://queues?region=eu-west-1", Address("queues", region="eu-west-1")),
        (
            "s3://queues/p?endpoint=http://127.0.0.1:9000&region=eu-west-1",
            Address("queues", "p", "http://127.0.0.1:9000", "eu-west-1"),
        ),
        ("s3://queues/p?endpoint=https%3A%2F%2Fstore.example%2F", Address("queues", "p", "https://store.example")),
        ("s3://queues/p?endpoint=http://[::1]:9000", Address("queues", "p", "http://[::1]:9000")),
    ],
)
def test_a_url_names_bucket_prefix_endpoint_and_region(url: str, address: Address) -> None:
    assert Address.parse(url) == address


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("queues/prefix", "expected s3://bucket/prefix"),
        ("https://queues/prefix", "expected s3://bucket/prefix"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://[queues", "no URL"),
        ("s3://Queues", "'Queues' is not the name of a bucket"),
        ("s3://q", "'q' is not the name of a bucket"),
        ("s3://-queues", "is not the name of a bucket"),
        ("s3://a..b", "is not the name of a bucket"),
        ("s3://localhost:9000/queues", "?endpoint=http://host:port"),
        ("s3://queues/a//b", "'a//b' is not a prefix"),
        ("s3://queues/a b", "is not a prefix"),
        ("s3://queues/a/../b", "is not a prefix"),
        ("s3://queues/" + "a" * 513, "at most 512"),
        ("s3://queues/a#b", "'#'"),
        ("s3://queues?endpont=http://127.0.0.1:1", "not 'endpont'"),
        ("s3://queues?region=a&region=b", "region= twice"),
        ("s3://queues?region=", "is not the name of a region"),
        ("s3://queues?region=eu west", "is not the name of a region"),
        ("s3://queues?endpoint=", "endpoint= is not the URL of a server"),
        ("s3://queues?endpoint=127.0.0.1:9000", "endpoint= is not the URL of a server"),
        ("s3://queues?endpoint=http://host:port", "endpoint= is not the URL of a server"),
        ("s3://queues?endpoint=http://h/?x=1", "without credentials and parameters"),
    ],
)
def test_nonsense_is_refused_with_what_is_wrong(url: str, complaint: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Address.parse(url)
    assert complaint in caught.value.text
    assert caught.value.text.startswith("engine: ")


@pytest.mark.parametrize("url", ["s3://key:hunter2@queues/p", "s3://queues?endpoint=http://key:hunter2@host"])
def test_credentials_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidSetting, match="credentials") as caught:
        Address.parse(url)
    assert "hunter2" not in caught.value.text


def test_the_name_has_neither_endpoint_nor_region() -> None:
    assert Address.parse("s3://queues/p/q?endpoint=http://127.0.0.1:1&region=r").text == "s3://queues/p/q"
    assert Address.parse("s3://queues/").text == "s3://queues"


def test_keys_are_under_the_prefix() -> None:
    assert Address("queues", "p/q").key("log/1") == "p/q/log/1"
    assert Address("queues").key("log/1") == "log/1"
