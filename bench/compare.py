"""Two checkouts of Hark in turns: the same rows at a server of each, and the ratio of what both did.

The load and the floors are always those of this checkout. The servers differ, and in the rows `end` and `steps` also
the client and the worker, which are a part of what is compared.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median

import msgspec
import typer
from rich.console import Console
from rich.table import Table

import bench.client.special as client
import bench.delivery.special as delivery
import bench.hostile.special as hostile
from bench import special
from bench.figures import Figure, Run
from bench.measure import Bench
from bench.must import CPU_L
from bench.report import RESULTS, cells, number
from bench.rows import ROWS
from bench.servers import ROOT
from bench.stores import EngineName

DEFAULT = ("push1", "push1c256", "pop1", "lone", "end", "push100", "pop100")
OTHERS = ("lone", "end", "steps", "mixed", "deliver", "waiting", "hostile")
"""Rows beside the closed loops whose servers can be started from either checkout."""
TASKS = 10_000
METRICS = {
    "throughput": "messages/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "server_us": "server CPU us/msg",
    "cpu_us": "CPU us/msg with the store",
    "cpu_l": "server CPU in L",
    "rss_mb": "RSS MB",
}
MANY = 1000
"""From here on a number needs no fraction."""
AT_LEAST = frozenset({"throughput"})
"""Of all else, less is better."""
FASTER = {"push1": 1.4, "push1c256": 1.4, "pop1": 1.4}
LESS: dict[EngineName, dict[tuple[str, str], float]] = {
    "sqlite": {
        ("lone", "p50_ms"): 0.75,
        ("lone", "server_us"): 0.6,
        ("end", "p50_ms"): 0.7,
        ("end", "server_us"): 0.6,
    },
    "postgres": {
        ("lone", "p50_ms"): 0.8,
        ("lone", "server_us"): 0.7,
        ("end", "p50_ms"): 0.8,
        ("end", "server_us"): 0.7,
    },
    "s3": {},
}


class Side(msgspec.Struct, frozen=True):
    """One of the two checkouts."""

    name: str
    root: Path

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process use this checkout, whatever is installed."""
        return {"PYTHONPATH": str(self.root / "src")}

    @property
    def commit(self) -> str:
        """Of the checkout, with a plus if files have changed since."""
        command = ["git", "-C", str(self.root), "describe", "--always", "--dirty=+", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "-"


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of a row at both sides, a value of each round."""

    row: str
    title: str
    metric: str
    before: list[float]
    after: list[float]
    required: float | None = None
    """What the ratio must be: at least for throughput, else at most."""
    most: float | None = None
    """What the value itself may be after, where the ratio does not count."""

    @property
    def ratio(self) -> float | None:
        """Of the medians; None if it was nothing before."""
        before = median(self.before)
        return median(self.after) / before if before else None

    @property
    def ratios(self) -> list[float]:
        """Of each round in which it was something before."""
        return [after / before for before, after in zip(self.before, self.after, strict=True) if before]

    @property
    def demand(self) -> str:
        """What is required, in words."""
        if self.most is not None:
            return f"<= {self.most:g}"
        if self.required is None:
            return ""
        sign = ">=" if self.metric in AT_LEAST else "<="
        return "not worse" if self.required == 1 else f"{sign} {self.required:g} x"

    @property
    def outcome(self) -> str:
        """Whether it is as required; where that is \"not worse\", rounds on both sides of 1 tell nothing."""
        if self.most is not None:
            return "pass" if median(self.after) <= self.most else "FAIL"
        if self.required is None or self.ratio is None:
            return ""
        good = self.ratio >= self.required if self.metric in AT_LEAST else self.ratio <= self.required
        if good:
            return "pass"
        noise = self.required == 1 and min(self.ratios) < 1 < max(self.ratios)
        return "noise" if noise else "FAIL"


def sides(other: Path) -> tuple[Side, Side]:
    """Before and after."""
    if not (other / "src" / "hark" / "__init__.py").is_file():
        raise typer.BadParameter(f"{other} is not a checkout of Hark: it has no src/hark")
    return Side("before", other.resolve()), Side("after", ROOT)


def chosen(engine: EngineName, names: str | None) -> list[str]:
    """The rows to compare, in the order of the table."""
    if engine == "s3":
        raise typer.BadParameter("only servers on SQLite and PostgreSQL are compared")
    wanted = {name.strip() for name in names.split(",")} if names is not None else set(DEFAULT)
    every = (*ROWS, *OTHERS)
    if unknown := wanted - set(every):
        raise typer.BadParameter(f"can't compare {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    return [name for name in every if name in wanted]


def in_turns(
    bench: Bench, both: tuple[Side, Side], names: list[str], repeat: int, watch_seconds: float, console: Console
) -> list[Pair]:
    """All rows; in each round L, then both sides, and the side that was first is second in the next round."""
    console.print("  ".join(f"{side.name} {side.commit}" for side in both), highlight=False)
    found: list[Pair] = []
    for name in names:
        console.print(f"[bold]{name}")
        runs = {side.name: Run(machine={}) for side in both}
        for turn in range(repeat):
            reference = bench.measure_l()
            for side in both if turn % 2 == 0 else both[::-1]:
                bench.environment = side.environment
                run = runs[side.name]
                for figure in _figures_of(bench, run, name, reference, watch_seconds):
                    run.figures.append(figure)
                    console.print(f"  {side.name}  " + "  ".join(cell for cell in cells(figure) if cell), markup=False)
        found += pairs(bench.stores.engine, runs["before"], runs["after"])
    return found


def _figures_of(bench: Bench, run: Run, name: str, reference: Figure, watch_seconds: float) -> Iterator[Figure]:
    """One round of a row at Hark."""
    for figure in _round(bench, run, name, reference.full_core, watch_seconds):
        cpu_l = figure.server_us / reference.cpu_us if figure.server_us and reference.cpu_us else None
        yield msgspec.structs.replace(figure, ratio_l=figure.throughput / reference.full_core, cpu_l=cpu_l)


def _round(bench: Bench, run: Run, name: str, reference: float, watch_seconds: float) -> Iterable[Figure]:
    match name:
        case "lone":
            return special.measure_lone(bench, ("hark",))
        case "end":
            return client.measure_end(bench, run)
        case "steps":  # Those of plain tasks: the other checkout may have no others.
            return client.measure_programs(bench, ["plain"], TASKS)
        case "mixed":
            return special.measure_mixed(bench)
        case "deliver":
            return delivery.measure_deliver(bench, run, bench.seconds)
        case "waiting":
            return delivery.measure_waiting(bench, run, watch_seconds)
        case "hostile":
            return hostile.measure_hostile(bench, run)
    row = ROWS[name]
    if row.load.kind == "push":
        return [bench.measure_push(row, "hark")]
    return [bench.measure_pop(row, row.guess * reference * bench.seconds)]


def pairs(engine: EngineName, before: Run, after: Run) -> Iterator[Pair]:
    """What both sides measured, by row and metric, then by the name of single figures."""
    for title in dict.fromkeys(figure.title for figure in after.figures):
        old, new = ([figure for figure in run.figures if figure.title == title] for run in (before, after))
        row = new[0].row
        for metric in METRICS:
            values = [[getattr(figure, metric) for figure in figures] for figures in (old, new)]
            if len(old) != len(new) or any(value is None for side in values for value in side):
                continue
            most = next((bound for name, _, bound in CPU_L[engine] if (name, "cpu_l") == (row, metric)), None)
            required = requirement(engine, row, metric)
            yield Pair(
                row=row, title=title, metric=metric, before=values[0], after=values[1], required=required, most=most
            )
    for name, numbers in after.values.items():
        if len(numbers) == len(before.values.get(name, [])):
            yield Pair(row=name, title=name, metric="", before=before.values[name], after=numbers)


def requirement(engine: EngineName, row: str, metric: str) -> float | None:
    """What the ratio of a metric must be; 1: not worse."""
    if metric == "throughput":
        return FASTER.get(row, 1.0 if row in ROWS or row == "steps" else None)
    return LESS[engine].get((row, metric), 1.0 if metric == "p99_ms" else None)


def table(found: Iterable[Pair]) -> Table:
    """The medians of both sides and their ratios."""
    shown = Table(title="After beside before: medians")
    for column in ("row", "figure", "before", "after", "ratio", "of each round", "required", ""):
        shown.add_column(column, justify="left" if column in {"row", "figure"} else "right")
    last = ""
    for pair in found:
        spread = f"{min(pair.ratios):.2f} to {max(pair.ratios):.2f}" if pair.ratios else "-"
        medians = [number(median(side), 0 if median(side) >= MANY else 2) for side in (pair.before, pair.after)]
        title = pair.title if pair.title == pair.row else f"{pair.row}: {pair.title}"
        name = METRICS.get(pair.metric, "")
        figures = (*medians, number(pair.ratio), spread, pair.demand, pair.outcome)
        shown.add_row("" if title == last else title, name, *figures)
        last = title
    return shown


def save(found: list[Pair], both: tuple[Side, Side], machine: dict[str, str]) -> Path:
    """Keep the values of all rounds as JSON."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{machine['time'].replace(':', '')}-against.json"
    commits = {side.name: side.commit for side in both}
    values = [msgspec.to_builtins(pair) | {"ratio": pair.ratio, "outcome": pair.outcome} for pair in found]
    kept = {"machine": machine, "commits": commits, "compared": values}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=2))
    return path
