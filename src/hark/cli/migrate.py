"""`hark migrate`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from hark.cli.command import Config, command, complain
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
