"""`hark migrate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hark.cli.command import command, complain
from hark.cli.output import say
from hark.errors import InvalidSetting
from hark.settings import Settings, load

if TYPE_CHECKING:
    from hark.engine.postgres.migrate import Step


def register_migrate(main: typer.Typer) -> None:
    """Add the command at the top level."""
    command(
        main,
        "migrate",
        "hark migrate --engine postgresql://hark@localhost/hark --dry-run",
        "hark migrate --engine postgresql://hark@localhost/hark",
        "hark migrate --post",
    )(migrate)


def migrate(
    *,
    engine: Annotated[
        str | None, typer.Option(metavar="URL", help="postgresql://user:password@host:port/database.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings; else HARK_CONFIG, else ./hark.toml.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    post: Annotated[
        bool, typer.Option("--post", help="Also remove what only older servers need: none may be running.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the SQL too.")] = False,
) -> None:
    """Bring the schema of a PostgreSQL store up to date.

    Servers do the same when they start, except for --post. A SQLite store needs no command.
    """
    loaded = load({"engine": engine}, os.environ, config)
    for note in loaded.notes:
        complain(f"warning: {note}")
    if not loaded.settings.engine.startswith(("postgresql://", "postgres://")):
        raise InvalidSetting("engine: hark migrate needs the URL of a PostgreSQL database: postgresql://...")
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
