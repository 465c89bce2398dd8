"""`hark serve`, and the commands for its store: `hark backup`, `restore`, `migrate` and `maintenance`."""

from __future__ import annotations

from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from hark.api import operations, types
from hark.cli import params
from hark.cli.command import command, main, make_app
from hark.cli.output import Misuse, complain, confirm, counting, raw, say, table
from hark.cli.params import argument, flag
from hark.cli.remote import Server
from hark.errors import InvalidSetting
from hark.settings import SETTINGS, Loaded, Settings, shown

if TYPE_CHECKING:
    from hark.engine.postgres.migrate import Step


_SQLITE = ("data", "engine")
"""The settings that name the store of `hark backup` and `hark restore`."""


@command(
    main,
    "serve",
    "hark serve",
    "hark serve --port 7000 --data /var/lib/hark",
    "hark serve --engine memory",
    "hark serve --engine postgresql://hark@localhost/hark --workers 4",
    "hark serve --engine s3://bucket/queues",
    "hark serve --tls-certificate cert.pem --tls-key key.pem",
    "hark serve --config hark.toml --show-settings",
    settings=(
        *("host", "port", "engine", "data", "workers", "tls.certificate", "tls.key"),
        *("insecure_bind", "log_level", "log_format"),
    ),
)
def serve(
    loaded: Loaded,
    show_settings: Annotated[bool, flag("Print all settings with their sources, and exit.", "--show-settings")] = False,
    as_json: Annotated[bool, flag("Print JSON instead of text, with --show-settings.", "--json")] = False,
) -> None:
    """Start a server.

    Options take precedence over HARK_* variables, which take precedence over hark.toml. docs/settings.md lists all
    settings. Ctrl-C or SIGTERM shuts the server down gracefully.
    """
    if as_json and not show_settings:
        raise typer.BadParameter("--json needs --show-settings")
    for note in loaded.notes:
        complain(f"warning: {note}")
    if show_settings:
        _show(loaded, as_json)
        return
    from hark.serving.server import serve as run

    run(loaded)


def _show(loaded: Loaded, as_json: bool) -> None:
    """Print all settings with their values (no secrets) and sources."""
    rows = [(name, shown(loaded.settings, name), loaded.sources[name]) for name in SETTINGS]
    if as_json:
        raw(msgspec.json.encode({name: {"value": value, "source": source} for name, value, source in rows}))
        return
    table(
        [(name, "" if value == () else str(value), source) for name, value, source in rows],
        {name: itemgetter(index) for index, name in enumerate(("Setting", "Value", "Source"))},
        long=("Value",),
    )


@command(main, "backup", "hark backup copy.db", "hark backup copy.db --data /var/lib/hark --replace", settings=_SQLITE)
def backup(
    loaded: Loaded,
    file: Annotated[Path, argument("FILE", "Backup file to write.")],
    replace: Annotated[bool, flag("Overwrite FILE once the new backup is complete.", "--replace")] = False,
) -> None:
    """Back up a SQLite store to a file.

    The server can keep running. The backup shows the store at one moment, and is checked before it gets its name.
    """
    from hark.engine.sqlite.files import backup as run

    path = _store(loaded.settings)
    with counting("Backing up", "pages") as progress:
        run(path, file, progress, replace=replace)
    say(f"backed up {path} to {file} ({file.stat().st_size:,} bytes)")


@command(main, "restore", "hark restore copy.db", "hark restore copy.db --data new-data", settings=_SQLITE)
def restore(
    loaded: Loaded,
    file: Annotated[Path, argument("FILE", "Backup file to restore.")],
    replace: Annotated[bool, flag("Rename an existing store instead of failing.", "--replace")] = False,
    yes: params.Yes = False,
) -> None:
    """Restore a SQLite store from a backup.

    Shut the server down first. Messages pushed after the backup are lost, and messages settled after it are delivered
    again.
    """
    from hark.engine.sqlite.files import restore as run

    path = _store(loaded.settings)
    aside = None
    if replace:
        confirm(f"Replace the store {path} with the backup {file}?", yes)
        aside = path.with_name(f"{path.name}.before-{datetime.now().astimezone():%Y%m%d-%H%M%S}")
    with counting("Restoring", "pages") as progress:
        run(file, path, progress, set_aside=aside)
    say(f"restored {path} from {file}")
    if aside is not None and aside.exists():
        say(f"the previous store is now {aside}")


def _store(settings: Settings) -> Path:
    from hark.serving.server import describe

    path = settings.sqlite_path
    if path is None or path == ":memory:":
        raise Misuse(
            f"the store is {describe(settings)}, and this command only works with SQLite; "
            "docs/operations.md shows how to back up other stores"
        )
    return Path(path)


@command(
    main,
    "migrate",
    "hark migrate --engine postgresql://hark@localhost/hark --dry-run",
    "hark migrate --engine postgresql://hark@localhost/hark",
    "hark migrate --engine postgresql://hark@localhost/hark --post",
    settings=("engine",),
)
def migrate(
    loaded: Loaded,
    dry_run: Annotated[bool, flag("Print the migrations without applying them.", "--dry-run")] = False,
    post: Annotated[
        bool, flag("Also remove parts that only older servers use; shut those down first.", "--post")
    ] = False,
    verbose: Annotated[bool, flag("Also print the SQL.", "--verbose", "-v")] = False,
) -> None:
    """Update the schema of a PostgreSQL store.

    A server applies the same migrations when it starts, except those of --post. Other stores need no command.
    """
    for note in loaded.notes:
        complain(f"warning: {note}")
    if not loaded.settings.on_postgres:
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


State = Annotated[Literal["on", "off"], argument("on|off", "on to stop the requests, off to resume them.")]


@command(app, "show", "hark maintenance show", "hark maintenance show --json | jq .maintenanceMode")
def show(server: Server) -> None:
    """Show whether maintenance is on for pushes and pops."""
    now = server.ask(operations.SHOW_MAINTENANCE)
    _say(now.push, now.pop)


@command(app, "push", "hark maintenance push on", "hark maintenance push off")
def push(server: Server, state: State) -> None:
    """Stop or resume all pushes.

    While maintenance is on, pushes return status 503 with a Retry-After header.
    """
    body = types.server.MaintenanceBody(state == "on")
    _say(push=server.ask(operations.SET_MAINTENANCE, body=body).maintenance_mode)


@command(app, "pop", "hark maintenance pop on", "hark maintenance pop off")
def pop(server: Server, state: State) -> None:
    """Stop or resume all deliveries.

    While maintenance is on, pops return no messages.
    """
    body = types.server.MaintenanceBody(state == "on")
    _say(pop=server.ask(operations.SET_POP_MAINTENANCE, body=body).pop_maintenance_mode)


def _say(push: bool | None = None, pop: bool | None = None) -> None:
    for verb, stopped, effect in (("pushes", push, "return status 503"), ("pops", pop, "return no messages")):
        if stopped is not None:
            say(f"{verb:<8}{f'stopped: they {effect}' if stopped else 'accepted'}")
