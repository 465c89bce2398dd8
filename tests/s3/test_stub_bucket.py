"""The stub as a bucket of Hark in process: one `StubBucket` is one process."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.s3.bucket.api import Conflicting, Refused, Taken, Unclear
from tests.s3.stub.faults import Fault
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import StubStore


@pytest.mark.parametrize(
    ("fault", "error", "slow_down"),
    [
        (Fault.CONFLICT, Conflicting, None),
        (Fault.TWICE, Taken, None),
        (Fault.ERROR, Unclear, False),
        (Fault.LOST_SLOW_DOWN, Unclear, True),
        (Fault.RESET, Unclear, False),
        (Fault.LOST_TIMEOUT, Unclear, False),
    ],
    ids=lambda value: value.value if isinstance(value, Fault) else "",
)
async def test_a_bucket_raises_what_the_real_client_raises(
    stub_bucket: StubBucket, fault: Fault, error: type[Exception], slow_down: bool | None
) -> None:
    stub_bucket.faults.next(fault)
    with pytest.raises(error) as raised:
        await stub_bucket.create("log/1", b"one")
    assert getattr(raised.value, "slow_down", None) is slow_down


async def test_a_bucket_says_that_a_replaced_object_was_changed_or_is_gone(stub_bucket: StubBucket) -> None:
    etag = await stub_bucket.put("pointer", b"one")
    await stub_bucket.replace("pointer", b"two", etag)
    with pytest.raises(Taken):
        await stub_bucket.replace("pointer", b"three", etag)
    with pytest.raises(Taken):
        await stub_bucket.replace("missing", b"one", etag)


async def test_a_range_must_be_there_whole(stub_bucket: StubBucket) -> None:
    await stub_bucket.put("log/1", b"0123456789")
    assert await stub_bucket.get_range("log/1", 2, 3) == b"234"
    assert await stub_bucket.get_range("log/2", 2, 3) is None
    for first in (8, 10):
        with pytest.raises(Refused):
            await stub_bucket.get_range("log/1", first, 3)


async def test_prefixes_keep_stores_apart(stub_store: StubStore, clock: FakeClock) -> None:
    one, two = StubBucket(stub_store, clock, "one/"), StubBucket(stub_store, clock, "two")
    await one.create("meta.json", b"one")
    await two.create("meta.json", b"two")
    await one.delete(["meta.json"])
    assert (one.name, two.name) == ("s3://stub/one", "s3://stub/two")
    assert stub_store.keys() == ["two/meta.json"]


async def test_a_bucket_counts_its_own_requests_and_bytes(stub_store: StubStore, clock: FakeClock) -> None:
    one, two = StubBucket(stub_store, clock), StubBucket(stub_store, clock)
    await one.create("log/1", b"12345")
    await two.get("log/1")
    two.faults.next(Fault.RESET)
    with pytest.raises(Unclear):
        await two.create("log/2", b"12")
    with pytest.raises(Taken):
        await two.create("log/2", b"12")
    assert (one.requests.count("put"), one.requests.bytes_up, one.requests.failures()) == (1, 5, 0)
    assert (two.requests.count("put"), two.requests.count("get")) == (2, 1)
    assert (two.requests.bytes_up, two.requests.bytes_down, two.requests.failures("put")) == (4, 5, 1)
    assert stub_store.counts == {"put": 3, "get": 1, "list": 0, "delete": 0}


async def test_a_thousand_deletes_are_one_request(stub_bucket: StubBucket) -> None:
    await stub_bucket.put("log/1500", b"")
    await stub_bucket.delete([f"log/{number}" for number in range(2001)])
    await stub_bucket.delete([])
    assert (stub_bucket.requests.count("delete"), stub_bucket.store.keys()) == (3, [])


async def test_the_time_of_the_store_is_learnt_from_its_answers() -> None:
    here, there = FakeClock(), FakeClock()
    there.advance(90)
    bucket = StubBucket(StubStore(there), here)
    await bucket.get("log/1")
    assert abs(bucket.time.now() - there.now()) <= SECOND


async def test_a_closed_bucket_refuses_requests_until_it_is_opened_again(stub_bucket: StubBucket) -> None:
    await stub_bucket.close()
    with pytest.raises(Refused, match="not open"):
        await stub_bucket.get("log/1")
    await stub_bucket.open()
    assert await stub_bucket.get("log/1") is None
    assert stub_bucket.requests.count("get") == 1


def test_processes_in_several_threads_share_one_store(stub_store: StubStore, clock: FakeClock) -> None:
    won: list[int] = []

    async def create_all(number: int) -> None:
        bucket = StubBucket(stub_store, clock)
        for key in range(50):
            with suppress(Taken):
                await bucket.create(f"log/{key}", b"%d" % number)
                won.append(key)

    threads = [threading.Thread(target=lambda n=number: asyncio.run(create_all(n))) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(50))
