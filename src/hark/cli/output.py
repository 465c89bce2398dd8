"""Printing: tables, lines and progress bars for people, the server's bytes for programs."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypeVar

import typer

from hark.model import QUEUE_MODE

# Exit codes: 0 success; 1 rejected or failed; 2 invalid usage or settings; 3 no message to pop.
FAILED, USAGE, NOTHING, PARTIAL = 1, 2, 3, 4

# Wide enough that nothing is folded in a pipe, where there is no terminal width.
_PIPE_WIDTH = 1000
DEFAULT_GROUP = "(default)"
_GAP = 2
_LEAST_FOLDED = 24
"""The narrowest that a column of long texts may become before the table leaves out columns."""
_FRACTION = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d+Z$")

Row = Mapping[str, str]
T = TypeVar("T")


class Failure(Exception):
    """The command cannot do its work; becomes a message on stderr, with a hint on the next line, and an exit code."""

    def __init__(self, text: str, *, code: str | None = None, hint: str = "", exit_code: int = FAILED) -> None:
        line = f"{text} ({code})" if code else text
        super().__init__(f"{line}\n{hint}" if hint else line)
        self.exit_code = exit_code


class Misuse(Failure):
    """The arguments or what they name cannot be used."""

    def __init__(self, text: str, *, hint: str = "") -> None:
        super().__init__(text, hint=hint, exit_code=USAGE)


def complain(text: str) -> None:
    """Write a message to stderr."""
    typer.echo(f"hark: {printable(text)}", err=True)


def printable(text: str) -> str:
    """Escape control characters: names and payloads from other programs must not control the terminal."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


def confirm(question: str, yes: bool) -> None:
    """Ask before data is lost; without a terminal, require `--yes`."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Misuse(f"{question} This needs a confirmation, and there is no terminal: add --yes")
    typer.confirm(printable(question), abort=True, err=True)


@contextmanager
def counting(what: str, unit: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show the progress of a task until the block ends; yields a function that takes the done and the total number."""
    if not sys.stderr.isatty():
        yield lambda done, total: None  # noqa: ARG005
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn(unit),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def say(text: str) -> None:
    """Print a line for people."""
    typer.echo(printable(text))


def say_folded(text: str, indent: str = "") -> None:
    """Print a sentence for people; a terminal that is too narrow breaks it between words, under its indent."""
    if not sys.stdout.isatty():
        say(indent + text)
        return
    width = _terminal_width()
    folding = textwrap.TextWrapper(width, indent, indent, break_long_words=False, break_on_hyphens=False)
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
    items: Iterable[T],
    columns: Mapping[str, Callable[[T], object]],
    *,
    empty: str = "no results",
    long: Collection[str] = (),
    spare: Sequence[str] = (),
    right: Collection[str] = (),
) -> None:
    """Print a row for each item; `columns` has the headings, and how each cell follows from the item.

    Columns of numbers and those in `right` are aligned to the right. A terminal may be too narrow for all columns.
    Columns in `long` then fold their text. If that is not enough, a single row is printed as lines of name and value,
    and a longer table leaves out empty columns and those in `spare`, the first ones first. A table that is still too
    wide is printed as lines of name and value, too.
    """
    values = [[cell(item) for cell in columns.values()] for item in items]
    if not values:
        say(empty)
        return
    numbers = {
        column
        for index, column in enumerate(columns)
        if column in right or all(isinstance(row[index], int | float | None) for row in values)
    }
    rows = [dict(zip(columns, map(_cell, row), strict=True)) for row in values]
    if not sys.stdout.isatty():
        _print(list(columns), rows, numbers, long, _PIPE_WIDTH)
        return
    width = _terminal_width()
    rows = [{column: _FRACTION.sub(r"\1Z", cell) for column, cell in row.items()} for row in rows]
    shown, left_out = list(columns), []
    if len(rows) > 1 and not _fits(shown, rows, long, width):
        shown = [column for column in columns if any(row[column] != "-" for row in rows)]
        for column in spare:
            if column in shown and not _fits(shown, rows, long, width):
                shown.remove(column)
                left_out.append(column)
    if not _fits(shown, rows, long, width):
        for number, row in enumerate(rows):
            if number:
                say("")
            details((column, cell) for column, cell in row.items() if cell != "-")
        return
    _print(shown, rows, numbers, long, width)
    if left_out:
        say_folded(f"Not shown: {', '.join(left_out)}. Widen the terminal or use --json.")


def _terminal_width() -> int:
    from rich.console import Console

    return Console().width


def _fits(columns: Sequence[str], rows: Sequence[Row], long: Collection[str], width: int) -> bool:
    """Whether a table of these columns fits, with long texts folded."""
    from rich.cells import cell_len

    total = _GAP * (len(columns) - 1)
    for column in columns:
        natural = max(map(cell_len, (column, *(line for row in rows for line in row[column].split("\n")))))
        total += min(natural, _LEAST_FOLDED) if column in long else natural
    return total <= width


def _print(
    columns: Sequence[str], rows: Sequence[Row], numbers: Collection[str], long: Collection[str], width: int
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
    for row in rows:
        view.add_row(*(Text(row[column]) for column in columns))
    Console(width=width, highlight=False).print(view)


def details(pairs: Iterable[tuple[str, object]]) -> None:
    """Print one thing as lines of name and value; absent values are left out."""
    shown = [(name, value) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        say(f"{name:<{width}}  {_cell(value)}")


def _cell(value: object) -> str:
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():  # With as many digits as the server sends: milliseconds, or microseconds of a message.
            digits = "microseconds" if value.microsecond % 1000 else "milliseconds"
            return value.astimezone(UTC).isoformat(timespec=digits).replace("+00:00", "Z")
        case bytes():
            return printable(value.decode("utf-8", "replace"))
        case _:
            return printable(str(value))
