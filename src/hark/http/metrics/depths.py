"""Depths of the store, from the last survey. A scrape counts nothing itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from prometheus_client.metrics_core import Metric

from hark.broker.observing.samples import Depths, QueueDepth
from hark.clock import SECOND
from hark.http.metrics.busiest import REST
from hark.prometheus import gauge, one


def depth_metrics(depths: Depths, shown: Collection[str], now: int) -> Iterator[Metric]:
    """Return totals, and the depths of the queues with separate series."""
    yield gauge(
        "hark_survey_age_seconds", "Age of the survey of backlog and depths, in seconds.", one(_age(depths.at, now))
    )
    yield gauge("hark_queues", "Queues.", one(depths.queues))
    yield gauge("hark_partitions", "Partitions.", one(depths.partitions))
    yield gauge("hark_backlog_messages", "Messages that wait for delivery.", one(depths.backlog))
    yield gauge("hark_in_flight_messages", "Messages in flight.", one(depths.in_flight))
    yield gauge("hark_dead_letters", "Dead letters.", one(depths.dead_letters))
    oldest = _age(depths.oldest_waiting, now)
    yield gauge("hark_oldest_waiting_seconds", "Age of the oldest unsettled message, in seconds.", one(oldest))
    yield from _queue_metrics(_with_rest(depths, shown), now)


def _queue_metrics(by_queue: Mapping[str, QueueDepth], now: int) -> Iterator[Metric]:
    yield gauge(
        "hark_queue_backlog_messages",
        "Messages that wait for delivery, by queue.",
        [({"queue": queue}, depth.backlog) for queue, depth in by_queue.items()],
    )
    yield gauge(
        "hark_queue_in_flight_messages",
        "Messages in flight, by queue.",
        [({"queue": queue}, depth.in_flight) for queue, depth in by_queue.items()],
    )
    yield gauge(
        "hark_queue_dead_letters",
        "Dead letters, by queue.",
        [({"queue": queue}, depth.dead_letters) for queue, depth in by_queue.items()],
    )
    yield gauge(
        "hark_queue_oldest_waiting_seconds",
        "Age of the oldest unsettled message in seconds, by queue.",
        [({"queue": queue}, _age(depth.oldest_waiting, now)) for queue, depth in by_queue.items()],
    )


def _with_rest(depths: Depths, shown: Collection[str]) -> dict[str, QueueDepth]:
    """Return the known queues among the shown ones, and the sum of all others."""
    known = {queue: depths.by_queue[queue] for queue in shown if queue in depths.by_queue}
    oldest = min(
        (
            depth.oldest_waiting
            for queue, depth in depths.by_queue.items()
            if depth.oldest_waiting is not None and queue not in known
        ),
        default=None,
    )
    rest = QueueDepth(
        partitions=depths.partitions - sum(depth.partitions for depth in known.values()),
        backlog=depths.backlog - sum(depth.backlog for depth in known.values()),
        in_flight=depths.in_flight - sum(depth.in_flight for depth in known.values()),
        oldest_waiting=oldest,
        dead_letters=depths.dead_letters - sum(depth.dead_letters for depth in known.values()),
    )
    return {**known, REST: rest}


def _age(time: int | None, now: int) -> float:
    """Return an age in seconds; 0 if there is no time."""
    return 0.0 if time is None else max(0.0, (now - time) / SECOND)
