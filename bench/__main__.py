"""`python -m bench`: runs the rows, prints the tables, keeps the figures."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

import bench.client.special as client
import bench.delivery.special as delivery
import bench.hostile.special as hostile
import bench.operate.special as operate
import bench.postgres.special as postgres
import bench.s3.special as s3
import bench.work.special as work
from bench import compare, report, special
from bench.figures import Figure, Run, compared, medians
from bench.measure import Bench
from bench.postgres.cluster import PostgresStores, cluster
from bench.rows import ALL, DEEP, DEEP_BACKLOG, QUICK, ROWS, Row
from bench.s3.bucket import BucketStores, stub
from bench.servers import Kind
from bench.stores import EngineName, SqliteStores, Stores

NOT_A_DISK = "tmpfs"
PIPE_WIDTH = 220
IDLE_FACTOR = 1.5
ONCE = frozenset(
    {
        "limits",
        "start",
        "cost",
        "pinned",
        "waiting",
        "fair",
        "calls",
        "leaks",
        "hostile",
        "shared",
        "keys",
        "client",
        "polling",
    }
    | {"quiet", "starting", "auth", "scrape", "page", "lists", "steps", "schedules"}
)
"""Rows that repeat themselves, or vary little."""


def one_round(bench: Bench, row: Row, before: Figure) -> list[Figure]:
    """A row at each server it is for, right after each other, between two measurements of L; the last is L."""
    if row.load.kind == "pop":
        least = bench.least_backlog if row.name in DEEP else 0
        figures = [bench.measure_pop(row, max(least, row.guess * before.full_core * bench.seconds))]
    else:
        servers: tuple[Kind, ...] = ("floor", "hark") if row.floor else ("hark",)
        figures = [bench.measure_push(row, kind) for kind in servers]
    after = bench.measure_l()
    return [*compared(figures, before, after), after]


class Lengths(msgspec.Struct, frozen=True):
    """How much the rows do that are not as long as the others."""

    pinned_seconds: float
    jobs: int
    watch_seconds: float
    """That ten thousand pops idle."""
    leak_rounds: int
    delayed: int
    """Messages that wait for their time while others are consumed."""
    keys: int
    pushes: int
    """Of a client, one by one."""
    tasks: int
    """Of a worker."""
    quiet_seconds: float
    """That workers on a bucket wait for nothing."""
    auth_rounds: int
    """Turns of pushes without and with a token."""


FULL = Lengths(
    pinned_seconds=600,
    jobs=50_000,
    watch_seconds=60,
    leak_rounds=10_000,
    delayed=1_000_000,
    keys=1_000_000,
    pushes=10_000,
    tasks=20_000,
    quiet_seconds=600,
    auth_rounds=3,
)
SHORT = Lengths(
    pinned_seconds=60,
    jobs=10_000,
    watch_seconds=10,
    leak_rounds=200,
    delayed=50_000,
    keys=50_000,
    pushes=5_000,
    tasks=10_000,
    quiet_seconds=60,
    auth_rounds=1,
)


def special_round(bench: Bench, run: Run, name: str, lengths: Lengths) -> list[Figure]:
    """One round of a row that is not a closed loop."""
    match name:
        case "limits":
            (postgres if bench.stores.engine == "postgres" else special).measure_limits(bench, run)
        case "start":
            special.measure_start(bench, run)
        case "idle":
            return list(special.measure_idle(bench, run, bench.seconds * IDLE_FACTOR))
        case "lone":
            return list(special.measure_lone(bench))
        case "mixed":
            return list(special.measure_mixed(bench))
        case "backlog":
            return list(special.measure_backlog(bench, run))
        case "cost":
            return list(postgres.measure_cost(bench, run))
        case "together":
            return list(postgres.measure_together(bench, run))
        case "pinned":
            return list(postgres.measure_pinned(bench, run, lengths.pinned_seconds))
        case "peers":
            return list(postgres.measure_peers(bench, run, lengths.jobs))
        case _:
            return delivery_round(bench, run, name, lengths)
    return []


def delivery_round(bench: Bench, run: Run, name: str, lengths: Lengths) -> list[Figure]:
    """One round of a row about delivery, work queues or keys."""
    match name:
        case "deliver":
            return list(delivery.measure_deliver(bench, run, bench.seconds * IDLE_FACTOR))
        case "deliver2":
            return list(delivery.measure_deliver2(bench, run, bench.seconds * IDLE_FACTOR))
        case "waiting":
            return list(delivery.measure_waiting(bench, run, lengths.watch_seconds))
        case "fair":
            return list(delivery.measure_fair(bench, run))
        case "calls":
            delivery.measure_calls(bench, run)
        case "leaks":
            return list(delivery.measure_leaks(bench, run, lengths.leak_rounds))
        case "hostile":
            return list(hostile.measure_hostile(bench, run))
        case "shared":
            return list(work.measure_shared(bench, run, lengths.delayed))
        case "due":
            return list(work.measure_due(bench, run, bench.seconds * IDLE_FACTOR))
        case "keys":
            return list(work.measure_keys(bench, run, lengths.keys))
        case "watch":
            return list(work.measure_watch(bench, run, bench.seconds * IDLE_FACTOR))
        case _:
            return client_round(bench, run, name, lengths)
    return []


def client_round(bench: Bench, run: Run, name: str, lengths: Lengths) -> list[Figure]:
    """One round of a row about the client and the worker."""
    match name:
        case "end":
            return list(client.measure_end(bench, run))
        case "client":
            return list(client.measure_client(bench, run, lengths.pushes))
        case "libraries":
            return list(client.measure_libraries(bench))
        case "tasks":
            return list(client.measure_tasks(bench, run, lengths.tasks))
        case "steps":
            return list(client.measure_steps(bench, run, lengths.tasks))
        case "schedules":
            return list(operate.measure_schedules(bench, run, lengths.watch_seconds))
        case "polling":
            return list(client.measure_polling())
        case "auth":
            return list(operate.measure_auth(bench, run, lengths.auth_rounds))
        case "scrape":
            return list(operate.measure_scrape(bench, run))
        case "page":
            return list(operate.measure_page(bench, run))
        case "lists":
            return list(operate.measure_lists(bench, run))
        case _:
            return bucket_round(bench, run, name, lengths)


def bucket_round(bench: Bench, run: Run, name: str, lengths: Lengths) -> list[Figure]:
    """One round of a row about a bucket."""
    match name:
        case "single":
            return list(s3.measure_single(bench, run))
        case "served":
            return list(s3.measure_served(bench, run))
        case "brokerless":
            return list(s3.measure_brokerless(bench, run))
        case "lonely":
            return list(s3.measure_lonely(bench, run))
        case "quiet":
            return list(s3.measure_quiet(bench, run, lengths.quiet_seconds))
        case "starting":
            return list(s3.measure_starting(bench, run))
    return []


def measure(bench: Bench, run: Run, name: str, repeat: int, lengths: Lengths) -> list[Figure]:
    """All rounds of a row, as medians."""
    figures: list[Figure] = []
    if name in ROWS:
        before = bench.measure_l()
        for _ in range(repeat):
            figures += one_round(bench, ROWS[name], before)
            before = figures[-1]
    else:
        for _ in range(1 if name in ONCE else repeat):
            figures += special_round(bench, run, name, lengths)
    return medians(figures)


def measure_all(bench: Bench, run: Run, names: list[str], repeat: int, lengths: Lengths, console: Console) -> None:
    """All rows; one that breaks does not keep the others from being measured."""
    for name in names:
        console.print(f"[bold]{name}")
        try:
            figures = measure(bench, run, name, repeat, lengths)
        except (RuntimeError, ConnectionError) as error:
            run.broken[name] = str(error)
            console.print(f"{name} broke: {error}", style="red", markup=False, highlight=False)
            continue
        run.figures += figures
        for figure in figures:
            console.print("  " + "  ".join(cell for cell in report.cells(figure) if cell), highlight=False)


def chosen(engine: EngineName, names: str | None, quick: bool) -> list[str]:
    """The names of the rows to run, in the order of the table."""
    every = ALL[engine]
    if names is None:
        return list(QUICK[engine] if quick else every)
    wanted = {name.strip() for name in names.split(",")}
    if unknown := wanted - set(every):
        raise typer.BadParameter(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    return [name for name in every if name in wanted]


@contextmanager
def stores_of(engine: EngineName, folder: Path) -> Iterator[Stores]:
    """Where the servers keep their data."""
    if engine == "sqlite":
        yield SqliteStores()
        return
    if engine == "s3":
        with stub() as bucket:
            yield BucketStores(bucket)
        return
    with cluster(folder) as url:
        yield PostgresStores(url)


def main(
    *,
    engine: Annotated[EngineName, typer.Option(help="The store that Hark runs on.")] = "sqlite",
    rows: Annotated[str | None, typer.Option(help="Only these rows, with commas between.")] = None,
    quick: Annotated[bool, typer.Option(help="Few rows of 2 seconds.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds per row; the median counts.")] = 1,
    seconds: Annotated[float | None, typer.Option(min=1, help="Seconds per row.")] = None,
    pinned_seconds: Annotated[float | None, typer.Option(min=10, help="Seconds of the row `pinned`.")] = None,
    leak_rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of the row `leaks`.")] = None,
    quiet_seconds: Annotated[float | None, typer.Option(min=10, help="Seconds of the row `quiet`.")] = None,
    data: Annotated[Path | None, typer.Option(help="Where the data folders go; a real disk.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Another checkout: measure it and this one in turns, and compare.")
    ] = None,
) -> None:
    """Measure Hark beside the limits of this machine, and check what must hold."""
    # Told to stop, it still stops what it started.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    names = compare.chosen(engine, rows) if against else chosen(engine, rows, quick)
    sides = compare.sides(against) if against else None
    lengths = SHORT if quick else FULL
    if pinned_seconds is not None:
        lengths = msgspec.structs.replace(lengths, pinned_seconds=pinned_seconds)
    if leak_rounds is not None:
        lengths = msgspec.structs.replace(lengths, leak_rounds=leak_rounds)
    if quiet_seconds is not None:
        lengths = msgspec.structs.replace(lengths, quiet_seconds=quiet_seconds)
    length = seconds or (2.0 if quick else 6.0)
    with (
        tempfile.TemporaryDirectory(prefix="hark-bench-", dir=data) as folder,
        stores_of(engine, Path(folder)) as stores,
    ):
        bench = Bench(Path(folder), stores, length, max(1.0, length / 2))
        bench.least_backlog = DEEP_BACKLOG if engine == "postgres" and not quick else 0
        run = Run(machine=report.machine(Path(folder), stores))
        console.print("  ".join(f"{name} {value}" for name, value in run.machine.items()), highlight=False)
        if run.machine["file system"] == NOT_A_DISK:
            console.print("[red]The data folder is in memory: choose a real disk with --data.")
        if sides is not None:
            found = compare.in_turns(bench, sides, names, repeat, lengths.watch_seconds, console)
            console.print(compare.table(found))
            console.print(f"kept in {compare.save(found, sides, run.machine)}")
            return
        try:
            measure_all(bench, run, names, repeat, lengths, console)
        finally:
            report.show(console, run)
            console.print(f"kept in {report.save(run)}")
    if run.broken:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
