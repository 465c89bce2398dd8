"""`hark work --processes`: real processes that are killed, signalled and shown as one worker."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.http.api import Api

from .test_workers import ended
from .working import APP, SECONDS, Work, terminal, working

READY = "all 2 processes are ready"
SLOW = """
import time
from pathlib import Path

with Path("import").open("a") as imports:
    imports.write("x")
if Path("import").read_text() != "x":
    time.sleep(60)
"""
FOREVER = """

@worker.task("name_me")
async def name_me() -> None:
    print(f"runs in {os.getpid()}\\n", end="", flush=True)


@worker.task("hold", pool="process")
def hold(file: str) -> None:
    print(f"held by {os.getpid()}\\n", end="", flush=True)
    while True:
        pass
"""


@pytest.fixture(scope="module")
def api(server_url: str) -> Iterator[Api]:
    """The API of the module's server."""
    with httpx.Client(base_url=server_url, timeout=30) as client:
        yield Api(client)


@pytest.fixture(autouse=True)
def _application(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP + FOREVER)


def push(api: Api, queue: str, task: str, **arguments: str) -> None:
    """Push a task."""
    api.push(queue, {"task": task, "arguments": arguments})


def process_of(work: Work, api: Api, queue: str) -> int:
    """The process that runs the next task."""
    push(api, queue, "name_me")
    return int(work.until(r"runs in \d+").split()[-1])


def test_processes_share_the_queue_and_end_with_one_summary(
    server_url: str, api: Api, queue: str, tmp_path: Path
) -> None:
    with working(tmp_path, server_url, queue, "app:worker", "--processes", "2", "--concurrency", "3") as work:
        work.until(READY)
        for number in range(20):
            push(api, queue, "say", word=f"{number}")
        for _ in range(20):
            work.until("said ")
        work.signal(signal.SIGTERM)
        assert work.end() == 0
    assert len([line for line in work.output if "started: queue" in line]) == 2
    assert len([line for line in work.output if "stopped after" in line]) == 1
    assert "2 processes stopped after" in work.output[-1]
    assert "20 completed" in work.output[-1]


def test_a_killed_process_is_started_again_and_its_counts_remain(
    server_url: str, api: Api, queue: str, tmp_path: Path
) -> None:
    with working(tmp_path, server_url, queue, "app:worker", "--processes", "1") as work:
        work.until("all 1 processes are ready")
        first = process_of(work, api, queue)
        os.kill(first, signal.SIGKILL)
        work.until("worker 1 ended with signal SIGKILL; starting another in 1 s")
        second = process_of(work, api, queue)
        assert second != first
        os.kill(second, signal.SIGKILL)
        work.until("worker 1 ended with signal SIGKILL; starting another in 2 s")  # Longer each time.
        process_of(work, api, queue)
        work.signal(signal.SIGTERM)
        assert work.end() == 0
    assert "1 processes stopped after" in work.output[-1]


def test_a_burst_ends_all_processes(server_url: str, api: Api, queue: str, tmp_path: Path) -> None:
    for number in range(5):
        push(api, queue, "say", word=f"{number}")
    with working(tmp_path, server_url, queue, "app:worker", "--processes", "2", "--burst", "--json") as work:
        assert work.end() == 0
    views = [json.loads(line) for line in work.output if line.startswith('{"state"')]
    last = views[-1]
    assert (last["state"], last["done"], last["slots"], last["running"]) == ("stopped", 5, 0, 0)
    assert [line["number"] for line in last["processes"]] == [1, 2]
    assert sum(line["done"] for line in last["processes"]) == 5
    assert [(line["name"], line["done"]) for line in last["queues"]] == [(queue, 5)]


def test_processes_do_not_outlive_the_one_that_supervises_them(
    server_url: str, api: Api, queue: str, tmp_path: Path
) -> None:
    """Neither do the processes of their tasks."""
    with working(tmp_path, server_url, queue, "app:worker", "--processes", "2", "--grace", "1") as work:
        work.until(READY)
        process = process_of(work, api, queue)
        push(api, queue, "hold", file="")
        held = int(work.until(r"held by \d+").split()[-1])
        work.process.kill()
        assert ended(process)
        assert ended(held)


