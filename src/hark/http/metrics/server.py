"""Metrics of the server: requests, connections, the event loop and the version."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from hark._version import __version__
from hark.broker import Broker
from hark.http.measuring import OTHER, Requests
from hark.prometheus import Rows, counter, gauge, histogram, one


def server_metrics(broker: Broker, requests: Requests, load: tuple[int, int]) -> Iterator[Metric]:
    """Return these metrics. `load` is the number of connections and of requests in progress."""
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
        [({}, broker.loop_lateness)],
    )


def _statuses(requests: Requests) -> Rows:
    for (route, method), answers in requests.routes.items():
        for status, number in answers.statuses.items():
            yield {"route": route, "method": method, "status": str(status)}, number
    if requests.odd:
        yield {"route": OTHER, "method": OTHER, "status": OTHER}, requests.odd
