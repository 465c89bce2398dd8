"""`hark backup` and `hark restore`: copies of a SQLite store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hark.cli.bars import counting
from hark.cli.command import USAGE, Config, Data, Failure, Yes, command, confirm
from hark.cli.output import say
from hark.settings import load

if TYPE_CHECKING:
    from hark.engine.sqlite.backup import Progress

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
    from hark.engine.sqlite.backup import backup as run

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
    from hark.engine.sqlite.backup import restore as run

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
    from hark.serving.engines import describe, sqlite_path

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
