"""The rows that only PostgreSQL has, and its limits."""

from __future__ import annotations

from collections.abc import Iterator

from bench.figures import Figure, Run
from bench.measure import Bench
from bench.peers import compare as peers
from bench.postgres import cost, limits, mixed
from bench.servers import running

BATCHES_PER_SECOND = 20
"""Of a row's length: how many batches each round of the cost row pushes."""
WINDOWS = 10
"""A run with a held transaction is looked at in so many parts; in full, minutes."""


def measure_limits(bench: Bench, run: Run) -> None:
    """Limits (c) and (d)."""
    for partitions in (1, 1000):
        store = bench.stores.create(bench.new_folder("limits"))
        run.limits.append(limits.copying(store, partitions, bench.seconds))
        bench.stores.remove(store)
    store = bench.stores.create(bench.new_folder("limits"))
    run.limits.append(limits.commit_rate(store, bench.seconds))
    bench.stores.remove(store)


def measure_cost(bench: Bench, run: Run) -> Iterator[Figure]:
    """CPU of PostgreSQL per pushed message, beside COPY."""
    for case in cost.CASES:
        stores = [bench.stores.create(bench.new_folder("cost")) for _ in range(2)]
        ratio, figures = cost.compare(stores[0], stores[1], case, int(BATCHES_PER_SECOND * bench.seconds))
        run.note(case.name, ratio)
        yield from figures
        for store in stores:
            bench.stores.remove(store)


def measure_together(bench: Bench, run: Run) -> Iterator[Figure]:
    """Pushes beside consumers that must keep up."""
    with bench.fresh("hark") as server:
        both, figure = mixed.figures(
            server, "together", "push 1, 64 connections, beside 8 x pop 100 + ack", bench.seconds
        )
    run.note("together_left", both.left_behind)
    run.note("together_p99", both.pushed.p99_ms)
    yield figure


def measure_pinned(bench: Bench, run: Run, seconds: float) -> Iterator[Figure]:
    """The same load for long beside a transaction that stays open, and after it."""
    window = seconds / WINDOWS
    store = bench.stores.create(bench.new_folder("pinned"))
    speeds: list[float] = []

    def part(title: str) -> Figure:
        both, figure = mixed.figures(server, "pinned", f"{title}, {window:g} s each", window)
        speeds.append(both.throughput)
        return figure

    with running("hark", store) as server:
        mixed.together(server, bench.seconds)  # the partitions are made before the transaction begins
        with mixed.open_transaction(store.url):
            for number in range(WINDOWS):
                yield part(f"transaction held, part {number + 1} of {WINDOWS}")
        for title in ("right after it", "one part later"):
            yield part(title)
    run.note("pinned", speeds[WINDOWS - 1] / speeds[0])
    run.note("pinned_after", speeds[-1] / speeds[0])
    bench.stores.remove(store)


def measure_peers(bench: Bench, run: Run, jobs: int) -> Iterator[Figure]:
    """Enqueue to settled, beside other queues."""
    figures = list(peers.measure(bench, jobs))
    for name in {peer.name for peer in peers.PEERS}:
        run.note(f"peer_{name}", peers.best(figures, "hark") / peers.best(figures, name))
    yield from figures
