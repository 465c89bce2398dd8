"""The rows about the Python client and the worker, each beside its peers in one run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import msgspec

from bench.client import celery, end, libraries, polling
from bench.client.program import BATCH, FILLED, PUSHERS, Taken
from bench.figures import Figure, Run
from bench.measure import Bench
from bench.postgres.cluster import PostgresStores, cluster
from bench.procfs import rss_mb
from bench.servers import ROOT, Server
from hark.cli.bench import percentile

OFFICIAL = ROOT / ".venv" / "queen-clients" / "2.6.0"
CONSUMED = 10_000
ROUNDS = 3
LATENCIES = 100
AT_ONCE = 50
WARM_TASKS = 1_000
STEPS = {
    "plain": "pushed and run",
    "stored": "pushed and run with stored results",
    "push_chains": "pushed as chains",
    "run_chains": "run, each step pushed by the one before",
}


def run_program(module: str, verb: str, url: str, number: int, environment: Mapping[str, str] | None = None) -> Taken:
    """Run one of the programs in a process of its own."""
    printed = run_module(f"bench.client.{module}", [verb, url, str(number)], environment)
    return msgspec.json.decode(printed, type=Taken)


def run_module(module: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a module in a process of its own; the last line that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]  # The official client prints, too.


def measure_client(bench: Bench, run: Run, pushes: int) -> Iterator[Figure]:
    """Single pushes at the same time, and batches consumed: the official client and ours, in turns."""
    if not OFFICIAL.is_dir():
        raise RuntimeError("the official client is not there; scripts/test installs it")
    official = {"PYTHONPATH": str(OFFICIAL)}
    rates: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for module, environment in (("official", official), ("ours", {})):
            with bench.fresh("hark") as server:
                pushed = run_program(module, "push", _url(server), max(pushes, CONSUMED), environment)
                consumed = run_program(module, "consume", _url(server), CONSUMED, environment)
            if consumed.number < CONSUMED:
                raise RuntimeError(f"{module} consumed {consumed.number:,} of {CONSUMED:,}")
            rates.setdefault((module, "push"), []).append(pushed.rate)
            rates.setdefault((module, "consume"), []).append(consumed.rate)
            with bench.fresh("hark") as server:
                run_program("ours", "fill", _url(server), CONSUMED)
                consumed = run_program(module, "consume", _url(server), CONSUMED, environment)
            rates.setdefault((module, "consume_many"), []).append(consumed.rate)
    titles = {
        "push": f"single pushes, {PUSHERS} at a time",
        "consume": f"consume + ack, batches of {BATCH}, one partition",
        "consume_many": f"consume + ack, batches of {BATCH}, {FILLED} partitions",
    }
    for verb, title in titles.items():
        for module in ("official", "ours"):
            yield Figure(row="client", title=title, server=module, throughput=median(rates[module, verb]))
        run.note(f"client_{verb}", median(rates["ours", verb]) / median(rates["official", verb]))


def measure_end(bench: Bench, run: Run) -> Iterator[Figure]:
    """Push to handler through Hark's client at a fixed rate; where another checkout serves, its client is used."""
    with bench.fresh("hark") as server:
        plan = msgspec.json.encode(end.Plan(server, bench.seconds)).decode()
        printed = run_module("bench.client.end", [plan], bench.environment)
        result, rss = msgspec.json.decode(printed, type=end.Result), rss_mb(server.pid)
    run.note("end_lost", result.lost)
    messages = max(1, len(result.latencies_ms))
    yield Figure(
        row="end",
        title=f"push to handler by Hark's client, {end.RATE:.0f}/s, {end.HANDLERS} handlers with ack",
        server="hark",
        throughput=messages / result.seconds,
        p50_ms=percentile(result.latencies_ms, 50),
        p99_ms=percentile(result.latencies_ms, 99),
        cpu_us=result.cpu.total_us / messages,
        server_us=result.cpu.server_us / messages,
        store_us=result.cpu.store_us / messages,
        rss_mb=rss,
        generator_cpu=result.own_cpu,
        errors=result.lost,
        note=f"{result.lost:,} lost" if result.lost else "",
    )


def measure_libraries(bench: Bench) -> Iterator[Figure]:
    """The HTTP clients that could carry ours, at the bare protocol."""
    with bench.fresh("bare") as server:
        title = "requests of the size of push1"
        for name, rate in libraries.measure_libraries(_url(server), bench.seconds).items():
            yield Figure(row="libraries", title=title, server=name, throughput=rate)


