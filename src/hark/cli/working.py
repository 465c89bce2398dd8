"""Runs a worker from the command line, with its log and its progress."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import uvloop

from hark.cli.command import FAILED, printable
from hark.cli.progress import Display, JsonDisplay, LiveDisplay, LogDisplay, view_of
from hark.logs import JsonLines, TextLines, log_to, use_handler
from hark.polling.choosing import strategy_from
from hark.settings import Loaded, Settings
from hark.worker.middleware import add_task_fields
from hark.worker.options import WorkerRunOptions
from hark.worker.stats import Snapshot, Summary
from hark.worker.worker import Worker

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger("hark.work")

_LOOK_SECONDS = 0.25


def run(worker: Worker, options: WorkerRunOptions, settings: Settings, *, live: bool, as_json: bool) -> int:
    """Run the worker until it ends; return the exit code."""
    display = _display(settings, live=live and sys.stdout.isatty(), as_json=as_json)
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


async def _work(
    worker: Worker, options: WorkerRunOptions, display: Display, monotonic: Callable[[], float] = time.monotonic
) -> Summary:
    """Run the worker and show its progress; the last view shows the totals."""
    server, began = worker.client.caller.transport.url, monotonic()
    running = asyncio.create_task(worker.run(options))
    await asyncio.sleep(0)  # The worker starts: from now on it has statistics, even in a short run.
    last: Snapshot | None = None
    with display.shown():
        while not running.done():
            snapshot = worker.stats
            if snapshot is not None:
                if last is None:
                    _announce(worker, snapshot, server)
                elif snapshot.stopping and not last.stopping and snapshot.running:
                    log.info("shutting down; press Ctrl-C again to return running tasks to the queue immediately")
                last = snapshot
                display.show(view_of(snapshot, server=server, seconds=monotonic() - began))
            await asyncio.wait((running,), timeout=_LOOK_SECONDS)
        summary = await running
        if last is not None:
            end = msgspec.structs.replace(
                last,
                totals=summary.totals,
                tasks=summary.tasks,
                polls=summary.polls,
                empty_polls=summary.empty_polls,
                running=0,
            )
            display.end(view_of(end, server=server, seconds=monotonic() - began, ended=True))
    return summary


def _announce(worker: Worker, snapshot: Snapshot, server: str) -> None:
    names = ", ".join(sorted(worker.tasks)) or "none"
    log.info(
        "%s started: queue %s at %s, concurrency %d, tasks: %s",
        snapshot.worker_id,
        snapshot.queue,
        server,
        snapshot.concurrency,
        names,
    )


def _display(settings: Settings, *, live: bool, as_json: bool) -> Display:
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
