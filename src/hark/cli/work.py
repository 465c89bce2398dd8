"""`hark work`, with --reload, and `hark polling`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from types import FrameType
from typing import Annotated

import msgspec
import typer

from hark.cli import params
from hark.cli.command import command, main
from hark.cli.output import FAILED, Failure, Misuse, complain, raw, say, table
from hark.cli.params import argument, flag, option
from hark.settings import SETTINGS, Loaded, shown

_HEALTH_HOST = "127.0.0.1"
_FIELDS = tuple(name for name in SETTINGS if name.startswith("worker.polling."))
_WITHOUT_EFFECT = {
    "adaptive": ("worker.polling.interval_ms",),
    "fixed": tuple(name for name in _FIELDS if name.rpartition(".")[2] not in ("strategy", "interval_ms")),
}
"""By polling strategy, the settings of the other one."""


@command(
    main,
    "work",
    "hark work app:worker",
    "hark work app:worker --concurrency 50 --health-port 9000",
    "hark work app:worker --processes 4",
    "hark work app:worker --reload",
    "hark work app:make_worker --burst --json",
    "hark work app:worker --polling adaptive --max-interval-ms 30000",
    "",
    "Shutdown: after Ctrl-C or SIGTERM, the worker receives no more tasks and gives",
    "running tasks --grace seconds to finish. It then returns unfinished tasks to",
    "the queue. A second signal returns them immediately. A third signal ends the",
    "process.",
    "",
    "Exit codes: 0 after a shutdown, or with --burst when the queue is empty;",
    "1 if the worker cannot start, or if tasks did not stop (another worker runs",
    "them again); 2 invalid usage or settings.",
    settings=("worker.concurrency", *_FIELDS, "worker.grace_seconds", "worker.health_port", "log_level", "log_format"),
)
def work(
    loaded: Loaded,
    target: Annotated[
        str,
        argument(
            "MODULE:ATTRIBUTE",
            "Worker to run: a hark.Worker, or a function that returns one. MODULE alone means MODULE:worker.",
        ),
    ],
    health_host: Annotated[str | None, option("ADDRESS", "Address for --health-port.", default=_HEALTH_HOST)] = None,
    burst: Annotated[bool, flag("Exit when the queue is empty.", "--burst")] = False,
    processes: Annotated[
        int | None,
        option(
            "N",
            "Number of processes. Each has its own slots; one that crashes is started again.",
            default="one, not supervised",
            least=1,
            most=256,
        ),
    ] = None,
    reload: Annotated[
        bool, flag("Restart when a Python file below the current directory changes.", "--reload")
    ] = False,
    no_progress: Annotated[bool, flag("Print log lines instead of a live view.", "--no-progress")] = False,
    as_json: Annotated[bool, flag("Print JSON instead of text, one line per update.", "--json")] = False,
    config: params.Config = None,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
    member: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the worker of an application.

    Options take precedence over the worker's own program, then HARK_* variables, then [worker] in hark.toml.
    docs/settings.md lists all settings.
    """
    strategy = loaded.settings.worker.polling.strategy
    for source in map(loaded.sources.__getitem__, _WITHOUT_EFFECT[strategy]):
        if source.startswith("--"):
            other = "fixed" if strategy == "adaptive" else "adaptive"
            raise typer.BadParameter(f"{source} needs --polling {other}; the polling strategy is {strategy}")
    if health_host is not None and not loaded.settings.worker.health_port:
        raise typer.BadParameter("--health-host needs --health-port, or the setting worker.health_port")
    if reload:
        arguments = [argument for argument in sys.argv[sys.argv.index("work") + 1 :] if argument != "--reload"]
        raise typer.Exit(work_and_reload(arguments, Path.cwd()))
    for note in loaded.notes:
        complain(f"warning: {note}")
    if config is not None:  # The worker itself reads the settings, as it does without the command line.
        os.environ["HARK_CONFIG"] = str(config)
    if parent is not None:
        _stop_with(parent)
    from hark.cli.working import find_worker, options_of, run

    worker = find_worker(target, Path.cwd())
    if not worker.tasks:
        raise Misuse(
            f"{target!r} has no tasks, so every message in its queue would fail; "
            "import the module that has its @worker.task functions"
        )
    options = options_of(loaded, health_host=health_host or _HEALTH_HOST, burst=burst)
    if processes is not None and member is None:
        from hark.cli.working_many import run_processes

        arguments = sys.argv[sys.argv.index("work") + 1 :]
        raise typer.Exit(
            run_processes(processes, arguments, options, loaded.settings, live=not no_progress, as_json=as_json)
        )
    if parent is not None and member is not None:
        os.environ["HARK_WORKER_HEALTH_PORT"] = "0"  # The parent serves the health of all processes.
        options = msgspec.structs.replace(options, health=None)
        raise typer.Exit(run(worker, options, loaded.settings, live=False, as_json=False, member=(parent, member)))
    raise typer.Exit(run(worker, options, loaded.settings, live=not no_progress, as_json=as_json))


