"""The rows about looking after a server."""

from __future__ import annotations

import asyncio
import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec

import hark
from bench import wrk
from bench.figures import Figure, Run
from bench.measure import WARM_SECONDS, Bench
from bench.operate import lists
from bench.operate.filled import PARTITIONS, QUEUES, fill_many
from bench.procfs import rss_mb
from bench.rows import ROWS, Row
from bench.servers import Server, running
from bench.stores import StoreLocation
from hark.cli.bench import percentile

AUTH_ROWS = ("push1", "push100")
SCRAPES = 30
SCHEDULES = 10_000
AT_ONCE = 50
QUIET_SECONDS = 5.0
replace = msgspec.structs.replace


def measure_auth(bench: Bench, run: Run, rounds: int) -> Iterator[Figure]:
    """The same pushes without and with a token, in turns; the ratio of each turn counts."""
    for name in AUTH_ROWS:
        row = ROWS[name]
        for _ in range(rounds):
            plain = bench.measure_push(row, "hark")
            guarded = _with_token(bench, row)
            run.note(f"auth_{name}", guarded.throughput / plain.throughput)
            yield replace(plain, row="auth")
            yield guarded


def _with_token(bench: Bench, row: Row) -> Figure:
    store = bench.stores.create(bench.new_folder("auth"))
    try:
        token = _token(store)
        settings = {"HARK_AUTH_TOKENS_FILE": str(_tokens(store))}
        with running("hark", store, settings) as server:
            wrk.run(server.port, row.load, WARM_SECONDS, token)
            figure = bench.loaded(server, row, "hark", bench.seconds, token)
    finally:
        bench.stores.remove(store)
    if figure.errors:
        raise RuntimeError(f"{figure.errors} pushes with a token failed")
    return replace(figure, row="auth", title=f"{row.title}, with a token")


def _tokens(store: StoreLocation) -> Path:
    return store.folder.parent / f"{store.folder.name}-tokens.json"


def _token(store: StoreLocation) -> str:
    """A new token, as a user makes one."""
    hark = str(Path(sys.executable).parent / "hark")
    command = [hark, "token", "create", "bench", "--role", "read-write", "--quiet"]
    store.folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {"HARK_AUTH_TOKENS_FILE": str(_tokens(store)), "PATH": "/usr/bin:/bin"}
    made = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return made.stdout.strip()


def measure_scrape(bench: Bench, run: Run) -> Iterator[Figure]:
    """Scrapes of a server with very many queues."""
    with bench.fresh("hark") as server:
        fill_many(server, QUEUES)
        taken, series = _scrapes(server)
        rss = rss_mb(server.pid)
    run.note("scrape_ms", median(taken))
    run.note("scrape_series", series)
    yield Figure(
        row="scrape",
        title=f"GET /metrics with {QUEUES:,} queues, {series:,} series",
        server="hark",
        throughput=len(taken) / (sum(taken) / 1e3),
        p50_ms=percentile(taken, 50),
        p99_ms=percentile(taken, 99),
        rss_mb=rss,
    )


def _scrapes(server: Server) -> tuple[list[float], int]:
    """Milliseconds of each scrape, and how many series the last one had."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    taken = []
    text = b""
    for _ in range(SCRAPES):
        began = time.perf_counter()
        connection.request("GET", "/metrics")
        text = connection.getresponse().read()
        taken.append(1e3 * (time.perf_counter() - began))
        time.sleep(0.1)
    connection.close()
    return taken, sum(1 for line in text.splitlines() if line and not line.startswith(b"#"))


def measure_page(bench: Bench, run: Run) -> Iterator[Figure]:
    """The first page of the dashboard, with very many queues and partitions."""
    from bench.operate.page import visit_all

    with bench.fresh("hark") as server:
        fill_many(server, QUEUES)
        time.sleep(5)  # What the server looks up in the background about so many has been looked up once.
        visits = asyncio.run(visit_all(f"http://127.0.0.1:{server.port}/"))
    run.note("page_paint_ms", median(visit.paint_ms for visit in visits))
    run.note("page_kilobytes", max(visit.kilobytes for visit in visits))
    run.note("page_per_second", max(visit.per_second for visit in visits))
    paints = [visit.paint_ms for visit in visits]
    yield Figure(
        row="page",
        title=f"first paint of the dashboard, {QUEUES:,} queues, {QUEUES * PARTITIONS:,} partitions, "
        f"{visits[-1].kilobytes:.0f} KB",
        server="hark",
        throughput=1e3 / median(paints),
        p50_ms=percentile(paints, 50),
        p99_ms=percentile(paints, 99),
    )


def measure_lists(bench: Bench, run: Run) -> Iterator[Figure]:
    """Each list of a server with 100,000 partitions and a million messages, right after they were pushed."""
    slowest = 0.0
    with bench.fresh("hark") as server:
        lists.fill_large(server)
        for name, taken in lists.time_lists(server):
            slowest = max(slowest, median(taken))
            yield Figure(
                row="lists",
                title=f"{name}, {lists.QUEUES * lists.PARTITIONS:,} partitions",
                server="hark",
                throughput=len(taken) / (sum(taken) / 1e3),
                p50_ms=percentile(taken, 50),
                p99_ms=percentile(taken, 99),
            )
    run.note("lists_ms", slowest)


def measure_schedules(bench: Bench, run: Run, seconds: float) -> Iterator[Figure]:
    """A server with very many schedules of which none is due."""
    with bench.fresh("hark") as server:
        asyncio.run(_create_schedules(f"http://127.0.0.1:{server.port}"))
        time.sleep(QUIET_SECONDS)
        before = server.cpu()
        time.sleep(seconds)
        used, rss = server.cpu().since(before), rss_mb(server.pid)
    share = used.total_us / 1e6 / seconds
    run.note("schedules_cpu", 100 * share)
    yield Figure(
        row="schedules",
        title=f"{SCHEDULES:,} schedules, none of them due, for {seconds:.0f} s",
        server="hark",
        throughput=0,
        rss_mb=rss,
        note=f"{share:.2%} of a core; the database {used.database_us / 1e6 / seconds:.2%}",
    )


async def _create_schedules(url: str) -> None:
    """One half is due in an hour, the other half in half a year."""
    month = 1 + (time.localtime().tm_mon + 5) % 12
    numbers = iter(range(SCHEDULES))
    async with hark.connect(url) as client:

        async def create() -> None:
            for number in numbers:
                cron = None if number % 2 else f"{number % 60} 3 1 {month} *"
                every, queue = "1h" if cron is None else None, f"q{number % 100}"
                await client.schedules.put(f"s{number}", queue, {"number": number}, cron=cron, every=every)

        await asyncio.gather(*(create() for _ in range(AT_ONCE)))
