"""What is in the bucket is not what was written: the engine stops with a clear error, and skips nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest

from hark.clock import FakeClock
from hark.engine.s3.engine import S3Engine
from hark.engine.s3.log import places, record
from hark.errors import HarkError, StoreUnusable
from hark.model import PopRequest
from tests.engine.driver import message
from tests.s3.processes import Process, running, until
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import Request, StubStore

SEQ = 3


def put(store: StubStore, key: str, body: bytes) -> None:
    """Store an object behind everybody's back."""
    store.execute(Request(kind="put", key=key, body=body))


def body_of(store: StubStore, key: str) -> bytes:
    """An object that is there."""
    body = store.read(key)
    assert body is not None, key
    return body


async def records_of_a_store(number: int) -> list[bytes]:
    """The first records of a store of its own."""
    store, clock = StubStore(FakeClock()), FakeClock()
    async with running(store, clock) as process:
        for value in range(number):
            await process.push("orders", "p", f"a payload that is kept in the record {value}")
    return [body_of(store, places.record(seq)) for seq in range(1, number + 1)]


def flipped(body: bytes) -> bytes:
    """The same with one bit that is another."""
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]


def changed(body: bytes, **fields: object) -> bytes:
    """The same with other fields, and right in itself."""
    return record.encode(msgspec.structs.replace(record.decode(body, SEQ), **fields))


def newer(body: bytes) -> bytes:
    """As a Hark wrote it that is not out yet."""
    kind = record.KIND[:-1] + b"\x09"
    return kind + body[len(kind) :]


Damage = Callable[[bytes, list[bytes]], bytes]
"""Makes the object of a record of the true one, and of the first records of another store."""
DAMAGES: dict[str, tuple[Damage, str]] = {
    "no-record": (lambda _true, _others: b"hello", r"log record 3 of \S+ is damaged: it does not begin as one"),
    "nothing": (lambda _true, _others: b"", r"log record 3 of \S+ is damaged: it does not begin as one"),
    "cut-off": (lambda true, _others: true[:-5], r"log record 3 of \S+ is damaged: it is cut off"),
    "one-bit": (lambda true, _others: flipped(true), r"log record 3 of \S+ is damaged: its checksum is wrong"),
    "another-store": (lambda _true, others: others[SEQ - 1], r"log record 3 belongs to another store than \S+"),
    "another-line": (
        lambda true, _others: changed(true, previous="nobody"),
        r"log record 3 of \S+ does not follow the one before it",
    ),
    "another-number": (
        lambda true, _others: record.encode(msgspec.structs.replace(record.decode(true, SEQ), seq=7)),
        r"log record 3 of \S+ is damaged: it says that it is record 7",
    ),
    "newer-format": (lambda true, _others: newer(true), r"log record 3 of \S+ has format 9, .* use the newer Hark"),
    "newer-tables": (
        lambda true, _others: changed(true, schema=999),
        r"log record 3 has schema version 999, .* use the newer Hark",
    ),
    "no-changes": (
        lambda true, _others: changed(true, changes=true[:40]),
        r"log record 3 does not fit what is before it .*: the log is damaged",
    ),
    "changes-that-do-not-fit": (
        lambda true, others: changed(true, changes=record.decode(others[0], 1).changes),
        r"log record 3 does not fit what is before it .*: the log is damaged",
    ),
}
EVERY_DAMAGE = pytest.mark.parametrize(("damage", "text"), DAMAGES.values(), ids=DAMAGES.keys())


async def store_with(damage: Damage) -> tuple[StubStore, FakeClock]:
    """A store of four records, the third of which is damaged."""
    clock = FakeClock()
    store = StubStore(clock)
    async with running(store, clock) as process:
        for value in range(4):
            await process.push("orders", "p", f"a payload that is kept in the record {value}")
    put(store, places.record(SEQ), damage(body_of(store, places.record(SEQ)), await records_of_a_store(SEQ)))
    return store, clock


