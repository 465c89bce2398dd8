"""`hark doctor`: each thing that can be wrong is found and comes with advice."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import namedtuple
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from hark import __version__
from hark.cli import doctor
from tests.postgres_server import PostgresServer

from .conftest import Run
from .stub import Stub

HEALTHY = {"status": "healthy", "version": __version__}
OF_ANY_SERVER = ["python", "server", "health", "version", "clock", "settings"]
Usage = namedtuple("Usage", ["total", "used", "free"])


def now(offset: float = 0) -> str:
    """Write a time as HTTP does."""
    return formatdate(time.time() + offset, usegmt=True)


def examine(hark: Run, *flags: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Let the doctor look: the exit code, the checks by their names, and all that was printed."""
    result = hark("doctor", "--json", *flags)
    return result.exit_code, {check["name"]: check for check in json.loads(result.stdout)}, result.output


def results(hark: Run) -> dict[str, str]:
    """Give each check's result."""
    return {name: check["result"] for name, check in examine(hark)[1].items()}


def test_a_healthy_server_on_this_machine_passes_every_check(hark: Run, stub: Stub) -> None:
    stub.answer(200, HEALTHY, Date=now())
    code, checks, _ = examine(hark)
    assert code == 0
    assert {name: check["result"] for name, check in checks.items()} == dict.fromkeys(
        [*OF_ANY_SERVER, "data", "disk"], "ok"
    )
    assert [seen.target for seen in stub.seen] == ["/health", "/api/v1/system/metrics"]
    stub.answer(200, HEALTHY, Date=now())
    assert all(name in hark("doctor").stdout for name in ("python", "health", "clock", "disk"))


def test_no_server_is_a_failure_with_the_remedy(hark: Run) -> None:
    code, checks, _ = examine(hark, "--url", "http://127.0.0.1:1")
    assert code == 1
    assert (checks["server"]["result"], checks["server"]["advice"]) == (
        "fail",
        "start a server with `hark serve`, or check --url and HARK_URL",
    )


@pytest.mark.parametrize(
    ("status", "body", "date", "check", "result", "detail"),
    [
        (503, {"status": "unhealthy", "version": __version__}, 0, "health", "fail", ""),
        (200, b"<html>", 0, "health", "fail", ""),
        (200, {"status": "healthy", "version": "0.0.1"}, 0, "version", "warn", "0.0.1"),
        (200, HEALTHY, 60, "clock", "warn", "ahead of"),
        (200, HEALTHY, -60, "clock", "warn", "behind"),
        (200, HEALTHY, None, "clock", "warn", ""),
        (200, HEALTHY, "tomorrow", "clock", "warn", ""),
    ],
    ids=["sick", "another program", "another version", "ahead", "behind", "no time", "strange time"],
)
def test_what_is_wrong_with_a_server_is_found(
    hark: Run, stub: Stub, status: int, body: object, date: float | str | None, check: str, result: str, detail: str
) -> None:
    headers = {} if date is None else {"Date": date if isinstance(date, str) else now(date)}
    stub.answer(status, body, **headers)
    code, checks, _ = examine(hark)
    assert (code, checks[check]["result"]) == (1 if result == "fail" else 0, result)
    assert detail in checks[check]["detail"]


# This machine ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value", "check"),
    [
        ("HARK_PROT", "1", "settings"),
        # A file in the place of the directory: root, who may write everywhere, fails on it too.
        ("HARK_DATA", "file", "data"),
        ("HARK_ENGINE", "sqlite:///file/hark.db", "data"),
    ],
)
def test_wrong_settings_are_a_failure_that_names_them(
    hark: Run, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, check: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(variable, value.replace("file", f"{tmp_path}/file"))
    stub.answer(200, HEALTHY, Date=now())
    code, checks, output = examine(hark)
    assert (code, checks[check]["result"]) == (1, "fail")
    assert check != "settings" or "HARK_PORT" in output


@pytest.mark.parametrize(("free", "expected"), [((256 << 20) - 1, "fail"), (doctor.LITTLE_DISK - 1, "warn")])
def test_a_full_disk_is_found(hark: Run, stub: Stub, monkeypatch: pytest.MonkeyPatch, free: int, expected: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, free))
    stub.answer(200, HEALTHY, Date=now())
    assert results(hark)["disk"] == expected


