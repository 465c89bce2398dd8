"""`hark work --processes N`: several processes of one worker, supervised and shown as one.

Each process is a `hark work` of its own that reports to this one over a socket. It ends gracefully when this one ends,
for whatever reason. The processes of a server are supervised by the same code (`hark.serving.supervising`).
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from hark.cli.output import FAILED
from hark.cli.working import LiveDisplay, LogDisplay, ProcessLine, QueueLine, Report, TaskLine, View, display_for, log
from hark.errors import HarkError
from hark.prometheus import counter, gauge, one, text
from hark.serving.supervising import ChildProcess, Merger, packed, reason, supervise, unpacked
from hark.worker.stats import OUTCOMES, Health, HealthEndpoint
from hark.worker.worker import WorkerRunOptions, plan_for

if TYPE_CHECKING:
    from hark.settings import Settings

Line = TypeVar("Line", TaskLine, QueueLine)
_LOOK_SECONDS = 0.25
_LONGEST = 16 * 2**20
"""Maximum size of a report in bytes."""
_MORE_SECONDS = 5.0
"""Time beyond the grace period before a process is killed. Processes observe the grace period themselves."""
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_COUNTS = ("done", "failed", "retried", "dead")
_SUMMED = (*OUTCOMES, "running", "stuck", "slots", "per_second", "polls", "empty_polls")


class WorkerProcess(ChildProcess):
    """A process of the worker."""

    def __init__(self, number: int, arguments: Sequence[str], show: Callable[[str], None] | None) -> None:
        super().__init__(number)
        self.reported = False
        """Whether the last process reported."""
        self.report: Report | None = None
        """The last report."""
        self.unread: list[tuple[int, str]] = []
        """The last metrics of processes that have ended, with their numbers."""
        self.past: list[View] = []
        """The counts of the processes that have ended, in one view at most."""
        self._arguments = arguments
        self._show = show
        """Shows a line of output above the live view. None: the process has the same output as this one."""
        self._following: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start a process and wait for its first report. Raises `HarkError` if it ends before."""
        self.reported = False
        ours, theirs = socket.socketpair()
        output = None if self._show is None else asyncio.subprocess.PIPE
        with theirs:
            reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=_LONGEST)
            # In a separate session, Ctrl-C reaches only the parent, which forwards it once.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "hark",
                "work",
                *self._arguments,
                "--parent",
                str(theirs.fileno()),
                "--member",
                str(self.number),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        streams = [stream for stream in (self._process.stdout, self._process.stderr) if stream is not None]
        self._following = [asyncio.create_task(self._copy(stream)) for stream in streams]
        line = await reader.readline()
        if not line:
            code = await self.ended()
            raise HarkError(
                f"process {self.number} of the worker ended with {reason(code)} before it was ready; see the log",
                code="worker_process_ended",
            )
        if self.report is not None:
            self.unread.append((self.lives, self.report.metrics))
            self.past = [together([*self.past, self.report.view], ended=True)]
        self.report = msgspec.json.decode(line, type=Report)
        self.serves = self.reported = True
        self.lives += 1
        self._following.append(asyncio.create_task(self._follow(reader)))

    async def _exited(self) -> None:
        await asyncio.gather(*self._following)

    @property
    def line(self) -> ProcessLine:
        """How the process is."""
        view = self.report.view if self.report is not None and self.serves else None
        return ProcessLine(
            number=self.number,
            process=self._process.pid if self._process is not None and self.serves else None,
            running=view.running if view else 0,
            done=sum(each.done for each in self.views),
            per_second=view.per_second if view else 0.0,
            restarts=max(0, self.lives - 1),
        )

    @property
    def views(self) -> list[View]:
        """The counts of all processes so far; only a process that runs has slots."""
        if self.report is None:
            return self.past
        view = self.report.view
        return [*self.past, view if self.serves else together([view], ended=True)]

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while line := await reader.readline():
                self.report = msgspec.json.decode(line, type=Report)

    async def _copy(self, stream: asyncio.StreamReader) -> None:
        assert self._show is not None
        while line := await stream.readline():
            self._show(line.decode(errors="replace").rstrip("\n"))


def together(views: Sequence[View], *, ended: bool = False) -> View:
    """One view of several processes, of which some may have ended."""
    first = views[-1]
    states = [view.state for view in views if view.slots]
    sums = {name: sum(getattr(view, name) for view in views) for name in _SUMMED}
    costs = [view.dollars_per_month for view in views if view.dollars_per_month is not None]
    queues = _queues(views)
    if ended:
        sums |= {"running": 0, "stuck": 0, "slots": 0, "per_second": 0.0}
        queues = [msgspec.structs.replace(line, running=0) for line in queues]
    return msgspec.structs.replace(
        first,
        state="stopped" if ended else "stopping" if "stopping" in states else "running",
        seconds=max(view.seconds for view in views),
        tasks=_tasks(views),
        queues=queues,
        poll_interval=max(view.poll_interval for view in views),
        dollars_per_month=sum(costs) if costs else None,
        **sums,
    )