def test_the_second_signal_reaches_all_processes(server_url: str, api: Api, queue: str, tmp_path: Path) -> None:
    with working(tmp_path, server_url, queue, "app:worker", "--processes", "2", "--grace", "600") as work:
        work.until(READY)
        push(api, queue, "wait", file="never")
        work.until("waits for")
        work.signal(signal.SIGINT)
        work.until("shutting down")
        work.signal(signal.SIGINT)
        assert work.end() == 0
    # The last request of the other process can receive it, too.
    assert re.search(r"[12] returned to the queue", work.output[-1])


def test_a_signal_during_the_start_is_a_shutdown(server_url: str, queue: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SLOW + APP)
    with working(tmp_path, server_url, queue, "app:worker", "--processes", "1") as work:
        while not (imports := tmp_path / "import").exists() or len(imports.read_text()) < 2:
            pass  # Its process imports the application now, which takes long.
        work.signal(signal.SIGTERM)
        assert work.end() == 0


def test_health_and_metrics_are_those_of_all_processes(server_url: str, api: Api, queue: str, tmp_path: Path) -> None:
    port = _free_port()
    arguments = ("app:worker", "--processes", "2", "--concurrency", "3", "--health-port", str(port))
    with working(tmp_path, server_url, queue, *arguments) as work, httpx.Client() as probe:
        work.until(READY)
        process = process_of(work, api, queue)
        while (health := probe.get(f"http://127.0.0.1:{port}/health")).status_code != 200:
            pass  # A process says how it is at intervals.
        assert health.json()["worker"] == "2 processes"
        assert health.json()["concurrency"] == 6
        metrics = f"http://127.0.0.1:{port}/metrics"
        while _value(probe.get(metrics).text, "worker_tasks_total", task="name_me", outcome="done") != 1:
            pass
        assert _value(probe.get(metrics).text, "worker_slots") == 6
        assert _value(probe.get(metrics).text, "worker_processes") == 2
        os.kill(process, signal.SIGKILL)
        work.until("starting another")
        while _value(probe.get(metrics).text, "worker_process_restarts_total") != 1:
            pass
        # The counts of the one that ended remain: a counter never falls.
        assert _value(probe.get(metrics).text, "worker_tasks_total", task="name_me", outcome="done") == 1
        work.signal(signal.SIGTERM)
        assert work.end() == 0


def test_a_worker_that_cannot_start_is_explained_once(server_url: str, queue: str, tmp_path: Path) -> None:
    with working(tmp_path, server_url, queue, "app:nothing", "--processes", "2") as work:
        assert work.end() == 2
    assert work.text.count("has no attribute 'nothing'") == 1


def test_on_a_terminal_one_view_has_all_processes(server_url: str, api: Api, queue: str, tmp_path: Path) -> None:
    push(api, queue, "say", word="hello")
    arguments = ("app:worker", "--processes", "2")
    with terminal(120) as (side, screen), working(tmp_path, server_url, queue, *arguments, stdout=side) as work:
        screen.until(READY)
        screen.until("0 of 20 slots busy")
        screen.until("1 completed")
        work.signal(signal.SIGTERM)
        assert work.process.wait(SECONDS) == 0, screen.text
    text = screen.end()
    assert f"running  queue {queue} at {server_url}" in text
    assert "Restarts" in text
    assert "said hello" in text, "what handlers print is not drawn over"
    assert "2 processes stopped after" in text


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _value(text: str, name: str, **labels: str) -> float | None:
    for line in text.splitlines():
        if re.match(rf"{name}[ {{]", line) and all(f'{key}="{value}"' in line for key, value in labels.items()):
            return float(line.rsplit(" ", 1)[1])
    return None
