"""The rows that only the S3 engine has: what goes through a bucket, how soon, and what it is asked for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from statistics import median

import msgspec

from bench.figures import Figure, Run
from bench.measure import Bench
from bench.procfs import Cpu, rss_mb
from bench.rows import QUEUE, SIZE
from bench.s3.bucket import BucketStores, Counts, Stub
from bench.s3.process import Job
from bench.s3.roundtrip import bare_puts
from bench.s3.team import Together, work_together
from bench.servers import Server, running
from hark.cli.bench import Load, Outcome, generate, percentile

BATCH = 100
PROCESSES = 4
AT_ONCE = 4
"""Producers, and consumers, in each process without a server."""
PRODUCERS, CONSUMERS = 12, 32
"""Connections at a server. A batch is pushed by one request, and consumed by two: a pop, then an ack."""
PARTITIONS = 100
SINGLE_RATE = 4.0
"""Pushes of one message a second: each finds the server idle."""
LONELY_RATE = 2.0
"""Batches a second of a producer that is alone."""
WARM_SECONDS = 1.0
MINUTE = 60.0
replace = msgspec.structs.replace


def measure_served(bench: Bench, run: Run) -> Iterator[Figure]:
    """Batches through one server, pushed and consumed at the same time."""
    push = Load(kind="push", queue=QUEUE, connections=PRODUCERS, batch=BATCH, partitions=PARTITIONS, size=SIZE)
    pop = replace(push, kind="pop", connections=CONSUMERS, wait=True)
    with bench.fresh("hark") as server:
        url = _url(server)
        generate(url, *(replace(load, seconds=WARM_SECONDS) for load in (push, pop)))
        bucket = _bucket(bench)
        before, cpu = bucket.counts(), server.cpu()
        outcomes = generate(url, *(replace(load, seconds=bench.seconds) for load in (push, pop)))
        counts, used = bucket.counts().since(before), server.cpu().since(cpu)
        rss = rss_mb(server.pid)
    for outcome in outcomes:
        verb = f"push 100, {PRODUCERS}" if outcome.kind == "push" else f"pop 100 + ack, {CONSUMERS}"
        title = f"{verb} connections, both at once through one server"
        yield _figure("served", title, outcome, used, rss, counts)
    run.note("s3_served", min(outcome.throughput for outcome in outcomes))
    _note_cost(run, "s3_served", counts, min(outcome.messages for outcome in outcomes))


def measure_brokerless(bench: Bench, run: Run) -> Iterator[Figure]:
    """The same without a server: processes that share nothing but the bucket."""
    store = bench.stores.create(bench.new_folder("brokerless"))
    jobs = [
        Job(target=store.url, name=f"w{number}", producers=AT_ONCE, consumers=AT_ONCE, seconds=bench.seconds)
        for number in range(PROCESSES)
    ]
    together = work_together(_bucket(bench), jobs)
    run.note("s3_brokerless", together.throughput)
    # Whoever is fast must not keep the others from the log.
    shares = [part.pushed / together.pushed * len(jobs) for part in together.parts]
    run.note("s3_brokerless_share", min(shares))
    title = f"push 100, pop 100, ack in {PROCESSES} processes, no server"
    yield _figure_of_team("brokerless", title, together, f"least share {min(shares):.2f} of an equal one")


def measure_lonely(bench: Bench, run: Run) -> Iterator[Figure]:
    """One producer and one consumer, each in a process of its own, with time between the batches."""
    bucket = _bucket(bench)
    with bench.fresh("hark") as server:
        together = work_together(bucket, _pair(_url(server), bench.seconds))
    _note_cost(run, "s3_lonely_served", together.counts, together.consumed)
    title = f"one producer, one consumer, {LONELY_RATE:g} batches of {BATCH} a second"
    yield _figure_of_team("lonely", f"{title}, through a server", together)
    store = bench.stores.create(bench.new_folder("lonely"))
    together = work_together(bucket, _pair(store.url, bench.seconds))
    _note_cost(run, "s3_lonely", together.counts, together.consumed)
    yield _figure_of_team("lonely", f"{title}, no server", together)


def measure_single(bench: Bench, run: Run) -> Iterator[Figure]:
    """One message at a time, beside the round trip of a bare PUT right before and after."""
    bucket = _bucket(bench)
    load = Load(kind="push", queue=QUEUE, connections=1, partitions=1, size=SIZE, rate=SINGLE_RATE)
    trips = asyncio.run(bare_puts(bucket, bench.seconds / 2, SINGLE_RATE))
    with bench.fresh("hark") as server:
        generate(_url(server), replace(load, seconds=WARM_SECONDS))
        cpu = server.cpu()
        [outcome] = generate(_url(server), replace(load, seconds=bench.seconds))
        used, rss = server.cpu().since(cpu), rss_mb(server.pid)
    store = bench.stores.create(bench.new_folder("single"))
    job = Job(target=store.url, name="single", producers=1, batch=1, rate=SINGLE_RATE, seconds=bench.seconds)
    alone = work_together(bucket, [job])
    trips += asyncio.run(bare_puts(bucket, bench.seconds / 2, SINGLE_RATE))
    trip = median(trips)
    yield Figure(
        row="single",
        title="a bare PUT",
        server="the bucket",
        throughput=len(trips) / bench.seconds,
        p50_ms=trip,
        p99_ms=percentile(trips, 99),
    )
    title = f"push 1 at {SINGLE_RATE:g}/s"
    yield _figure("single", f"{title}, through a server", outcome, used, rss, Counts())
    yield _figure_of_team("single", f"{title}, no server", alone)
    run.note("s3_single", percentile(outcome.latencies_ms, 50) / trip)
    run.note("s3_single_brokerless", percentile(alone.parts[0].latencies_ms, 50) / trip)


def measure_quiet(bench: Bench, run: Run, seconds: float) -> Iterator[Figure]:
    """Workers that wait for messages which never come."""
    store = bench.stores.create(bench.new_folder("quiet"))
    jobs = [
        Job(target=store.url, name=f"w{number}", kind="wait", consumers=1, seconds=seconds)
        for number in range(PROCESSES)
    ]
    together = work_together(_bucket(bench), jobs, idle=True)
    minutes = together.seconds / MINUTE
    run.note("s3_quiet_gets", together.counts.get / PROCESSES / minutes)
    run.note("s3_quiet_lists", together.counts.list)
    run.note("s3_quiet_puts", together.counts.put)
    title = f"{PROCESSES} workers without anything to do, for {seconds:g} s"
    yield _figure_of_team("quiet", title, together)


def measure_starting(bench: Bench, run: Run) -> Iterator[Figure]:
    """A server on an empty prefix, and again on the same."""
    store = bench.stores.create(bench.new_folder("starting"))
    bucket = _bucket(bench)
    for title in ("start to the first answer, empty prefix", "the same again"):
        before = bucket.counts()
        with running("hark", store) as server:
            counts = bucket.counts().since(before)
            seconds, rss = server.start_seconds, rss_mb(server.pid)
            time.sleep(WARM_SECONDS)
        yield Figure(
            row="starting",
            title=title,
            server="hark",
            throughput=0,
            p50_ms=1e3 * seconds,
            rss_mb=rss,
            note=_text(counts),
        )
        run.note("s3_start_requests", counts.requests)


def _pair(target: str, seconds: float) -> list[Job]:
    return [
        Job(target=target, name="producer", producers=1, rate=LONELY_RATE, seconds=seconds),
        Job(target=target, name="consumer", consumers=1, seconds=seconds + 1 / LONELY_RATE),
    ]


def _bucket(bench: Bench) -> Stub:
    assert isinstance(bench.stores, BucketStores)
    return bench.stores.bucket


def _note_cost(run: Run, name: str, counts: Counts, messages: int) -> None:
    run.note(f"{name}_requests", counts.requests / max(1, messages))
    run.note(f"{name}_dollars", 1e6 * counts.dollars / max(1, messages))


def _figure(row: str, title: str, outcome: Outcome, used: Cpu, rss: float, counts: Counts) -> Figure:
    notes = [_text(counts)] if counts.requests else []
    if outcome.errors:
        notes.append(f"{outcome.errors:,} errors")
    return Figure(
        row=row,
        title=title,
        server="hark",
        throughput=outcome.throughput,
        p50_ms=percentile(outcome.latencies_ms, 50),
        p99_ms=percentile(outcome.latencies_ms, 99),
        cpu_us=used.total_us / max(1, outcome.messages),
        rss_mb=rss,
        errors=outcome.errors,
        note="; ".join(notes),
    )


def _figure_of_team(row: str, title: str, together: Together, note: str = "") -> Figure:
    pushes = [latency for part in together.parts for latency in part.latencies_ms]
    return Figure(
        row=row,
        title=title,
        server="no server",
        throughput=together.throughput,
        p50_ms=percentile(pushes, 50) if pushes else None,
        p99_ms=percentile(pushes, 99) if pushes else None,
        note="; ".join(filter(None, (_text(together.counts), note))),
    )


def _text(counts: Counts) -> str:
    text = f"{counts.put:,} PUT, {counts.get:,} GET"
    return f"{text}, {counts.list:,} LIST" if counts.list else text


def _url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"