def _by_name(lines: Iterable[Line]) -> dict[str, list[Line]]:
    by_name: dict[str, list[Line]] = {}
    for line in lines:
        by_name.setdefault(line.name, []).append(line)
    return by_name


def _tasks(views: Sequence[View]) -> list[TaskLine]:
    found = []
    for name, lines in sorted(_by_name(line for view in views for line in view.tasks).items()):
        sums = {field: sum(getattr(line, field) for line in lines) for field in (*_COUNTS, "ended")}
        spent = sum(line.mean_ms * line.ended for line in lines if line.mean_ms is not None)
        found.append(TaskLine(name=name, mean_ms=spent / sums["ended"] if sums["ended"] else None, **sums))
    return found


def _queues(views: Sequence[View]) -> list[QueueLine]:
    return [
        QueueLine(
            name=name,
            weight=lines[-1].weight,
            **{field: sum(getattr(line, field) for line in lines) for field in (*_COUNTS, "running")},
        )
        for name, lines in _by_name(line for view in views for line in view.queues).items()
    ]


class Team:
    """All processes of the worker, and how they are together."""

    def __init__(self, processes: Sequence[WorkerProcess]) -> None:
        self.processes = processes
        self._merger = Merger(("worker_queue_running", "worker_running", "worker_slots", "worker_stuck"))
        self._began = time.monotonic()

    def view(self, *, ended: bool = False) -> View | None:
        """The view of all. None before the first report."""
        views = [view for process in self.processes for view in process.views]
        if not views:
            return None
        return msgspec.structs.replace(
            together(views, ended=ended),
            worker=f"{len(self.processes)} processes",
            seconds=round(time.monotonic() - self._began, 3),
            processes=[process.line for process in self.processes],
        )

    def health(self) -> Health:
        """The health of all: that of the first process which is not well."""
        reports = [process.report for process in self.processes if process.serves and process.report is not None]
        known = [report.health for report in reports if report.health is not None]
        bad = [health for health in known if health.status != "running"]
        status = bad[0].status if bad else "running" if len(known) == len(self.processes) else "restarting"
        view = self.view()
        return Health(
            status,
            f"{len(self.processes)} processes",
            view.queue if view else "",
            sum(health.concurrency for health in known),
            sum(health.running for health in known),
            sum(health.stuck for health in known),
            max((health.seconds_since_answer for health in known), default=0.0),
            next((health.problem for health in known if health.problem is not None), None),
            {line.name: line.running for line in view.queues} if view else {},
        )

    def metrics(self) -> str:
        """The metrics of all processes, summed."""
        for process in self.processes:
            now = [] if process.report is None else [(process.lives, process.report.metrics)]
            unread, process.unread = process.unread, []
            for life, metrics in (*unread, *now):
                self._merger.note(process.number, life, packed(text_string_to_metric_families(metrics)))
        running = sum(process.serves for process in self.processes)
        restarts = sum(max(0, process.lives - 1) for process in self.processes)
        own = [
            gauge("worker_processes", "Processes of the worker that run.", one(running)),
            counter("worker_process_restarts_total", "Processes that were started again.", one(restarts)),
        ]
        return text([*unpacked(self._merger.merged()), *own]).decode()


async def _run(team: Team, display: LogDisplay | LiveDisplay, options: WorkerRunOptions) -> list[int]:
    plan, endpoint = plan_for(options), HealthEndpoint(team.health, team.metrics)
    if plan.health is not None:
        await endpoint.open(*plan.health)

    async def show() -> None:
        while True:
            if (view := team.view()) is not None:
                display.show(view)
            await asyncio.sleep(_LOOK_SECONDS)

    showing = asyncio.create_task(show())
    try:
        with display.shown():
            codes = await supervise(
                team.processes,
                lambda: log.info("all %d processes are ready", len(team.processes)),
                plan.grace_seconds + _MORE_SECONDS,
                pause,
                is_over=lambda code: code == 0,
            )
            if (last := team.view(ended=True)) is not None:
                display.end(last)
    finally:
        showing.cancel()
        await endpoint.close()
    return codes


def pause(failures: int) -> float:
    """Seconds before a process is started again, by the number of its failures in a row."""
    return min(_FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 16), _LONGEST_PAUSE_SECONDS)


def run_processes(
    count: int, arguments: Sequence[str], options: WorkerRunOptions, settings: Settings, *, live: bool, as_json: bool
) -> int:
    """Run the processes until they end; return the exit code."""
    display = display_for(settings, live=live and sys.stdout.isatty(), as_json=as_json)
    show = None
    if isinstance(display, LiveDisplay):
        show = display.print_line
        if settings.log_format == "auto":  # The output of a process is a pipe, but its lines are read on a terminal.
            arguments = [*arguments, "--log-format", "text"]
    team = Team([WorkerProcess(number, arguments, show) for number in range(1, count + 1)])
    codes = asyncio.run(_run(team, display, options))
    # A process that a signal ended before its first report had no tasks.
    failed = [code for process, code in zip(team.processes, codes, strict=True) if code and process.reported]
    return FAILED if failed else 0
