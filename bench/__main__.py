"""`python -m bench`: runs the rows, prints the tables, keeps the figures."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench import report, special
from bench.figures import Figure, Run, compared, medians
from bench.measure import Bench
from bench.rows import ALL, QUICK, ROWS, Row
from bench.servers import Kind

NOT_A_DISK = "tmpfs"
PIPE_WIDTH = 220
IDLE_FACTOR = 1.5
ONCE = frozenset({"limits", "start"})
"""Rows that repeat themselves, or vary little."""


def one_round(bench: Bench, row: Row, before: Figure) -> list[Figure]:
    """A row at each server it is for, right after each other, between two measurements of E; the last is E."""
    if row.load.kind == "pop":
        figures = [bench.measure_pop(row, row.guess * before.throughput * bench.seconds)]
    else:
        servers: tuple[Kind, ...] = ("floor", "hark") if row.floor else ("hark",)
        figures = [bench.measure_push(row, kind) for kind in servers]
    after = bench.measure_e()
    return [*compared(figures, before, after), after]


def special_round(bench: Bench, run: Run, name: str) -> list[Figure]:
    """One round of a row that is not a closed loop."""
    match name:
        case "limits":
            special.measure_limits(bench, run)
        case "start":
            special.measure_start(bench, run)
        case "idle":
            return list(special.measure_idle(bench, run, bench.seconds * IDLE_FACTOR))
        case "mixed":
            return list(special.measure_mixed(bench))
        case "backlog":
            return list(special.measure_backlog(bench, run))
    return []


def measure(bench: Bench, run: Run, name: str, repeat: int) -> list[Figure]:
    """All rounds of a row, as medians."""
    figures: list[Figure] = []
    if name in ROWS:
        before = bench.measure_e()
        for _ in range(repeat):
            figures += one_round(bench, ROWS[name], before)
            before = figures[-1]
    else:
        for _ in range(1 if name in ONCE else repeat):
            figures += special_round(bench, run, name)
    return medians(figures)


def measure_all(bench: Bench, run: Run, names: list[str], repeat: int, console: Console) -> None:
    """All rows; one that breaks does not keep the others from being measured."""
    for name in names:
        console.print(f"[bold]{name}")
        try:
            figures = measure(bench, run, name, repeat)
        except (RuntimeError, ConnectionError) as error:
            run.broken[name] = str(error)
            console.print(f"{name} broke: {error}", style="red", markup=False, highlight=False)
            continue
        run.figures += figures
        for figure in figures:
            console.print("  " + "  ".join(cell for cell in report.cells(figure) if cell), highlight=False)


def chosen(names: str | None, quick: bool) -> list[str]:
    """The names of the rows to run, in the order of the table."""
    if names is None:
        return list(QUICK if quick else ALL)
    wanted = {name.strip() for name in names.split(",")}
    if unknown := wanted - set(ALL):
        raise typer.BadParameter(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    return [name for name in ALL if name in wanted]


def main(
    *,
    rows: Annotated[str | None, typer.Option(help="Only these rows, with commas between.")] = None,
    quick: Annotated[bool, typer.Option(help="Few rows of 2 seconds.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds per row; the median counts.")] = 1,
    seconds: Annotated[float | None, typer.Option(min=1, help="Seconds per row.")] = None,
    data: Annotated[Path | None, typer.Option(help="Where the data folders go; a real disk.")] = None,
) -> None:
    """Measure Hark beside the limits of this machine, and check what must hold."""
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    names = chosen(rows, quick)
    length = seconds or (2.0 if quick else 6.0)
    with tempfile.TemporaryDirectory(prefix="hark-bench-", dir=data) as folder:
        bench = Bench(Path(folder), length, max(1.0, length / 2))
        run = Run(machine=report.machine(Path(folder)))
        console.print("  ".join(f"{name} {value}" for name, value in run.machine.items()), highlight=False)
        if run.machine["file system"] == NOT_A_DISK:
            console.print("[red]The data folder is in memory: choose a real disk with --data.")
        try:
            measure_all(bench, run, names, repeat, console)
        finally:
            report.show(console, run)
            console.print(f"kept in {report.save(run)}")
    if run.broken:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
