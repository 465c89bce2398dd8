"""Measures one row at one server: fill if it pops, warm up, load, and read what it used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import msgspec

from bench import wrk
from bench.figures import Figure, figure_of
from bench.procfs import rss_mb
from bench.rows import BARE_ROW, Row
from bench.servers import Kind, Server, running
from bench.stores import SqliteStores, StoreLocation, Stores
from hark.cli.bench import Load, generate

FILL_BATCH = 100
WARM_SECONDS = 1.0
WARM_QUEUE = "warm"
DRY = 0.01
"""More empty pops than this share of all messages: the backlog ended before the time did."""
replace = msgspec.structs.replace


class Bench:
    """Where servers get a fresh place for their data, and how long they are measured."""

    def __init__(self, folder: Path, stores: Stores, seconds: float, l_seconds: float) -> None:
        self.folder = folder
        self.stores = stores
        self.seconds = seconds
        self.l_seconds = l_seconds
        self.least_backlog = 0
        """Messages that deep pop rows find at least."""
        self.history: StoreLocation | None = None
        """The store with a long history, once a row has built it."""
        self.environment: dict[str, str] = {}
        """Variables of Hark's environment, and of programs that use its client: which checkout runs."""
        self._serial = count()

    def new_folder(self, name: str) -> Path:
        """A path that nothing has used yet."""
        return self.folder / f"{next(self._serial):03d}-{name}"

    @contextmanager
    def fresh(self, kind: Kind) -> Iterator[Server]:
        """A server on an empty place, which goes away with it."""
        stores = SqliteStores() if kind == "bare" else self.stores
        store = stores.create(self.new_folder(kind))
        try:
            with running(kind, store, self.environment if kind == "hark" else None) as server:
                yield server
        finally:
            stores.remove(store)

    def measure_l(self) -> Figure:
        """L: what a request costs the bare protocol."""
        with self.fresh("bare") as server:
            wrk.run(server.port, BARE_ROW.load, WARM_SECONDS)
            figure = self.loaded(server, BARE_ROW, "bare", self.l_seconds)
            return replace(figure, title="requests of the size of push1, 64 connections")

    def measure_push(self, row: Row, kind: Kind) -> Figure:
        """A push row on a fresh server."""
        with self.fresh(kind) as server:
            return self.push_at(server, row, kind)

    def push_at(self, server: Server, row: Row, kind: str) -> Figure:
        """A push row on a server that runs."""
        wrk.run(server.port, row.load, WARM_SECONDS)
        return self.loaded(server, row, kind, self.seconds)

    def measure_pop(self, row: Row, messages: float) -> Figure:
        """A pop row on a fresh server, again with a larger backlog where it ran dry."""
        for _ in range(3):
            with self.fresh("hark") as server:
                figure, dry = self.pop_at(server, row, "hark", messages)
            if not dry:
                break
            messages *= 2
        return figure

    def pop_at(self, server: Server, row: Row, kind: str, messages: float) -> tuple[Figure, bool]:
        """A pop row on a server that runs; and whether the backlog ran dry."""
        # Warming up on a queue of its own: leases that its end leaves open do not block the measured one.
        fill(server.port, replace(row.load, queue=WARM_QUEUE), messages / self.seconds * WARM_SECONDS)
        fill(server.port, row.load, messages)
        wrk.run(server.port, replace(row.load, queue=WARM_QUEUE), WARM_SECONDS)
        figure = self.loaded(server, row, kind, self.seconds)
        return figure, "empty pops" in figure.note

    def loaded(self, server: Server, row: Row, kind: str, seconds: float, token: str = "") -> Figure:
        """A load at a server that is warm, and what it used; with a token if the server wants one."""
        before = server.cpu()
        sample = wrk.run(server.port, row.load, seconds, token)
        used = server.cpu().since(before)
        if sample.empty <= sample.messages * DRY / row.load.batch:
            sample = replace(sample, empty=0)
        return figure_of(row.name, row.title, kind, sample, cpu=used, rss=rss_mb(server.pid))


def fill(port: int, load: Load, messages: float) -> None:
    """Push at least so many messages, the same number to each partition."""
    rounds = max(1, -(-int(messages) // (load.partitions * FILL_BATCH)))
    push = replace(load, kind="push", connections=8, batch=FILL_BATCH, spread=False, requests=rounds * load.partitions)
    outcome = generate(f"http://127.0.0.1:{port}", push)[0]
    if outcome.errors:
        raise RuntimeError(f"{outcome.errors} of {outcome.requests} pushes failed while filling the backlog")
