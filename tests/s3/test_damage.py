"""What is in the bucket is not what was written: the engine stops with a clear error, and skips nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest

from hark.clock import FakeClock
from hark.engine.s3.log import places, record
from hark.errors import HarkError, StoreUnusable
from hark.model import PopRequest
from tests.engine.driver import message
from tests.s3.processes import Process, running, until
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


async def fill(store: StubStore, clock: FakeClock, records: int) -> None:
    """Write the first records of a store."""
    async with running(store, clock) as process:
        for value in range(records):
            await process.push("orders", "p", f"a payload that is kept in the record {value}")


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
    "one-bit": (lambda true, _others: flipped(true), r"log record 3 of \S+ is damaged: its checksum is wrong"),
    "another-store": (lambda _true, others: others[SEQ - 1], r"log record 3 belongs to another store than \S+"),
    "another-line": (
        lambda true, _others: changed(true, previous="nobody"),
        r"log record 3 of \S+ does not follow the one before it",
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


async def refuses_to_start(store: StubStore, clock: FakeClock, text: str) -> None:
    """Nobody can start on it, and nobody writes to it."""
    before = store.keys("log/") + store.keys("snap/")
    with pytest.raises(StoreUnusable, match=text):
        await Process(store, clock).engine.start(lambda _: None)
    assert store.keys("log/") + store.keys("snap/") == before


@pytest.mark.parametrize(("damage", "text"), DAMAGES.values(), ids=DAMAGES.keys())
async def test_who_comes_to_a_damaged_record_stops_and_nobody_starts_on_it(damage: Damage, text: str) -> None:
    """Whatever it is asked from then on; what it knew before is not changed, and nothing is written."""
    clock = FakeClock()
    store = StubStore(clock)
    await fill(store, clock, 4)
    bodies = {seq: body_of(store, places.record(seq)) for seq in range(1, 5)}
    other = StubStore(FakeClock())
    await fill(other, FakeClock(), SEQ)
    others = [body_of(other, places.record(seq)) for seq in range(1, SEQ + 1)]
    store.execute(Request(kind="delete", key="", keys=tuple(places.record(seq) for seq in (3, 4))))
    async with running(store, clock) as process:
        put(store, places.record(SEQ), damage(bodies[SEQ], others))
        put(store, places.record(4), bodies[4])
        for _ in range(2):
            await fails(process, text)
        assert (await process.engine.store_metrics())["s3_log_records"] == 2
    assert store.keys("log/") == [places.record(seq) for seq in range(1, 5)]
    await refuses_to_start(store, clock, text)


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
    ("key", "damage", "text"),
    [
        (places.snapshot(4), flipped, "snapshot 4 of .* is damaged: its checksum is wrong"),
        (places.snapshot(4), None, "snapshot 4 of .* is missing"),
        (places.POINTER, lambda _: b"{", re.escape(places.POINTER) + " of .* is damaged"),
    ],
    ids=["one-bit", "missing", "pointer"],
)
async def test_nobody_starts_on_a_damaged_snapshot(
    key: str, damage: Callable[[bytes], bytes] | None, text: str
) -> None:
    store, clock = await store_with_a_snapshot()
    if damage is None:
        store.execute(Request(kind="delete", key=key))
    else:
        put(store, key, damage(body_of(store, key)))
    await refuses_to_start(store, clock, text)


async def test_nobody_starts_on_the_snapshot_of_another_store() -> None:
    store, clock = await store_with_a_snapshot()
    other, _ = await store_with_a_snapshot()
    put(store, places.snapshot(4), body_of(other, places.snapshot(4)))
    await refuses_to_start(store, clock, "the snapshot of record 4 belongs to another store")
