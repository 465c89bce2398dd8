"""The metrics of `GET /metrics`. They are counted elsewhere and only read here."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric

from hark._version import __version__
from hark.batching import BatchSizes
from hark.broker import Broker
from hark.broker.broker import POP_MAINTENANCE, PUSH_MAINTENANCE
from hark.broker.survey import Depths, QueueDepth
from hark.broker.tallies import MOST_QUEUES, Tallies, Tally
from hark.clock import SECOND
from hark.errors import HarkError
from hark.http.exchange import OTHER, Requests
from hark.prometheus import NO_LABELS, Histogram, Labels, Rows, counter, gauge, histogram, one, text

# A counter must never jump, or Prometheus would see traffic that did not happen. So the counter of a newly chosen queue
# starts at 0, and its earlier messages stay in the counter of all other queues. When a queue is replaced, its messages
# are not added to the other queues.

SHOWN = 100
_LOYALTY = 2.0
"""How many times busier a queue must be than the queue that it replaces: each change costs series."""

_FORGOTTEN = 0.01
"""A lower score counts as none."""
REST = ""
"""The label of all other queues: no queue has this name."""


class BusiestQueues:
    """The busiest queues, chosen again at every scrape."""

    def __init__(self, tallies: Tallies, most: int = SHOWN) -> None:
        self._tallies = tallies
        self._most = most
        self._seen: dict[str, int] = {}
        """Activity of the queues at the last scrape."""
        self._scores: dict[str, float] = {}
        """Recent activity; each scrape halves the earlier activity."""
        self._shown: dict[str, tuple[Tally, Tally]] = {}
        """Their tallies, and the values of these when the queues were chosen."""
        self._last_tallies: dict[str, Tally] = {}
        """The values of the last scrape."""
        self._retired = Tally()
        """The last values of replaced queues; their later messages count among the other queues."""

    def look(self, backlog: Mapping[str, int]) -> dict[str, Tally]:
        """Return the values of the busiest queues, and of all others as `REST`; `backlog` ranks idle queues."""
        new = self._note_busy()
        chosen = self._choose(backlog)
        for name in set(self._shown).difference(chosen):
            del self._shown[name]
            self._retired.add(self._last_tallies[name])
        for name in chosen:
            self._admit(name, is_new=name in new)
        numbers = {name: _difference(tally, base) for name, (tally, base) in self._shown.items()}
        rest = _difference(self._tallies.total, self._retired)
        for tally in numbers.values():
            rest = _difference(rest, tally)
        self._last_tallies = numbers
        return {**numbers, REST: rest}

    def _note_busy(self) -> set[str]:
        """Score the activity since the last scrape, and return the new queues."""
        new = set()
        self._scores = {name: score / 2 for name, score in self._scores.items() if score > _FORGOTTEN}
        for name, tally in reversed(self._tallies.queues.items()):
            done, before = tally.activity, self._seen.get(name)
            if done == before:
                break  # The remaining queues were last active before the last scrape.
            if before is None:
                new.add(name)
            self._seen[name] = done
            # A queue that was removed in between starts again at 0.
            self._scores[name] = self._scores.get(name, 0.0) + max(0, done - (before or 0))
        if len(self._seen) > 2 * MOST_QUEUES:
            self._seen = {name: done for name, done in self._seen.items() if name in self._tallies.queues}
        return new

    def _choose(self, backlog: Mapping[str, int]) -> list[str]:
        stuck = heapq.nlargest(self._most, filter(backlog.get, backlog), key=backlog.__getitem__)
        scores = dict.fromkeys((*stuck, *self._shown), 0.0) | self._scores

        def rank(name: str) -> tuple[float, int]:
            return scores[name] * (_LOYALTY if name in self._shown else 1.0), backlog.get(name, 0)

        return heapq.nlargest(self._most, scores, key=rank)

    def _admit(self, name: str, *, is_new: bool) -> None:
        tally = self._tallies.queues.get(name)
        shown = self._shown.get(name)
        if shown is not None and (tally is None or shown[0] is tally):
            return
        tally = tally or Tally()  # The queue has a backlog, but no activity in this process.
        if shown is not None:  # It was removed in between, and starts again at 0.
            self._retired.add(self._last_tallies[name])
        base = Tally()
        if not is_new:
            base.add(tally)
        self._shown[name] = (tally, base)


def _difference(tally: Tally, base: Tally) -> Tally:
    result = Tally()
    for name in Tally.__struct_fields__:
        setattr(result, name, getattr(tally, name) - getattr(base, name))
    return result


OUTCOMES: Mapping[str, Callable[[Tally], int]] = {
    "completed": lambda tally: tally.completed,
    "failed": lambda tally: tally.failed,
    "retry": lambda tally: tally.retried,
    "dead_lettered": lambda tally: tally.dead_lettered,
}
_AGE_BITS = range(10, 36, 2)
"""The bucket bounds of ages are powers of two, in microseconds: from a millisecond to five hours."""


def message_metrics(broker: Broker, store: Mapping[str, float], by_queue: Mapping[str, Tally]) -> Iterator[Metric]:
    """Return the metrics of messages, in total and by queue."""
    tallies, total = broker.tallies, broker.tallies.total
    expired, dead_lettered = store.get("leases_expired", 0), store.get("expiries_dead_lettered", 0)
    counts = {
        "hark_push_requests_total": ("Push requests that reached the store.", tallies.push_requests),
        "hark_pushed_messages_total": ("Messages stored.", total.pushed),
        "hark_push_duplicates_total": ("Pushed messages that were duplicates.", total.duplicates),
        "hark_push_refusals_total": ("Pushed messages that were refused, for example by a full queue.", total.refused),
        "hark_pop_requests_total": ("Pop requests that reached the store.", tallies.pop_requests),
        "hark_empty_pops_total": ("Pop requests that found no message.", tallies.empty_pops),
        "hark_delivered_messages_total": ("Messages delivered.", total.delivered),
        "hark_redelivered_messages_total": ("Messages delivered again after an attempt.", total.redelivered),
        "hark_settle_requests_total": ("Settlement requests that reached the store.", tallies.settle_requests),
        "hark_settle_refusals_total": (
            "Settlements that were refused, for example after the lease expired.",
            tallies.refused_settlements,
        ),
        "hark_transactions_total": ("Transactions that reached the store.", tallies.transactions),
        "hark_lease_expiries_total": ("Leases that expired.", expired),
        "hark_dead_lettered_messages_total": ("Messages that were dead-lettered.", total.dead_lettered + dead_lettered),
        "hark_damaged_messages_total": (
            "Messages dead-lettered because their payload was damaged or missing.",
            broker.readable.damaged,
        ),
    }
    for name, (meaning, number) in counts.items():
        yield counter(name, meaning, one(number))
    yield counter("hark_settled_messages_total", "Messages settled, by outcome.", _settled({None: total}))
    withheld = [({"reason": "key_missing"}, broker.readable.withheld)]
    yield counter("hark_withheld_messages_total", "Deliveries that were withheld, by reason.", withheld)
    ages: list[tuple[Labels, Histogram]] = [({}, _ages(tallies))]
    yield histogram("hark_delivery_age_seconds", "Age of messages at their first delivery, in seconds.", ages)
    pushed = [({"queue": queue}, tally.pushed) for queue, tally in by_queue.items()]
    yield counter("hark_queue_pushed_messages_total", "Messages stored, by queue.", pushed)
    delivered = [({"queue": queue}, tally.delivered) for queue, tally in by_queue.items()]
    yield counter("hark_queue_delivered_messages_total", "Messages delivered, by queue.", delivered)
    yield counter("hark_queue_settled_messages_total", "Messages settled, by queue and outcome.", _settled(by_queue))


def _settled(tallies: Mapping[str, Tally] | Mapping[None, Tally]) -> Rows:
    for queue, tally in tallies.items():
        labels = {} if queue is None else {"queue": queue}
        for outcome, count in OUTCOMES.items():
            yield {**labels, "outcome": outcome}, count(tally)


def _ages(tallies: Tallies) -> Histogram:
    """Return the histogram of ages with fewer buckets."""
    ages = Histogram([2**bits / SECOND for bits in _AGE_BITS])
    lower = 0
    for number, bits in enumerate((*_AGE_BITS, len(tallies.ages) - 1)):
        ages.counts[number] = sum(tallies.ages[lower : bits + 1])
        lower = bits + 1
    ages.sum = tallies.age_sum / SECOND
    return ages


_DEPTHS = {
    "backlog": ("backlog_messages", "Messages that wait for delivery"),
    "scheduled": ("scheduled_messages", "Messages that are delayed or wait for a retry"),
    "in_flight": ("in_flight_messages", "Messages in flight"),
    "dead_letters": ("dead_letters", "Dead letters"),
}
"""Names and meanings of depths, in total and by queue."""
_OLDEST = "Longest time that a message of the backlog has waited, in seconds"


def depth_metrics(depths: Depths, shown: Collection[str], now: int) -> Iterator[Metric]:
    """Return totals, and the depths of the queues with separate series."""
    survey_age = _age(depths.at, now)
    yield gauge("hark_survey_age_seconds", "Age of the survey of backlog and depths, in seconds.", one(survey_age))
    yield gauge("hark_queues", "Queues.", one(depths.queues))
    yield gauge("hark_partitions", "Partitions.", one(depths.partitions))
    by_queue = _with_rest(depths, shown).items()
    for field, (name, meaning) in _DEPTHS.items():
        yield gauge(f"hark_{name}", f"{meaning}.", one(getattr(depths, field)))
        rows = [({"queue": queue}, getattr(depth, field)) for queue, depth in by_queue]
        yield gauge(f"hark_queue_{name}", f"{meaning}, by queue.", rows)
    yield gauge("hark_oldest_waiting_seconds", f"{_OLDEST}.", one(_age(depths.oldest_waiting, now)))
    ages = [({"queue": queue}, _age(depth.oldest_waiting, now)) for queue, depth in by_queue]
    yield gauge("hark_queue_oldest_waiting_seconds", f"{_OLDEST}, by queue.", ages)


def _with_rest(depths: Depths, shown: Collection[str]) -> dict[str, QueueDepth]:
    """Return the known queues among the shown ones, and the sum of all others."""
    known = {queue: depths.by_queue[queue] for queue in shown if queue in depths.by_queue}
    others = (depth.oldest_waiting for queue, depth in depths.by_queue.items() if queue not in known)
    rest = {
        field: getattr(depths, field) - sum(getattr(depth, field) for depth in known.values())
        for field in ("partitions", *_DEPTHS)
    }
    oldest = min((one for one in others if one is not None), default=None)
    return {**known, REST: QueueDepth(**rest, oldest_waiting=oldest)}


def _age(time: int | None, now: int) -> float:
    """Return an age in seconds; 0 if there is no time."""
    return 0.0 if time is None else max(0.0, (now - time) / SECOND)


def delivery_metrics(broker: Broker) -> Iterator[Metric]:
    """Return the metrics of waiting consumers, of key watchers, of maintenance and of peers."""
    delivery = broker.delivery
    yield gauge("hark_waiting_pops", "Waiting pops.", one(len(delivery.intentions)))
    yield gauge("hark_streams", "Streaming consumers.", one(len(delivery.streams)))
    yield gauge("hark_browsers", "Queue browsers.", one(len(delivery.browsers)))
    yield gauge(
        "hark_subscriptions",
        "Combinations of queue and consumer group that have waiting consumers.",
        one(delivery.subscriptions),
    )
    wakes = [({"source": source}, number) for source, number in delivery.metrics.wakes.items()]
    yield counter("hark_wakes_total", "Notifications to waiting consumers, by source.", wakes)
    yield counter(
        "hark_empty_wakes_total",
        "Notifications after which the consumer found no message, by source.",
        [({"source": source}, number) for source, number in delivery.metrics.empty.items()],
    )
    yield histogram(
        "hark_wake_latency_seconds",
        "Time in seconds from the notification of a consumer to its receipt of messages.",
        [({}, delivery.metrics.latency)],
    )
    yield from _fallback_metrics(broker)
    watching = broker.keyvalue.watchers.metrics()
    yield gauge("hark_key_watchers", "Clients that watch keys.", one(watching["watchers"]))
    counts = broker.schedules.counts
    yield counter("hark_schedule_runs_total", "Messages that schedules pushed.", one(counts["runs"]))
    yield counter(
        "hark_schedule_skips_total",
        "Due times of schedules that were skipped, by reason.",
        [({"reason": reason}, counts[reason]) for reason in ("overlap", "missed")],
    )
    yield counter("hark_schedule_failures_total", "Failures of schedules to push.", one(counts["failures"]))
    stopped = [({"verb": "push"}, PUSH_MAINTENANCE), ({"verb": "pop"}, POP_MAINTENANCE)]
    yield gauge(
        "hark_maintenance",
        "1 while pushes or pops are stopped for maintenance.",
        [(labels, float(broker.maintenance(flag))) for labels, flag in stopped],
    )
    if peers := broker.peer_metrics():
        yield from _peer_metrics(peers)


def _fallback_metrics(broker: Broker) -> Iterator[Metric]:
    polls = broker.delivery.fallback.metrics()
    states = {"watched": "keys", "backoff": "keys_in_backoff", "due": "keys_due", "polling": "polling"}
    yield gauge(
        "hark_fallback_keys",
        "Combinations of queue and consumer group that the fallback poller watches, by state.",
        [({"state": state}, polls[name]) for state, name in states.items()],
    )
    yield gauge(
        "hark_fallback_interval_seconds",
        "Current interval of the fallback poller in seconds: mean and maximum.",
        [({"stat": stat}, polls[f"interval_ms_{stat}"] / 1000) for stat in ("mean", "max")],
    )
    yield counter("hark_fallback_polls_total", "Polls of the fallback poller.", one(polls["polls"]))
    yield counter(
        "hark_fallback_empty_polls_total",
        "Polls of the fallback poller that found no message.",
        one(polls["empty_polls"]),
    )


def _peer_metrics(peers: dict[str, float]) -> Iterator[Metric]:
    yield gauge("hark_peers", "Peers that this server notifies.", one(peers["peers"]))
    for name, what in (("datagrams", "Datagrams"), ("hints", "Hints")):
        rows = [({"direction": direction}, peers[f"{name}_{direction}"]) for direction in ("sent", "received")]
        yield counter(f"hark_peer_{name}_total", f"{what} exchanged with peers, by direction.", rows)
    yield counter("hark_peer_send_errors_total", "Datagrams that could not be sent.", one(peers["send_errors"]))
    reasons = [name.removeprefix("refused_") for name in peers if name.startswith("refused_")]
    refused = [({"reason": reason}, peers[f"refused_{reason}"]) for reason in reasons]
    yield counter("hark_peer_refused_datagrams_total", "Rejected datagrams from peers, by reason.", refused)


def server_metrics(broker: Broker, requests: Requests, load: tuple[int, int]) -> Iterator[Metric]:
    """Return the metrics of the server. `load` is the number of connections and of requests in progress."""
    connections, in_flight = load
    yield gauge("hark_build_info", "Always 1; the label has the version.", [({"version": __version__}, 1)])
    yield counter("hark_http_requests_total", "HTTP responses, by route, method and status.", _statuses(requests))
    yield histogram(
        "hark_http_request_seconds",
        "Time in seconds from the request head to the response head, by route and method.",
        [({"route": route, "method": method}, answers.seconds) for (route, method), answers in requests.routes.items()],
    )
    yield gauge("hark_http_requests_in_flight", "HTTP requests in progress.", one(in_flight))
    yield gauge("hark_http_connections", "Open HTTP connections.", one(connections))
    yield histogram(
        "hark_event_loop_lag_seconds",
        "Lag of the event loop in seconds, measured twice a second.",
        [({}, broker.duties.lateness)],
    )


def _statuses(requests: Requests) -> Rows:
    for (route, method), answers in requests.routes.items():
        for status, number in answers.statuses.items():
            yield {"route": route, "method": method, "status": str(status)}, number
    if requests.odd:
        yield {"route": OTHER, "method": OTHER, "status": OTHER}, requests.odd


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
    "positions_dead_tuples": Shown("hark_store_positions_dead_tuples", "Dead rows of the table positions."),
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
    "inbox_rows": Shown("hark_store_inbox_rows", "Messages in the inbox, counted up to 100,000."),
    "inbox_oldest_seconds": Shown("hark_store_inbox_oldest_seconds", "Age of the oldest message in the inbox."),
    "inbox_refused": Shown("hark_store_inbox_refused_rows", "Messages in the inbox that cannot be stored."),
    "inbox_moved": Shown("hark_store_inbox_moved_total", "Messages that this server moved out of the inbox."),
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
    "s3_cache_entries": Shown("hark_store_s3_cache_entries", "Entries in the payload cache."),
    "s3_cache_hits": Shown(*_CACHE, {"result": "hit"}),
    "s3_cache_misses": Shown(*_CACHE, {"result": "miss"}),
}
"""Metrics by the names of the engine values."""
ELSEWHERE = frozenset(("leases_expired", "expiries_dead_lettered"))
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
        [({"verb": verb}, _batches(sizes)) for verb, sizes in broker.batchers.sizes().items()],
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


Load = Callable[[], tuple[int, int]]
"""Returns the number of connections and of requests in progress."""
STORE_SECONDS = 2
"""Seconds that a scrape waits for the store. The other metrics matter most while the store does not respond."""


class Metrics:
    """The metrics of one server process."""

    def __init__(self, broker: Broker, requests: Requests, processes: int = 1) -> None:
        """With several processes, each shows its share of the busiest queues."""
        self._broker = broker
        self._requests = requests
        self._shown = max(1, SHOWN // processes)
        self.all_processes: Callable[[], Awaitable[list[Metric]]] | None = None
        """Collects the metrics of all processes of this server; None: there is only this process."""
        self.load: Load = lambda: (0, 0)
        """The load of the server that has these metrics."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._busiest: BusiestQueues | None = None
        self._last_store: dict[str, float] = {}
        """The last counters of the store. A counter must not fall, or Prometheus would see a restart."""

    async def scrape(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        families = await (self.collect() if self.all_processes is None else self.all_processes())
        # Formatting takes some milliseconds, so it runs in a thread.
        return await asyncio.to_thread(text, families)

    async def collect(self) -> list[Metric]:
        """Return the metrics of this process."""
        store = await self._ask_store()
        return list(self._collect(store, self.load()))

    async def _ask_store(self) -> Mapping[str, float] | None:
        try:
            async with asyncio.timeout(STORE_SECONDS):
                store = await self._broker.engine.store_metrics()
            self._last_store = {name: number for name, number in store.items() if only_grows(name)}
            return store
        except (HarkError, TimeoutError):
            return None

    def _collect(self, store: Mapping[str, float] | None, load: tuple[int, int]) -> Iterator[Metric]:
        broker = self._broker
        if self._busiest is None:
            self._busiest = BusiestQueues(broker.tallies, self._shown)
        by_queue = self._busiest.look(broker.observed.backlogs)
        yield from message_metrics(broker, self._last_store, by_queue)
        if (depths := broker.observed.depths) is not None:
            yield from depth_metrics(depths, by_queue.keys(), broker.delivery.timers.now())
        yield from delivery_metrics(broker)
        yield from call_metrics(broker)
        yield from store_metrics(self._last_store if store is None else store, is_up=store is not None)
        yield from server_metrics(broker, self._requests, load)
        yield from self._registry.collect()
