"""`hark backup` and `hark restore`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers import running_server

from .conftest import Run, runner


@pytest.fixture
def hark() -> Run:
    """The command line; these commands need no server."""
    return runner()


def count(run: Run, url: str) -> int:
    """How many messages a server has in the queue "orders"."""
    result = run("pop", "orders", "--batch", "100", "--url", url, "--json", "--auto-ack")
    return result.stdout.count('"transactionId"')


def test_a_backup_of_a_running_server_can_be_restored_and_served(hark: Run, tmp_path: Path) -> None:
    with running_server(tmp_path, engine="sqlite:///data/hark.db") as url:
        assert hark("push", "orders", "1", "2", "--url", url).exit_code == 0
        result = hark("backup", "copy.db", "--data", "data")
        assert result.exit_code == 0, result.output
        assert "copied" in result.stdout
        assert hark("restore", "copy.db", "--data", "data", "--replace", "--yes").exit_code == 1, "it is being served"
        assert hark("push", "orders", "3", "--url", url).exit_code == 0
    refused = hark("restore", "copy.db", "--data", "data")
    assert refused.exit_code == 1 and "--replace" in refused.stderr
    restored = hark("restore", "copy.db", "--data", "data", "--replace", "--yes")
    assert restored.exit_code == 0, restored.output
    assert "hark.db.before-" in restored.stdout
    with running_server(tmp_path, engine="sqlite:///data/hark.db") as url:
        assert count(hark, url) == 2


def test_replacing_asks_first(hark: Run, tmp_path: Path) -> None:
    (tmp_path / "copy.db").touch()
    result = hark("restore", "copy.db", "--replace")
    assert result.exit_code == 2
    assert "--yes" in result.stderr


@pytest.mark.parametrize("engine", ["memory", "postgresql://hark:secret@db/hark"])
def test_other_stores_are_refused_without_their_password(hark: Run, engine: str) -> None:
    result = hark("backup", "copy.db", "--engine", engine)
    assert result.exit_code == 2
    assert "SQLite" in result.stderr and "secret" not in result.output
