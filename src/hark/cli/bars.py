"""Progress bars on stderr for a terminal; silent everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Bar(Protocol):
    """Receives the progress of a task."""

    def reach(self, done: int, total: int | None = None) -> None:
        """Set the completed amount, and the total if it is known."""


class _Nobody:
    def reach(self, done: int, total: int | None = None) -> None:
        """Show nothing."""


@contextmanager
def counting(what: str, unit: str) -> Iterator[Bar]:
    """Show the progress of a task, counted in a unit, until the block ends."""
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
            """A progress bar on the terminal."""

            def reach(self, done: int, total: int | None = None) -> None:
                """Redraw the bar."""
                progress.update(task, completed=done, total=total)

        yield Shown()
