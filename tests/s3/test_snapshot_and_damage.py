"""Snapshots: the state of one moment, in one object, found through the pointer.

And what is in the bucket is not what was written: the engine stops with a clear error, and skips nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import msgspec
import pytest

from hark.clock import FakeClock
from hark.engine.core import schema
from hark.engine.s3 import objects
from hark.engine.s3.housekeeping import KIND, SnapshotHeader, make_snapshot, read_snapshot
from hark.engine.s3.objects import load_newest, publish, read_pointer, write
from hark.engine.s3.state import VERSION, Scratch
from hark.errors import EngineFailure, HarkError, StoreUnusable
from hark.model import PopRequest
from tests.engine.driver import message
from tests.s3.processes import Process, running, until
from tests.s3.rests import Party, refuse
from tests.s3.stub.faults import Fault
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import Request, StubStore

EPOCH = "epoch"
TABLES = """
create table replica (
    id integer primary key check (id = 1), seq integer not null, time integer not null, nonce text not null
);
insert into replica values (1, 17, 1700, 'n17');
create table things (id integer primary key, name text);
insert into things select value, 'thing ' || value from json_each(?);
pragma user_version = 3;
pragma application_id = 7;
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[apsw.Connection]:
    """The connection that changes the state."""
    connection = apsw.Connection(str(tmp_path / "state.db"))
    connection.pragma("journal_mode", "wal")
    connection.execute(TABLES, (str(list(range(1, 5001))),))
    yield connection
    connection.close()


@pytest.fixture
def reader(writer: apsw.Connection) -> Iterator[apsw.Connection]:
    """A connection that only reads, as the engine makes them."""
    connection = apsw.Connection(writer.filename, flags=apsw.SQLITE_OPEN_READONLY)
    connection.pragma("query_only", True)
    yield connection
    connection.close()


@pytest.fixture
def opened() -> Iterator[apsw.Connection]:
    """The database of a snapshot, to be filled by `deserialize`."""
    connection = apsw.Connection(":memory:")
    yield connection
    connection.close()


def test_the_schema_of_a_snapshot_runs_nothing_that_is_not_harmless() -> None:
    with apsw.Connection(":memory:") as made:
        schema.migrate(made)
        made.execute("create view hostile as select steal('it') as answer")
        database = made.serialize("main")
    scratch = Scratch()
    stolen: list[apsw.SQLiteValue] = []

    def steal(*values: apsw.SQLiteValue) -> None:
        stolen.extend(values)

    try:
        scratch.open(1, database)
        reader = scratch.connect_reader()
        for connection in (scratch.writer, reader):
            connection.create_scalar_function("steal", steal, 1)
            with pytest.raises(apsw.SQLError, match="unsafe use of steal"):
                connection.execute("select * from hostile")
        reader.close()
        scratch.writer.pragma("writable_schema", True)
        with pytest.raises(apsw.SQLError, match="may not be modified"):
            scratch.writer.execute("delete from sqlite_schema")
    finally:
        scratch.close()
    assert stolen == []


