"""`hark doctor`: each thing that can be wrong is found and comes with advice."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import namedtuple
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from hark import __version__
from hark.cli import doctor
from tests.postgres_server import PostgresServer

from .conftest import Run
from .stub import Stub

HEALTHY = {"status": "healthy", "version": __version__}
Usage = namedtuple("Usage", ["total", "used", "free"])


def results(output: str) -> dict[str, str]:
    """Give each check's result."""
    return {check["name"]: check["result"] for check in json.loads(output)}


def now(offset: float = 0) -> str:
    """Write a time as HTTP does."""
    return formatdate(time.time() + offset, usegmt=True)


def test_a_healthy_server_on_this_machine_passes_every_check(hark: Run, stub: Stub) -> None:
    stub.answer(200, HEALTHY, Date=now())
    result = hark("doctor", "--json")
    assert result.exit_code == 0
    names = ["python", "server", "health", "version", "clock", "settings", "data", "disk"]
    assert results(result.stdout) == dict.fromkeys(names, "ok")
    assert [seen.target for seen in stub.seen] == ["/health", "/api/v1/system/metrics"]


def test_the_table_names_each_check(hark: Run, stub: Stub) -> None:
    stub.answer(200, HEALTHY, Date=now())
    assert all(name in hark("doctor").stdout for name in ("python", "health", "clock", "disk"))


def test_no_server_is_a_failure_with_the_remedy(hark: Run) -> None:
    result = hark("doctor", "--url", "http://127.0.0.1:1", "--json")
    assert result.exit_code == 1
    server = next(check for check in json.loads(result.stdout) if check["name"] == "server")
    assert (server["result"], server["advice"]) == ("fail", "start one with: hark serve")


def test_a_sick_server_is_a_failure(hark: Run, stub: Stub) -> None:
    stub.answer(503, {"status": "unhealthy", "version": __version__}, Date=now())
    result = hark("doctor", "--json")
    assert (result.exit_code, results(result.stdout)["health"]) == (1, "fail")


def test_another_program_on_the_port_is_a_failure(hark: Run, stub: Stub) -> None:
    stub.answer(200, b"<html>", Date=now())
    result = hark("doctor", "--json")
    assert (result.exit_code, results(result.stdout)["health"]) == (1, "fail")


def test_another_version_is_a_warning(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"status": "healthy", "version": "0.0.1"}, Date=now())
    result = hark("doctor", "--json")
    assert (result.exit_code, results(result.stdout)["version"]) == (0, "warn")


@pytest.mark.parametrize(("offset", "side"), [(60, "ahead of"), (-60, "behind")])
def test_a_clock_that_differs_is_a_warning_that_says_which_way(hark: Run, stub: Stub, offset: float, side: str) -> None:
    stub.answer(200, HEALTHY, Date=now(offset))
    result = hark("doctor", "--json")
    clock = next(check for check in json.loads(result.stdout) if check["name"] == "clock")
    assert clock["result"] == "warn"
    assert side in clock["detail"]


@pytest.mark.parametrize("headers", [{}, {"Date": "tomorrow"}])
def test_a_server_that_does_not_tell_its_time_is_a_warning(hark: Run, stub: Stub, headers: dict[str, str]) -> None:
    stub.answer(200, HEALTHY, **headers)
    assert results(hark("doctor", "--json").stdout)["clock"] == "warn"


