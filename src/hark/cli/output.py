"""Printing: tables, lines and progress bars for people, the server's bytes for programs."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol

import typer

from hark.cli.command import printable
from hark.model import QUEUE_MODE


class Bar(Protocol):
    """Receives the progress of a task."""

    def reach(self, done: int, total: int | None = None) -> None:
        """Set the completed amount, and the total if it is known."""


class _Hidden:
    def reach(self, done: int, total: int | None = None) -> None:
        """Show nothing."""


@contextmanager
def counting(what: str, unit: str) -> Iterator[Bar]:
    """Show the progress of a task, counted in a unit, until the block ends."""
    if not sys.stderr.isatty():
        yield _Hidden()
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


# Wide enough that nothing is folded in a pipe, where there is no terminal width.
_PIPE_WIDTH = 1000
DEFAULT_GROUP = "(default)"
_GAP = 2
_LEAST_FOLDED = 24
"""The narrowest that a column of long texts may become before the table leaves out columns."""
_FRACTION = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d+Z$")

Row = Sequence[str]


def say(text: str) -> None:
    """Print a line for people."""
    typer.echo(printable(text))


def say_folded(text: str, indent: str = "") -> None:
    """Print a sentence for people; a terminal that is too narrow breaks it between words, under its indent."""
    if not sys.stdout.isatty():
        say(indent + text)
        return
    folding = textwrap.TextWrapper(
        _terminal_width(),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    say("\n".join(map(folding.fill, text.split("\n"))))


def say_rest(shown: int, offset: int, total: int | None) -> None:
    """Print how to see the next page, if there is one."""
    if total is not None and offset + shown < total:
        say(f"showing {shown} of {total}; for the next page add --offset {offset + shown}")


def group_name(name: str) -> str:
    """Return the name of a group for people: the default group of a queue has an internal one."""
    return DEFAULT_GROUP if name == QUEUE_MODE else name


def raw(body: bytes) -> None:
    """Print JSON exactly as the server sent it."""
    typer.echo(body)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str = "no results",
    long: Collection[str] = (),
    spare: Sequence[str] = (),
    right: Collection[str] = (),
) -> None:
    """Print rows under their headings; columns of numbers and those in `right` are aligned to the right.

    A terminal may be too narrow for all columns. Columns in `long` then fold their text. If that is not enough, a
    single row is printed as lines of name and value, and a longer table leaves out empty columns and those in `spare`,
    the first ones first. A table that is still too wide is printed as lines of name and value, too.
    """
    grid = list(rows)
    if not grid:
        say(empty)
        return
    numbers = {
        column
        for index, column in enumerate(columns)
        if column in right or all(isinstance(row[index], int | float | None) for row in grid)
    }
    cells = [[_cell(value) for value in row] for row in grid]
    if not sys.stdout.isatty():
        _print(columns, cells, numbers, long, _PIPE_WIDTH)
        return
    width = _terminal_width()
    cells = [[_FRACTION.sub(r"\1Z", cell) for cell in row] for row in cells]
    shown = list(columns)
    if not _fits(columns, cells, shown, long, width):
        if len(cells) == 1:
            _print_records(columns, cells)
            return
        shown = [column for index, column in enumerate(columns) if any(row[index] != "-" for row in cells)]
    left_out = []
    for column in spare:
        if column in shown and not _fits(columns, cells, shown, long, width):
            shown.remove(column)
            left_out.append(column)
    if not _fits(columns, cells, shown, long, width):
        _print_records(columns, cells)
        return
    kept = [columns.index(column) for column in shown]
    _print(shown, [[row[index] for index in kept] for row in cells], numbers, long, width)
    if left_out:
        say_folded(f"Not shown: {', '.join(left_out)}. Widen the terminal or use --json.")


def _terminal_width() -> int:
    from rich.console import Console

    return Console().width


def _fits(
    columns: Sequence[str], cells: Sequence[Row], shown: Sequence[str], long: Collection[str], width: int
) -> bool:
    """Whether a table of these columns fits, with long texts folded."""
    from rich.cells import cell_len

    total = _GAP * (len(shown) - 1)
    for index, column in enumerate(columns):
        if column in shown:
            lines = [line for row in cells for line in row[index].split("\n")]
            natural = max(map(cell_len, (column, *lines)))
            total += min(natural, _LEAST_FOLDED) if column in long else natural
    return total <= width


def _print(
    columns: Sequence[str], cells: Sequence[Row], numbers: Collection[str], long: Collection[str], width: int
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    view = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, _GAP - 1, 0, 0))
    for column in columns:
        view.add_column(
            column, justify="right" if column in numbers else "left", overflow="fold", no_wrap=column not in long
        )
    for row in cells:
        view.add_row(*map(Text, row))
    Console(width=width, highlight=False).print(view)


def _print_records(columns: Sequence[str], cells: Sequence[Row]) -> None:
    for number, row in enumerate(cells):
        if number:
            say("")
        details((column, cell) for column, cell in zip(columns, row, strict=True) if cell != "-")


def details(pairs: Iterable[tuple[str, object]]) -> None:
    """Print one thing as lines of name and value; absent values are left out."""
    shown = [(name, value) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        say(f"{name:<{width}}  {_cell(value)}")


def _time_text(time: datetime) -> str:
    """Format a time with as many digits as the server sends: milliseconds, or microseconds of a message."""
    digits = "microseconds" if time.microsecond % 1000 else "milliseconds"
    return time.astimezone(UTC).isoformat(timespec=digits).replace("+00:00", "Z")


def _cell(value: object) -> str:
    """Format a value for people."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return _time_text(value)
        case bytes():
            return printable(value.decode("utf-8", "replace"))
        case _:
            return printable(str(value))