def test_a_snapshot_has_all_of_the_database_and_says_which_moment_it_is(
    writer: apsw.Connection,
    reader: apsw.Connection,
    opened: apsw.Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    made, body = make_snapshot(reader, EPOCH)
    header, database = read_snapshot(body, 17)
    assert header == made == SnapshotHeader(17, EPOCH, 1700, "n17", VERSION, len(database))
    opened.deserialize("main", database)
    assert list(opened.execute("select * from things")) == list(writer.execute("select * from things"))
    assert (opened.pragma("user_version"), opened.pragma("application_id")) == (3, 7)
    assert len(body) < len(database)
    assert list(folder.iterdir()) == [], "the copy on disk is removed"


def test_the_header_and_the_database_are_of_one_moment_while_a_writer_goes_on(
    writer: apsw.Connection, reader: apsw.Connection, opened: apsw.Connection
) -> None:
    """A commit in the middle of the copy is in neither, but in the next one."""

    def commit_more() -> bool:
        if writer.execute("select seq from replica").get == 17:
            writer.execute("begin immediate; delete from things; update replica set seq = 18; commit")
        return False

    reader.set_progress_handler(commit_more, 1000)
    header, database = read_snapshot(make_snapshot(reader, EPOCH)[1], 17)
    opened.deserialize("main", database)
    assert writer.execute("select seq from replica").get == 18
    assert (header.seq, opened.execute("select count(*) from things").get) == (17, 5000)
    reader.set_progress_handler(None)
    assert make_snapshot(reader, EPOCH)[0].seq == 18


def test_a_damaged_snapshot_is_refused_with_its_number_its_store_and_what_to_do(reader: apsw.Connection) -> None:
    body = make_snapshot(reader, EPOCH)[1]
    packed, _, header = objects.unseal(KIND, body)
    short = msgspec.json.encode({**msgspec.json.decode(header), "database_bytes": 1})
    changed = bytearray(body)
    changed[len(body) // 2] ^= 1
    newer = objects.seal(KIND[:-1] + bytes([KIND[-1] + 1]), b"", b"", b"{}")
    with pytest.raises(StoreUnusable, match=r"snapshot 17 of s3://b has format 2.*upgrade Hark"):
        read_snapshot(newer, 17, "s3://b")
    with pytest.raises(StoreUnusable, match="it contains snapshot 17"):
        read_snapshot(body, 18)
    for damaged, why in (
        (body[:-1], "cut off"),
        (b"", "first bytes are wrong"),
        (bytes(changed), "checksum"),
        (objects.seal(KIND, b"no zlib", b"", bytes(header)), "decompress"),
        (objects.seal(KIND, bytes(packed), b"", b"{}"), "missing"),
        (objects.seal(KIND, bytes(packed), b"", short), "length of its database"),
    ):
        with pytest.raises(StoreUnusable) as error:
            read_snapshot(damaged, 17, "s3://b")
        assert "snapshot 17 of s3://b is damaged" in error.value.text
        assert why in error.value.text


# In the bucket ----------------------------------------------------------------------------------------------


class Publisher(Party):
    """One of those who make snapshots."""

    async def publish(self, seq: int, body: bytes = b"a snapshot") -> bool:
        """Announce, write and promote one."""
        return await publish(self.bucket, EPOCH, seq, body, self.clock.now, self.rests.retries())


@pytest.fixture
def publisher(stub_store: StubStore) -> Publisher:
    """The one that a test is about."""
    return Publisher(stub_store)


async def test_there_is_no_newest_before_one_was_promoted(publisher: Publisher) -> None:
    assert await load_newest(publisher.bucket) is None
    publisher.faults.hook("before", refuse, kind="put", key=objects.snapshot(10))
    with pytest.raises(EngineFailure, match="rejects snapshot 10: 403"):
        await publisher.publish(10)
    read = await read_pointer(publisher.bucket)
    assert read is not None and read[0].announced == (10,)
    assert await load_newest(publisher.bucket) is None


async def test_the_newest_is_found_through_the_pointer(publisher: Publisher) -> None:
    assert await publisher.publish(10, b"ten")
    assert await publisher.publish(20, b"twenty")
    publisher.store.forget_requests()
    found = await load_newest(publisher.bucket)
    assert found is not None
    assert (found[0].seq, found[1]) == (20, b"twenty")
    assert publisher.store.counts == {"put": 0, "get": 2, "list": 0, "delete": 0}


async def test_a_snapshot_that_is_removed_while_it_is_searched_leads_to_the_one_after_it(
    publisher: Publisher,
) -> None:
    await publisher.publish(10, b"ten")

    async def move_on(_: Request) -> None:
        await Publisher(publisher.store).publish(20, b"twenty")
        publisher.store.execute(Request(kind="delete", key=objects.snapshot(10)))

    publisher.faults.hook("before", move_on, kind="get", key=objects.snapshot(10), times=1)
    found = await load_newest(publisher.bucket)
    assert found is not None
    assert (found[0].seq, found[1]) == (20, b"twenty")


async def test_a_snapshot_that_is_lost_is_stated_to_be_lost(publisher: Publisher) -> None:
    await publisher.publish(10)
    publisher.store.execute(Request(kind="delete", key=objects.snapshot(10)))
    with pytest.raises(StoreUnusable, match="snapshot 10 of s3://stub is missing"):
        await load_newest(publisher.bucket)


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.SLOW_DOWN, Fault.RESET, Fault.DROP, Fault.CONFLICT])
async def test_a_write_is_tried_again_until_it_is_sure(publisher: Publisher, fault: Fault) -> None:
    publisher.faults.next(fault, kind="put")
    await write(publisher.bucket, 10, b"ten", publisher.rests.retries())
    assert publisher.store.read(objects.snapshot(10)) == b"ten"
    assert publisher.store.counts["put"] == 2
    publisher.faults.next(Fault.ERROR, kind="put", times=float("inf"))
    with pytest.raises(EngineFailure, match="could not store snapshot 10"):
        await write(publisher.bucket, 10, b"ten", publisher.rests.retries())


async def test_the_same_snapshot_of_two_processes_is_one(stub_store: StubStore) -> None:
    assert all(await asyncio.gather(Publisher(stub_store).publish(10), Publisher(stub_store).publish(10)))
    assert stub_store.keys() == [objects.snapshot(10), objects.POINTER]
    found = await load_newest(StubBucket(stub_store, FakeClock()))
    assert found is not None and [kept.seq for kept in found[0].snapshots] == [10]


async def test_a_snapshot_that_is_overtaken_while_it_is_written_is_removed_again(publisher: Publisher) -> None:
    async def overtake(_: Request) -> None:
        await Publisher(publisher.store).publish(20)

    publisher.faults.hook("before", overtake, kind="put", key=objects.snapshot(10), times=1)
    assert not await publisher.publish(10)
    assert publisher.store.keys("snap/0") == [objects.snapshot(20)]
    puts = publisher.store.counts["put"]
    assert not await publisher.publish(10)
    assert publisher.store.counts["put"] == puts, "one that is older than the newest is not even written"


