"""Metrics of pushed, delivered and settled messages: totals, and by queue for the busiest queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import Metric

from hark.broker import Broker
from hark.broker.tallies import Tallies, Tally
from hark.clock import SECOND
from hark.histograms import Histogram
from hark.prometheus import Rows, counter, histogram, one

OUTCOMES: Mapping[str, Callable[[Tally], int]] = {
    "completed": lambda tally: tally.completed,
    "failed": lambda tally: tally.failed,
    "retry": lambda tally: tally.retried,
    "dead_lettered": lambda tally: tally.dead_lettered,
}
_AGE_BITS = range(10, 36, 2)
"""The bucket bounds of ages are powers of two, in microseconds: from a millisecond to five hours."""


def message_metrics(broker: Broker, store: Mapping[str, float], by_queue: Mapping[str, Tally]) -> Iterator[Metric]:
    """Return these metrics."""
    tallies, total = broker.tallies, broker.tallies.total
    yield counter("hark_push_requests_total", "Push requests that reached the store.", one(tallies.push_requests))
    yield counter("hark_pushed_messages_total", "Messages stored.", one(total.pushed))
    yield counter("hark_push_duplicates_total", "Pushed messages that were duplicates.", one(total.duplicates))
    yield counter(
        "hark_push_refusals_total",
        "Pushed messages that were refused, for example by a full queue.",
        one(total.refused),
    )
    yield counter("hark_pop_requests_total", "Pop requests that reached the store.", one(tallies.pop_requests))
    yield counter("hark_empty_pops_total", "Pop requests that found no message.", one(tallies.empty_pops))
    yield counter("hark_delivered_messages_total", "Messages delivered.", one(total.delivered))
    yield counter(
        "hark_redelivered_messages_total", "Messages delivered again after an attempt.", one(total.redelivered)
    )
    yield counter(
        "hark_settle_requests_total", "Settlement requests that reached the store.", one(tallies.settle_requests)
    )
    yield counter("hark_settled_messages_total", "Messages settled, by outcome.", _settled({None: total}))
    yield counter(
        "hark_settle_refusals_total",
        "Settlements that were refused, for example after the lease expired.",
        one(tallies.refused_settlements),
    )
    yield counter("hark_transactions_total", "Transactions that reached the store.", one(tallies.transactions))
    yield counter("hark_lease_expiries_total", "Leases that expired.", one(store.get("leases_expired", 0)))
    buried = total.dead_lettered + store.get("expiries_buried", 0)
    yield counter("hark_dead_lettered_messages_total", "Messages that were dead-lettered.", one(buried))
    yield histogram(
        "hark_delivery_age_seconds", "Age of messages at their first delivery, in seconds.", [({}, _ages(tallies))]
    )
    yield from _queue_metrics(by_queue)


def _queue_metrics(by_queue: Mapping[str, Tally]) -> Iterator[Metric]:
    yield counter(
        "hark_queue_pushed_messages_total",
        "Messages stored, by queue.",
        [({"queue": queue}, tally.pushed) for queue, tally in by_queue.items()],
    )
    yield counter(
        "hark_queue_delivered_messages_total",
        "Messages delivered, by queue.",
        [({"queue": queue}, tally.delivered) for queue, tally in by_queue.items()],
    )
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
