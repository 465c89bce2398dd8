"""`hark work` in parts: where the worker is, which settings count, and what is shown."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from hark.cli.output import Failure
from hark.cli.working import ConsoleLog, JsonDisplay, LogDisplay, View, drawn, find_worker, options_of, summary, view_of
from hark.polling import PollingStrategy
from hark.settings import load
from hark.worker import Counts, QueueState, Snapshot
from hark.worker.worker import plan_for

from .conftest import Run

MODULE = """
from hark.worker import Worker

worker = Worker("http://127.0.0.1:1", queue="emails")
number = 17
names = [worker]

class Place:
    worker = worker

def make():
    return worker

def fail():
    raise RuntimeError("no worker today")

def make_number():
    return 17
"""


@pytest.fixture(autouse=True)
def _own_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test imports is forgotten at its end."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("shop"):
            del sys.modules[name]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An application: a module, a package, and one that can't be imported."""
    (tmp_path / "shop.py").write_text(MODULE)
    (tmp_path / "shop_parts").mkdir()
    (tmp_path / "shop_parts" / "__init__.py").touch()
    (tmp_path / "shop_parts" / "mails.py").write_text(MODULE)
    (tmp_path / "shop_broken.py").write_text("import shop_missing_helper\n")
    return tmp_path


# Where the worker is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["shop:worker", "shop", "shop:make", "shop:Place.worker", "shop_parts.mails:worker"])
def test_a_worker_is_found(target: str, directory: Path) -> None:
    assert find_worker(target, directory).queue == "emails"


@pytest.mark.parametrize(
    ("target", "exit_code", "text"),
    [
        ("shopp:worker", 2, "module 'shopp' not found; did you mean shop?"),
        ("bakery:worker", 2, "module 'bakery' not found in "),
        ("shop_parts.mail:worker", 2, "module 'shop_parts.mail' not found"),
        ("shop.mails:worker", 2, "module 'shop.mails' not found"),
        (
            "shop.py:worker",
            2,
            "module 'shop.py' not found; write the name without .py, as in an import statement: shop",
        ),
        ("shop:workers", 2, "'shop' has no attribute 'workers'; did you mean worker?"),
        ("shop:number", 2, "'shop:number' is an int; expected a hark.Worker, or a function that returns one"),
        ("shop:names", 2, "'shop:names' is a list; expected a hark.Worker"),
        ("shop:Place", 2, "'shop:Place' is the class Place; expected a hark.Worker"),
        ("shop:make_number", 2, "'shop:make_number' is an int; expected a hark.Worker"),
        ("shop:fail", 1, "RuntimeError: no worker today"),
        ("shop_broken:worker", 1, "No module named 'shop_missing_helper'"),
        (":worker", 2, "':worker' does not name a worker; use MODULE:ATTRIBUTE, such as app:worker"),
        ("shop:a b", 2, "'shop:a b' does not name a worker"),
        ("./shop:worker", 2, "'./shop:worker' does not name a worker"),
    ],
)
def test_what_is_no_worker_is_refused_in_words(target: str, exit_code: int, text: str, directory: Path) -> None:
    with pytest.raises(Failure) as failure:
        find_worker(target, directory)
    assert text in str(failure.value)
    assert failure.value.exit_code == exit_code


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--concurrency", "0"), "--concurrency"),
        (("--grace", "-1"), "--grace"),
        (("--health-port", "70000"), "--health-port"),
        (("--polling", "often"), "--polling"),
        (
            ("--max-interval-ms", "-5"),
            "invalid value -5.0 from --max-interval-ms, expected a number of milliseconds above 0",
        ),
        (("--min-interval-ms", "60000"), "invalid value 60000.0 from --min-interval-ms, expected at most 5000"),
        (("--interval-ms", "500"), "--interval-ms needs --polling fixed; the polling strategy is adaptive"),
        (("--polling", "fixed", "--max-interval-ms", "500"), "--max-interval-ms needs --polling adaptive"),
        (("--health-host", "0.0.0.0"), "--health-host needs --health-port"),
        (("--config", "nowhere.toml"), "nowhere.toml"),
    ],
)
def test_a_wrong_flag_exits_with_2_and_is_named(hark: Run, flags: tuple[str, ...], named: str) -> None:
    result = hark("work", "shop:worker", *flags)
    assert result.exit_code == 2
    assert named in " ".join(result.stderr.split())


def test_a_module_that_fails_is_shown_with_its_own_traceback(hark: Run, directory: Path) -> None:
    (directory / "shop_failing.py").write_text("def broken():\n    raise KeyError('settings')\n\nbroken()\n")
    result = hark("work", "shop_failing:worker")
    assert result.exit_code == 1
    assert result.stderr.startswith("hark: cannot import module 'shop_failing':\nTraceback")
    assert "KeyError: 'settings'" in result.stderr
    assert result.stderr.count("File ") == 2
    missing = hark("work", "shop_nowhere:worker")
    assert missing.exit_code == 2
    assert missing.stderr.startswith("hark: module 'shop_nowhere' not found")


@pytest.mark.usefixtures("directory")
def test_a_worker_without_tasks_is_refused_before_it_takes_any(hark: Run) -> None:
    result = hark("work", "shop:worker", "--burst")
    assert result.exit_code == 2
    assert result.stderr == (
        "hark: 'shop:worker' has no tasks, so every message in its queue would fail; "
        "import the module that has its @worker.task functions\n"
    )


# Settings --------------------------------------------------------------------------------------------------


