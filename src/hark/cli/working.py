"""Finds the worker of an application and runs it, with its log and its progress."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import uvloop

from hark.cli.output import FAILED, Failure, Misuse, printable, raw
from hark.errors import did_you_mean
from hark.logs import JsonLines, TextLines, log_to, use_handler
from hark.polling import AWS_S3, MONTH_SECONDS, strategy_from
from hark.settings import Loaded, Settings
from hark.worker.middleware import add_task_fields
from hark.worker.stats import OUTCOMES, Health, QueueState, Snapshot, Summary
from hark.worker.worker import Worker, WorkerRunOptions

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

log = logging.getLogger("hark.work")

_LOOK_SECONDS = 0.25
_ESTIMATE_AFTER = 30.0
"""Seconds of polling before the cost of a month is estimated."""


class TaskLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The counts of one task since the start."""

    name: str
    done: int
    failed: int
    retried: int
    dead: int
    ended: int
    """All deliveries that ended."""
    mean_ms: float | None
    """The average duration."""


class QueueLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The counts of one queue since the start."""

    name: str
    weight: int
    running: int
    done: int
    failed: int
    retried: int
    dead: int


class ProcessLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One process of a worker."""

    number: int
    process: int | None
    """Its id. None: it is not running."""
    running: int
    done: int
    """Including those of the processes before it."""
    per_second: float
    restarts: int


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A worker at one moment."""

    state: Literal["running", "stopping", "stopped"]
    worker: str
    queue: str
    server: str
    seconds: float
    """Since the start."""
    slots: int
    running: int
    stuck: int
    done: int
    failed: int
    retried: int
    dead: int
    discarded: int
    handed_back: int
    lost: int
    per_second: float
    tasks: Sequence[TaskLine]
    queues: Sequence[QueueLine]
    poll_interval: float
    polls: int
    empty_polls: int
    dollars_per_month: float | None
    """The cost of the same polling rate at an object store that charges for each request."""
    processes: Sequence[ProcessLine] = ()
    """With --processes: the processes of the worker."""


class Report(msgspec.Struct, frozen=True):
    """What one of several processes tells the process that supervises it."""

    view: View
    health: Health | None
    metrics: str


def view_of(snapshot: Snapshot, *, server: str, seconds: float, ended: bool = False) -> View:
    """Make the view of a worker from its snapshot."""
    per_month = snapshot.polls / max(seconds, 1.0) * MONTH_SECONDS
    return View(
        state="stopped" if ended else "stopping" if snapshot.stopping else "running",
        worker=snapshot.worker_id,
        queue=snapshot.queue,
        server=server,
        seconds=round(seconds, 3),
        slots=snapshot.concurrency,
        running=snapshot.running,
        stuck=snapshot.stuck,
        **{name: getattr(snapshot.totals, name) for name in OUTCOMES},
        per_second=snapshot.rate,
        tasks=[
            TaskLine(
                name=name,
                ended=counts.ended,
                mean_ms=counts.seconds / counts.ended * 1000 if counts.ended else None,
                **{outcome: getattr(counts, outcome) for outcome in ("done", "failed", "retried", "dead")},
            )
            for name, counts in sorted(snapshot.tasks.items())
        ],
        queues=[
            QueueLine(
                name=name,
                weight=state.weight,
                running=state.running,
                **{outcome: getattr(state.totals, outcome) for outcome in ("done", "failed", "retried", "dead")},
            )
            for name, state in snapshot.queues.items()
        ],
        poll_interval=snapshot.poll_interval,
        polls=snapshot.polls,
        empty_polls=snapshot.empty_polls,
        dollars_per_month=None if seconds < _ESTIMATE_AFTER else per_month / 1000 * AWS_S3.get_per_thousand,
    )


class LogDisplay:
    """A log line at intervals, if the counts changed; none at the start."""

    def __init__(self, seconds: float = 10.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._last: tuple[float, tuple[int, ...]] | None = None

    def shown(self) -> AbstractContextManager[object]:
        """Return a context that is open while the worker runs."""
        return nullcontext()

    def show(self, view: View) -> None:
        """Write a line if the interval is over and the counts changed."""
        now, counts = self._monotonic(), tuple(getattr(view, name) for name in OUTCOMES)
        if self._last is None or (now - self._last[0] >= self._seconds and counts != self._last[1]):
            first, self._last = self._last is None, (now, counts)
            self._write(view, first)

    def _write(self, view: View, first: bool) -> None:
        if not first:
            log.info("%s, %.1f/s", summary(view), view.per_second)

    def end(self, view: View) -> None:
        """Log the totals."""
        log.info("%s %s after %.1f s: %s", view.worker, view.state, view.seconds, summary(view))


class JsonDisplay(LogDisplay):
    """A JSON line after changes, at most one per second, and one at the end."""

    def __init__(self, seconds: float = 1.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(seconds, monotonic)

    def _write(self, view: View, first: bool) -> None:  # noqa: ARG002  # Only the log skips the first line.
        raw(msgspec.json.encode(view))

    def end(self, view: View) -> None:
        """Print the totals."""
        raw(msgspec.json.encode(view))


class MemberDisplay(LogDisplay):
    """Reports to the process that supervises this one and others."""

    def __init__(self, worker: Worker, descriptor: int) -> None:
        super().__init__()
        self._worker = worker
        self._parent = socket.socket(fileno=os.dup(descriptor))
        self._metrics = ""

    def show(self, view: View) -> None:
        """Send a report."""
        self._metrics = self._worker.metrics or self._metrics
        with suppress(OSError):  # Without a parent the worker is about to shut down.
            report = Report(view, self._worker.health, self._metrics)
            self._parent.sendall(msgspec.json.encode(report) + b"\n")

    def end(self, view: View) -> None:
        """Send the totals."""
        self.show(view)


class LiveDisplay:
    """A view that is redrawn in place, below the log."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=True)

    def print_line(self, text: str) -> None:
        """Print a line of another process above the view."""
        self._live.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def shown(self) -> AbstractContextManager[object]:
        """Use the lower part of the terminal while the context is open."""
        return self._live

    def show(self, view: View) -> None:
        """Redraw the view."""
        self._live.update(drawn(view), refresh=True)

    def end(self, view: View) -> None:
        """Print the last view and a summary."""
        self._live.stop()
        self._live.console.print(drawn(view))
        self._live.console.print(
            f"{printable(view.worker)} {view.state} after {view.seconds:.1f} s: {summary(view)}", highlight=False
        )


