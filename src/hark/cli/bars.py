"""Progress bars on stderr, for people at a terminal; silent everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Bar(Protocol):
    """Something that goes on."""

    def reach(self, done: int, total: int | None = None) -> None:
        """So much is done, of how much if that is known."""


class _Nobody:
    def reach(self, done: int, total: int | None = None) -> None:
        """Nobody looks."""


@contextmanager
def counting(what: str, unit: str) -> Iterator[Bar]:
    """Show how far something is, in so many units, until the block ends."""
    if not sys.stderr.isatty():
        yield _Nobody()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=None)

        class Shown:
            """A line of the terminal."""

            def reach(self, done: int, total: int | None = None) -> None:
                """Redraw it."""
                progress.update(task, completed=done, total=total)

        yield Shown()
