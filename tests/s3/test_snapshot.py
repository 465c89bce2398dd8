"""Snapshots: the state of one moment, in one object, found through the pointer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec
import pytest

from hark.clock import FakeClock
from hark.engine.s3.bucket.api import Refused
from hark.engine.s3.log import frame, places
from hark.engine.s3.log.pointer import read_pointer
from hark.engine.s3.log.snapshot import load_newest, publish, write
from hark.engine.s3.replica.snapshotting import KIND, SnapshotHeader, make_snapshot, read_snapshot
from hark.errors import EngineFailure, StoreUnusable
from tests.s3.rests import Rests
from tests.s3.stub.faults import Fault, Faults
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
    assert header == made == SnapshotHeader(17, 1700, "n17", EPOCH, 3, len(database))
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
    packed, _, header = frame.unseal(KIND, body)
    short = msgspec.json.encode({**msgspec.json.decode(header), "database_bytes": 1})
    changed = bytearray(body)
    changed[len(body) // 2] ^= 1
    newer = frame.seal(KIND[:-1] + bytes([KIND[-1] + 1]), b"", b"", b"{}")
    with pytest.raises(StoreUnusable, match=r"snapshot 17 of s3://b has format 2.*use the newer Hark that wrote it"):
        read_snapshot(newer, 17, "s3://b")
    with pytest.raises(StoreUnusable, match="it says that it is snapshot 17"):
        read_snapshot(body, 18)
    for damaged, why in (
        (body[:-1], "cut off"),
        (b"", "does not begin"),
        (bytes(changed), "checksum"),
        (frame.seal(KIND, b"no zlib", b"", bytes(header)), "decompress"),
        (frame.seal(KIND, bytes(packed), b"", b"{}"), "missing"),
        (frame.seal(KIND, bytes(packed), b"", short), "another length"),
    ):
        with pytest.raises(StoreUnusable) as error:
            read_snapshot(damaged, 17, "s3://b")
        assert "snapshot 17 of s3://b is damaged" in error.value.text
        assert why in error.value.text


# In the bucket ----------------------------------------------------------------------------------------------


class Process:
    """One of those who make snapshots."""

    def __init__(self, store: StubStore) -> None:
        self.store = store
        self.clock = FakeClock()
        self.faults = Faults()
        self.rests = Rests()
        self.bucket = StubBucket(store, self.clock, faults=self.faults)

    async def publish(self, seq: int, body: bytes = b"a snapshot") -> bool:
        """Announce, write and promote one."""
        return await publish(self.bucket, EPOCH, seq, body, self.clock.now, self.rests.patience())


@pytest.fixture
def process(stub_store: StubStore) -> Process:
    """The one that a test is about."""
    return Process(stub_store)


def refuse(_: Request) -> None:
    """A hook: the store has another answer."""
    raise Refused("403 AccessDenied")


async def test_there_is_no_newest_before_one_was_promoted(process: Process) -> None:
    assert await load_newest(process.bucket) is None
    process.faults.hook("before", refuse, kind="put", key=places.snapshot(10))
    with pytest.raises(EngineFailure, match="refuses snapshot 10: 403"):
        await process.publish(10)
    read = await read_pointer(process.bucket)
    assert read is not None and read[0].announced == (10,)
    assert await load_newest(process.bucket) is None


async def test_the_newest_is_found_through_the_pointer(process: Process) -> None:
    assert await process.publish(10, b"ten")
    assert await process.publish(20, b"twenty")
    process.store.forget_requests()
    found = await load_newest(process.bucket)
    assert found is not None
    assert (found[0].seq, found[1]) == (20, b"twenty")
    assert process.store.counts == {"put": 0, "get": 2, "list": 0, "delete": 0}


async def test_a_snapshot_that_is_removed_while_it_is_looked_for_leads_to_the_one_after_it(process: Process) -> None:
    await process.publish(10, b"ten")

    async def move_on(_: Request) -> None:
        await Process(process.store).publish(20, b"twenty")
        process.store.execute(Request(kind="delete", key=places.snapshot(10)))

    process.faults.hook("before", move_on, kind="get", key=places.snapshot(10), times=1)
    found = await load_newest(process.bucket)
    assert found is not None
    assert (found[0].seq, found[1]) == (20, b"twenty")


async def test_a_snapshot_that_is_lost_is_said_to_be_lost(process: Process) -> None:
    await process.publish(10)
    process.store.execute(Request(kind="delete", key=places.snapshot(10)))
    with pytest.raises(StoreUnusable, match="snapshot 10 of s3://stub is missing"):
        await load_newest(process.bucket)


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.SLOW_DOWN, Fault.RESET, Fault.DROP, Fault.CONFLICT])
async def test_a_write_is_tried_again_until_it_is_sure(process: Process, fault: Fault) -> None:
    process.faults.next(fault, kind="put")
    await write(process.bucket, 10, b"ten", process.rests.patience())
    assert process.store.read(places.snapshot(10)) == b"ten"
    assert process.store.counts["put"] == 2
    process.faults.next(Fault.ERROR, kind="put", times=float("inf"))
    with pytest.raises(EngineFailure, match="could not store snapshot 10"):
        await write(process.bucket, 10, b"ten", process.rests.patience())


async def test_the_same_snapshot_of_two_processes_is_one(stub_store: StubStore) -> None:
    assert all(await asyncio.gather(Process(stub_store).publish(10), Process(stub_store).publish(10)))
    assert stub_store.keys() == [places.snapshot(10), places.POINTER]
    found = await load_newest(StubBucket(stub_store, FakeClock()))
    assert found is not None and [kept.seq for kept in found[0].snapshots] == [10]


async def test_a_snapshot_that_is_overtaken_while_it_is_written_is_removed_again(process: Process) -> None:
    async def overtake(_: Request) -> None:
        await Process(process.store).publish(20)

    process.faults.hook("before", overtake, kind="put", key=places.snapshot(10), times=1)
    assert not await process.publish(10)
    assert process.store.keys("snap/0") == [places.snapshot(20)]
    puts = process.store.counts["put"]
    assert not await process.publish(10)
    assert process.store.counts["put"] == puts, "one that is older than the newest is not even written"
