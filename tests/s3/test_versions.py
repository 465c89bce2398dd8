"""Tables of another version: old records and snapshots are read by a new Hark, and new ones refused by an old one."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import apsw
import msgspec
import pytest

from hark.clock import FakeClock
from hark.engine.core import schema
from hark.engine.s3 import S3Engine, housekeeping, objects, state
from hark.engine.s3 import objects as records
from hark.engine.s3.state import Scratch
from hark.errors import HarkError
from tests.engine.driver import payloads
from tests.s3.processes import running, until
from tests.s3.stub.store import Request, StubStore

STEP = """
alter table messages add column later integer not null default 7;
create table later (id integer primary key);
create index messages_later on messages (later) where later <> 7;
"""
TABLES = {4: "1ff2"}
"""The tables of the current version, in short: raise `VERSION` and change it when they change."""


def become_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a Hark whose tables have more columns."""
    steps = (*schema.MIGRATIONS, STEP)
    monkeypatch.setattr(schema, "MIGRATIONS", steps)
    monkeypatch.setattr(schema, "CURRENT_VERSION", len(steps))
    monkeypatch.setattr(schema.migrate, "__defaults__", (steps,))
    monkeypatch.setattr(state, "VERSION", state.VERSION + 1)


async def until_snapshot(store: StubStore, seq: int) -> None:
    """Wait until there is a snapshot up to a record."""
    await until(lambda: b'"seq":%d,' % seq in (store.read(objects.POINTER) or b""))


@pytest.mark.parametrize("every", [1000, 2], ids=["records", "snapshot and records"])
async def test_a_new_hark_goes_on_with_the_records_of_an_old_one_which_then_stops(
    stub_store: StubStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    async with running(stub_store, clock, snapshot_records=every) as old:
        await old.push("orders", "p", 1, 2)
        leased = await old.pop("orders", "p", batch=1)
        if every == 2:
            await until_snapshot(stub_store, 2)
        await old.push("orders", "p", 3)
        with monkeypatch.context() as patch:
            become_newer(patch)
            async with running(stub_store, clock) as new:
                assert payloads(leased) == [1]
                await new.push("orders", "p", 4)
                assert payloads(await new.pop("orders", "p", group="all", batch=10)) == [1, 2, 3, 4]
                assert isinstance(new.engine, S3Engine)
                read = new.engine._read_committed
                assert await read(lambda connection: connection.execute("select sum(later) from messages").get) == 28
        with pytest.raises(HarkError, match="upgrade Hark") as failure:
            await old.push("orders", "p", 5)
        assert failure.value.code == "store_unusable"


def rewritten(store: StubStore, key: str, change: Callable[[bytes], bytes]) -> None:
    """Change an object."""
    body = store.read(key)
    assert body is not None
    store.execute(Request(kind="put", key=key, body=change(body)))


def first_version_of_record(body: bytes) -> bytes:
    """As the first version wrote it."""
    seq = msgspec.json.decode(objects.unseal(records.KIND, body)[2])["seq"]
    return records.encode(msgspec.structs.replace(records.decode(body, seq), schema=1))


def first_version_of_snapshot(body: bytes) -> bytes:
    """The same, without what came later."""
    seq = msgspec.json.decode(objects.unseal(housekeeping.KIND, body)[2])["seq"]
    header, database = housekeeping.read_snapshot(body, seq)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "old.db"
        path.write_bytes(database)
        connection = apsw.Connection(str(path))
        first = apsw.Connection(":memory:")
        schema.migrate(first, schema.MIGRATIONS[:1])
        known = {name for (name,) in first.execute("select name from sqlite_schema")}
        known |= {"replica", "leases", "rates", "segments"}
        for kind in ("table", "index"):
            there = connection.execute("select name from sqlite_schema where type = ? and sql is not null", (kind,))
            for name in {name for (name,) in there} - known:
                connection.execute(f"drop {kind} {name}")
        for column in ("tokens", "filled_at"):
            connection.execute(f"alter table positions drop column {column}")
        connection.pragma("user_version", 1)
        connection.close()
        database = path.read_bytes()
        header = msgspec.structs.replace(header, schema=1, database_bytes=len(database))
        packed = housekeeping._compressed(path)
    return objects.seal(housekeeping.KIND, packed, b"", msgspec.json.encode(header))


async def test_a_bucket_of_the_first_version_is_read(stub_store: StubStore, clock: FakeClock) -> None:
    async with running(stub_store, clock, snapshot_records=2) as process:
        await process.push("orders", "p", 1)
        await process.push("orders", "p", 2)
        await until_snapshot(stub_store, 2)
        await process.push("orders", "p", 3)
    for key in stub_store.keys("log/"):
        rewritten(stub_store, key, first_version_of_record)
    rewritten(stub_store, objects.snapshot(2), first_version_of_snapshot)
    async with running(stub_store, clock) as process, running(stub_store, clock) as other:
        await process.push("orders", "p", 4)
        assert payloads(await other.pop("orders", "p", batch=10)) == [1, 2, 3, 4]


async def test_a_copy_with_another_tag_has_the_same_messages_with_other_ids(
    stub_store: StubStore, clock: FakeClock
) -> None:
    async with running(stub_store, clock, snapshot_records=2) as process:
        first = [await process.push_id("orders", "p", value) for value in (1, 2)]
        await until_snapshot(stub_store, 2)
        first.append(await process.push_id("orders", "p", 3))
    rewritten(
        stub_store,
        objects.META,
        lambda body: re.sub(rb'"tag":(\d+)', lambda old: b'"tag":%d' % (int(old[1]) ^ 1), body),
    )
    async with running(stub_store, clock) as process:
        leased = await process.pop("orders", "p", batch=10)
        await process.ack_all(leased)
    assert payloads(leased) == [1, 2, 3]
    assert not {one.message.id for one in leased} & {*first}


def test_who_changes_the_tables_raises_the_version() -> None:
    scratch = Scratch()
    try:
        scratch.open(7)
        tables = [sql for (sql,) in scratch.writer.execute("select sql from sqlite_schema order by name") if sql]
    finally:
        scratch.close()
    known = {state.VERSION: sha256("\n".join(tables).encode()).hexdigest()[:4]}
    assert known == TABLES, "raise VERSION in engine/s3/state.py, and note it here"


def test_no_step_changes_rows_or_takes_columns_away() -> None:
    allowed = re.compile(r"create (table|(unique )?index)|drop index|alter table \w+ add ", re.IGNORECASE)
    for step in schema.MIGRATIONS[1:]:
        statements = re.sub(r"--[^\n]*", "", step).split(";")
        assert [one.strip() for one in statements if one.strip() and not allowed.match(one.strip())] == []
