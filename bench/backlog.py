"""A store with a long history: 100,000 partitions, 1,000,000 settled messages, built through the HTTP API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.figures import Figure
from bench.measure import Bench
from bench.rows import BACKLOG, QUEUE, SIZE
from bench.servers import Server, running
from bench.stores import StoreLocation
from hark.cli.bench import Load, generate

PARTITIONS = 100_000
MESSAGES = 1_000_000
PUSH_BATCH = 100
POP_BATCH = 200
POP_CLAIMS = 20


def build(store: StoreLocation, partitions: int = PARTITIONS, messages: int = MESSAGES) -> None:
    """Push all and settle all, in the queue that is measured later."""
    push = Load(
        kind="push",
        queue=QUEUE,
        connections=8,
        batch=PUSH_BATCH,
        partitions=partitions,
        size=SIZE,
        spread=True,
        requests=messages // PUSH_BATCH,
    )
    settle = Load(
        kind="pop",
        queue=QUEUE,
        connections=8,
        batch=POP_BATCH,
        claims=POP_CLAIMS,
        auto_ack=True,
        requests=messages,  # it ends when nothing is left
    )
    with running("hark", store) as server:
        url = f"http://127.0.0.1:{server.port}"
        for load in (push, settle):
            outcome = generate(url, load)[0]
            if outcome.messages != messages:
                raise RuntimeError(f"building the backlog: {load.kind} moved {outcome.messages:,} of {messages:,}")


@contextmanager
def _both(bench: Bench, history: StoreLocation) -> Iterator[tuple[Server, Server]]:
    with bench.fresh("hark") as empty, running("hark", history) as old:
        yield empty, old


def compare(bench: Bench, history: StoreLocation, reference: float) -> Iterator[tuple[Figure, Figure]]:
    """Each row on an empty store and on the one with the history, right after each other."""
    with _both(bench, history) as servers:
        for row in BACKLOG:
            pair = []
            for server, kind in zip(servers, ("hark, empty store", "hark, long history"), strict=True):
                if row.load.kind == "push":
                    pair.append(bench.push_at(server, row, kind))
                else:
                    pair.append(bench.pop_at(server, row, kind, row.guess * reference * bench.seconds)[0])
            yield pair[0], pair[1]


def cost(empty: Figure, old: Figure) -> float:
    """How many times as much a message costs with the history: by the clock or by CPU, whichever is worse."""
    by_clock = empty.throughput / max(old.throughput, 1)
    by_cpu = (old.cpu_us or 0) / (empty.cpu_us or 1)
    return max(by_clock, by_cpu)
