"""The rows about delivery: each starts its servers, lets a client loose on them, and notes what must hold."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bench.delivery import calls, deliver, fair, idle, leaks
from bench.delivery.apart import apart, raise_open_files
from bench.delivery.deliver import Delivered
from bench.delivery.pair import two_servers
from bench.figures import Figure, Run
from bench.measure import Bench
from bench.procfs import rss_mb
from bench.servers import Server, running
from hark.cli.bench import percentile

MANY = 1000
"""From so many rounds on the waves of misbehaving clients are larger."""
replace = msgspec.structs.replace


def figure_of(row: str, title: str, server: Server, delivered: Delivered) -> Figure:
    """The latencies of deliveries, as a figure."""
    messages = max(1, len(delivered.latencies_ms))
    losses = ((delivered.lost, "lost"), (delivered.twice, "twice"))
    return Figure(
        row=row,
        title=title,
        server="hark",
        throughput=delivered.throughput,
        p50_ms=percentile(delivered.latencies_ms, 50),
        p99_ms=percentile(delivered.latencies_ms, 99),
        cpu_us=delivered.cpu.total_us / messages,
        store_us=delivered.cpu.store_us / messages,
        rss_mb=rss_mb(server.pid),
        generator_cpu=delivered.generator_cpu,
        errors=delivered.lost,
        note="; ".join(f"{number:,} {what}" for number, what in losses if number),
    )


def measure_deliver(bench: Bench, run: Run, seconds: float) -> Iterator[Figure]:
    """Push to delivery on one server."""
    with bench.fresh("hark") as server:
        done = apart(deliver.at_a_rate, deliver.Plan(pushed_at=server, popped_at=server, seconds=seconds))
        title = f"push to delivery, {deliver.RATE:.0f}/s, {deliver.WAITERS} long polls"
        figure = figure_of("deliver", title, server, done)
    run.note("deliver_p50", figure.p50_ms or 0)
    run.note("deliver_p99", figure.p99_ms or 0)
    run.note("deliver_lost", done.lost)
    yield figure


def measure_deliver2(bench: Bench, run: Run, seconds: float) -> Iterator[Figure]:
    """Push at one server, delivery at another: told by UDP, and without a word."""
    with two_servers(bench, blocked=False) as (first, second):
        plan = deliver.Plan(pushed_at=first, popped_at=second, seconds=seconds)
        notified = apart(deliver.at_a_rate, plan)
        title = f"pushed here, delivered there, {deliver.RATE:.0f}/s, {deliver.WAITERS} long polls, UDP"
        yield figure_of("deliver2", title, second, notified)
    with two_servers(bench, blocked=True) as (first, second):
        plan = deliver.Plan(pushed_at=first, popped_at=second, seconds=seconds)
        unnotified = apart(deliver.without_hints, plan)
        title = f"the same with UDP blocked, to {deliver.FALLBACK_QUEUES} queues that were idle"
        yield figure_of("deliver2", title, second, unnotified)
    run.note("deliver2_p50", percentile(notified.latencies_ms, 50))
    run.note("deliver2_blocked", max(unnotified.latencies_ms, default=0) / 1e3)
    run.note("deliver2_lost", notified.lost + unnotified.lost)


def measure_waiting(bench: Bench, run: Run, seconds: float) -> Iterator[Figure]:
    """Ten thousand pops that wait."""
    raise_open_files()
    with bench.fresh("hark") as server:
        done = apart(idle.watch, idle.Plan(server=server, watch_seconds=seconds))
        title = f"push to delivery beside {idle.WAITERS:,} pops that wait at {idle.QUEUES} queues"
        figure = figure_of("waiting", title, server, done.delivered)
    costs = f"{done.kilobytes_each:.1f} KB each; {done.cpu_share:.2%} of a core while idle"
    run.note("waiting_cpu", done.cpu_share * 100)
    run.note("waiting_kb", done.kilobytes_each)
    run.note("waiting_p99", figure.p99_ms or 0)
    run.note("waiting_lost", done.delivered.lost)
    yield replace(figure, note="; ".join(filter(None, (costs, figure.note))))


def measure_fair(bench: Bench, run: Run) -> Iterator[Figure]:
    """A thousand equal consumers, over WebSockets and in rounds of long polls."""
    raise_open_files()
    for name, client, what in (
        ("sockets", fair.over_sockets, f"WebSockets, credit {fair.CREDIT}"),
        ("polls", fair.over_polls, f"long polls, {fair.ROUNDS} rounds"),
    ):
        with bench.fresh("hark") as server:
            shares = apart(client, fair.Plan(port=server.port))
            rss = rss_mb(server.pid)
        run.note(f"fair_{name}", shares.spread)
        run.note(f"empty_{name}", shares.all_empty)
        notified = ", ".join(f"{count:,} by {source}" for source, count in shares.empty_wakes.items()) or "none"
        yield Figure(
            row="fair",
            title=f"{sum(shares.counts):,} messages among {len(shares.counts):,} {what}",
            server="hark",
            throughput=sum(shares.counts) / shares.seconds,
            rss_mb=rss,
            note=f"{min(shares.counts)} to {max(shares.counts)} each; told for nothing: {notified}",
        )


def measure_calls(bench: Bench, run: Run) -> None:
    """Pops that one call of the engine serves."""
    with bench.fresh("hark") as server:
        shared = apart(calls.share, calls.Plan(port=server.port))
    run.note("calls_parked", shared.parked)
    run.note("calls_arriving", shared.arriving)


def measure_leaks(bench: Bench, run: Run, rounds: int) -> Iterator[Figure]:
    """Clients that misbehave in every state, and what they leave behind."""
    raise_open_files()
    store = bench.stores.create(bench.new_folder("leaks"))
    with running("hark", store, leaks.SETTINGS) as server:
        plan = leaks.Plan(port=server.port, pid=server.pid, rounds=rounds, wave=100 if rounds >= MANY else 25)
        done = apart(leaks.misbehave, plan)
    bench.stores.remove(store)
    run.note("leaks_left", done.left)
    run.note("leaks_leases", done.leases)
    run.note("leaks_lost", done.lost)
    run.note("leaks_growth", done.growth_mb)
    run.note("leaks_files", leaks.growth(done.open_files))
    yield Figure(
        row="leaks",
        title=f"{done.clients:,} clients that misbehave, {rounds:,} rounds",
        server="hark",
        throughput=done.messages / done.seconds,
        rss_mb=done.rss_mb[-1],
        note=f"memory {done.growth_mb:+.1f} MB from the first to the last quarter",
    )
