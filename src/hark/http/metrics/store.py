"""Metrics of the store: calls of the engine, batches, and metrics of the engine itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from hark.batching import BatchSizes
from hark.broker import Broker
from hark.histograms import Histogram
from hark.prometheus import NO_LABELS, Labels, counter, gauge, histogram, one

_BATCH_BITS = 11
"""Batches of more than 1024 requests share the last bucket."""


class Shown(NamedTuple):
    """The metric of an engine value. Names that end in `_total` are counters."""

    name: str
    meaning: str
    labels: Labels = NO_LABELS


_REQUESTS = ("hark_store_s3_requests_total", "Requests to the bucket, by kind.")
_BYTES = ("hark_store_s3_bytes_total", "Bytes sent to and received from the bucket, by direction.")
_CACHE = ("hark_store_s3_cache_lookups_total", "Lookups in the payload cache, by result.")
_POOL = ("hark_store_pool_connections", "Connections to PostgreSQL, by state.")
STORE: Mapping[str, Shown] = {
    "database_bytes": Shown("hark_store_database_bytes", "Size of the database in bytes."),
    "free_bytes": Shown("hark_store_free_bytes", "Size of the free pages of the database in bytes."),
    "log_bytes": Shown("hark_store_log_bytes", "Size of the write-ahead log in bytes."),
    "dead_tuples": Shown("hark_store_dead_tuples", "Dead rows, estimated by PostgreSQL."),
    "live_tuples": Shown("hark_store_live_tuples", "Live rows, estimated by PostgreSQL."),
    "partitions_dead_tuples": Shown("hark_store_partitions_dead_tuples", "Dead rows of the table partitions."),
    "tracks_dead_tuples": Shown("hark_store_tracks_dead_tuples", "Dead rows of the table tracks."),
    "table_bytes": Shown("hark_store_table_bytes", "Size of all tables with their indexes, in bytes."),
    "oldest_xmin_transactions": Shown(
        "hark_store_oldest_snapshot_transactions", "Age of the oldest snapshot, in transactions."
    ),
    "oldest_xmin_seconds": Shown("hark_store_oldest_snapshot_seconds", "Age of the oldest snapshot, in seconds."),
    "message_slots": Shown("hark_store_message_slots", "Message tables that are not empty."),
    "lease_slots": Shown("hark_store_lease_slots", "Lease tables that are not empty."),
    "pool_connections": Shown(*_POOL, {"state": "open"}),
    "pool_idle": Shown(*_POOL, {"state": "idle"}),
    "pool_waiting": Shown("hark_store_pool_waiting_calls", "Calls that wait for a connection to PostgreSQL."),
    "pool_connects": Shown("hark_store_pool_connects_total", "Connections to PostgreSQL that were opened."),
    "pool_failures": Shown("hark_store_pool_failures_total", "Failed attempts to connect to PostgreSQL."),
    "s3_log_records": Shown("hark_store_s3_log_records", "Number of the last log record that this server knows."),
    "s3_requests_put": Shown(*_REQUESTS, {"kind": "put"}),
    "s3_requests_get": Shown(*_REQUESTS, {"kind": "get"}),
    "s3_requests_list": Shown(*_REQUESTS, {"kind": "list"}),
    "s3_requests_delete": Shown(*_REQUESTS, {"kind": "delete"}),
    "s3_requests_failed": Shown("hark_store_s3_failures_total", "Requests to the bucket that failed."),
    "s3_bytes_up": Shown(*_BYTES, {"direction": "up"}),
    "s3_bytes_down": Shown(*_BYTES, {"direction": "down"}),
    "s3_dollars": Shown("hark_store_s3_dollars_total", "Estimated cost of the requests to the bucket, in US dollars."),
    "s3_linger_seconds": Shown(
        "hark_store_s3_linger_seconds", "Current minimum interval between log records, in seconds."
    ),
    "s3_round_trip_seconds": Shown(
        "hark_store_s3_round_trip_seconds", "Current round-trip time to the bucket, in seconds."
    ),
    "s3_snapshots": Shown("hark_store_s3_snapshots_total", "Snapshots written by this server."),
    "s3_objects_removed": Shown("hark_store_s3_removed_objects_total", "Objects removed by this server."),
    "s3_clock_offset_seconds": Shown(
        "hark_store_s3_clock_offset_seconds", "Offset of the bucket clock ahead of the local clock, in seconds."
    ),
    "s3_cache_bytes": Shown("hark_store_s3_cache_bytes", "Size of the payload cache in bytes."),
    "s3_cache_pieces": Shown("hark_store_s3_cache_pieces", "Entries in the payload cache."),
    "s3_cache_hits": Shown(*_CACHE, {"result": "hit"}),
    "s3_cache_misses": Shown(*_CACHE, {"result": "miss"}),
}
"""Metrics by the names of the engine values."""
ELSEWHERE = frozenset(("leases_expired", "expiries_buried"))
"""Engine values that are part of the message metrics."""


def call_metrics(broker: Broker) -> Iterator[Metric]:
    """Return the metrics of engine calls and batches."""
    calls = broker.engine_calls
    yield histogram(
        "hark_engine_call_seconds",
        "Duration of engine calls in seconds, by verb.",
        [({"verb": verb}, seconds) for verb, seconds in calls.seconds.items()],
    )
    yield counter(
        "hark_engine_errors_total",
        "Failed engine calls, by verb and error code.",
        [({"verb": verb, "code": code}, number) for (verb, code), number in calls.errors.items()],
    )
    yield histogram(
        "hark_batch_requests",
        "Requests per engine call, by verb.",
        [({"verb": verb}, _batches(sizes)) for verb, sizes in broker.batch_sizes().items()],
    )


def only_grows(name: str) -> bool:
    """Return whether an engine value is a counter."""
    return name in ELSEWHERE or (name in STORE and STORE[name].name.endswith("_total"))


def store_metrics(numbers: Mapping[str, float], *, is_up: bool) -> Iterator[Metric]:
    """Return the metrics of the engine; if the store does not respond, the last counters."""
    yield gauge("hark_store_up", "1 if the store responded to this scrape, else 0.", one(float(is_up)))
    rows: dict[tuple[str, str], list[tuple[Labels, float]]] = {}
    for name, number in numbers.items():
        shown = STORE.get(name)
        if shown is not None:
            rows.setdefault((shown.name, shown.meaning), []).append((shown.labels, number))
    for (name, meaning), found in rows.items():
        yield (counter if name.endswith("_total") else gauge)(name, meaning, found)


def _batches(sizes: BatchSizes) -> Histogram:
    batches = Histogram([2**bits for bits in range(_BATCH_BITS)])
    batches.counts = [*sizes.counts[:_BATCH_BITS], sum(sizes.counts[_BATCH_BITS:])]
    batches.sum = sizes.requests
    return batches
