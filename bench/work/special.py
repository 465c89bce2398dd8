"""The rows about work queues and keys: each starts its servers, lets clients loose, and notes what must hold."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bench.delivery.apart import apart
from bench.delivery.deliver import WAITERS
from bench.delivery.special import figure_of
from bench.figures import Figure, Run
from bench.measure import WARM_QUEUE, Bench
from bench.procfs import rss_mb
from bench.rows import QUEUE
from bench.work import due, keys
from bench.work.shared import cycle_at, delay_many
from hark.cli.bench import percentile

BATCHES = (1, 100)
replace = msgspec.structs.replace


def measure_shared(bench: Bench, run: Run, delayed: int) -> Iterator[Figure]:
    """The same work ordered, shared, and shared beside many delayed messages, right after each other."""
    reference = bench.measure_l().full_core
    for batch in BATCHES:
        cycles = {}
        for kind in ("ordered", "shared", "delayed"):
            with bench.fresh("hark") as server:
                if kind == "delayed":
                    for queue in (QUEUE, WARM_QUEUE):
                        delay_many(server, delayed if queue == QUEUE else 1, queue)
                    bench.stores.settle()
                cycles[kind] = cycle_at(bench, server, batch, reference, shared=kind != "ordered", kind="hark")
            for half in (cycles[kind].push, cycles[kind].pop):
                title = half.title + (f", beside {delayed:,} delayed" if kind == "delayed" else "")
                yield replace(half, title=title, ratio_l=half.throughput / reference)
        run.note(f"shared{batch}", cycles["shared"].throughput / cycles["ordered"].throughput)
        run.note(f"shared{batch}_delayed", cycles["delayed"].cost_over(cycles["shared"]))


def measure_due(bench: Bench, run: Run, seconds: float) -> Iterator[Figure]:
    """How long after its time a message is there."""
    with bench.fresh("hark") as server:
        done = apart(due.at_their_times, due.Plan(server=server, seconds=seconds))
        title = f"due time to delivery, {due.RATE:.0f}/s, {WAITERS} long polls of a shared group"
        figure = figure_of("due", title, server, done)
    run.note("due_p99", figure.p99_ms or 0)
    run.note("due_early", sum(latency < 0 for latency in done.latencies_ms))
    run.note("due_lost", done.lost)
    yield figure


def measure_keys(bench: Bench, run: Run, number: int) -> Iterator[Figure]:
    """Lists below prefixes in a large store."""
    with bench.fresh("hark") as server:
        taken = apart(keys.list_prefixes, keys.Plan(server=server, keys=number))
        rss = rss_mb(server.pid)
    run.note("keys_p99", percentile(taken, 99))
    yield Figure(
        row="keys",
        title=f"list of {keys.LISTED} below a prefix among {number:,} keys, 1 connection",
        server="hark",
        throughput=len(taken) / (sum(taken) / 1e3),
        p50_ms=percentile(taken, 50),
        p99_ms=percentile(taken, 99),
        rss_mb=rss,
    )


def measure_watch(bench: Bench, run: Run, seconds: float) -> Iterator[Figure]:
    """From a write to a watcher of its key."""
    with bench.fresh("hark") as server:
        delays = apart(keys.watch_writes, keys.Plan(server=server, seconds=seconds))
        rss = rss_mb(server.pid)
    run.note("watch_p99", percentile(delays.latencies_ms, 99))
    run.note("watch_lost", delays.lost)
    yield Figure(
        row="watch",
        title=f"write to watcher, {keys.WRITE_RATE:.0f}/s, {keys.WATCHERS} watchers",
        server="hark",
        throughput=len(delays.latencies_ms) / delays.seconds,
        p50_ms=percentile(delays.latencies_ms, 50),
        p99_ms=percentile(delays.latencies_ms, 99),
        rss_mb=rss,
        errors=delays.lost,
    )