def summary(view: View) -> str:
    """Return the counts as a phrase; zeros are left out, except for completed tasks."""
    counts = (
        ("running", view.running),
        ("stuck", view.stuck),
        ("failed", view.failed),
        ("retried", view.retried),
        ("dead-lettered", view.dead),
        ("discarded", view.discarded),
        ("returned to the queue", view.handed_back),
        ("lost their lease", view.lost),
    )
    text = ", ".join((f"{view.done} completed", *(f"{count} {name}" for name, count in counts if count)))
    if len(view.queues) < 2:
        return text
    return f"{text} ({'; '.join(f'{line.name}: {line.done} completed, {line.failed} failed' for line in view.queues)})"


def drawn(view: View) -> RenderableType:
    """Render the view for a terminal."""
    from rich.console import Group
    from rich.text import Text

    where = f"queue {printable(view.queue)} at {printable(view.server)}"
    cost = "" if view.dollars_per_month is None else f"; on S3 ${view.dollars_per_month:.2f} per month"
    return Group(
        Text.assemble((view.state, "bold"), f"  {where}  for {_duration(view.seconds)}"),
        Text(f"{view.running + view.stuck} of {view.slots} slots busy, {view.per_second:.1f} tasks/s"),
        Text(f"tasks: {summary(view)}"),
        *([_table(QUEUE_COLUMNS, view.queues)] if len(view.queues) > 1 else ()),
        *([_table(PROCESS_COLUMNS, view.processes)] if view.processes else ()),
        _table(TASK_COLUMNS, view.tasks) if view.tasks else Text("no task has finished yet"),
        Text(
            f"polls: {view.polls}, {view.empty_polls} of them empty; interval {view.poll_interval:.2g} s{cost}", "dim"
        ),
    )


