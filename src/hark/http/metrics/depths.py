"""What the store has, as the last survey found it: nothing is counted for a scrape."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from prometheus_client.metrics_core import Metric

from hark.broker.observing.samples import Depths, QueueDepth
from hark.clock import SECOND
from hark.http.metrics.busiest import REST
from hark.prometheus import gauge, one


def depth_metrics(depths: Depths, shown: Collection[str], now: int) -> Iterator[Metric]:
    """In all, and for the queues that have series of their own."""
    yield gauge("hark_survey_age_seconds", "How old these depths are.", one(_age(depths.at, now)))
    yield gauge("hark_queues", "Queues.", one(depths.queues))
    yield gauge("hark_partitions", "Partitions.", one(depths.partitions))
    yield gauge("hark_backlog_messages", "Messages that wait to be delivered.", one(depths.backlog))
    yield gauge("hark_in_flight_messages", "Messages on leases.", one(depths.in_flight))
    yield gauge("hark_dead_letters", "Dead letters.", one(depths.dead_letters))
    oldest = _age(depths.oldest_waiting, now)
    yield gauge("hark_oldest_waiting_seconds", "Age of the oldest message that is not settled.", one(oldest))
    yield from _queue_metrics(_with_rest(depths, shown), now)


def _queue_metrics(by_queue: Mapping[str, QueueDepth], now: int) -> Iterator[Metric]:
    yield gauge(
        "hark_queue_backlog_messages",
        "Messages that wait to be delivered, by queue.",
        [({"queue": queue}, depth.backlog) for queue, depth in by_queue.items()],
    )
    yield gauge(
        "hark_queue_in_flight_messages",
        "Messages on leases, by queue.",
        [({"queue": queue}, depth.in_flight) for queue, depth in by_queue.items()],
    )
    yield gauge(
        "hark_queue_dead_letters",
        "Dead letters, by queue.",
        [({"queue": queue}, depth.dead_letters) for queue, depth in by_queue.items()],
    )
    yield gauge(
        "hark_queue_oldest_waiting_seconds",
        "Age of the oldest message that is not settled, by queue.",
        [({"queue": queue}, _age(depth.oldest_waiting, now)) for queue, depth in by_queue.items()],
    )


def _with_rest(depths: Depths, shown: Collection[str]) -> dict[str, QueueDepth]:
    """The shown queues as far as they are known, and all others as one."""
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
    """In seconds; 0 if there is nothing."""
    return 0.0 if time is None else max(0.0, (now - time) / SECOND)
