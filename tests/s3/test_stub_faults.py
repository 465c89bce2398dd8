"""The faults of the stub: what happens in the store, and what a `StubBucket` hears, which is one process."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.s3.bucket.api import Taken, Unclear
from tests.s3.stub.faults import Broken, Fault, Faults, Silent
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import Request, StubStore

CREATE = Request(kind="put", key="log/1", body=b"one", if_absent=True)


# What a fault does to a create -----------------------------------------------------------------------------


HEARD: dict[Fault, tuple[int | type[Broken], bool]] = {
    Fault.CONFLICT: (409, False),
    Fault.ERROR: (500, False),
    Fault.SLOW_DOWN: (503, False),
    Fault.DROP: (Broken, False),
    Fault.LOST_ERROR: (500, True),
    Fault.LOST_SLOW_DOWN: (503, True),
    Fault.RESET: (Broken, True),
    Fault.TWICE: (412, True),
    Fault.LATE: (Broken, False),
    Fault.TIMEOUT: (Silent, False),
    Fault.LOST_TIMEOUT: (Silent, True),
}
"""What is heard of a create, and whether it happened."""


@pytest.mark.parametrize("fault", Fault)
async def test_each_fault_is_heard_and_happens_as_its_name_says(stub_store: StubStore, fault: Fault) -> None:
    faults = Faults()
    faults.next(fault)
    outcome: int | type[Broken]
    try:
        outcome = (await faults.perform(stub_store, CREATE)).status
    except Broken as error:
        outcome = type(error)
    assert (outcome, stub_store.read("log/1") == b"one") == HEARD[fault]
    assert faults.happened == [(fault, "log/1")]
    assert stub_store.log == [("put", "log/1", outcome if isinstance(outcome, int) else 0)]


async def test_a_late_write_is_not_seen_by_the_next_look_and_then_takes_the_key_if_it_is_free(
    stub_bucket: StubBucket,
) -> None:
    stub_bucket.faults.next(Fault.LATE, kind="put")
    with pytest.raises(Unclear):
        await stub_bucket.create("log/1", b"late")
    assert await stub_bucket.get("log/1") is None
    with pytest.raises(Taken):
        await stub_bucket.create("log/1", b"again")
    assert stub_bucket.store.read("log/1") == b"late"
    stub_bucket.faults.next(Fault.LATE, kind="put")
    with pytest.raises(Unclear):
        await stub_bucket.create("log/2", b"late")
    await stub_bucket.create("log/2", b"other")
    await stub_bucket.get("log/2")
    assert stub_bucket.store.read("log/2") == b"other"


# Which request is meant ------------------------------------------------------------------------------------


async def test_a_script_meets_the_requests_that_it_names_and_no_others(stub_bucket: StubBucket) -> None:
    stub_bucket.faults.next(Fault.ERROR, kind="put", key="log/", skip=1, times=2)
    heard: list[str] = []
    for key in ("log/1", "snap/1", "log/2", "log/3", "log/4"):
        assert await stub_bucket.get(key) is None
        try:
            await stub_bucket.create(key, b"")
        except Unclear:
            heard.append(key)
    assert heard == ["log/2", "log/3"]


async def test_after_healing_everything_works(stub_store: StubStore) -> None:
    faults = Faults(rates={"put": {Fault.ERROR: 1.0}})
    faults.next(Fault.ERROR, times=100)
    assert (await faults.perform(stub_store, CREATE)).status == 500
    faults.heal()
    assert (await faults.perform(stub_store, CREATE)).status == 200


async def faults_of(seed: int, rate: float) -> list[tuple[Fault, str]]:
    """What happens to two hundred writes, two hundred reads and two hundred deletes."""
    store, faults = StubStore(FakeClock()), Faults.by_chance(seed, rate)
    for number in range(200):
        key = f"log/{number}"
        for request in (
            Request(kind="put", key=key, if_absent=True),
            Request(kind="get", key=key),
            Request(kind="delete", key=key),
        ):
            with suppress(Broken):
                await faults.perform(store, request)
    return faults.happened


async def test_chance_brings_every_fault_but_timeouts_as_often_as_it_is_told_by_the_seed_alone() -> None:
    happened = await faults_of(7, 0.5)
    assert {fault for fault, _ in happened} == set(Fault) - {Fault.TIMEOUT, Fault.LOST_TIMEOUT}
    assert 200 < len(happened) < 400
    assert happened == await faults_of(7, 0.5) != await faults_of(8, 0.5)
    assert await faults_of(7, 0.0) == []
    assert len(await faults_of(7, 1.0)) == 600


async def test_latency_is_half_before_the_store_and_half_after_it(stub_store: StubStore) -> None:
    seen: list[tuple[float, bool]] = []

    async def sleep(seconds: float) -> None:
        seen.append((seconds, stub_store.read("log/1") is not None))

    faults = Faults(latency=lambda request: 0.03 if request.kind == "put" else 0.0, sleep=sleep)
    await faults.perform(stub_store, CREATE)
    assert seen == [(0.015, False), (0.015, True)]


# Hooks and stops -------------------------------------------------------------------------------------------


async def test_hooks_are_called_before_and_after_plain_or_async(stub_bucket: StubBucket) -> None:
    seen: list[tuple[str, bytes | None]] = []

    def before(request: Request) -> None:
        seen.append(("before", stub_bucket.store.read(request.key)))

    async def after(request: Request) -> None:
        await asyncio.sleep(0)
        seen.append(("after", stub_bucket.store.read(request.key)))

    stub_bucket.faults.hook("before", before, kind="put", key="log/")
    stub_bucket.faults.hook("after", after, kind="put", key="log/", times=1)
    for key in ("log/1", "snap/1", "log/2"):
        await stub_bucket.create(key, b"one")
    assert seen == [("before", None), ("after", b"one"), ("before", None)]


async def test_a_request_waits_before_the_store_while_another_process_takes_its_key(
    stub_store: StubStore, clock: FakeClock
) -> None:
    slow, quick = StubBucket(stub_store, clock), StubBucket(stub_store, clock)
    stop = slow.faults.stop("before", kind="put", key="log/")
    creating = asyncio.create_task(slow.create("log/1", b"slow"))
    assert (await stop.reached()).body == b"slow"
    await quick.create("log/1", b"quick")
    stop.go()
    with pytest.raises(Taken):
        await creating


async def test_a_request_waits_after_the_store_and_can_be_cancelled_there(stub_bucket: StubBucket) -> None:
    stop = stub_bucket.faults.stop("after", kind="put")
    creating = asyncio.create_task(stub_bucket.create("log/1", b"one"))
    await stop.reached()
    assert stub_bucket.store.read("log/1") == b"one"
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    stop.go()
    assert stub_bucket.store.log == [("put", "log/1", 0)]
    assert (stub_bucket.requests.count("put"), stub_bucket.requests.failures("put")) == (1, 1)


def test_a_request_of_another_thread_waits_for_a_test_without_event_loop(stub_bucket: StubBucket) -> None:
    stop = stub_bucket.faults.stop("before", kind="put")
    with ThreadPoolExecutor(1) as thread:
        creating = thread.submit(lambda: asyncio.run(stub_bucket.create("log/1", b"one")))
        assert stop.wait().key == "log/1"
        assert (stub_bucket.store.keys(), creating.done()) == ([], False)
        stop.go()
        assert creating.result(30)
    assert stub_bucket.store.keys() == ["log/1"]


# What one process has of its own ---------------------------------------------------------------------------


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


async def test_the_time_of_the_store_is_learnt_from_its_answers() -> None:
    here, there = FakeClock(), FakeClock()
    there.advance(90)
    bucket = StubBucket(StubStore(there), here)
    await bucket.get("log/1")
    assert abs(bucket.time.now() - there.now()) <= SECOND
