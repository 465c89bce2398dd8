"""The database file: what the engine refuses to start on, and what it says then."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from hark.clock import FakeClock
from hark.engine.core import schema
from hark.engine.sqlite import SqliteEngine
from hark.engine.sqlite.store import check_library
from hark.errors import StoreUnusable
from hark.model import (
    DeadLetterFilter,
    GroupMode,
    KeyMutation,
    KeyWrite,
    NewMessage,
    PopRequest,
    PopResult,
    QueueOptions,
    QueueSpec,
    Read,
    Settlement,
    Status,
)


async def opened(path: Path) -> SqliteEngine:
    """An engine on a file."""
    engine = SqliteEngine(str(path), clock=FakeClock())
    await engine.start(lambda _: None)
    return engine


async def refusal(path: Path) -> str:
    """What the engine says of a file that it does not start on."""
    with pytest.raises(StoreUnusable) as caught:
        await opened(path)
    return caught.value.text


async def filled(path: Path) -> None:
    """A database with messages in it, closed."""
    engine = await opened(path)
    await engine.push([[NewMessage("orders", "p", b'"%d"' % number) for number in range(500)]])
    await engine.close()


async def test_a_store_is_durable_and_in_wal_mode_with_full_sync(tmp_path: Path) -> None:
    engine = await opened(tmp_path / "hark.db")
    assert engine._store.writer.pragma("journal_mode") == "wal"
    assert engine._store.writer.pragma("synchronous") == 2
    await engine.close()


@pytest.mark.parametrize("version", ["3.51.2", "3.46.0", "2.99.99"])
def test_an_old_sqlite_library_is_refused_with_what_to_install(version: str) -> None:
    with pytest.raises(StoreUnusable, match=rf"SQLite {version}.*pip install 'apsw>=3\.51\.3\.0'"):
        check_library(version)
    for good in ("3.51.3", "3.52.0", "4.0.0"):
        check_library(good)


@pytest.mark.parametrize("older", [False, True], ids=["a new store", "a store that others could read"])
async def test_only_the_owner_can_read_a_store(tmp_path: Path, older: bool) -> None:
    path = tmp_path / "data" / "hark.db"
    if older:
        await filled(path)
        for file in path.parent.iterdir():
            file.chmod(0o644)
    mask = os.umask(0)
    try:
        engine = await opened(path)
        await engine.push([[NewMessage("orders", "p", b"1")]])
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
        await engine.close()
    finally:
        os.umask(mask)
    assert {"hark.db", "hark.db-wal", "hark.db.lock"} <= set(modes)
    assert set(modes.values()) == {0o600}
    assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_a_second_engine_on_the_same_file_is_refused_and_names_the_first(tmp_path: Path) -> None:
    engine = await opened(tmp_path / "hark.db")
    text = await refusal(tmp_path / "hark.db")
    assert "in use by another Hark server" in text
    assert str(os.getpid()) in text
    await engine.close()
    await (await opened(tmp_path / "hark.db")).close()


async def test_the_lock_goes_with_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "hark.db"
    script = f"""
import asyncio, os, signal
from hark.clock import FakeClock
from hark.engine.sqlite import SqliteEngine
async def main():
    await SqliteEngine({str(path)!r}, clock=FakeClock()).start(lambda _: None)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    killed = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], check=False)
    assert killed.returncode == -9
    await (await opened(path)).close()


async def test_a_file_with_a_bad_header_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "hark.db"
    path.write_bytes(b"this is not a database" * 1000)
    assert "corrupt" in await refusal(path)
    assert path.read_bytes() == b"this is not a database" * 1000


@pytest.mark.parametrize("rest", [(8192, b""), (4096, b"\xff" * 100_000)], ids=["truncated", "overwritten"])
async def test_a_damaged_file_is_an_error_and_never_an_empty_queue(tmp_path: Path, rest: tuple[int, bytes]) -> None:
    path = tmp_path / "hark.db"
    await filled(path)
    data = path.read_bytes()
    path.write_bytes((data[: rest[0]] + rest[1])[: len(data)])
    assert "corrupt" in await refusal(path)


async def test_a_missing_database_beside_its_log_or_a_folder_that_can_not_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hark.db-wal").write_bytes(b"log")
    assert "is missing, but its log" in await refusal(tmp_path / "hark.db")
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} is not a directory; choose another --data" in await refusal(
        tmp_path / "file" / "hark.db"
    )
    below = await refusal(tmp_path / "file" / "a" / "b" / "hark.db")
    assert f"b does not exist and cannot be created in {tmp_path / 'file'}: Not a directory; create it, or" in below


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("create table theirs (id)")
    other.close()
    assert "another program" in await refusal(tmp_path / "other.db")


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hark.db"
    await filled(path)
    with apsw.Connection(str(path)) as connection:
        connection.pragma("user_version", schema.CURRENT_VERSION + 1)
    connection.close()
    assert "upgrade Hark" in await refusal(path)


