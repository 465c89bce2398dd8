"""The row `hostile`: what attackers do to everybody else, and to the memory of the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from bench.delivery.apart import apart, raise_open_files
from bench.figures import Figure, Run
from bench.hostile.attacks import ATTACKS, CALM, Plan, Sent, attack
from bench.measure import Bench
from bench.procfs import peak_mb, rss_mb
from bench.raw import RawClient, get
from bench.servers import Server
from hark.cli.load import percentile

RATE = 100.0
LIVE = get(b"/health/live")
WARM_PROBES = 50


def measure_hostile(bench: Bench, run: Run) -> Iterator[Figure]:
    """Nothing and each attack on a fresh server, with a client beside it that asks whether the server lives."""
    raise_open_files()
    for each in (CALM, *ATTACKS):
        with bench.fresh("hark") as server, ThreadPoolExecutor(1) as threads:
            _warm(server)
            before = rss_mb(server.pid)
            attacking = threads.submit(apart, attack, Plan(each.name, server.port, bench.seconds))
            probes, errors = _probe_while(server, attacking)
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


def _warm(server: Server) -> None:
    with RawClient(server.port) as client:
        for path in (b"/", b"/health/live") * WARM_PROBES:
            client.ask(get(path))


def _probe_while(server: Server, attacking: Future[Sent]) -> tuple[list[tuple[float, float]], int]:
    """Ask at fixed times until the attack is over: when each was due, the milliseconds since then, and errors."""
    probes: list[tuple[float, float]] = []
    errors = 0
    client = RawClient(server.port)
    due = time.monotonic()
    while not attacking.done():
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            errors += client.ask(LIVE) != 200
        except OSError:
            errors += 1
            client.close()
            client = RawClient(server.port)
        probes.append((due, (time.monotonic() - due) * 1e3))
        due += 1 / RATE
    client.close()
    return probes, errors
