"""The store: calls of the engine, batches, and what the engine says of itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from hark.batching import BatchSizes
from hark.broker import Broker
from hark.histograms import Histogram
from hark.prometheus import NO_LABELS, Labels, counter, gauge, histogram, one

_BATCH_BITS = 11
"""Batches of more than a thousand requests share the last bucket."""


class Shown(NamedTuple):
    """How a number of the engine is shown; those whose names end in `_total` only grow."""

    name: str
    meaning: str
    labels: Labels = NO_LABELS


_REQUESTS = ("hark_store_s3_requests_total", "Requests to the bucket, by kind.")
_BYTES = ("hark_store_s3_bytes_total", "Bytes of bodies, to and from the bucket.")
_CACHE = ("hark_store_s3_cache_lookups_total", "Looks into the cache of payloads.")
_POOL = ("hark_store_pool_connections", "Connections to PostgreSQL, by state.")
STORE: Mapping[str, Shown] = {
    "database_bytes": Shown("hark_store_database_bytes", "Size of the database."),
    "free_bytes": Shown("hark_store_free_bytes", "What of the database is free pages."),
    "log_bytes": Shown("hark_store_log_bytes", "Size of the write-ahead log."),
    "dead_tuples": Shown("hark_store_dead_tuples", "Dead rows, as PostgreSQL estimates."),
    "live_tuples": Shown("hark_store_live_tuples", "Live rows, as PostgreSQL estimates."),
    "partitions_dead_tuples": Shown("hark_store_partitions_dead_tuples", "Dead rows of table partitions."),
    "tracks_dead_tuples": Shown("hark_store_tracks_dead_tuples", "Dead rows of table tracks."),
    "table_bytes": Shown("hark_store_table_bytes", "All tables with their indexes."),
    "oldest_xmin_transactions": Shown(
        "hark_store_oldest_snapshot_transactions", "How far back the oldest snapshot is, in transactions."
    ),
    "oldest_xmin_seconds": Shown("hark_store_oldest_snapshot_seconds", "How old the oldest snapshot is."),
    "message_slots": Shown("hark_store_message_slots", "Tables of messages that are not empty."),
    "lease_slots": Shown("hark_store_lease_slots", "Tables of leases that are not empty."),
    "pool_connections": Shown(*_POOL, {"state": "open"}),
    "pool_idle": Shown(*_POOL, {"state": "idle"}),
    "pool_waiting": Shown("hark_store_pool_waiting_calls", "Calls that wait for a connection."),
    "pool_connects": Shown("hark_store_pool_connects_total", "Connections made."),
    "pool_failures": Shown("hark_store_pool_failures_total", "Attempts to connect that failed."),
    "s3_log_records": Shown("hark_store_s3_log_records", "The number of the last record known here."),
    "s3_requests_put": Shown(*_REQUESTS, {"kind": "put"}),
    "s3_requests_get": Shown(*_REQUESTS, {"kind": "get"}),
    "s3_requests_list": Shown(*_REQUESTS, {"kind": "list"}),
    "s3_requests_delete": Shown(*_REQUESTS, {"kind": "delete"}),
    "s3_requests_failed": Shown("hark_store_s3_failures_total", "Requests to the bucket that failed."),
    "s3_bytes_up": Shown(*_BYTES, {"direction": "up"}),
    "s3_bytes_down": Shown(*_BYTES, {"direction": "down"}),
    "s3_dollars": Shown("hark_store_s3_dollars_total", "What these requests cost."),
    "s3_linger_seconds": Shown("hark_store_s3_linger_seconds", "How far apart records are kept, now."),
    "s3_round_trip_seconds": Shown("hark_store_s3_round_trip_seconds", "How long the bucket takes, now."),
    "s3_snapshots": Shown("hark_store_s3_snapshots_total", "Snapshots made here."),
    "s3_objects_removed": Shown("hark_store_s3_removed_objects_total", "Objects removed here."),
    "s3_clock_offset_seconds": Shown(
        "hark_store_s3_clock_offset_seconds", "What the clock of the bucket is ahead of this machine's."
    ),
    "s3_cache_bytes": Shown("hark_store_s3_cache_bytes", "Bytes in the cache of payloads."),
    "s3_cache_pieces": Shown("hark_store_s3_cache_pieces", "Pieces in the cache of payloads."),
    "s3_cache_hits": Shown(*_CACHE, {"result": "hit"}),
    "s3_cache_misses": Shown(*_CACHE, {"result": "miss"}),
}
"""By the engine's own names."""
ELSEWHERE = frozenset(("leases_expired", "expiries_buried"))
"""Numbers of the engine that are among those of messages."""


def call_metrics(broker: Broker) -> Iterator[Metric]:
    """Calls of the engine and what shared them."""
    calls = broker.engine_calls
    yield histogram(
        "hark_engine_call_seconds",
        "How long calls of the engine took, by verb.",
        [({"verb": verb}, seconds) for verb, seconds in calls.seconds.items()],
    )
    yield counter(
        "hark_engine_errors_total",
        "Calls of the engine that failed, by verb and code.",
        [({"verb": verb, "code": code}, number) for (verb, code), number in calls.errors.items()],
    )
    yield histogram(
        "hark_batch_requests",
        "How many requests shared a call of the engine, by verb.",
        [({"verb": verb}, _batches(sizes)) for verb, sizes in broker.batch_sizes().items()],
    )


def only_grows(name: str) -> bool:
    """Whether a number of the engine is a counter."""
    return name in ELSEWHERE or (name in STORE and STORE[name].name.endswith("_total"))


def store_metrics(numbers: Mapping[str, float], *, is_up: bool) -> Iterator[Metric]:
    """What the engine says of its store, or said last of what only grows."""
    yield gauge("hark_store_up", "1 if the store answered this scrape.", one(float(is_up)))
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
