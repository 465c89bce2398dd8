"""`hark schedule`: what it sends and prints."""

from __future__ import annotations

from pathlib import Path

from tests.servers import running_server

from .commands import SCHEDULE
from .conftest import Run, words
from .stub import Stub


def test_a_schedule_is_listed_and_shown_with_its_runs_its_skips_and_its_errors(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"schedules": [SCHEDULE], "total": 1})
    [row] = [row for row in words(hark("schedule", "list").stdout) if "nightly" in row]
    assert row[:2] == ["nightly", "reports"]
    assert {"failing", "queue_full", "3"} <= set(row)
    run = {
        "at": "2026-01-01T01:00:01Z",
        "dueAt": "2026-01-01T01:00:00Z",
        "transactionId": "nightly@x",
        "messageId": "m1",
    }
    requested = {"at": "2026-01-01T05:00:00Z", "transactionId": "nightly@y"}
    stub.answer(200, {**SCHEDULE, "lastRuns": [run, requested]})
    out = hark("schedule", "show", "nightly").stdout
    assert "0 2 * * * (Europe/Berlin)" in out
    assert '{"n":1}' in out.replace(" ", "")
    assert "2026-01-01T01:00:00Z: m1 is pending" in out
    assert "2026-01-02T01:00:00Z: the queue is full (queue_full)" in out
    assert "m1" in out
    assert "no longer stored" in out


def test_put_requires_cron_or_every(hark: Run) -> None:
    for options in ([], ["--cron", "* * * * *", "--every", "5m"]):
        result = hark("schedule", "put", "n", "q", *options)
        assert (result.exit_code, "give exactly one of --cron and --every" in result.stderr) == (2, True)


def test_the_commands_work_with_a_server(hark: Run, tmp_path: Path) -> None:
    with running_server(tmp_path) as url:

        def run(*line: str) -> str:
            result = hark("schedule", *line, "--url", url)
            assert result.exit_code == 0, result.output
            return str(result.stdout)

        run("put", "nightly", "reports", "--text", "hello", "--cron", "0 2 * * *")
        assert "paused" in run("pause", "nightly")
        assert "paused" in run("list")
        assert "pushed message" in run("run", "nightly")
        assert "resumed schedule nightly: next run" in run("resume", "nightly")
        assert "hello" in run("show", "nightly")
        assert "deleted" in run("delete", "nightly", "--yes")
        assert "no schedules" in run("list")
        result = hark("schedule", "put", "n", "q", "--cron", "daily", "--url", url)
        assert (result.exit_code, "cron: expected five fields" in result.stderr) == (1, True)