def test_wrong_settings_are_a_failure_that_names_them(hark: Run, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARK_PROT", "1")
    stub.answer(200, HEALTHY, Date=now())
    result = hark("doctor")
    assert result.exit_code == 1
    assert "HARK_PORT" in result.stdout


def test_a_data_directory_that_cannot_be_written_is_a_failure(
    hark: Run, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file in the place of the directory: root, who may write everywhere, fails on it too.
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HARK_DATA", str(tmp_path / "file"))
    stub.answer(200, HEALTHY, Date=now())
    result = hark("doctor", "--json")
    assert (result.exit_code, results(result.stdout)["data"]) == (1, "fail")


@pytest.mark.parametrize(("free", "expected"), [(doctor.NO_DISK - 1, "fail"), (doctor.LITTLE_DISK - 1, "warn")])
def test_a_full_disk_is_found(hark: Run, stub: Stub, monkeypatch: pytest.MonkeyPatch, free: int, expected: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(free, 0, free))
    stub.answer(200, HEALTHY, Date=now())
    assert results(hark("doctor", "--json").stdout)["disk"] == expected


def test_an_engine_file_is_looked_for_where_its_url_says(
    hark: Run, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HARK_ENGINE", f"sqlite:///{tmp_path}/file/hark.db")
    stub.answer(200, HEALTHY, Date=now())
    assert results(hark("doctor", "--json").stdout)["data"] == "fail"


def test_an_engine_without_a_directory_has_none_to_check(
    hark: Run, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARK_ENGINE", "memory")
    stub.answer(200, HEALTHY, Date=now())
    assert "data" not in results(hark("doctor", "--json").stdout)


def test_the_directory_of_a_distant_server_is_not_looked_for_here(
    hark: Run, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "is_local", lambda _: False)
    stub.answer(200, HEALTHY, Date=now())
    assert "data" not in results(hark("doctor", "--json").stdout)


# A store that costs something by the request ------------------------------------------------------------------


@pytest.mark.parametrize(("failed", "expected"), [(50, "ok"), (51, "warn")])
def test_requests_and_dollars_of_a_server_on_a_bucket_are_shown(
    hark: Run, stub: Stub, failed: int, expected: str
) -> None:
    stub.answer(200, HEALTHY, Date=now())
    numbers = {"s3_requests_put": 900, "s3_requests_get": 100, "s3_requests_failed": failed, "s3_dollars": 0.00454}
    stub.answer(200, {"store": numbers})
    found = next(check for check in json.loads(hark("doctor", "--json").stdout) if check["name"] == "requests")
    assert found["result"] == expected
    assert found["detail"] == f"900 PUT and 100 GET since the server started, {failed} failed: $0.0045"


@pytest.mark.parametrize("answer", [(404, {"error": "no such route"}), (200, b"<html>")], ids=["missing", "strange"])
def test_a_server_without_numbers_is_as_good(hark: Run, stub: Stub, answer: tuple[int, object]) -> None:
    stub.answer(200, HEALTHY, Date=now())
    stub.answer(*answer)
    result = hark("doctor", "--json")
    assert (result.exit_code, "requests" in results(result.stdout)) == (0, False)


# A database ------------------------------------------------------------------------------------------------


def test_a_healthy_database_passes_every_check(
    hark: Run, stub: Stub, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARK_ENGINE", postgres_url)
    stub.answer(200, HEALTHY, Date=now())
    result = hark("doctor", "--json")
    found = results(result.stdout)
    assert [name for name in found if name not in ("python", "server", "health", "version", "clock")] == [
        "settings",
        "database",
        "schema",
        "connections",
        "transactions",
        "dead rows",
    ]
    assert set(found.values()) == {"ok"}
    assert str(urlsplit(postgres_url).password) not in result.output


def test_a_database_that_is_not_there_is_a_failure_with_the_remedy(
    hark: Run, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARK_ENGINE", "postgresql://me:s3cret@127.0.0.1:1/d")
    stub.answer(200, HEALTHY, Date=now())
    result = hark("doctor", "--json")
    database = json.loads(result.stdout)[-1]
    assert (result.exit_code, database["name"], database["result"]) == (1, "database", "fail")
    assert database["advice"] == "is the server running, is the URL right?"
    assert "s3cret" not in result.output


def test_a_database_without_the_schema_is_a_warning(
    hark: Run, stub: Stub, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.answer(200, HEALTHY, Date=now())
    with postgres_server.fresh_database(installed=False) as url:
        monkeypatch.setenv("HARK_ENGINE", url)
        result = hark("doctor", "--json")
    assert (result.exit_code, results(result.stdout)["schema"]) == (0, "warn")


def test_a_database_of_a_newer_hark_is_a_failure(
    hark: Run, stub: Stub, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.answer(200, HEALTHY, Date=now())
    monkeypatch.setenv("HARK_ENGINE", postgres_url)
    asyncio.run(execute(postgres_url, "insert into hark.migrations values (9999, 'pre', 'from the future')"))
    result = hark("doctor", "--json")
    assert (result.exit_code, results(result.stdout)["schema"]) == (1, "fail")


def test_more_connections_than_the_database_allows_are_a_warning(
    hark: Run, stub: Stub, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.answer(200, HEALTHY, Date=now())
    monkeypatch.setenv("HARK_ENGINE", postgres_url)
    monkeypatch.setenv("HARK_WORKERS", "1000")
    assert results(hark("doctor", "--json").stdout)["connections"] == "warn"


async def execute(url: str, sql: str) -> None:
    """Run a statement in a database."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()
