"""`hark work`: real processes against a real server."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.http.api import WAIT, Api

from .conftest import runner
from .working import APP, SECONDS, terminal, working

WORKS = "started: queue"


@pytest.fixture(scope="module")
def api(server_url: str) -> Iterator[Api]:
    """The API of the module's server."""
    with httpx.Client(base_url=server_url, timeout=30) as client:
        yield Api(client)


@pytest.fixture(autouse=True)
def _application(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)


def _push(api: Api, queue: str, task: str, **arguments: str) -> None:
    api.push(queue, {"task": task, "arguments": arguments})


# Running and stopping --------------------------------------------------------------------------------------


def test_it_works_until_it_is_notified_to_stop(server_url: str, api: Api, queue: str, tmp_path: Path) -> None:
    with working(tmp_path, server_url, queue, "app:worker", "--concurrency", "7") as work:
        assert f"started: queue {queue} at {server_url}, concurrency 7, tasks: fail, say, wait" in work.until(WORKS)
        _push(api, queue, "say", word="hello")
        work.until("said hello")
        api.push(queue, {"task": "fail"}, backoffSchedule=[])
        work.until("ValueError: no")
        work.signal(signal.SIGTERM)
        assert work.end() == 0
    assert "stopped after" in work.output[-1]
    assert "1 completed, 1 failed, 1 dead-lettered" in work.output[-1]
    # Without a terminal the log is JSON, and it names the task.
    lines = [json.loads(line) for line in work.output if line != "said hello\n"]
    failed = next(line for line in lines if line["event"].startswith("task fail failed"))
    assert (failed["level"], failed["logger"], failed["task"], failed["attempt"]) == ("warning", "worker", "fail", 1)
    assert (failed["error"]["type"], failed["error"]["text"]) == ("ValueError", "no")
    assert failed["message_id"] and failed["worker_id"]


def test_a_running_task_may_finish_when_it_stops(server_url: str, api: Api, queue: str, tmp_path: Path) -> None:
    _push(api, queue, "wait", file="go")
    with working(tmp_path, server_url, queue, "app:worker", "--grace", "60") as work:
        work.until("waits for go")
        work.signal(signal.SIGINT)
        work.until("press Ctrl-C again")
        (tmp_path / "go").touch()
        work.until("waited for go")
        assert work.end() == 0
    assert api.pop(queue) == []


def test_the_second_signal_hands_back_what_runs(server_url: str, api: Api, queue: str, tmp_path: Path) -> None:
    _push(api, queue, "wait", file="never")
    with working(tmp_path, server_url, queue, "app:worker", "--grace", "600") as work:
        work.until("waits for never")
        work.signal(signal.SIGINT)
        work.until("press Ctrl-C again")
        work.signal(signal.SIGINT)
        assert work.end() == 0
    assert "1 returned to the queue" in work.output[-1]
    assert api.pop_one(queue, **WAIT)["deliveryAttempt"] == 1


def test_a_burst_ends_when_nothing_is_left(server_url: str, api: Api, queue: str, tmp_path: Path) -> None:
    for index in range(20):
        _push(api, queue, "say", word=f"{index}")
    with working(tmp_path, server_url, queue, "app:make_worker", "--burst", "--json", "--log-level", "error") as work:
        assert work.end() == 0
    lines = [json.loads(line) for line in work.output if line.startswith("{")]
    assert [lines[0]["state"], lines[-1]["state"]] == ["running", "stopped"]
    assert (lines[-1]["done"], lines[-1]["queue"], lines[-1]["server"]) == (20, queue, server_url)
    assert [(task["name"], task["done"]) for task in lines[-1]["tasks"]] == [("say", 20)]
    assert lines[-1]["polls"] >= 3, "at 10 at a time, and an empty one at the end"
    assert lines[-1]["emptyPolls"] >= 1


def test_on_a_terminal_it_draws_how_the_tasks_fare(server_url: str, api: Api, queue: str, tmp_path: Path) -> None:
    _push(api, queue, "say", word="hello")
    with terminal(100) as (screen, shown), working(tmp_path, server_url, queue, "app:worker", stdout=screen) as work:
        shown.until("1 completed")
        work.signal(signal.SIGTERM)
        assert work.process.wait(SECONDS) == 0
    text = shown.end()
    assert f"running  queue {queue} at {server_url}" in text
    assert "0 of 10 slots busy" in text
    assert "said hello" in text, "what handlers print is not drawn over"
    assert text.rstrip().endswith("1 completed"), "the last line says what came of it"


# Reloading -------------------------------------------------------------------------------------------------


def test_a_changed_file_is_loaded_and_a_broken_one_waits_for_the_next_change(
    server_url: str, api: Api, queue: str, tmp_path: Path
) -> None:
    pytest.importorskip("watchfiles")
    (tmp_path / "app.py").write_text("import nothing_like_that\n")
    with working(tmp_path, server_url, queue, "app:worker", "--reload") as work:
        work.until("reload: watching")
        work.until("No module named 'nothing_like_that'")
        work.until("ended with exit code 1; it restarts when a file changes")
        for word in ("said", "says now"):
            (tmp_path / "app.py").write_text(APP.replace('f"said ', f'f"{word} '))
            work.until(r"reload: app\.py changed")
            work.until(WORKS)
            _push(api, queue, "say", word="hello")
            work.until(f"{word} hello")
        work.signal(signal.SIGINT)
        assert work.end() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_the_worker_does_not_outlive_the_one_who_reloads_it(
    server_url: str, queue: str, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    pytest.importorskip("watchfiles")
    with working(tmp_path, server_url, queue, "app:worker", "--reload") as work:
        work.until(WORKS)
        work.signal(number)
        assert work.end() == code
    assert "stopped after" in work.output[-1]


def test_reload_says_which_package_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    arguments = ["work", "app:worker", "--reload"]
    monkeypatch.setattr(sys, "argv", ["hark", *arguments])
    result = runner()(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert (
        result.stderr == "hark: --reload needs the package watchfiles; install it with: pip install 'hark-mq[reload]'\n"
    )
