"""Copies of a SQLite store: whole, of one moment, and refused where they would do harm."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from hark.clock import SystemClock
from hark.engine.sqlite import SqliteEngine
from hark.engine.sqlite.files import backup, check, restore
from hark.errors import StoreUnusable
from hark.model import NewMessage, Read


def quiet(done: int, total: int) -> None:
    """Nobody looks at the progress."""
    assert 0 <= done <= total


async def filled(path: Path, *payloads: bytes) -> SqliteEngine:
    """An engine on a file, with these messages."""
    engine = SqliteEngine(str(path), clock=SystemClock())
    await engine.start(lambda _hints: None)
    await push(engine, *payloads)
    return engine


async def push(engine: SqliteEngine, *payloads: bytes) -> list[str | None]:
    """Append messages; their ids."""
    [outcomes] = await engine.push([[NewMessage("orders", payload=payload) for payload in payloads]])
    assert not isinstance(outcomes, Exception)
    return [outcome.message_id for outcome in outcomes]


async def payloads_in(path: Path) -> list[bytes]:
    """What a server finds in a file."""
    engine = SqliteEngine(str(path), clock=SystemClock())
    await engine.start(lambda _hints: None)
    [answer] = await engine.read([Read(queue="orders", partition="Default", offset=1, limit=10_000)])
    await engine.close()
    assert not isinstance(answer, Exception)
    return [bytes(message.payload) for message in answer.messages]


async def test_a_copy_is_of_one_moment_while_the_server_writes(tmp_path: Path) -> None:
    engine = await filled(tmp_path / "hark.db", *(b'"%s"' % (b"x" * 3000) for _ in range(2000)))
    steps: list[int] = []

    def note(done: int, _total: int) -> None:
        # A write in the middle of the copy, by another connection than its own.
        if not steps:
            other = apsw.Connection(str(tmp_path / "hark.db"))
            other.execute("create table intruder (x); insert into intruder values (1)")
            other.close()
        steps.append(done)

    backup(tmp_path / "hark.db", tmp_path / "copy.db", note)
    await push(engine, b"2")
    await engine.close()
    assert len(steps) > 1
    assert steps == sorted(steps), "the copy never started over"
    copy = apsw.Connection(str(tmp_path / "copy.db"))
    assert copy.execute("select count(*) from sqlite_schema where name = 'intruder'").get == 0
    assert copy.execute("select count(*) from messages").get == 2000
    copy.close()


async def test_what_was_committed_before_the_copy_is_in_it_though_it_is_only_in_the_log(tmp_path: Path) -> None:
    engine = await filled(tmp_path / "hark.db", b"1", b"2")
    backup(tmp_path / "hark.db", tmp_path / "copy.db", quiet)
    await engine.close()
    assert await payloads_in(tmp_path / "copy.db") == [b"1", b"2"]
    assert not (tmp_path / "copy.db.part").exists()
    assert (tmp_path / "copy.db").stat().st_mode & 0o077 == 0, "payloads are nobody else's business"


async def test_a_copy_does_not_overwrite_unless_notified(tmp_path: Path) -> None:
    engine = await filled(tmp_path / "hark.db", b"1")
    await engine.close()
    (tmp_path / "copy.db").write_text("dear")
    with pytest.raises(StoreUnusable, match="already exists"):
        backup(tmp_path / "hark.db", tmp_path / "copy.db", quiet)
    assert (tmp_path / "copy.db").read_text() == "dear"
    backup(tmp_path / "hark.db", tmp_path / "copy.db", quiet, replace=True)
    check(tmp_path / "copy.db")


@pytest.mark.parametrize("name", ["hark.db", "hark.db-wal", "sub/../hark.db", "link.db"])
async def test_a_copy_does_not_replace_the_store_that_it_is_of(tmp_path: Path, name: str) -> None:
    engine = await filled(tmp_path / "hark.db", b"1")
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "hark.db")
    with pytest.raises(StoreUnusable, match="the store itself"):
        backup(tmp_path / "hark.db", tmp_path / name, quiet, replace=True)
    await engine.close()


async def test_a_copy_replaces_no_other_store_that_is_in_use(tmp_path: Path) -> None:
    engine, other = await filled(tmp_path / "hark.db", b"1"), await filled(tmp_path / "other.db", b"2")
    with pytest.raises(StoreUnusable, match="in use"):
        backup(tmp_path / "hark.db", tmp_path / "other.db", quiet, replace=True)
    await engine.close()
    await other.close()


async def test_a_restored_store_is_the_copy_and_the_old_one_is_kept(tmp_path: Path) -> None:
    path, copy, aside = tmp_path / "hark.db", tmp_path / "copy.db", tmp_path / "old.db"
    engine = await filled(path, b"1")
    backup(path, copy, quiet)
    await push(engine, b"2")
    await engine.close()
    with pytest.raises(StoreUnusable, match="already exists"):
        restore(copy, path, quiet)
    restore(copy, path, quiet, set_aside=aside)
    assert await payloads_in(path) == [b"1"]
    assert await payloads_in(aside) == [b"1", b"2"]


@pytest.mark.parametrize("has_lock", [True, False])
async def test_a_restore_that_is_interrupted_leaves_the_old_store_the_new_one_or_a_refused_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_lock: bool
) -> None:
    """`has_lock`: the old store has the file in which a server has noted that there is a database."""
    data, copy = tmp_path / "data", tmp_path / "copy.db"
    engine = await filled(tmp_path / "hark.db", b"1")
    backup(tmp_path / "hark.db", copy, quiet)
    await push(engine, b"2")
    data.mkdir()
    for ending in ["", "-wal", *([".lock"] if has_lock else [])]:
        shutil.copy(tmp_path / f"hark.db{ending}", data)
    await engine.close()
    moments: list[Path] = []

    def spy(owner: object, name: str) -> None:
        method = getattr(owner, name)

        def spied(*arguments: Any, **options: Any) -> Any:
            moments.append(tmp_path / f"moment{len(moments)}")
            shutil.copytree(data, moments[-1])
            return method(*arguments, **options)

        monkeypatch.setattr(owner, name, spied)

    with monkeypatch.context():
        for owner, name in [(Path, "rename"), (Path, "replace"), (Path, "unlink"), (os, "pwrite"), (os, "ftruncate")]:
            spy(owner, name)
        restore(copy, data / "hark.db", quiet, set_aside=data / "old.db")
        monkeypatch.undo()
    found: list[str] = []
    for moment in [*moments, data]:
        try:
            found.append({(b"1", b"2"): "old", (b"1",): "new"}[tuple(await payloads_in(moment / "hark.db"))])
        except StoreUnusable as error:
            assert "restore --replace" in str(error)
            with pytest.raises(StoreUnusable, match="interrupted"):
                backup(moment / "hark.db", moment / "again.db", quiet)
            restore(copy, moment / "hark.db", quiet, set_aside=moment / "second.db")
            assert await payloads_in(moment / "hark.db") == [b"1"]
            found.append("refused")
    assert found == sorted(found, key=["old", "refused", "new"].index)
    assert {*found} == {"old", "refused", "new"}


async def test_messages_after_a_restore_do_not_get_the_ids_of_those_that_it_lost(tmp_path: Path) -> None:
    path = tmp_path / "hark.db"
    engine = await filled(path, b"1")
    backup(path, tmp_path / "copy.db", quiet)
    lost = await push(engine, b"2")
    await engine.close()
    restore(tmp_path / "copy.db", path, quiet, set_aside=tmp_path / "old.db")
    engine = await filled(path)
    new = await push(engine, b"3")
    [read] = await engine.read([Read(queue="orders", partition="Default", offset=1, limit=10)])
    assert not isinstance(read, Exception)
    assert [message.id for message in read.messages][1:] == new != lost
    await engine.close()


async def test_a_store_that_was_lost_can_be_restored(tmp_path: Path) -> None:
    path = tmp_path / "hark.db"
    await (await filled(path, b"1")).close()
    backup(path, tmp_path / "copy.db", quiet)
    path.unlink()
    with pytest.raises(StoreUnusable, match="missing"):
        await filled(path)
    restore(tmp_path / "copy.db", path, quiet)
    assert await payloads_in(path) == [b"1"]


async def test_a_log_without_its_database_is_not_given_to_another_one(tmp_path: Path) -> None:
    path, aside = tmp_path / "hark.db", tmp_path / "old.db"
    await (await filled(path, b"1")).close()
    backup(path, tmp_path / "copy.db", quiet)
    path.unlink()
    (tmp_path / "hark.db-wal").write_bytes(b"frames of another database")
    with pytest.raises(StoreUnusable, match=r"hark\.db-wal"):
        restore(tmp_path / "copy.db", path, quiet)
    restore(tmp_path / "copy.db", path, quiet, set_aside=aside)
    assert (tmp_path / "old.db-wal").exists()
    assert await payloads_in(path) == [b"1"]


async def test_nothing_is_restored_under_a_running_server(tmp_path: Path) -> None:
    path = tmp_path / "hark.db"
    engine = await filled(path, b"1")
    backup(path, tmp_path / "copy.db", quiet)
    with pytest.raises(StoreUnusable, match="in use"):
        restore(tmp_path / "copy.db", path, quiet, set_aside=tmp_path / "old.db")
    await engine.close()
    assert await payloads_in(path) == [b"1"]


def _other_database(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("create table notes (text)")
    connection.close()


@pytest.mark.parametrize(
    "make",
    [lambda path: path.touch(), lambda path: path.write_text("no database at all, but long" * 200), _other_database],
    ids=["empty", "text", "foreign"],
)
def test_what_is_no_copy_is_refused_and_nothing_is_changed(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "copy.db")
    with pytest.raises(StoreUnusable, match=r"copy\.db"):
        restore(tmp_path / "copy.db", tmp_path / "data" / "hark.db", quiet)
    assert not (tmp_path / "data" / "hark.db").exists()


async def test_a_damaged_copy_is_refused(tmp_path: Path) -> None:
    engine = await filled(tmp_path / "hark.db", *(b'"%s"' % (b"x" * 3000) for _ in range(100)))
    backup(tmp_path / "hark.db", tmp_path / "copy.db", quiet)
    await engine.close()
    with (tmp_path / "copy.db").open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 20_000)
    with pytest.raises(StoreUnusable, match=r"damaged|cannot read"):
        restore(tmp_path / "copy.db", tmp_path / "new.db", quiet)


def test_a_store_that_is_not_there_can_not_be_copied_and_a_directory_is_no_name_for_a_copy(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="no database"):
        backup(tmp_path / "hark.db", tmp_path / "copy.db", quiet)
    (tmp_path / "hark.db").touch()
    with pytest.raises(StoreUnusable, match="a directory"):
        backup(tmp_path / "hark.db", tmp_path, quiet, replace=True)
