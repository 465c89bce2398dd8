"""`hark bench`: generates load on a running server and prints the results."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from hark.cli.command import DEFAULT_URL, FAILED, Failure, Json, Url, complain
from hark.cli.load import Load, Outcome, generate, percentile
from hark.cli.output import raw, table
from hark.cli.remote import call, path


class Mode(StrEnum):
    """The operations that `hark bench` measures."""

    push = "push"
    pop = "pop"
    both = "both"


def plan(mode: Mode, shape: Load, backlog: int) -> tuple[list[Load], list[Load]]:
    """Return the loads to run first, and the loads to measure."""
    replace = msgspec.structs.replace
    if mode is Mode.push:
        return [], [shape]
    if mode is Mode.both:
        half = max(1, shape.connections // 2)
        push = replace(shape, connections=half)
        return [], [push, replace(push, kind="pop", wait=True)]
    prefill = replace(shape, connections=8, batch=100, spread=False, rate=0, requests=-(-backlog // 100))
    return [prefill], [replace(shape, kind="pop")]


def _summary(outcome: Outcome) -> dict[str, float | int | str]:
    """Return the figures of one stream for `--json`."""
    return {
        "kind": outcome.kind,
        "messages": outcome.messages,
        "requests": outcome.requests,
        "errors": outcome.errors,
        "empty": outcome.empty,
        "seconds": round(outcome.seconds, 3),
        "throughput": round(outcome.throughput, 1),
        "p50Ms": round(percentile(outcome.latencies_ms, 50), 3),
        "p99Ms": round(percentile(outcome.latencies_ms, 99), 3),
    }


def _show(outcomes: Sequence[Outcome]) -> None:
    columns = ("Operation", "Messages/s", "p50 (ms)", "p99 (ms)", "Messages", "Errors", "Empty pops")
    rows = []
    for outcome in outcomes:
        p50, p99 = (round(percentile(outcome.latencies_ms, percent), 2) for percent in (50, 99))
        counts = (outcome.messages, outcome.errors, outcome.empty)
        rows.append((outcome.kind, round(outcome.throughput), p50, p99, *counts))
    table(columns, rows)


def _measure(url: str, first: Sequence[Load], measured: Sequence[Load], queue: str) -> list[Outcome]:
    """Run the loads, then delete the queue."""
    call(url, "GET", "/health")
    try:
        if first:
            generate(url, *first)
        return generate(url, *measured)
    except ConnectionError as error:
        raise Failure(f"the benchmark of {url} stopped early: {error}; check the server with: hark doctor") from error
    finally:
        call(url, "DELETE", path("resources", "queues", queue), timeout=60)


def bench(
    *,
    mode: Annotated[Mode, typer.Option(help="Operation to measure; pop includes the ack.")] = Mode.push,
    connections: Annotated[int, typer.Option(min=1, metavar="N", help="Number of connections.")] = 32,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Messages per request.")] = 1,
    partitions: Annotated[int, typer.Option(min=1, metavar="N", help="Number of partitions.")] = 1000,
    size: Annotated[int, typer.Option(min=10, metavar="BYTES", help="Payload size, in bytes.")] = 256,
    seconds: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Duration of the measurement, in seconds.")
    ] = 5,
    rate: Annotated[
        float, typer.Option(min=0, metavar="N", help="Requests per second; 0 sends as fast as possible.")
    ] = 0,
    backlog: Annotated[
        int, typer.Option(min=1, metavar="N", help="Messages to push before --mode pop starts.")
    ] = 50_000,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Measure the throughput and latency of a running server.

    The command creates a queue with a random name, and deletes it at the end.
    """
    queue = f"bench-{secrets.token_hex(4)}"
    shape = Load(
        kind="push",
        queue=queue,
        connections=connections,
        batch=batch,
        partitions=partitions,
        size=size,
        seconds=seconds,
        rate=rate,
    )
    try:
        outcomes = _measure(url, *plan(mode, shape, backlog), queue)
    except Failure as failure:
        complain(str(failure))
        raise typer.Exit(failure.exit_code) from None
    if as_json:
        raw(msgspec.json.encode([_summary(outcome) for outcome in outcomes]))
    else:
        _show(outcomes)
    if any(outcome.errors for outcome in outcomes):
        complain("some requests failed and are not counted in the throughput; the server's log has the reasons")
        raise typer.Exit(FAILED)