Columns = Mapping[str, Callable[[Any], str]]
_COUNTS: Columns = {
    "Completed": lambda line: str(line.done),
    "Failed": lambda line: str(line.failed),
    "Retried": lambda line: str(line.retried),
    "Dead-lettered": lambda line: str(line.dead),
}
TASK_COLUMNS: Columns = {
    "Task": lambda line: printable(line.name),
    **_COUNTS,
    "Mean time": lambda line: "-" if line.mean_ms is None else f"{line.mean_ms:.1f} ms",
}
QUEUE_COLUMNS: Columns = {
    "Queue": lambda line: printable(line.name),
    "Weight": lambda line: str(line.weight),
    "Running": lambda line: str(line.running),
    **_COUNTS,
}
PROCESS_COLUMNS: Columns = {
    "Process": lambda line: str(line.number),
    "Id": lambda line: "-" if line.process is None else str(line.process),
    "Running": lambda line: str(line.running),
    "Completed": lambda line: str(line.done),
    "Tasks/s": lambda line: f"{line.per_second:.1f}",
    "Restarts": lambda line: str(line.restarts),
}


def _table(columns: Columns, lines: Sequence[object]) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, title in enumerate(columns):
        table.add_column(title, justify="right" if number else "left")
    for line in lines:
        table.add_row(*(Text(show(line)) for show in columns.values()))
    return table


