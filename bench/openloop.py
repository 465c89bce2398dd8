"""Open-loop load: requests are due at fixed times, whatever the server does, and latency counts from then.

A closed loop sends less while the server is slow and so leaves out the worst waits (coordinated omission).
The generator itself, raw sockets in a process of its own, is the one of `hark bench`.
"""

from __future__ import annotations

from bench.rows import PARTITIONS, QUEUE, SIZE
from bench.wrk import Sample
from hark.cli.bench import Load, Outcome, generate, percentile

IDLE_RATE = 100.0


def sample_of(outcome: Outcome) -> Sample:
    """An outcome in the form of the closed-loop rows."""
    return Sample(
        messages=outcome.messages,
        seconds=outcome.seconds,
        errors=outcome.errors,
        empty=0,  # a consumer that is faster than the producer finds nothing, as it should
        p50_ms=percentile(outcome.latencies_ms, 50),
        p99_ms=percentile(outcome.latencies_ms, 99),
        generator_cpu=0,
    )


def idle_pushes(port: int, seconds: float) -> Sample:
    """Single pushes on one connection, far below what the server can do."""
    load = Load(
        kind="push",
        queue=QUEUE,
        connections=1,
        partitions=PARTITIONS,
        size=SIZE,
        seconds=seconds,
        rate=IDLE_RATE,
    )
    return sample_of(generate(f"http://127.0.0.1:{port}", load)[0])


def mixed(port: int, seconds: float, rate: float) -> tuple[Sample, Sample]:
    """Single pushes and single pops with acks, each at a fixed rate, at the same time."""
    push = Load(kind="push", queue=QUEUE, connections=32, partitions=PARTITIONS, size=SIZE, seconds=seconds, rate=rate)
    pop = Load(kind="pop", queue=QUEUE, connections=32, partitions=PARTITIONS, seconds=seconds, rate=rate)
    pushed, popped = generate(f"http://127.0.0.1:{port}", push, pop)
    return sample_of(pushed), sample_of(popped)