async def test_migrations_go_step_by_step_and_keep_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "hark.db"
    await filled(path)
    connection = apsw.Connection(str(path))
    schema.migrate(connection, (*schema.MIGRATIONS, "create table later (id)", "insert into later values (7)"))
    assert schema.version_of(connection) == schema.CURRENT_VERSION + 2
    assert connection.execute("select id from later").get == 7
    assert connection.execute("select count(*) from messages").get == 500
    connection.close()


@pytest.mark.parametrize("version", range(1, schema.CURRENT_VERSION + 1))
async def test_a_store_of_any_version_that_was_is_opened_with_all_that_it_has(tmp_path: Path, version: int) -> None:
    """The rows are those of a current store, as far as that version had tables and columns for them."""
    current, path = tmp_path / "current.db", tmp_path / "hark.db"
    engine = await opened(current)
    await engine.configure([QueueSpec(name="orders", options=QueueOptions(retry_limit=0))])
    await engine.push([[NewMessage("orders", "p", b"%d" % n, transaction_id=f"t{n}", priority=n) for n in range(5)]])
    outcomes: list[tuple[GroupMode, Status]] = [("ordered", "failed"), ("shared", "completed")]
    for mode, status in outcomes:
        [popped] = await engine.pop([PopRequest(queue="orders", group=mode, group_mode=mode)])
        assert isinstance(popped, PopResult)
        [message] = popped.messages
        item = Settlement(message.id, status=status, lease_id=popped.lease_id, group=mode)
        [settled] = await engine.settle([[item]])
        assert isinstance(settled, list) and settled[0].success
    await engine.write_keys([KeyWrite(mutations=[KeyMutation(kind="set", key=("a", 1), value=b"1")])])
    await engine.close()
    old = apsw.Connection(str(path))
    schema.migrate(old, schema.MIGRATIONS[:version])
    old.execute("attach ? as current", (str(current),))
    for (table,) in old.execute("select name from main.sqlite_schema where type = 'table'").fetchall():
        columns = ", ".join(name for (name,) in old.execute("select name from pragma_table_info(?, 'main')", (table,)))
        old.execute(f"delete from main.{table}; insert into main.{table} select {columns} from current.{table}")
    old.close()

    engine = await opened(path)
    [read] = await engine.read([Read(queue="orders", partition="p", offset=1)])
    assert not isinstance(read, Exception)
    assert [bytes(message.payload) for message in read.messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert (await engine.dead_letters(DeadLetterFilter())).total == 1
    [popped] = await engine.pop([PopRequest(queue="orders", group="ordered", batch=10)])
    assert isinstance(popped, PopResult) and [message.offset for message in popped.messages] == [2, 3, 4, 5]
    [popped] = await engine.pop([PopRequest(queue="orders", group="shared", batch=10)])
    assert isinstance(popped, PopResult) and [message.offset for message in popped.messages] == [4, 3, 2, 1]
    [entry] = await engine.read_keys([("a", 1)])
    assert entry is not None and bytes(entry.value) == b"1"
    await engine.close()
    tables = "select name, sql from sqlite_schema order by name"
    found = [apsw.Connection(str(one)).execute(tables).fetchall() for one in (path, current)]
    assert found[0] == found[1]


async def test_a_failed_migration_leaves_the_version_before_it(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "hark.db"))
    with pytest.raises(apsw.SQLError):
        schema.migrate(connection, (*schema.MIGRATIONS, "create table later (id); nonsense"))
    assert schema.version_of(connection) == schema.CURRENT_VERSION
    assert connection.execute("select count(*) from sqlite_schema where name = 'later'").get == 0
    connection.close()


async def test_the_log_is_moved_into_the_database_beside_the_writer(tmp_path: Path) -> None:
    engine = await opened(tmp_path / "hark.db")
    moved = engine._threads
    assert moved is not None
    for _ in range(40):
        await engine.push([[NewMessage("orders", "p", b'"%s"' % (b"x" * 4000)) for _ in range(100)]])
    answer = (await engine.pop([PopRequest(queue="orders", batch=3)]))[0]
    assert not isinstance(answer, Exception)
    assert len(answer.messages) == 3
    await engine.close()
    assert (tmp_path / "hark.db").stat().st_size > 40 * 100 * 4000


async def test_a_database_that_was_there_and_is_empty_or_gone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hark.db"
    await filled(path)
    path.write_bytes(b"")
    assert "was truncated to nothing" in await refusal(path)
    path.unlink()
    assert "is missing, but it contained a database before" in await refusal(path)
    path.with_name("hark.db.lock").unlink()
    await (await opened(path)).close()