# Restarts ---------------------------------------------------------------------------------------------------

_WATCH_MS = 200
"""How often the parent checks whether the worker has ended."""


def work_and_reload(arguments: Sequence[str], directory: Path) -> int:
    """Run `hark work` with these arguments, and restart it after changes, until a signal; return its exit code."""
    try:
        from watchfiles import PythonFilter, watch
    except ImportError:
        raise Failure("--reload needs the package watchfiles; install it with: pip install 'hark-mq[reload]'") from None
    stop = threading.Event()
    with _Child(arguments, directory, stop) as child, _signals(child, stop):
        for changes in watch(
            directory,
            watch_filter=PythonFilter(),
            stop_event=stop,
            rust_timeout=_WATCH_MS,
            yield_on_timeout=True,
            raise_interrupt=False,
        ):
            if child.process is None:  # Only now: from here on, every change is noticed.
                complain(f"reload: watching Python files in {directory}")
                child.start()
            elif changes:
                names = sorted({os.path.relpath(path, directory) for _, path in changes})
                complain(f"reload: {', '.join(names)} changed; restarting the worker")
                child.restart()
            child.look()
        return child.wait()


class _Child:
    """The worker's process, in a separate process group, so that Ctrl-C reaches it once, through the parent."""

    def __init__(self, arguments: Sequence[str], directory: Path, stop: threading.Event) -> None:
        self._command = [sys.executable, "-m", "hark", "work", *arguments]
        self._directory = directory
        self._stop = stop
        self.process: subprocess.Popen[bytes] | None = None
        self._reported = False

    def __enter__(self) -> _Child:
        # The worker reads from one end and stops when the other end is closed: so it never outlives its parent.
        self._read_end, self._write_end = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGTERM)
        self.wait()
        os.close(self._read_end)
        os.close(self._write_end)

    def start(self) -> None:
        """Start the process, unless a signal has arrived."""
        if self._stop.is_set():
            return
        self._reported = False
        command = [*self._command, "--parent", str(self._read_end)]
        self.process = subprocess.Popen(command, cwd=self._directory, pass_fds=(self._read_end,), process_group=0)

    def restart(self) -> None:
        """Shut the process down gracefully, and start the next."""
        self.signal(signal.SIGTERM)
        self.wait()
        self.start()

    def signal(self, number: int) -> None:
        """Send a signal, if the process still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def look(self) -> None:
        """Report once that the process has ended."""
        if self.process is None or self.process.poll() is None or self._reported or self._stop.is_set():
            return
        self._reported = True
        code = self.process.returncode
        complain(f"reload: the worker ended with exit code {code}; it restarts when a file changes")

    def wait(self) -> int:
        """Wait for the process; return its exit code."""
        code = 0 if self.process is None else self.process.wait()
        return code if code >= 0 else FAILED


@contextmanager
def _signals(child: _Child, stop: threading.Event) -> Iterator[None]:
    """Forward signals: the first starts a graceful shutdown, the second an immediate one, as without --reload."""

    def forward(number: int, _frame: FrameType | None) -> None:
        stop.set()
        child.signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_with(parent: int) -> None:
    """In the worker's process: shut down gracefully when the parent has ended."""

    def watch() -> None:
        os.read(parent, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="hark-reload-parent", daemon=True).start()