def _duration(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


def run(
    worker: Worker,
    options: WorkerRunOptions,
    settings: Settings,
    *,
    live: bool,
    as_json: bool,
    member: tuple[int, int] | None = None,
) -> int:
    """Run the worker until it ends; return the exit code. `member`: the parent's descriptor and this one's number."""
    display: LogDisplay | LiveDisplay
    if member is None:
        display = display_for(settings, live=live and sys.stdout.isatty(), as_json=as_json)
    else:
        display = MemberDisplay(worker, member[0])
        fields = {"worker": member[1]}
        log_to(sys.stderr, settings.log_level, settings.log_format, fields, add_task_fields)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        summary = runner.run(_work(worker, options, display))
    return FAILED if summary.abandoned else 0


def options_of(loaded: Loaded, *, health_host: str, burst: bool) -> WorkerRunOptions:
    """Return the options given as flags; the worker's program and the settings decide the others."""
    settings = loaded.settings.worker
    flags = {name for name, source in loaded.sources.items() if source.startswith("--")}
    return WorkerRunOptions(
        polling=strategy_from(loaded.settings) if any("polling" in name for name in flags) else None,
        concurrency=settings.concurrency if "worker.concurrency" in flags else None,
        grace_seconds=settings.grace_seconds if "worker.grace_seconds" in flags else None,
        health=(health_host, settings.health_port) if settings.health_port else None,
        burst=burst,
    )


async def _work(worker: Worker, options: WorkerRunOptions, display: LogDisplay | LiveDisplay) -> Summary:
    """Run the worker and show its progress; the last view shows the totals."""
    server, began = worker.client.caller.transport.url, time.monotonic()
    running = asyncio.create_task(worker.run(options))
    await asyncio.sleep(0)  # The worker starts: from now on it has statistics, even in a short run.
    last: Snapshot | None = None
    with display.shown():
        while not running.done():
            snapshot = worker.stats
            if snapshot is not None:
                if last is None:
                    names = ", ".join(sorted(worker.tasks)) or "none"
                    text = "%s started: queue %s at %s, concurrency %d, tasks: %s"
                    log.info(text, snapshot.worker_id, snapshot.queue, server, snapshot.concurrency, names)
                elif snapshot.stopping and not last.stopping and snapshot.running:
                    log.info("shutting down; press Ctrl-C again to return running tasks to the queue immediately")
                last = snapshot
                display.show(view_of(snapshot, server=server, seconds=time.monotonic() - began))
            await asyncio.wait((running,), timeout=_LOOK_SECONDS)
        summary = await running
        if last is not None:
            end = msgspec.structs.replace(
                last,
                totals=summary.totals,
                tasks=summary.tasks,
                queues={
                    name: QueueState(last.queues[name].weight, 0, totals) for name, totals in summary.queues.items()
                },
                polls=summary.polls,
                empty_polls=summary.empty_polls,
                running=0,
            )
            display.end(view_of(end, server=server, seconds=time.monotonic() - began, ended=True))
    return summary


def display_for(settings: Settings, *, live: bool, as_json: bool) -> LogDisplay | LiveDisplay:
    """Choose the display of progress, and send the log to a place where it does not disturb it."""
    if not live or as_json:
        log_to(sys.stderr, settings.log_level, settings.log_format, None, add_task_fields)
        return JsonDisplay() if as_json else LogDisplay()
    from rich.console import Console

    console = Console(highlight=False)
    lines = JsonLines() if settings.log_format == "json" else TextLines()
    use_handler(ConsoleLog(console), settings.log_level, lines, add_task_fields)
    return LiveDisplay(console)


class ConsoleLog(logging.Handler):
    """Prints log lines above the live view."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print a log line."""
        # Errors can quote text from other programs, which must not control the terminal.
        self._console.print(printable(self.format(record)), markup=False, soft_wrap=True)


# The worker of an application -------------------------------------------------------------------------------


def find_worker(target: str, directory: Path) -> Worker:
    """Import `module:attribute` from a directory; the attribute is a worker, or a function that returns one."""
    name, _, attribute = target.partition(":")
    names = (attribute or "worker").split(".")
    if not name or not all(part.isidentifier() for part in (*name.split("."), *names)):
        raise Misuse(f"{target!r} does not name a worker; use MODULE:ATTRIBUTE, such as app:worker")
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    try:
        found: object = import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            raise Misuse(f"module {name!r} not found{_meant(name, directory)}") from None
        raise Failure(f"cannot import module {name!r}:\n{_trace(error)}") from error
    for depth, attribute in enumerate(names):
        if not hasattr(found, attribute):
            where = ".".join((name, *names[:depth]))
            hint = _near(attribute, list(vars(found))) or "; check the name after the colon"
            raise Misuse(f"{where!r} has no attribute {attribute!r}{hint}")
        found = getattr(found, attribute)
    if not isinstance(found, Worker | type) and callable(found):
        make: Callable[[], object] = found
        try:
            found = make()
        except Exception as error:
            raise Failure(f"the function {target!r}, which should return a worker, failed:\n{_trace(error)}") from error
    if isinstance(found, Worker):
        return found
    kind = type(found).__name__
    kind = f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"
    if isinstance(found, type):
        kind = f"the class {found.__name__}"
    raise Misuse(f"{target!r} is {kind}; expected a hark.Worker, or a function that returns one")


def _meant(name: str, directory: Path) -> str:
    """Suggest a module that exists in the directory."""
    if name.endswith(".py") or (directory / name.replace(".", "/")).with_suffix(".py").exists():
        return f"; write the name without .py, as in an import statement: {name.removesuffix('.py')}"
    there = [path.stem for path in directory.glob("*.py")]
    return (
        _near(name, there) or f" in {directory} or on the Python path; run the command in the application's directory"
    )


def _near(name: str, there: list[str]) -> str:
    return did_you_mean(name, [one for one in there if not one.startswith("__")])


def _trace(error: BaseException) -> str:
    """Format the traceback from the application's own code on, without the frames of the import."""
    trace = error.__traceback__
    while trace is not None and ((file := trace.tb_frame.f_code.co_filename) == __file__ or "importlib" in file):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()
