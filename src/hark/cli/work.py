"""`hark work`: finds the worker of an application and runs it, with its log and its progress."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hark.cli.command import DEFAULTS, USAGE, Config, Failure, LogFormat, LogLevel, command, complain
from hark.errors import did_you_mean
from hark.settings import Loaded, load

if TYPE_CHECKING:
    from hark.worker.worker import Worker

DEFAULT_ATTRIBUTE = "worker"


def find_worker(target: str, directory: Path) -> Worker:
    """Import `module:attribute` from a directory; the attribute is a worker, or a function that returns one."""
    name, _, attribute = target.partition(":")
    names = (attribute or DEFAULT_ATTRIBUTE).split(".")
    if not name or not all(part.isidentifier() for part in (*name.split("."), *names)):
        raise Failure(f"{target!r} does not name a worker; use MODULE:ATTRIBUTE, such as app:worker", exit_code=USAGE)
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    return _worker_of(target, _attribute_of(name, names, directory))


def _attribute_of(name: str, names: list[str], directory: Path) -> object:
    """Return the object; an error in the module itself is shown with its traceback."""
    if not _exists(name):
        raise Failure(f"module {name!r} not found{_meant(name, directory)}", exit_code=USAGE)
    try:
        found: object = import_module(name)
    except Exception as error:
        raise _not_imported(name, error) from error
    for depth, attribute in enumerate(names):
        if not hasattr(found, attribute):
            where = ".".join((name, *names[:depth]))
            hint = _near(attribute, list(vars(found))) or "; check the name after the colon"
            raise Failure(f"{where!r} has no attribute {attribute!r}{hint}", exit_code=USAGE)
        found = getattr(found, attribute)
    return found


def _worker_of(target: str, found: object) -> Worker:
    from hark.worker.worker import Worker

    if not isinstance(found, Worker) and callable(found) and not isinstance(found, type):
        make: Callable[[], object] = found
        try:
            found = make()
        except Exception as error:
            raise Failure(f"the function {target!r}, which should return a worker, failed:\n{_trace(error)}") from error
    if not isinstance(found, Worker):
        kind = type(found).__name__ if not isinstance(found, type) else f"the class {found.__name__}"
        raise Failure(
            f"{target!r} is {_article(kind)}; expected a hark.Worker, or a function that returns one", exit_code=USAGE
        )
    return found


def _exists(name: str) -> bool:
    """Tell whether a module exists; this imports its parent packages, which can fail, too."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return False
        raise _not_imported(name, error) from error
    except Exception as error:
        raise _not_imported(name, error) from error


def _not_imported(name: str, error: BaseException) -> Failure:
    return Failure(f"cannot import module {name!r}:\n{_trace(error)}")


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


def _article(kind: str) -> str:
    return kind if kind.startswith("the ") else f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def _trace(error: BaseException) -> str:
    """Format the traceback from the application's own code on, without the frames of the import."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def _is_ours(filename: str) -> bool:
    return filename == __file__ or "importlib" in filename


Strategy = Literal["adaptive", "fixed"]
_HEALTH_HOST = "127.0.0.1"
_WORKER = DEFAULTS.worker
_POLLING = _WORKER.polling


def _or_program(value: object) -> str:
    """Describe a default that the worker's own program can change."""
    return f"{value}, unless the program sets it"


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
        "Shutdown: after Ctrl-C or SIGTERM, the worker receives no more tasks and gives",
        "running tasks --grace seconds to finish. It then returns unfinished tasks to",
        "the queue. A second signal returns them immediately. A third signal ends the",
        "process.",
        "",
        "Exit codes: 0 after a shutdown, or with --burst when the queue is empty;",
        "1 if the worker cannot start, or if tasks did not stop (another worker runs",
        "them again); 2 invalid usage or settings.",
    )(work)


