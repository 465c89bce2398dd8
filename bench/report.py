"""Prints a run as tables and keeps it as JSON."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench import wrk
from bench.figures import Figure, Run
from bench.must import Demand, demands
from bench.stores import Stores

RESULTS = Path(__file__).parent / "results"
COLUMNS = (
    *("row", "server", "messages/s", "x L", "x floor", "p50 ms", "p99 ms"),
    *("CPU us/msg", "of it store", "server x L", "RSS MB", "load CPU", "note"),
)


SMALL = 0.2
"""Bounds below this are told from what was measured by more digits."""
UNNAMED = frozenset(
    {"idle", "hostile", "mixed", "together", "pinned", "peers", "deliver", "deliver2", "waiting", "fair", "leaks"}
)
"""Rows whose titles say all."""


def number(value: float | None, digits: int = 2) -> str:
    """A figure for a table cell; a dash for none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def cells(figure: Figure) -> list[str]:
    """A figure as a row of the table."""
    load = "-" if not figure.generator_cpu else f"{figure.generator_cpu:.0%}"
    return [
        figure.title if figure.row in UNNAMED else f"{figure.row}: {figure.title}",
        figure.server,
        number(figure.throughput, 0),
        number(figure.ratio_l),
        number(figure.ratio_floor),
        number(figure.p50_ms),
        number(figure.p99_ms),
        number(figure.cpu_us, 1),
        number(figure.store_us or None, 1),
        number(figure.cpu_l, 1),
        number(figure.rss_mb, 0),
        load,
        figure.note,
    ]


def figures_table(figures: Iterable[Figure]) -> Table:
    """All rows."""
    table = Table(title="Load")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in {"row", "server", "note"} else "right")
    for figure in figures:
        table.add_row(*cells(figure))
    return table


def limits_table(run: Run) -> Table:
    """What the machine does without a server."""
    table = Table("limit", "per second", "CPU us", "p50 ms", "p99 ms", title="Limits of this machine")
    for limit in run.limits:
        table.add_row(limit.title, number(limit.per_second, 0), number(limit.cpu_us, 1), "-", "-")
    if run.disk is not None:
        table.add_row("4 KiB write + fdatasync", "-", "-", number(run.disk.p50_ms), number(run.disk.p99_ms))
    return table


def outcome(demand: Demand) -> str:
    """The last cell of a demand."""
    return "[green]pass" if demand.holds else "[red]FAIL"


def demands_table(all_demands: Iterable[Demand]) -> Table:
    """What must hold."""
    table = Table("what", "required", "measured", "", "note", title="Must hold")
    known = [demand for demand in all_demands if demand.actual is not None]
    for demand in known:
        sign = "<=" if demand.at_most else ">="
        required = f"{sign} {demand.bound:g} {demand.unit}"
        actual = number(demand.actual, 4 if 0 < demand.bound < SMALL else 2)
        table.add_row(demand.text, required, actual, outcome(demand), demand.note)
    return table


def show(console: Console, run: Run) -> None:
    """Print everything."""
    console.print(figures_table(run.figures))
    if run.limits or run.disk is not None:
        console.print(limits_table(run))
    everything = list(demands(run))
    console.print(demands_table(everything))
    if missing := sum(demand.actual is None for demand in everything):
        console.print(f"{missing} of {len(everything)} demands were not measured in this run.")
    if run.machine["generator"] != "wrk":
        console.print("Without wrk no ratio is judged: the built-in generator would be part of what is compared.")


def save(run: Run) -> Path:
    """Keep a run, with its verdicts."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{run.machine['time'].replace(':', '')}.json"
    outcomes = [msgspec.to_builtins(demand) | {"holds": demand.holds} for demand in demands(run)]
    text = msgspec.json.encode(msgspec.to_builtins(run) | {"demands": outcomes})
    path.write_bytes(msgspec.json.format(text, indent=2))
    return path


def machine(folder: Path, stores: Stores) -> dict[str, str]:
    """What the figures were measured on."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": str(os.cpu_count()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "engine": stores.engine,
        "version": stores.version,
        "generator": "wrk" if wrk.available() else "hark bench",
        "file system": _output("stat", "-f", "-c", "%T", str(folder)),
        "commit": _output("git", "rev-parse", "--short", "HEAD") or "-",
    }


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
