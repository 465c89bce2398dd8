"""Enqueue to settled: Hark through its HTTP server, and each peer, on databases of one server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from bench.figures import Figure
from bench.measure import Bench
from bench.peers.peer import PAYLOAD, Span
from bench.rows import QUEUE
from bench.servers import ROOT
from bench.stores import StoreLocation
from hark.cli.bench import Load, generate

PUSH = Load(kind="push", queue=QUEUE, connections=8, partitions=100, size=len(msgspec.json.encode(PAYLOAD)))
POP = Load(kind="pop", queue=QUEUE, connections=8, claims=100)
HARK_BATCHES = (100, 1000)
"""Messages in a push, and in a pop."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with the settings of its workers."""

    name: str
    at_once: int
    """Jobs that a worker takes or runs at a time."""
    share: float
    """Of the jobs of the run: a slow one gets fewer."""

    @property
    def title(self) -> str:
        """As the table shows it."""
        return f"{self.name}, {self.at_once} at a time"


PEERS = (
    Peer(name="pgqueuer", at_once=10, share=1),  # its own benchmark's
    Peer(name="pgqueuer", at_once=1000, share=1),  # the best on two cores
    Peer(name="procrastinate", at_once=2, share=0.2),  # the best on two cores
)
WORKERS = 2
"""Processes of a peer; more are not faster on two cores."""


def rate(enqueued: Span, worked: Sequence[Span], jobs: int) -> float:
    """Jobs per second, from the first enqueued to the last settled."""
    working = max(span.ended for span in worked) - min(span.began for span in worked)
    return jobs / (enqueued.ended - enqueued.began + working)


def measure(bench: Bench, jobs: int) -> Iterator[Figure]:
    """Hark first, then the peers, each on a new database."""
    for batch in HARK_BATCHES:
        yield _figure(f"hark, {batch} at a time", jobs, _hark(bench, batch, jobs))
    for peer in PEERS:
        store = bench.stores.create(bench.new_folder(peer.name))
        try:
            some = int(jobs * peer.share)
            yield _figure(peer.title, some, _peer(peer, store, some))
        finally:
            bench.stores.remove(store)


def best(figures: Iterable[Figure], name: str) -> float:
    """The highest throughput of a queue, whatever its settings."""
    return max(figure.throughput for figure in figures if figure.server.startswith(name))


def _figure(server: str, jobs: int, throughput: float) -> Figure:
    return Figure(row="peers", title=f"{jobs:,} jobs, enqueue to settled", server=server, throughput=throughput)


def _hark(bench: Bench, batch: int, jobs: int) -> float:
    push = msgspec.structs.replace(PUSH, batch=batch, requests=jobs // batch)
    pop = msgspec.structs.replace(POP, batch=batch, requests=jobs)  # it ends when nothing is left
    seconds = 0.0
    with bench.fresh("hark") as server:
        for load in (push, pop):
            outcome = generate(f"http://127.0.0.1:{server.port}", load)[0]
            if outcome.messages != jobs:
                raise RuntimeError(f"{load.kind} moved {outcome.messages:,} of {jobs:,}")
            seconds += outcome.seconds
    return jobs / seconds


def _peer(peer: Peer, store: StoreLocation, jobs: int) -> float:
    [enqueued] = _spans([_start(peer, "enqueue", store, jobs)])
    worked = _spans([_start(peer, "work", store, peer.at_once) for _ in range(WORKERS)])
    return rate(enqueued, worked, jobs)


def _start(peer: Peer, verb: str, store: StoreLocation, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"bench.peers.{peer.name}", verb, store.url, str(number)]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _spans(processes: Sequence[subprocess.Popen[str]]) -> list[Span]:
    spans = []
    for process in processes:
        output, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(f"a peer failed; is it installed (pip install 'hark[bench]')?\n{errors[-2000:]}")
        spans.append(msgspec.json.decode(output, type=Span))
    return spans
