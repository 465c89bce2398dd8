"""`hark work`: runs the worker of an application."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from hark.cli.command import USAGE, Failure, command, complain
from hark.settings import Loaded, load

Strategy = Literal["adaptive", "fixed"]


def register_work(main: typer.Typer) -> None:
    """Add the command at the top level."""
    command(
        main,
        "work",
        "hark work app:worker",
        "hark work app:worker --concurrency 50 --health-port 9000",
        "hark work app:worker --reload",
        "hark work app:make_worker --burst --json",
        "hark work app:worker --polling adaptive --max-interval-ms 30000",
        "",
        "Ctrl-C or SIGTERM: no more tasks are taken, and the running ones have --grace seconds to end; what has",
        "not ended then is handed back at once. A second one hands back now, a third one kills.",
        "Exit codes: 0 stopped as asked, or nothing left to do with --burst; 1 could not start, or left tasks",
        "behind that would not end (they run again elsewhere); 2 wrong usage or settings.",
    )(work)


def work(
    *,
    place: Annotated[
        str,
        typer.Argument(metavar="MODULE:ATTRIBUTE", help="A hark.Worker, or a function that makes one; else `worker`."),
    ],
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Tasks at a time; else what the worker's program says.")
    ] = None,
    polling: Annotated[
        Strategy | None, typer.Option(help="How it rests after it found nothing.", show_default=False)
    ] = None,
    min_interval_ms: Annotated[float | None, typer.Option(help="Adaptive: where rests begin.")] = None,
    max_interval_ms: Annotated[float | None, typer.Option(help="Adaptive: the longest rest.")] = None,
    backoff_multiplier: Annotated[float | None, typer.Option(help="Adaptive: how fast rests grow.")] = None,
    interval_ms: Annotated[float | None, typer.Option(help="Fixed: each rest.")] = None,
    grace: Annotated[
        float | None, typer.Option(min=0, max=86_400, help="Seconds that running tasks get when it stops.")
    ] = None,
    health_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Answer GET /health and /metrics there.")
    ] = None,
    health_host: Annotated[
        str | None, typer.Option(help="The address of that port; else 127.0.0.1.", show_default=False)
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="End when nothing is left to do.")] = False,
    reload: Annotated[bool, typer.Option("--reload", help="Start anew when a Python file here changes.")] = False,
    no_progress: Annotated[
        bool, typer.Option("--no-progress", help="Log lines instead of a live view, on a terminal too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print progress as lines of JSON.")] = False,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="auto (text on a terminal, else JSON), text or json.")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings; else HARK_CONFIG, else ./hark.toml.")
    ] = None,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the worker of an application until told to stop.

    Settings come from hark.toml ([worker]), then HARK_* variables, then these flags; docs/settings.md lists them all.
    """
    flags = {
        "worker.concurrency": concurrency,
        "worker.polling.strategy": polling,
        "worker.polling.min_interval_ms": min_interval_ms,
        "worker.polling.max_interval_ms": max_interval_ms,
        "worker.polling.backoff_multiplier": backoff_multiplier,
        "worker.polling.interval_ms": interval_ms,
        "worker.grace_seconds": grace,
        "worker.health_port": health_port,
        "log_level": log_level,
        "log_format": log_format,
    }
    loaded = load(flags, os.environ, config)
    _refuse_without_effect(loaded)
    if health_host is not None and not loaded.settings.worker.health_port:
        raise typer.BadParameter("--health-host goes with --health-port, and there is none")
    if reload:
        from hark.cli.reloading import work_and_reload

        raise typer.Exit(work_and_reload(_arguments_without_reload(), Path.cwd()))
    for note in loaded.notes:
        complain(f"warning: {note}")
    if config is not None:  # The worker reads settings itself, as it does when it is run without `hark`.
        os.environ["HARK_CONFIG"] = str(config)
    if parent is not None:
        from hark.cli.reloading import stop_with

        stop_with(parent)
    raise typer.Exit(
        _run(place, loaded, health_host or "127.0.0.1", burst=burst, live=not no_progress, as_json=as_json)
    )


def _refuse_without_effect(loaded: Loaded) -> None:
    """A flag of the other strategy would do nothing, and whoever gives it expects something."""
    strategy = loaded.settings.worker.polling.strategy
    other = "fixed" if strategy == "adaptive" else "adaptive"
    fields = ("interval_ms",) if other == "fixed" else ("min_interval_ms", "max_interval_ms", "backoff_multiplier")
    for field in fields:
        source = loaded.sources[f"worker.polling.{field}"]
        if source.startswith("--"):
            raise typer.BadParameter(f"{source} goes with --polling {other}, but polling is {strategy}")


def _arguments_without_reload() -> list[str]:
    """What this process was called with, for the one that does the work."""
    given = sys.argv[sys.argv.index("work") + 1 :]
    return [argument for argument in given if argument != "--reload"]


def _run(place: str, loaded: Loaded, health_host: str, *, burst: bool, live: bool, as_json: bool) -> int:
    from hark.cli.application import find_worker
    from hark.cli.working import options_of, run

    worker = find_worker(place, Path.cwd())
    if not worker.tasks:
        raise Failure(
            f"{place!r} has no tasks, so all that waits for it would fail; "
            "is the module imported that has its @worker.task functions?",
            exit_code=USAGE,
        )
    options = options_of(loaded, health_host=health_host, burst=burst)
    return run(worker, options, loaded.settings, live=live, as_json=as_json)
