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
from hark.cli.command import USAGE, Failure, Yes, command, confirm
from hark.cli.output import say
from hark.settings import load

if TYPE_CHECKING:
    from hark.engine.sqlite.backup import Progress

Data = Annotated[str | None, typer.Option(metavar="DIR", help="The directory of the store.")]
Engine = Annotated[str | None, typer.Option(metavar="URL", help="sqlite:///file.db, if it is not under --data.")]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Settings; else HARK_CONFIG, else ./hark.toml.")]


def register_backup(main: typer.Typer) -> None:
    """Add both commands at the top level."""
    command(main, "backup", "hark backup copy.db", "hark backup copy.db --data /var/lib/hark --replace")(backup)
    command(main, "restore", "hark restore copy.db", "hark restore copy.db --data new-data")(restore)


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The copy.", show_default=False)],
    data: Data = None,
    engine: Engine = None,
    config: Config = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite FILE, when the new copy is complete.")] = False,
) -> None:
    """Copy a SQLite store to a file, while its server runs or not.

    The copy is of one moment, and is checked before it gets its name.
    """
    from hark.engine.sqlite.backup import backup as run

    path = _store(data, engine, config)
    with _shown("copying") as progress:
        run(path, file, progress, replace=replace)
    say(f"copied {path} to {file} ({file.stat().st_size} bytes)")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A copy by hark backup.", show_default=False)],
    data: Data = None,
    engine: Engine = None,
    config: Config = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="If a store is there, move it aside; it is not deleted.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Put a copy in the place of a SQLite store whose server is stopped.

    What came after the copy was made is not in it: those messages are gone, and what was settled since comes again.
    """
    from hark.engine.sqlite.backup import restore as run

    path = _store(data, engine, config)
    aside = None
    if replace:
        confirm(f"Put {file} in the place of {path}?", yes)
        aside = path.with_name(f"{path.name}.before-{datetime.now().astimezone():%Y%m%d-%H%M%S}")
    with _shown("restoring") as progress:
        run(file, path, progress, set_aside=aside)
    say(f"restored {path} from {file}")
    if aside is not None and aside.exists():
        say(f"what was there is now {aside}")


def _store(data: str | None, engine: str | None, config: Path | None) -> Path:
    from hark.serving.engines import describe, sqlite_path

    settings = load({"data": data, "engine": engine}, os.environ, config).settings
    path = sqlite_path(settings)
    if path is None or path == ":memory:":
        raise Failure(
            f"the store is {describe(settings)}, and this is for SQLite: docs/operations.md says how to copy others",
            exit_code=USAGE,
        )
    return Path(path)


@contextmanager
def _shown(what: str) -> Iterator[Progress]:
    with counting(what, "pages") as bar:
        yield bar.reach
