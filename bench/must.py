"""What must hold: each figure that the project demands, and whether this run shows it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import msgspec

from bench.figures import Figure, Run
from bench.rows import BACKLOG, PUSHES


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, its bound, and what was measured (None: not in this run)."""

    text: str
    bound: float
    unit: str
    at_most: bool
    measured: float | None
    note: str = ""
    """What speaks against the measurement."""

    @property
    def holds(self) -> bool | None:
        """Whether it holds; None when it was not measured."""
        if self.measured is None:
            return None
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound


AT_LEAST_E = (
    ("push1", "push 1, 64 connections", 0.4),
    ("push1c256", "push 1, 256 connections", 0.42),
    ("push100", "push 100, one partition a request", 5.0),
    ("push100s", "push 100, 100 partitions a request", 2.4),
    ("pop100", "pop 100 + ack", 2.5),
    ("pop100auto", "pop 100 auto-ack", 3.5),
    ("pop1", "pop 1 + ack, 64 connections", 0.18),
)
NOT_MEASURED = Figure(row="", title="", server="hark", throughput=0)
FLOOR = 0.8
BACKLOG_COST = 1.5
COMPARED = frozenset(f"backlog_{row.name}" for row in BACKLOG)
AT_MOST = (
    ("idle", "p99 of a single push on an idle server", 3.0, "x p99 of fdatasync"),
    *((f"backlog_{row.name}", f"{row.name} with a long history", BACKLOG_COST, "x empty store") for row in BACKLOG),
    ("rss", "memory of an idle server", 80.0, "MB"),
    ("start", "start to first answer, empty store", 1.0, "s"),
    ("start_backlog", "start to first answer, long history", 1.0, "s"),
)


def demands(run: Run) -> Iterator[Demand]:
    """All demands, measured or not."""
    # A generator that is itself Python slows what is fast and so flatters every ratio: such a run judges none.
    judged = run.machine.get("generator") == "wrk"
    at_hark = {figure.row: figure for figure in run.figures if judged and figure.server == "hark"}

    def single(name: str) -> float | None:
        values = run.values.get(name) if judged or name not in COMPARED else None
        return median(values) if values else None

    for row in PUSHES:
        if row.floor:
            figure = at_hark.get(row.name, NOT_MEASURED)
            value, note = figure.ratio_floor, figure.note
            yield Demand(text=row.title, bound=FLOOR, unit="x floor", at_most=False, measured=value, note=note)
    for name, text, bound in AT_LEAST_E:
        figure = at_hark.get(name, NOT_MEASURED)
        value, note = figure.ratio_e, figure.note
        yield Demand(text=text, bound=bound, unit="E", at_most=False, measured=value, note=note)
    for name, text, bound, unit in AT_MOST:
        yield Demand(text=text, bound=bound, unit=unit, at_most=True, measured=single(name))