def work(
    *,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:ATTRIBUTE",
            help="Worker to run: a hark.Worker, or a function that returns one. MODULE alone means MODULE:worker.",
        ),
    ],
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            metavar="N",
            help="Maximum number of tasks at the same time.",
            show_default=_or_program(_WORKER.concurrency),
        ),
    ] = None,
    polling: Annotated[
        Strategy | None,
        typer.Option(help="Polling strategy of an idle worker.", show_default=_or_program(_POLLING.strategy)),
    ] = None,
    min_interval_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            help="Shortest adaptive polling interval, in milliseconds.",
            show_default=f"{_POLLING.min_interval_ms:g}",
        ),
    ] = None,
    max_interval_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            help="Longest adaptive polling interval, in milliseconds.",
            show_default=f"{_POLLING.max_interval_ms:g}",
        ),
    ] = None,
    backoff_multiplier: Annotated[
        float | None,
        typer.Option(
            metavar="FACTOR",
            help="Growth of the adaptive polling interval after each empty poll.",
            show_default=f"{_POLLING.backoff_multiplier:g}",
        ),
    ] = None,
    interval_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS", help="Fixed polling interval, in milliseconds.", show_default=f"{_POLLING.interval_ms:g}"
        ),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=86_400,
            metavar="SECONDS",
            help="Time for running tasks to finish at shutdown, in seconds.",
            show_default=_or_program(f"{_WORKER.grace_seconds:g}"),
        ),
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65_535, metavar="PORT", help="Port for GET /health and GET /metrics.", show_default="none"
        ),
    ] = None,
    health_host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Address for --health-port.", show_default=_HEALTH_HOST),
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="Exit when the queue is empty.")] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a Python file below the current directory changes.")
    ] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Print log lines instead of a live view.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text, one line per update.")] = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    config: Config = None,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the worker of an application.

    Options take precedence over the worker's own program, then HARK_* variables, then [worker] in hark.toml.
    docs/settings.md lists all settings.
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
        raise typer.BadParameter("--health-host needs --health-port, or the setting worker.health_port")
    if reload:
        from hark.cli.reloading import work_and_reload

        raise typer.Exit(work_and_reload(_arguments_without_reload(), Path.cwd()))
    for note in loaded.notes:
        complain(f"warning: {note}")
    if config is not None:  # The worker itself reads the settings, as it does without the command line.
        os.environ["HARK_CONFIG"] = str(config)
    if parent is not None:
        from hark.cli.reloading import stop_with

        stop_with(parent)
    raise typer.Exit(
        _run(target, loaded, health_host or _HEALTH_HOST, burst=burst, live=not no_progress, as_json=as_json)
    )


def _refuse_without_effect(loaded: Loaded) -> None:
    """Reject options of the other polling strategy, which would have no effect."""
    strategy = loaded.settings.worker.polling.strategy
    other = "fixed" if strategy == "adaptive" else "adaptive"
    fields = ("interval_ms",) if other == "fixed" else ("min_interval_ms", "max_interval_ms", "backoff_multiplier")
    for field in fields:
        source = loaded.sources[f"worker.polling.{field}"]
        if source.startswith("--"):
            raise typer.BadParameter(f"{source} needs --polling {other}; the polling strategy is {strategy}")


def _arguments_without_reload() -> list[str]:
    """Return the arguments of this process, for the worker's process."""
    given = sys.argv[sys.argv.index("work") + 1 :]
    return [argument for argument in given if argument != "--reload"]


def _run(target: str, loaded: Loaded, health_host: str, *, burst: bool, live: bool, as_json: bool) -> int:
    from hark.cli.work import find_worker
    from hark.cli.working import options_of, run

    worker = find_worker(target, Path.cwd())
    if not worker.tasks:
        raise Failure(
            f"{target!r} has no tasks, so every message in its queue would fail; "
            "import the module that has its @worker.task functions",
            exit_code=USAGE,
        )
    options = options_of(loaded, health_host=health_host, burst=burst)
    return run(worker, options, loaded.settings, live=live, as_json=as_json)
