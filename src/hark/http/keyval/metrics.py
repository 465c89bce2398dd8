"""Metrics of the key-value API, as JSON and for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.responses import Response

from hark.broker.operations import Operations
from hark.http.answers import keyval as answers
from hark.http.keyval.params import BASE, QUEUE, queue_param
from hark.http.routes.requests import broker_of, query_of, reply
from hark.http.routes.table import Reach, Table, read
from hark.prometheus import CONTENT_TYPE, counter, gauge, histogram, one, text

_STATES = {
    "pending": "Pending messages",
    "processing": "Messages in flight",
    "dlq": "Dead letters",
    "total": "Pending messages, messages in flight and dead letters",
}


async def metrics(request: Request) -> Response:
    """Get metrics of the key-value API as JSON.

    Returns counts and latencies of operations, the state of a work queue and the size of the key-value store.
    """
    broker = broker_of(request)
    tallies = broker.operations.tallies()
    storage = await broker.keyvalue.key_stats()
    answer: answers.KeyvalMetrics = {
        "operations": {
            "operations": {
                name: {
                    "count": tally.count,
                    "errors": tally.errors,
                    "avgLatencyMs": round(tally.milliseconds.sum / tally.count, 3),
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
    return reply(answer)


async def prometheus(request: Request) -> Response:
    """Get metrics of the key-value API for Prometheus. Returns the Prometheus text format."""
    broker = broker_of(request)
    storage = await broker.keyvalue.key_stats()
    families = list(_operation_metrics(broker.operations))
    for state, number in cast("dict[str, int]", await _queue(request)).items():
        families.append(gauge(f"keyval_queue_{state}", f"{_STATES[state]} of the work queue.", one(number)))
    families.append(gauge("keyval_entries_total", "Entries in the key-value store.", one(storage.entries)))
    families.append(gauge("keyval_storage_bytes", "Size of all keys and values, in bytes.", one(storage.bytes)))
    return Response(text(families), headers={"content-type": CONTENT_TYPE})


async def _queue(request: Request) -> answers.WorkStats:
    stats = await broker_of(request).work_queues.stats(queue_param(query_of(request)))
    return {"pending": stats.pending, "processing": stats.processing, "dlq": stats.dlq, "total": stats.total}


def _operation_metrics(operations: Operations) -> Iterator[Metric]:
    tallies = operations.tallies()
    yield counter(
        "keyval_operations_total",
        "Operations, by name.",
        [({"operation": name}, tally.count) for name, tally in tallies.items()],
    )
    yield counter(
        "keyval_errors_total",
        "Operations that failed because of the server, by name.",
        [({"operation": name}, tally.errors) for name, tally in tallies.items()],
    )
    yield histogram(
        "keyval_operation_duration_ms",
        "Duration of operations in milliseconds, by name.",
        [({"operation": name}, tally.milliseconds) for name, tally in tallies.items()],
    )


TABLE: Table = {
    f"{BASE}/metrics": {"GET": read(metrics, Reach.SERVER, query=(QUEUE,), answer=answers.KeyvalMetrics)},
    f"{BASE}/metrics/prometheus": {
        "GET": read(prometheus, Reach.SERVER, query=(QUEUE,), answer=str, media="text/plain")
    },
}