# Cost of polling --------------------------------------------------------------------------------------------


@command(main, "polling", "hark polling", "hark polling --batch-ms 20", "hark polling --compare --json")
def polling(
    loaded: Loaded,
    batch_ms: Annotated[
        float | None,
        option(
            "MS",
            "Time that a worker needs for a batch, in milliseconds.",
            default="the shortest polling interval",
        ),
    ] = None,
    compare: Annotated[bool, flag("Compare five example strategies instead of your settings.", "--compare")] = False,
    as_json: params.Json = False,
) -> None:
    """Show the polling settings of workers and their cost.

    An idle worker polls at intervals. A busy worker polls once for each batch, without a pause.
    """
    if batch_ms is not None and not 0 < batch_ms <= 86_400_000:
        raise typer.BadParameter(f"--batch-ms {batch_ms:g}: use a number of milliseconds above 0, at most 86400000")
    from hark.polling import AT_A_SERVER, AWS_S3, SEED_CASES, estimate, strategy_from

    batch_seconds = None if batch_ms is None else batch_ms / 1000
    strategy = strategy_from(loaded.settings)
    wait_seconds = loaded.settings.pop.default_timeout_ms / 1000
    fields = {} if compare else {name: (shown(loaded.settings, name), loaded.sources[name]) for name in _FIELDS}
    if compare:
        costs = {
            case.name: estimate(case.strategy, case.busy_share, batch_seconds=batch_seconds) for case in SEED_CASES
        }
    else:
        shares = {"idle": 0.0, "half busy": 0.5, "always busy": 1.0}
        costs = {name: estimate(strategy, share, batch_seconds=batch_seconds) for name, share in shares.items()}
        costs["idle at a server"] = estimate(strategy, wait_seconds=wait_seconds, price=AT_A_SERVER)
    if as_json:
        used = {name.rpartition(".")[2]: {"value": value, "source": source} for name, (value, source) in fields.items()}
        rows = [
            {"case": name, "polls": cost.polls_per_month, "dollars": cost.dollars_per_month}
            for name, cost in costs.items()
        ]
        raw(msgspec.json.encode({**({"polling": used} if used else {}), "perMonth": rows}))
        return
    if fields:
        table(
            [
                (name, str(value), source)
                for name, (value, source) in fields.items()
                if name not in _WITHOUT_EFFECT[strategy.strategy]
            ],
            {"Setting": itemgetter(0), "Value": itemgetter(1), "Source": itemgetter(2)},
        )
        say("")
    polls, dollars = "Polls per month", "Dollars per month"
    table(
        costs.items(),
        {
            "Strategy" if compare else "Worker": lambda row: row[0],
            polls: lambda row: f"{row[1].polls_per_month:,}",
            dollars: lambda row: f"{row[1].dollars_per_month:.2f}",
        },
        right=(polls, dollars),
    )
    if fields:
        busy_ms = (batch_seconds or strategy.initial_interval()) * 1000
        idle = f"one poll every {strategy.longest_interval():g} s"
        say(f"\nCost: ${AWS_S3.get_per_thousand:g} per 1,000 polls of a bucket ({AWS_S3.name}, GET requests).")
        say("      Polls of a Hark server are free.")
        say(f"Idle: {idle}; a server holds an empty poll for up to {wait_seconds:g} s.")
        say(f"Busy: one poll for each batch, which takes {busy_ms:g} ms here (--batch-ms).")