def test_flags_go_before_the_program_then_variables_then_the_file(tmp_path: Path) -> None:
    (tmp_path / "hark.toml").write_text("[worker]\nconcurrency = 3\ngrace_seconds = 4\nhealth_port = 5\n")

    def concurrency(flag: int | None, program: int | None, variable: str | None) -> int:
        environment = {} if variable is None else {"HARK_WORKER_CONCURRENCY": variable}
        loaded = load({"worker.concurrency": flag}, environment)
        options = options_of(loaded, health_host="127.0.0.1", burst=False)
        return plan_for(options, concurrency=program, environment=environment).concurrency

    assert concurrency(30, 20, "10") == 30
    assert concurrency(None, 20, "10") == 20
    assert concurrency(None, None, "10") == 10
    assert concurrency(None, None, None) == 3


def test_every_flag_reaches_the_worker() -> None:
    flags = {
        "worker.polling.strategy": "fixed",
        "worker.polling.interval_ms": 70.0,
        "worker.grace_seconds": 5.0,
        "worker.health_port": 9000,
    }
    options = options_of(load(flags, {}), health_host="0.0.0.0", burst=True)
    assert options.polling == PollingStrategy.fixed(interval_ms=70)
    assert (options.grace_seconds, options.health, options.burst) == (5.0, ("0.0.0.0", 9000), True)
    assert (options.concurrency, options.handle_signals) == (None, True)


def test_a_polling_flag_is_joined_with_what_the_settings_say() -> None:
    environment = {"HARK_POLLING_MIN_INTERVAL_MS": "200"}
    loaded = load({"worker.polling.max_interval_ms": 30_000.0}, environment)
    assert options_of(loaded, health_host="", burst=False).polling == PollingStrategy.adaptive(
        min_interval_ms=200, max_interval_ms=30_000
    )
    assert options_of(load({}, environment), health_host="", burst=False).polling is None


# What is shown ---------------------------------------------------------------------------------------------


def _snapshot(done: int = 0) -> Snapshot:
    counts = Counts(done=done, failed=2, retried=1, dead=1, ended=done + 2, seconds=0.5)
    return Snapshot(
        worker_id="worker-1",
        queue="emails",
        concurrency=20,
        running=3,
        stuck=0,
        stopping=False,
        totals=counts,
        queues={"emails": QueueState(1, 3, counts)},
        tasks={"send\x1b[2Jemail": counts},
        rate=12.5,
        poll_interval=0.4,
        polls=60,
        empty_polls=50,
    )


def _view(done: int = 0, *, seconds: float = 60.0, ended: bool = False) -> View:
    return view_of(_snapshot(done), server="http://127.0.0.1:6632", seconds=seconds, ended=ended)


class FakeTime:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_worker_of_several_queues_shows_each() -> None:
    counts = Counts(done=3, failed=1, ended=4)
    state = msgspec.structs.replace(
        _snapshot(), queues={"emails": QueueState(3, 2, counts), "bills": QueueState(1, 0, Counts())}
    )
    view = view_of(state, server="http://127.0.0.1:6632", seconds=60.0)
    console = Console(width=100, file=StringIO())
    console.print(drawn(view))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert "Weight" in text
    assert [line.split() for line in text.splitlines() if line.startswith("emails")] == [
        ["emails", "3", "2", "3", "1", "0", "0"]
    ]
    assert summary(view).endswith("(emails: 3 completed, 1 failed; bills: 0 completed, 0 failed)")


def test_the_live_view_has_all_numbers_and_no_control_characters() -> None:
    console = Console(width=100, file=StringIO())
    with console.capture() as capture:
        console.print(drawn(_view(8)))
    text = capture.get()
    assert "running  queue emails at http://127.0.0.1:6632  for 0:01:00" in text
    assert (
        "3 of 20 slots busy, 12.5 tasks/s\ntasks: 8 completed, 3 running, 2 failed, 1 retried, 1 dead-lettered\n"
        in text
    )
    assert "send\\x1b[2Jemail" in text
    assert "50.0 ms" in text
    assert "polls: 60, 50 of them empty; interval 0.4 s; on S3 $1.04 per month" in text
    assert "\x1b" not in text


def test_an_error_in_the_log_does_not_steer_the_terminal() -> None:
    console = Console(width=100, file=StringIO())
    record = logging.LogRecord("hark.worker", logging.WARNING, "", 0, "failed: %s", ("[b]\x1b[2J[/b]\nTrace",), None)
    with console.capture() as capture:
        ConsoleLog(console).emit(record)
    assert capture.get() == "failed: [b]\\x1b[2J[/b]\nTrace\n"


def test_the_mean_counts_all_that_took_time_and_costs_are_not_guessed_from_seconds() -> None:
    assert _view(3).tasks[0].mean_ms == pytest.approx(100)
    assert _view(seconds=29).dollars_per_month is None
    assert _view(seconds=30).dollars_per_month is not None


def test_the_log_has_a_line_only_now_and_then_and_only_of_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hark.work")
    clock = FakeTime()
    display = LogDisplay(seconds=10, monotonic=clock)
    for now, done in ((0, 0), (5, 1), (10, 1), (15, 2), (20, 2), (40, 2)):
        clock.now = now
        display.show(_view(done))
    display.end(_view(2, ended=True))
    assert [record.message.partition(",")[0] for record in caplog.records] == [
        "1 completed",
        "2 completed",
        "worker-1 stopped after 60.0 s: 2 completed",
    ]


def test_json_has_a_line_at_the_start_of_changes_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeTime()
    display = JsonDisplay(seconds=1, monotonic=clock)
    for now, done in ((0, 0), (0.5, 1), (1, 1), (3, 1)):
        clock.now = now
        display.show(_view(done))
    display.end(_view(1, ended=True))
    lines = [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["done"], line["state"]) for line in lines] == [(0, "running"), (1, "running"), (1, "stopped")]
    assert lines[0]["tasks"][0]["meanMs"] == 250.0
