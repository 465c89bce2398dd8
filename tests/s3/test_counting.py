"""Counts of requests, and what they cost."""

from __future__ import annotations

import threading

import pytest

from hark.engine.s3.bucket.counting import Prices, RequestCounter
from hark.settings.s3 import S3


def test_requests_are_counted_by_kind_with_their_bytes_and_failures() -> None:
    counter = RequestCounter()
    counter.sent("put", up=100)
    counter.sent("put", up=11)
    counter.failed("put")
    counter.sent("get")
    counter.received(7)
    counter.sent("delete")
    assert [counter.count(kind) for kind in ("put", "get", "list", "delete")] == [2, 1, 0, 1]
    assert (counter.failures(), counter.failures("put"), counter.failures("get")) == (1, 1, 0)
    assert (counter.bytes_up, counter.bytes_down) == (111, 7)


def test_a_million_messages_in_batches_cost_what_the_contract_says() -> None:
    counter = RequestCounter()
    for _ in range(20_000):
        counter.sent("put")
        counter.sent("get")
    assert counter.dollars() == pytest.approx(0.108)
    assert counter.dollars(Prices(put=10, get=0)) == pytest.approx(0.2)


def test_lists_cost_and_deletes_are_free() -> None:
    counter = RequestCounter(Prices(list=1_000_000))
    counter.sent("delete")
    assert counter.dollars() == 0
    counter.sent("list")
    assert counter.dollars() == 1


def test_prices_are_those_of_the_settings() -> None:
    assert Prices.of(S3()) == Prices()
    assert Prices.of(S3(put_dollars=1, get_dollars=2)) == Prices(put=1, get=2, delete=0)


def test_metrics_have_every_figure() -> None:
    counter = RequestCounter(Prices(put=1_000_000))
    counter.sent("put", up=5)
    counter.sent("get")
    counter.failed("get")
    counter.received(6)
    assert counter.as_metrics() == {
        "s3_requests_put": 1,
        "s3_requests_get": 1,
        "s3_requests_list": 0,
        "s3_requests_delete": 0,
        "s3_requests_failed": 1,
        "s3_bytes_up": 5,
        "s3_bytes_down": 6,
        "s3_dollars": pytest.approx(1.0000004),
    }


def test_threads_lose_no_count() -> None:
    counter = RequestCounter()
    start = threading.Barrier(4)

    def count() -> None:
        start.wait()
        for _ in range(5000):
            counter.sent("put", up=1)
            counter.failed("put")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (counter.count("put"), counter.failures(), counter.bytes_up) == (20_000, 20_000, 20_000)