def test_a_directory_that_is_not_there_or_not_here_is_not_searched(
    hark: Run, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("HARK_ENGINE", "memory")
        stub.answer(200, HEALTHY, Date=now())
        assert "data" not in results(hark)
    monkeypatch.setattr("hark.cli.remote.LOOPBACK", frozenset())
    stub.answer(200, HEALTHY, Date=now())
    stub.answer(200, {})
    assert "data" not in results(hark)


# A store that costs something by the request ------------------------------------------------------------------


@pytest.mark.parametrize(("failed", "expected"), [(50, "ok"), (51, "warn")])
def test_requests_and_dollars_of_a_server_on_a_bucket_are_shown(
    hark: Run, stub: Stub, failed: int, expected: str
) -> None:
    stub.answer(200, HEALTHY, Date=now())
    numbers = {"s3_requests_put": 900, "s3_requests_get": 100, "s3_requests_failed": failed, "s3_dollars": 0.00454}
    stub.answer(200, {"store": numbers})
    found = examine(hark)[1]["requests"]
    assert found["result"] == expected
    assert found["detail"] == (f"900 PUT and 100 GET requests since the server started, {failed} failed; cost $0.0045")


@pytest.mark.parametrize("answer", [(404, {"error": "no such route"}), (200, b"<html>")], ids=["missing", "strange"])
def test_a_server_without_numbers_is_as_good(hark: Run, stub: Stub, answer: tuple[int, object]) -> None:
    stub.answer(200, HEALTHY, Date=now())
    stub.answer(*answer)
    code, checks, _ = examine(hark)
    assert (code, "requests" in checks) == (0, False)


# A database ------------------------------------------------------------------------------------------------


@pytest.fixture
def database(hark: Run, stub: Stub, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line of a machine whose server uses a database."""
    monkeypatch.setenv("HARK_ENGINE", postgres_url)
    stub.answer(200, HEALTHY, Date=now())
    return hark


def test_a_healthy_database_passes_every_check(database: Run, postgres_url: str) -> None:
    _, checks, output = examine(database)
    assert {name: check["result"] for name, check in checks.items()} == dict.fromkeys(
        [*OF_ANY_SERVER, "database", "schema", "connections", "transactions", "dead rows", "inbox"], "ok"
    )
    assert str(urlsplit(postgres_url).password) not in output


def test_a_database_that_is_not_there_is_a_failure_with_the_remedy(
    hark: Run, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARK_ENGINE", "postgresql://me:s3cret@127.0.0.1:1/d")
    stub.answer(200, HEALTHY, Date=now())
    code, checks, output = examine(hark)
    assert (code, list(checks)[-1], checks["database"]["result"]) == (1, "database", "fail")
    assert checks["database"]["advice"] == "check that PostgreSQL is running, and the engine URL"
    assert "s3cret" not in output


def test_a_database_without_the_schema_is_a_warning(
    hark: Run, stub: Stub, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.answer(200, HEALTHY, Date=now())
    with postgres_server.fresh_database(installed=False) as url:
        monkeypatch.setenv("HARK_ENGINE", url)
        code, checks, _ = examine(hark)
    assert (code, checks["schema"]["result"]) == (0, "warn")


def test_a_database_of_a_newer_hark_is_a_failure(database: Run, postgres_url: str) -> None:
    async def migrate() -> None:
        connection = await asyncpg.connect(postgres_url)
        await connection.execute("insert into hark.migrations values (9999, 'pre', 'from the future')")
        await connection.close()

    asyncio.run(migrate())
    code, checks, _ = examine(database)
    assert (code, checks["schema"]["result"]) == (1, "fail")


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("null", "messages of hark.send that wait: 1, the first for 36"),
        ("'broken'", "messages of hark.send that cannot be stored: 1; the first: broken"),
    ],
)
def test_messages_of_transactions_that_stay_in_the_inbox_are_a_warning(
    database: Run, postgres_url: str, column: str, text: str
) -> None:
    async def send() -> None:
        connection = await asyncpg.connect(postgres_url)
        await connection.execute("select hark.send('orders', '1')")
        await connection.execute(f"update hark.inbox set sent_at = sent_at - 3600000000, error = {column}")
        await connection.close()

    asyncio.run(send())
    check = examine(database)[1]["inbox"]
    assert check["result"] == "warn"
    assert check["detail"].startswith(text)


def test_more_connections_than_the_database_allows_are_a_warning(
    database: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARK_WORKERS", "1000")
    assert results(database)["connections"] == "warn"
