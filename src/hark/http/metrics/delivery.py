"""Metrics of waiting consumers and key watchers: their number, wake-ups, the fallback poller and peers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from hark.broker import Broker
from hark.broker.broker import POP_MAINTENANCE, PUSH_MAINTENANCE
from hark.prometheus import counter, gauge, histogram, one


def delivery_metrics(broker: Broker) -> Iterator[Metric]:
    """Return these metrics."""
    delivery = broker.delivery
    yield gauge("hark_waiting_pops", "Waiting pops.", one(len(delivery.intentions)))
    yield gauge("hark_streams", "Streaming consumers.", one(len(delivery.streams)))
    yield gauge("hark_browsers", "Queue browsers.", one(len(delivery.browsers)))
    yield gauge(
        "hark_subscriptions",
        "Combinations of queue and consumer group that have waiting consumers.",
        one(delivery.subscriptions),
    )
    wakes, empty = delivery.metrics.wakes, delivery.metrics.empty
    yield counter(
        "hark_wakes_total",
        "Notifications to waiting consumers, by source.",
        [({"source": source}, number) for source, number in wakes.items()],
    )
    yield counter(
        "hark_empty_wakes_total",
        "Notifications after which the consumer found no message, by source.",
        [({"source": source}, number) for source, number in empty.items()],
    )
    yield histogram(
        "hark_wake_latency_seconds",
        "Time in seconds from the notification of a consumer to its receipt of messages.",
        [({}, delivery.metrics.latency)],
    )
    yield from _fallback_metrics(broker)
    watching = broker.keyvalue.watchers.metrics()
    yield gauge("hark_key_watchers", "Clients that watch keys.", one(watching["watchers"]))
    stopped = [
        ({"verb": "push"}, float(broker.maintenance(PUSH_MAINTENANCE))),
        ({"verb": "pop"}, float(broker.maintenance(POP_MAINTENANCE))),
    ]
    yield gauge("hark_maintenance", "1 while pushes or pops are stopped for maintenance.", stopped)
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
    yield counter(
        "hark_peer_datagrams_total",
        "Datagrams exchanged with peers, by direction.",
        [
            ({"direction": "sent"}, peers["datagrams_sent"]),
            ({"direction": "received"}, peers["datagrams_received"]),
        ],
    )
    yield counter(
        "hark_peer_hints_total",
        "Hints exchanged with peers, by direction.",
        [({"direction": "sent"}, peers["hints_sent"]), ({"direction": "received"}, peers["hints_received"])],
    )
    yield counter("hark_peer_send_errors_total", "Datagrams that could not be sent.", one(peers["send_errors"]))
    refused = {name.removeprefix("refused_"): number for name, number in peers.items() if name.startswith("refused_")}
    yield counter(
        "hark_peer_refused_datagrams_total",
        "Rejected datagrams from peers, by reason.",
        [({"reason": reason}, number) for reason, number in refused.items()],
    )
