"""The rows that are not closed loops: limits, start and memory, latency at fixed rates, a long history."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench import backlog, limits, openloop, raw
from bench.figures import Figure, Run, figure_of
from bench.measure import Bench
from bench.procfs import rss_mb
from bench.servers import Kind, running

STARTS = 3
SETTLE_SECONDS = 1.0
MIXED_RATES = (500.0, 2000.0)


def measure_limits(bench: Bench, run: Run) -> None:
    """Limit (a), for one partition and for the spread of the other rows."""
    folder = bench.new_folder("limits")
    folder.mkdir()
    for partitions in (1, 1000):
        for method in limits.METHODS:
            run.limits.append(limits.insertion(folder, method, partitions, bench.seconds))


def measure_start(bench: Bench, run: Run) -> None:
    """Start to first answer on an empty folder, and what the server then holds while it idles."""
    for _ in range(STARTS):
        with bench.fresh("hark") as server:
            time.sleep(SETTLE_SECONDS)
            run.note("start", server.start_seconds)
            run.note("rss", rss_mb(server.pid))


def measure_idle(bench: Bench, run: Run, seconds: float) -> Iterator[Figure]:
    """Single pushes at a low rate, with the disk alone before and after."""
    folder = bench.new_folder("disk")
    folder.mkdir()
    servers: tuple[Kind, ...] = ("floor", "hark")
    title = f"push 1 at {openloop.IDLE_RATE:.0f}/s, 1 connection"
    for kind in servers:
        syncs = limits.sync_times(folder, seconds / 2, openloop.IDLE_RATE)
        with bench.fresh(kind) as server:
            openloop.idle_pushes(server.port, SETTLE_SECONDS)
            before = server.cpu()
            sample = openloop.idle_pushes(server.port, seconds)
            used, rss = server.cpu().since(before), rss_mb(server.pid)
        syncs += limits.sync_times(folder, seconds / 2, openloop.IDLE_RATE)
        yield figure_of("idle", title, kind, sample, cpu=used, rss=rss)
        if kind == "hark":
            run.disk = limits.disk_of(syncs)
            run.note("idle", sample.p99_ms / run.disk.p99_ms)


def measure_lone(bench: Bench, kinds: tuple[Kind, ...] = ("bare", "floor", "hark")) -> Iterator[Figure]:
    """Pushes of one client on a plain socket, each after the answer to the one before."""
    for kind in kinds:
        with bench.fresh(kind) as server:
            raw.lone_pushes(server.port, SETTLE_SECONDS)
            before = server.cpu()
            sample = raw.lone_pushes(server.port, bench.seconds)
            used, rss = server.cpu().since(before), rss_mb(server.pid)
        yield figure_of("lone", "push 1, 1 connection, plain socket", kind, sample, cpu=used, rss=rss)


def measure_mixed(bench: Bench) -> Iterator[Figure]:
    """Pushes and pops with acks at the same time, at fixed rates."""
    for rate in MIXED_RATES:
        with bench.fresh("hark") as server:
            before = server.cpu()
            samples = openloop.mixed(server.port, bench.seconds, rate)
            used, rss = server.cpu().since(before), rss_mb(server.pid)
        for verb, sample in zip(("push 1", "pop 1 + ack"), samples, strict=True):
            yield figure_of("mixed", f"{verb}, both at {rate:,.0f}/s", "hark", sample, cpu=used, rss=rss)


def measure_backlog(bench: Bench, run: Run) -> Iterator[Figure]:
    """What a long history costs: at start, and per message."""
    if bench.history is None:
        bench.history = bench.stores.create(bench.folder / "history")
        backlog.build(bench.history)
        for _ in range(STARTS):
            with running("hark", bench.history) as server:
                run.note("start_backlog", server.start_seconds)
    used = bench.stores.copy(bench.history, bench.new_folder("history"))
    for empty, old in backlog.compare(bench, used, bench.measure_l().full_core):
        run.note(f"backlog_{empty.row}", backlog.cost(empty, old))
        yield from (empty, old)
    bench.stores.remove(used)