# Damage -----------------------------------------------------------------------------------------------------


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
    return objects.encode(msgspec.structs.replace(objects.decode(body, SEQ), **fields))


def newer(body: bytes) -> bytes:
    """As a Hark wrote it that is not out yet."""
    kind = objects.KIND[:-1] + b"\x09"
    return kind + body[len(kind) :]


Damage = Callable[[bytes, list[bytes]], bytes]
"""Makes the object of a record of the true one, and of the first records of another store."""
DAMAGES: dict[str, tuple[Damage, str]] = {
    "no-record": (lambda _true, _others: b"hello", r"log record 3 of \S+ is damaged: its first bytes are wrong"),
    "one-bit": (lambda true, _others: flipped(true), r"log record 3 of \S+ is damaged: its checksum is wrong"),
    "another-store": (lambda _true, others: others[SEQ - 1], r"log record 3 belongs to another store than \S+"),
    "another-line": (
        lambda true, _others: changed(true, previous="nobody"),
        r"log record 3 of \S+ does not follow the record before it",
    ),
    "newer-format": (lambda true, _others: newer(true), r"log record 3 of \S+ has format 9, .* upgrade Hark"),
    "newer-tables": (
        lambda true, _others: changed(true, schema=999),
        r"log record 3 has version 999 of the tables, .* upgrade Hark",
    ),
    "no-changes": (
        lambda true, _others: changed(true, changes=true[:40]),
        r"log record 3 does not match the records before it .*: the log is damaged",
    ),
    "changes-that-do-not-fit": (
        lambda true, others: changed(true, changes=objects.decode(others[0], 1).changes),
        r"log record 3 does not match the records before it .*: the log is damaged",
    ),
}


async def refuses_to_start(store: StubStore, clock: FakeClock, text: str) -> None:
    """Nobody can start on it, and nobody writes to it."""
    before = store.keys("log/") + store.keys("snap/")
    with pytest.raises(StoreUnusable, match=text):
        await Process(store, clock).engine.start(lambda _: None)
    assert store.keys("log/") + store.keys("snap/") == before


@pytest.mark.parametrize(("damage", "text"), DAMAGES.values(), ids=DAMAGES.keys())
async def test_who_comes_to_a_damaged_record_stops_and_no_one_starts_on_it(damage: Damage, text: str) -> None:
    """Whatever it is asked from then on; what it knew before is not changed, and nothing is written."""
    clock = FakeClock()
    store = StubStore(clock)
    await fill(store, clock, 4)
    bodies = {seq: body_of(store, objects.record(seq)) for seq in range(1, 5)}
    other = StubStore(FakeClock())
    await fill(other, FakeClock(), SEQ)
    others = [body_of(other, objects.record(seq)) for seq in range(1, SEQ + 1)]
    store.execute(Request(kind="delete", key="", keys=tuple(objects.record(seq) for seq in (3, 4))))
    async with running(store, clock) as process:
        put(store, objects.record(SEQ), damage(bodies[SEQ], others))
        put(store, objects.record(4), bodies[4])
        for _ in range(2):
            await fails(process, text)
        assert (await process.engine.store_metrics())["s3_log_records"] == 2
    assert store.keys("log/") == [objects.record(seq) for seq in range(1, 5)]
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


async def store_with_a_snapshot() -> tuple[StubStore, FakeClock]:
    """A store with a snapshot of its fourth record."""
    clock = FakeClock()
    store = StubStore(clock)
    async with running(store, clock, snapshot_records=4) as process:
        for value in range(4):
            await process.push("orders", "p", value)
        await until(lambda: b'"seq":4' in (store.read(objects.POINTER) or b""))
    return store, clock


@pytest.mark.parametrize(
    ("key", "damage", "text"),
    [
        (objects.snapshot(4), flipped, "snapshot 4 of .* is damaged: its checksum is wrong"),
        (objects.snapshot(4), None, "snapshot 4 of .* is missing"),
        (objects.POINTER, lambda _: b"{", re.escape(objects.POINTER) + " of .* is damaged"),
    ],
    ids=["one-bit", "missing", "pointer"],
)
async def test_no_one_starts_on_a_damaged_snapshot(
    key: str, damage: Callable[[bytes], bytes] | None, text: str
) -> None:
    store, clock = await store_with_a_snapshot()
    if damage is None:
        store.execute(Request(kind="delete", key=key))
    else:
        put(store, key, damage(body_of(store, key)))
    await refuses_to_start(store, clock, text)


async def test_no_one_starts_on_the_snapshot_of_another_store() -> None:
    store, clock = await store_with_a_snapshot()
    other, _ = await store_with_a_snapshot()
    put(store, objects.snapshot(4), body_of(other, objects.snapshot(4)))
    await refuses_to_start(store, clock, "the snapshot of record 4 belongs to another store")
