"""`hark migrate`: what it says and what it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.postgres_server import PostgresServer

from .conftest import Run


def test_it_says_what_it_would_do_then_does_it_then_has_nothing_to_do(
    hark: Run, postgres_server: PostgresServer
) -> None:
    with postgres_server.fresh_database(installed=False) as url:
        dry = hark("migrate", "--engine", url, "--dry-run")
        assert (dry.exit_code, dry.stdout.splitlines()[0]) == (0, "would apply 0001 tables (pre)")
        applied = hark("migrate", "--engine", url)
        assert (applied.exit_code, applied.stdout) == (0, dry.stdout.replace("would apply", "applied"))
        for arguments in ((), ("--post",), ("--dry-run",)):
            assert hark("migrate", "--engine", url, *arguments).stdout == "the schema is up to date\n"


def test_the_sql_is_shown_to_who_asks(hark: Run, postgres_server: PostgresServer) -> None:
    with postgres_server.fresh_database(installed=False) as url:
        said = hark("migrate", "--engine", url, "--dry-run", "--verbose").stdout
    assert "-- 0001_tables.sql\n" in said
    assert "create table hark.meta (" in said


def test_the_engine_may_come_from_the_environment(
    hark: Run, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARK_ENGINE", postgres_url)
    assert hark("migrate").stdout == "the schema is up to date\n"


@pytest.mark.parametrize("arguments", [(), ("--engine", "memory"), ("--engine", "sqlite:///x.db")])
def test_an_engine_without_a_schema_of_its_own_is_refused(hark: Run, arguments: tuple[str, ...]) -> None:
    result = hark("migrate", *arguments)
    assert result.exit_code == 2
    assert "postgresql://" in result.stderr


def test_a_database_that_is_not_there_exits_with_1_and_shows_no_password(hark: Run) -> None:
    result = hark("migrate", "--engine", "postgresql://me:s3cret@127.0.0.1:1/d")
    assert result.exit_code == 1
    assert "is not reachable" in result.stderr
    assert "s3cret" not in result.output


def test_without_asyncpg_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['asyncpg'] = None; from hark.cli import main; main()"
    command = [sys.executable, "-c", code, "migrate", "--engine", "postgresql://127.0.0.1:1/d"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'hark[postgres]' (invalid_setting)" in done.stderr
