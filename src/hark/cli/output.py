"""How commands print: tables for people, the server's bytes for machines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import typer

from hark.cli.command import printable

# Wide enough that nothing is folded in a pipe, where there is no width to respect.
_PIPE_WIDTH = 1000


def say(text: str) -> None:
    """Print a line for people."""
    typer.echo(printable(text))


def raw(body: bytes) -> None:
    """Print JSON exactly as it came."""
    typer.echo(body)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "nothing") -> None:
    """Print rows under their titles; columns of numbers stand to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = list(rows)
    if not grid:
        say(empty)
        return
    view = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, column in enumerate(columns):
        numbers = all(isinstance(row[index], int | float | None) for row in grid)
        view.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in grid:
        view.add_row(*(Text(_cell(value)) for value in row))
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False).print(view)


def details(pairs: Iterable[tuple[str, object]]) -> None:
    """Print one thing as lines of name and value; absent values are left out."""
    shown = [(name, value) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        say(f"{name:<{width}}  {_cell(value)}")


def _cell(value: object) -> str:
    """Write a value for people."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case bytes():
            return printable(value.decode("utf-8", "replace"))
        case _:
            return printable(str(value))
