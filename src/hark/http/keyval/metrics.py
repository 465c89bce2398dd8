"""Numbers about the key-value API, as JSON and for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from starlette.requests import Request
from starlette.responses import Response

from hark.broker.operations import BUCKETS_MS, Operations
from hark.http.keyval.params import BASE, queue_param
from hark.http.routes.requests import broker_of, query_of, reply
from hark.http.routes.table import Table


async def metrics(request: Request) -> Response:
    """Counts and latencies of operations, and how much is stored."""
    broker = broker_of(request)
    tallies = broker.operations.tallies()
    storage = await broker.keyvalue.key_stats()
    return reply(
        {
            "operations": {
                "operations": {
                    name: {
                        "count": tally.count,
                        "errors": tally.errors,
                        "avgLatencyMs": round(tally.total_ms / tally.count, 3),
                    }
                    for name, tally in tallies.items()
                },
                "totals": {
                    "operations": sum(tally.count for tally in tallies.values()),
                    "errors": sum(tally.errors for tally in tallies.values()),
                },
            },
            "queue": await _queue(request),
            "storage": {"entries": storage.entries, "sizeBytes": storage.bytes},
        }
    )


async def prometheus(request: Request) -> Response:
    """The same in the text format of Prometheus."""
    broker = broker_of(request)
    storage = await broker.keyvalue.key_stats()
    lines = list(_operation_lines(broker.operations))
    for state, number in (await _queue(request)).items():
        lines += _gauge(f"keyval_queue_{state}", f"Messages of the work queue: {state}.", number)
    lines += _gauge("keyval_entries_total", "Entries of the key-value store.", storage.entries)
    lines += _gauge("keyval_storage_bytes", "Bytes of its keys and values.", storage.bytes)
    return Response("\n".join([*lines, ""]), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})


async def _queue(request: Request) -> dict[str, int]:
    stats = await broker_of(request).work_queues.stats(queue_param(query_of(request)))
    return {"pending": stats.pending, "processing": stats.processing, "dlq": stats.dlq, "total": stats.total}


def _operation_lines(operations: Operations) -> Iterator[str]:
    tallies = operations.tallies()
    yield from _head("keyval_operations_total", "counter", "Operations that were asked for.")
    for name, tally in tallies.items():
        yield f'keyval_operations_total{{operation="{name}"}} {tally.count}'
    yield from _head("keyval_errors_total", "counter", "Operations that the server could not do.")
    for name, tally in tallies.items():
        yield f'keyval_errors_total{{operation="{name}"}} {tally.errors}'
    duration = "keyval_operation_duration_ms"
    yield from _head(duration, "histogram", "Milliseconds that operations took.")
    for name, tally in tallies.items():
        for bound, number in zip((*BUCKETS_MS, "+Inf"), accumulate(tally.buckets), strict=True):
            yield f'{duration}_bucket{{operation="{name}",le="{bound}"}} {number}'
        yield f'{duration}_sum{{operation="{name}"}} {tally.total_ms:.3f}'
        yield f'{duration}_count{{operation="{name}"}} {tally.count}'


def _gauge(name: str, meaning: str, number: int) -> list[str]:
    return [*_head(name, "gauge", meaning), f"{name} {number}"]


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


TABLE: Table = {
    f"{BASE}/metrics": {"GET": metrics},
    f"{BASE}/metrics/prometheus": {"GET": prometheus},
}
