"""The row `hostile`: the effect of attacks on other clients and on the memory of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import uvloop

from bench.delivery.apart import apart, raise_open_files
from bench.delivery.wires import pool
from bench.figures import Figure, Run
from bench.hostile.attacks import ATTACKS, CALM, Plan, Sent, attack
from bench.measure import Bench
from bench.procfs import peak_mb, rss_mb
from bench.raw import RawClient, get
from bench.servers import Server
from hark.cli.bench import percentile

RATE = 100.0
PROBERS = 200
FAILED_MS = 30_000.0
"""The latency of a request that fails, and the longest that one may take."""
LIVE = b"/health/live"
WARM_PROBES = 50


def measure_hostile(bench: Bench, run: Run) -> Iterator[Figure]:
    """Nothing and each attack on a fresh server, with a client beside it that asks whether the server lives."""
    raise_open_files()
    for each in (CALM, *ATTACKS):
        with bench.fresh("hark") as server, ThreadPoolExecutor(1) as threads:
            _warm(server)
            before = rss_mb(server.pid)
            attacking = threads.submit(apart, attack, Plan(each.name, server.port, bench.seconds))
            probes, errors = uvloop.run(_probed(server, attacking))
            sent = attacking.result()
            peak = peak_mb(server.pid)
        latencies = [latency for due, latency in probes if sent.began <= due <= sent.ended]
        p99, growth = percentile(latencies, 99), peak - before
        run.note(f"hostile_{each.name}_p99", p99)
        run.note(f"hostile_{each.name}_mb", growth)
        yield Figure(
            row="hostile",
            title=f"/health/live beside {each.title}",
            server="hark",
            throughput=len(latencies) / (sent.ended - sent.began),
            p50_ms=percentile(latencies, 50),
            p99_ms=p99,
            rss_mb=peak,
            errors=errors,
            note=f"{growth:+.0f} MB; {sent.megabytes:,.0f} MB sent on {sent.connections:,} connections"
            + (f"; {errors} errors" if errors else ""),
        )


async def _probed(server: Server, attacking: Future[Sent]) -> tuple[list[tuple[float, float]], int]:
    """Ask at fixed times until the attack is over: when each was due, the milliseconds since then, and errors.

    Each request has a connection to itself: one that waits for its answer does not keep the next one waiting.
    """
    probes: list[tuple[float, float]] = []
    errors = 0

    async def probe(due: float) -> None:
        nonlocal errors
        try:
            async with asyncio.timeout(FAILED_MS / 1e3):
                status, _ = await probers.request(b"GET", LIVE)
        except OSError:
            status = 0
        if status == 200:
            probes.append((due, (time.monotonic() - due) * 1e3))
        else:
            errors += 1
            probes.append((due, FAILED_MS))

    async with pool(server.port, PROBERS) as probers, asyncio.TaskGroup() as probe_tasks:
        due = time.monotonic()
        while not attacking.done():
            await asyncio.sleep(due - time.monotonic())
            probe_tasks.create_task(probe(due))
            due += 1 / RATE
    return probes, errors


def _warm(server: Server) -> None:
    with RawClient(server.port) as client:
        for path in (b"/", LIVE) * WARM_PROBES:
            client.ask(get(path))
