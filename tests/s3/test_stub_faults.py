"""The faults of the stub: what happens in the store, and what a `StubBucket` hears, which is one process."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from hark.clock import FakeClock
from hark.engine.s3.bucket import Taken, Unclear
from tests.s3.stub.faults import Broken, Fault, Faults, Silent
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import Request, StubStore

CREATE = Request(kind="put", key="log/1", body=b"one", if_absent=True)


# What a fault does to a create -----------------------------------------------------------------------------


RECEIVED: dict[Fault, tuple[int | type[Broken], bool]] = {
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
async def test_each_fault_is_received_and_happens_as_its_name_says(stub_store: StubStore, fault: Fault) -> None:
    faults = Faults()
    faults.next(fault)
    outcome: int | type[Broken]
    try:
        outcome = (await faults.perform(stub_store, CREATE)).status
    except Broken as error:
        outcome = type(error)
    assert (outcome, stub_store.read("log/1") == b"one") == RECEIVED[fault]
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
    received: list[str] = []
    for key in ("log/1", "snap/1", "log/2", "log/3", "log/4"):
        assert await stub_bucket.get(key) is None
        try:
            await stub_bucket.create(key, b"")
        except Unclear:
            received.append(key)
    assert received == ["log/2", "log/3"]


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


async def test_chance_brings_every_fault_but_timeouts_as_often_as_it_is_notified_by_the_seed_alone() -> None:
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


# What one process has of its own ---------------------------------------------------------------------------


async def test_prefixes_keep_stores_apart(stub_store: StubStore, clock: FakeClock) -> None:
    one, two = StubBucket(stub_store, clock, "one/"), StubBucket(stub_store, clock, "two")
    await one.create("meta.json", b"one")
    await two.create("meta.json", b"two")
    await one.delete(["meta.json"])
    assert (one.name, two.name) == ("s3://stub/one", "s3://stub/two")
    assert stub_store.keys() == ["two/meta.json"]
