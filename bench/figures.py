"""What was measured: the figures of a row, their medians, and all of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from bench.procfs import Cpu
from bench.wrk import BUSY, Sample

MUCH_DRIFT = 0.15
"""Two measurements of L around a row that differ by more say that the machine was not quiet."""


NUMBERS = (
    *("throughput", "ratio_l", "ratio_floor", "p50_ms", "p99_ms"),
    *("cpu_us", "server_us", "cpu_l", "store_us", "rss_mb", "generator_cpu"),
)
"""The fields of a figure of which medians are taken."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One row at one server; what does not apply is None."""

    row: str
    title: str
    server: str
    throughput: float
    ratio_l: float | None = None
    """Throughput in units of L, the requests per second of the bare protocol on a full core in the same round."""
    ratio_floor: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_us: float | None = None
    """CPU microseconds of the server per message, with its database."""
    server_us: float | None = None
    """The part of it that the server's process used."""
    cpu_l: float | None = None
    """That part in units of what the bare protocol used per request."""
    store_us: float | None = None
    """The part of `cpu_us` that the store used: threads of the server, or the database."""
    rss_mb: float | None = None
    generator_cpu: float | None = None
    errors: int = 0
    note: str = ""

    @property
    def full_core(self) -> float:
        """Messages per second that a full core would do; what was measured where the CPU is not known.

        Of the bare protocol this is L: a generator costs as much as it does, so that two cores do not fill one with it.
        """
        return 1e6 / self.cpu_us if self.cpu_us else self.throughput


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """What the store alone can take, with no server around it."""

    title: str
    per_second: float
    cpu_us: float | None = None


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """How long the file system takes to make a small write durable."""

    p50_ms: float
    p99_ms: float
    samples: int


class Run(msgspec.Struct, kw_only=True):
    """Everything that one run of the benchmark measured."""

    machine: dict[str, str]
    figures: list[Figure] = []
    limits: list[Limit] = []
    disk: Disk | None = None
    values: dict[str, list[float]] = {}
    """Single figures for the table of what must hold, by name, one of each round; the median counts."""
    broken: dict[str, str] = {}
    """Rows that could not be measured, and why."""

    def note(self, name: str, value: float) -> None:
        """Keep a single figure of this round."""
        self.values.setdefault(name, []).append(value)


def figure_of(row: str, title: str, server: str, sample: Sample, *, cpu: Cpu, rss: float) -> Figure:
    """The figure of one sample."""
    messages = max(1, sample.messages)
    notes = []
    if sample.generator_cpu >= BUSY:
        notes.append(f"the generator used {sample.generator_cpu:.0%} of a core: it limits this row")
    if sample.errors:
        notes.append(f"{sample.errors:,} errors")
    if sample.empty:
        notes.append(f"{sample.empty:,} empty pops")
    return Figure(
        row=row,
        title=title,
        server=server,
        throughput=sample.throughput,
        p50_ms=sample.p50_ms,
        p99_ms=sample.p99_ms,
        cpu_us=cpu.total_us / messages,
        server_us=cpu.server_us / messages,
        store_us=cpu.store_us / messages,
        rss_mb=rss,
        generator_cpu=sample.generator_cpu,
        errors=sample.errors,
        note="; ".join(notes),
    )


def compared(figures: Sequence[Figure], before: Figure, after: Figure) -> list[Figure]:
    """The figures of one round with their ratios to L, as it was before and after, and Hark's to the floor."""
    reference = (before.full_core + after.full_core) / 2
    cpu = ((before.cpu_us or 0) + (after.cpu_us or 0)) / 2
    drift = 2 * abs(before.throughput - after.throughput) / (before.throughput + after.throughput)
    warning = f"L drifted by {drift:.0%}" if drift > MUCH_DRIFT else ""
    floor = next((figure.throughput for figure in figures if figure.server == "floor"), None)
    made = []
    for figure in figures:
        over_floor = figure.throughput / floor if floor and figure.server != "floor" else None
        note = "; ".join(filter(None, (figure.note, warning)))
        ratio = figure.throughput / reference
        cpu_l = figure.server_us / cpu if cpu and figure.server_us is not None else None
        made.append(msgspec.structs.replace(figure, ratio_l=ratio, ratio_floor=over_floor, cpu_l=cpu_l, note=note))
    return made


def medians(figures: Iterable[Figure]) -> list[Figure]:
    """One figure for each title and server, in the order they were first seen."""
    rounds: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        rounds.setdefault((figure.title, figure.server), []).append(figure)
    return [median_of(same) for same in rounds.values()]


def median_of(figures: Sequence[Figure]) -> Figure:
    """The medians of one row at one server, field by field; errors are the worst, notes the last."""
    middle: dict[str, float] = {}
    for name in NUMBERS:
        values = [value for figure in figures if (value := getattr(figure, name)) is not None]
        if values:
            middle[name] = median(values)
    note = next((figure.note for figure in reversed(figures) if figure.note), "")
    return msgspec.structs.replace(figures[-1], **middle, errors=max(f.errors for f in figures), note=note)
