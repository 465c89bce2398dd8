"""`hark backup`, `hark restore`, `hark migrate` and `hark maintenance`."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hark.api import operations, types
from hark.cli.command import (
    DEFAULT_URL,
    USAGE,
    Config,
    Data,
    Failure,
    Json,
    Url,
    Yes,
    command,
    complain,
    confirm,
    make_app,
)
from hark.cli.output import counting, raw, say
from hark.cli.remote import call
from hark.errors import InvalidSetting
from hark.settings import Settings, load

if TYPE_CHECKING:
    from hark.engine.postgres.migrate import Step
    from hark.engine.sqlite.files import Progress

Engine = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Store URL: sqlite:///FILE.", show_default="the SQLite file in --data"),
]


def register_backup(main: typer.Typer) -> None:
    """Add both commands at the top level."""
    command(main, "backup", "hark backup copy.db", "hark backup copy.db --data /var/lib/hark --replace")(backup)
    command(main, "restore", "hark restore copy.db", "hark restore copy.db --data new-data")(restore)


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup file to write.", show_default=False)],
    data: Data = None,
    engine: Engine = None,
    config: Config = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite FILE once the new backup is complete.")] = False,
) -> None:
    """Back up a SQLite store to a file.

    The server can keep running. The backup shows the store at one moment, and is checked before it gets its name.
    """
    from hark.engine.sqlite.files import backup as run

    path = _store(data, engine, config)
    with _shown("Backing up") as progress:
        run(path, file, progress, replace=replace)
    say(f"backed up {path} to {file} ({file.stat().st_size:,} bytes)")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup file to restore.", show_default=False)],
    data: Data = None,
    engine: Engine = None,
    config: Config = None,
    replace: Annotated[bool, typer.Option("--replace", help="Rename an existing store instead of failing.")] = False,
    yes: Yes = False,
) -> None:
    """Restore a SQLite store from a backup.

    Shut the server down first. Messages pushed after the backup are lost, and messages settled after it are delivered
    again.
    """
    from hark.engine.sqlite.files import restore as run

    path = _store(data, engine, config)
    aside = None
    if replace:
        confirm(f"Replace the store {path} with the backup {file}?", yes)
        aside = path.with_name(f"{path.name}.before-{datetime.now().astimezone():%Y%m%d-%H%M%S}")
    with _shown("Restoring") as progress:
        run(file, path, progress, set_aside=aside)
    say(f"restored {path} from {file}")
    if aside is not None and aside.exists():
        say(f"the previous store is now {aside}")


def _store(data: str | None, engine: str | None, config: Path | None) -> Path:
    from hark.serving.server import describe, sqlite_path

    settings = load({"data": data, "engine": engine}, os.environ, config).settings
    path = sqlite_path(settings)
    if path is None or path == ":memory:":
        raise Failure(
            f"the store is {describe(settings)}, and this command only works with SQLite; "
            "docs/operations.md shows how to back up other stores",
            exit_code=USAGE,
        )
    return Path(path)


@contextmanager
def _shown(what: str) -> Iterator[Progress]:
    with counting(what, "pages") as bar:
        yield bar.reach


def register_migrate(main: typer.Typer) -> None:
    """Add the command at the top level."""
    command(
        main,
        "migrate",
        "hark migrate --engine postgresql://hark@localhost/hark --dry-run",
        "hark migrate --engine postgresql://hark@localhost/hark",
        "hark migrate --engine postgresql://hark@localhost/hark --post",
    )(migrate)


def migrate(
    *,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Store URL: postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
            show_default="the engine in the settings",
        ),
    ] = None,
    config: Config = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the migrations without applying them.")] = False,
    post: Annotated[
        bool, typer.Option("--post", help="Also remove parts that only older servers use; shut those down first.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also print the SQL.")] = False,
) -> None:
    """Update the schema of a PostgreSQL store.

    A server applies the same migrations when it starts, except those of --post. Other stores need no command.
    """
    loaded = load({"engine": engine}, os.environ, config)
    for note in loaded.notes:
        complain(f"warning: {note}")
    if not loaded.settings.engine.startswith(("postgresql://", "postgres://")):
        raise InvalidSetting("engine: the store is not a PostgreSQL database; use --engine postgresql://...")
    import asyncio

    steps = asyncio.run(_migrate(loaded.settings, post=post, dry_run=dry_run))
    for step in steps:
        say(f"{'would apply' if dry_run else 'applied'} {step}")
        if verbose:
            for script in step.scripts:
                say(f"-- {script.name}\n{script.sql}")
    if not steps:
        say("the schema is up to date")


async def _migrate(settings: Settings, *, post: bool, dry_run: bool) -> list[Step]:
    from hark.engine.postgres import migrate as schema
    from hark.engine.postgres.pool import Pool

    about = settings.postgres
    pool = Pool(settings.engine, size=1, wait_ms=about.wait_ms, prepared=about.prepared)
    await pool.open()
    try:
        return await schema.migrate(pool, post=post, dry_run=dry_run)
    finally:
        await pool.close()


app = make_app(
    "Stop or resume all pushes or all pops of a store.",
    "hark maintenance show",
    "hark maintenance push on",
    "hark maintenance pop off",
    "",
    "Maintenance applies to all servers on the same store, and survives restarts.",
)


class Switch(enum.StrEnum):
    """Whether maintenance is on."""

    on = "on"
    off = "off"


State = Annotated[
    Switch, typer.Argument(metavar="on|off", help="on to stop the requests, off to resume them.", show_default=False)
]


@command(app, "show", "hark maintenance show", "hark maintenance show --json | jq .maintenanceMode")
def show(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show whether maintenance is on for pushes and pops."""
    answer = call(url, operations.SHOW_MAINTENANCE)
    if as_json:
        raw(answer.body)
        return
    now = answer.read()
    say(_push_text(now.push))
    say(_pop_text(now.pop))


@command(app, "push", "hark maintenance push on", "hark maintenance push off")
def push(state: State, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Stop or resume all pushes.

    While maintenance is on, pushes return status 503 with a Retry-After header.
    """
    answer = call(url, operations.SET_MAINTENANCE, body=types.server.MaintenanceBody(state is Switch.on))
    if as_json:
        raw(answer.body)
    else:
        say(_push_text(answer.read().maintenance_mode))


@command(app, "pop", "hark maintenance pop on", "hark maintenance pop off")
def pop(state: State, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Stop or resume all deliveries.

    While maintenance is on, pops return no messages.
    """
    answer = call(url, operations.SET_POP_MAINTENANCE, body=types.server.MaintenanceBody(state is Switch.on))
    if as_json:
        raw(answer.body)
    else:
        say(_pop_text(answer.read().pop_maintenance_mode))


def _push_text(stopped: bool) -> str:
    return "pushes  stopped: they return status 503" if stopped else "pushes  accepted"


def _pop_text(stopped: bool) -> str:
    return "pops    stopped: they return no messages" if stopped else "pops    accepted"
