"""A work queue beside the ordered path: push, pop and ack of one message, as many per second as both halves allow."""

from __future__ import annotations

import msgspec

from bench.figures import Figure
from bench.measure import FILL_BATCH, Bench, fill
from bench.rows import ROWS, Row
from bench.servers import Server
from hark.cli.bench import Load, generate

CONSUMERS = 64
DELAY_MS = 3_600_000
DELAYED_BATCH = 1000
replace = msgspec.structs.replace


class Cycle(msgspec.Struct, frozen=True):
    """The two halves of a message's life."""

    push: Figure
    pop: Figure

    @property
    def throughput(self) -> float:
        """Messages per second that are pushed, popped and acknowledged when one half follows the other."""
        return 1 / (1 / max(self.push.throughput, 1) + 1 / max(self.pop.throughput, 1))

    @property
    def cpu_us(self) -> float:
        """CPU of the server for one message."""
        return (self.push.cpu_us or 0) + (self.pop.cpu_us or 0)

    def cost_over(self, other: Cycle) -> float:
        """How many times as much a message costs: by the clock or by CPU, whichever is worse."""
        return max(other.throughput / self.throughput, self.cpu_us / (other.cpu_us or 1))


def rows_of(batch: int, *, shared: bool) -> tuple[Row, Row]:
    """The push row and the pop row: over a thousand partitions in order, or on one that all consumers share."""
    push, pop = ROWS[f"push{batch}"], ROWS[f"pop{batch}"]
    if shared:
        push = replace(push, name="shared", load=replace(push.load, partitions=1))
        # Not bound by partitions: this is what a shared group is for.
        pop = replace(pop, name="shared", load=replace(pop.load, partitions=1, connections=CONSUMERS, shared=True))
    return replace(push, name="shared"), replace(pop, name="shared")


def cycle_at(bench: Bench, server: Server, batch: int, reference: float, *, shared: bool, kind: str) -> Cycle:
    """Both halves on a server that runs; pops first, as pushes leave messages behind."""
    push, pop = rows_of(batch, shared=shared)
    messages = pop.guess * reference * bench.seconds
    for _ in range(3):
        consumed, dry = bench.pop_at(server, pop, kind, messages)
        if not dry:
            break
        messages *= 2
    return Cycle(bench.push_at(server, push, kind), consumed)


def delay_many(server: Server, number: int, queue: str) -> None:
    """Fill the partition with messages whose time has not come, and let the group go by them once."""
    load = Load(kind="push", queue=queue, connections=4, batch=DELAYED_BATCH, partitions=1, delay_ms=DELAY_MS)
    url = f"http://127.0.0.1:{server.port}"
    outcome = generate(url, replace(load, requests=-(-number // DELAYED_BATCH)))[0]
    if outcome.errors:
        raise RuntimeError(f"{outcome.errors} pushes of delayed messages failed")
    fill(server.port, replace(load, delay_ms=0), FILL_BATCH)
    generate(url, replace(load, kind="pop", batch=FILL_BATCH, shared=True, delay_ms=0, connections=1, requests=1))