def measure_tasks(bench: Bench, run: Run, tasks: int) -> Iterator[Figure]:
    """Tasks that do nothing, in one worker process: ours, Celery's, procrastinate's; and how soon one begins."""
    title = f"{tasks:,} tasks that do nothing, per worker process"
    rates: dict[str, float] = {}
    with bench.fresh("hark") as server:
        run_program("hark_worker", "push", _url(server), tasks)
        rates["hark"] = run_program("hark_worker", "work", _url(server), tasks).rate
    for children in celery.CHILDREN:
        rates[f"celery, prefork {children}"] = celery.rate(bench.new_folder("celery"), tasks, children)
    with cluster(bench.folder) as url:
        stores = PostgresStores(url)
        store = stores.create(bench.new_folder("tasks"))
        run_program("procrastinate_worker", "push", store.url, tasks // 5)
        rates["procrastinate"] = run_program("procrastinate_worker", "work", store.url, tasks // 5).rate
    for name, rate in rates.items():
        yield Figure(row="tasks", title=title, server=name, throughput=rate)
    best_celery = max(rate for name, rate in rates.items() if name.startswith("celery"))
    run.note("tasks_celery", rates["hark"] / best_celery)
    run.note("tasks_procrastinate", rates["hark"] / rates["procrastinate"])
    with bench.fresh("hark") as server:
        taken = run_program("hark_worker", "latency", _url(server), LATENCIES)
    run.note("tasks_p50", percentile(taken.latencies_ms, 50))
    yield Figure(
        row="tasks",
        title="push to the start of the handler, idle worker, long polling",
        server="hark",
        throughput=taken.rate,
        p50_ms=percentile(taken.latencies_ms, 50),
        p99_ms=percentile(taken.latencies_ms, 99),
    )


def measure_steps(bench: Bench, run: Run, tasks: int) -> Iterator[Figure]:
    """Plain tasks, tasks with a stored result, and chains, in turns: CPU for each, of worker and server."""
    for _ in range(ROUNDS):
        costs: dict[str, float] = {}
        for verbs in (("plain",), ("stored",), ("push_chains", "run_chains")):
            for figure in measure_programs(bench, verbs, tasks):
                yield figure
                costs[figure.title] = (figure.cpu_us or 0) + 1e6 * (figure.generator_cpu or 0) / figure.throughput
        plain, stored, pushed, handed_over = costs.values()
        run.note("steps_stored", stored / plain)
        run.note("steps_chains", handed_over / plain)
        run.note("steps_with_push", (pushed + handed_over) / plain)


def measure_programs(bench: Bench, verbs: Sequence[str], tasks: int) -> Iterator[Figure]:
    """Programs of a worker process, at one server. Where another checkout serves, its worker is used."""
    with bench.fresh("hark") as server:
        for verb in verbs:
            run_program("hark_worker", verb, _url(server), WARM_TASKS, bench.environment)
        for verb in verbs:
            before = server.cpu()
            taken = run_program("hark_worker", verb, _url(server), tasks, bench.environment)
            used = server.cpu().since(before)
            yield Figure(
                row="steps",
                title=f"{tasks:,} tasks that do nothing, one process: {STEPS[verb]}",
                server="hark",
                throughput=taken.rate,
                cpu_us=used.total_us / taken.number,
                server_us=used.server_us / taken.number,
                store_us=used.store_us / taken.number,
                rss_mb=rss_mb(server.pid),
                generator_cpu=taken.cpu_us * taken.rate / 1e6,
                note=f"CPU of the worker: {taken.cpu_us:.0f} us",
            )


def measure_polling() -> Iterator[Figure]:
    """A day of a quiet queue under each strategy; throughput is polls a second."""
    for name, strategy in polling.STRATEGIES.items():
        day = polling.live(strategy)
        yield Figure(
            row="polling",
            title=f"a day with {polling.MESSAGES} messages",
            server=name,
            throughput=day.polls / polling.DAY,
            p50_ms=percentile(day.latencies_ms, 50),
            p99_ms=percentile(day.latencies_ms, 99),
            note=f"{day.polls:,} polls, ${day.dollars:.2f} a month on S3, latest {polling.worst(day):,.0f} ms",
        )


def _url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"
