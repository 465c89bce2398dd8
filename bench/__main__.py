"""`python -m bench`: runs the rows, prints the tables, keeps the figures."""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from bench import report, special
from bench.figures import Figure, Run, median_of
from bench.measure import Bench
from bench.rows import ALL, QUICK, ROWS, Row

NOT_A_DISK = "tmpfs"
PIPE_WIDTH = 220


def rounds(bench: Bench, row: Row, repeat: int, console: Console) -> list[Figure]:
    """A row at each server it is for, the servers taking turns, as medians over the rounds."""
    seen: defaultdict[str, list[Figure]] = defaultdict(list)
    for _ in range(repeat):
        empty = bench.measure_e()
        e = empty.throughput
        seen["empty"].append(empty)
        if row.load.kind == "pop":
            seen["hark"].append(bench.measure_pop(row, e))
            continue
        floor = bench.measure_push(row, "floor", e) if row.floor else None
        hark = bench.measure_push(row, "hark", e)
        if floor is not None:
            seen["floor"].append(floor)
            hark = msgspec.structs.replace(hark, ratio_floor=hark.throughput / max(floor.throughput, 1))
        seen["hark"].append(hark)
    figures = [median_of(seen[server]) for server in ("empty", "floor", "hark") if seen[server]]
    for figure in figures:
        console.print("  " + "  ".join(cell for cell in report.cells(figure) if cell), highlight=False)
    return figures


def measure(bench: Bench, run: Run, name: str, repeat: int, console: Console) -> None:
    """One row, whatever its kind."""
    console.print(f"[bold]{name}")
    match name:
        case "limits":
            special.measure_limits(bench, run)
        case "start":
            special.measure_start(bench, run)
        case "idle":
            special.measure_idle(bench, run, bench.seconds * 1.5)
        case "mixed":
            special.measure_mixed(bench, run)
        case "backlog":
            e = bench.measure_e().throughput
            special.measure_backlog(bench, run, bench.folder / "history", e)
        case _:
            run.figures += rounds(bench, ROWS[name], repeat, console)


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
            for name in names:
                try:
                    measure(bench, run, name, repeat, console)
                except (RuntimeError, ConnectionError) as error:
                    run.broken[name] = str(error)
                    console.print(f"{name} broke: {error}", style="red", markup=False, highlight=False)
        finally:
            report.show(console, run)
            console.print(f"kept in {report.save(run)}")
    if run.broken:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