def engine_on(store: StubStore, clock: FakeClock) -> S3Engine:
    """A process that has not started."""
    return S3Engine("s3://stub/damaged", clock=clock, bucket=StubBucket(store, clock))


async def refuses_to_start(store: StubStore, clock: FakeClock, text: str) -> None:
    """Nobody can start on it, and nobody writes to it."""
    before = store.keys("log/") + store.keys("snap/")
    with pytest.raises(StoreUnusable, match=text):
        await engine_on(store, clock).start(lambda _: None)
    assert store.keys("log/") + store.keys("snap/") == before


@EVERY_DAMAGE
async def test_nobody_starts_on_a_log_with_a_damaged_record(damage: Damage, text: str) -> None:
    store, clock = await store_with(damage)
    await refuses_to_start(store, clock, text)


@EVERY_DAMAGE
async def test_a_process_that_comes_to_a_damaged_record_stops(damage: Damage, text: str) -> None:
    """Whatever it is asked from then on; what it knew before is not changed, and nothing is written."""
    healthy = await store_with(lambda true, _others: true)
    others = await records_of_a_store(SEQ)
    store, clock = healthy
    bodies = {seq: body_of(store, places.record(seq)) for seq in range(1, 5)}
    store.execute(Request(kind="delete", key="", keys=tuple(places.record(seq) for seq in (3, 4))))
    async with running(store, clock) as process:
        put(store, places.record(SEQ), damage(bodies[SEQ], others))
        put(store, places.record(4), bodies[4])
        for _ in range(2):
            await fails(process, text)
        assert (await process.engine.store_metrics())["s3_log_records"] == 2
    assert store.keys("log/") == [places.record(seq) for seq in range(1, 5)]


async def fails(process: Process, text: str) -> None:
    """Every verb says what is wrong."""
    engine = process.engine
    for ask in (
        lambda: engine.push([[message("orders", "p", "more")]]),
        lambda: engine.pop([PopRequest(queue="orders")]),
        engine.ping,
    ):
        with pytest.raises(HarkError, match=text) as failure:
            await ask()
        assert (failure.value.code, failure.value.status) == ("store_unusable", 503)


# Snapshots --------------------------------------------------------------------------------------------------


async def store_with_a_snapshot() -> tuple[StubStore, FakeClock]:
    """A store with a snapshot of its fourth record."""
    clock = FakeClock()
    store = StubStore(clock)
    async with running(store, clock, snapshot_records=4) as process:
        for value in range(4):
            await process.push("orders", "p", value)
        await until(lambda: b'"seq":4' in (store.read(places.POINTER) or b""))
    return store, clock


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda _: b"hello", "snapshot 4 of .* is damaged: it does not begin as one"),
        (lambda body: body[:-5], "snapshot 4 of .* is damaged: it is cut off"),
        (flipped, "snapshot 4 of .* is damaged: its checksum is wrong"),
    ],
    ids=["no-snapshot", "cut-off", "one-bit"],
)
async def test_nobody_starts_on_a_damaged_snapshot(damage: Callable[[bytes], bytes], text: str) -> None:
    store, clock = await store_with_a_snapshot()
    key = places.snapshot(4)
    put(store, key, damage(body_of(store, key)))
    await refuses_to_start(store, clock, text)


async def test_nobody_starts_when_the_newest_snapshot_is_missing() -> None:
    store, clock = await store_with_a_snapshot()
    store.execute(Request(kind="delete", key=places.snapshot(4)))
    await refuses_to_start(store, clock, "snapshot 4 of .* is missing")


async def test_nobody_starts_on_the_snapshot_of_another_store() -> None:
    store, clock = await store_with_a_snapshot()
    other, _ = await store_with_a_snapshot()
    put(store, places.snapshot(4), body_of(other, places.snapshot(4)))
    await refuses_to_start(store, clock, "the snapshot of record 4 belongs to another store")


async def test_nobody_starts_on_a_damaged_pointer() -> None:
    store, clock = await store_with_a_snapshot()
    put(store, places.POINTER, b"{")
    await refuses_to_start(store, clock, re.escape(places.POINTER) + " of .* is damaged")
