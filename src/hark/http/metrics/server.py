"""The server: requests, connections, the event loop, the version, and what the key-value store holds."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from hark._version import __version__
from hark.broker import Broker
from hark.http.measuring import OTHER, Requests
from hark.prometheus import Rows, counter, gauge, histogram, one


def server_metrics(broker: Broker, requests: Requests, load: tuple[int, int]) -> Iterator[Metric]:
    """All of them; `load` are the connections and the requests of this moment."""
    connections, in_flight = load
    yield gauge("hark_build_info", "1, with the version in its label.", [({"version": __version__}, 1)])
    yield counter("hark_http_requests_total", "Requests answered, by route, method and status.", _statuses(requests))
    yield histogram(
        "hark_http_request_seconds",
        "From the head of a request to the head of its answer, by route and method.",
        [({"route": route, "method": method}, answers.seconds) for (route, method), answers in requests.routes.items()],
    )
    yield gauge("hark_http_requests_in_flight", "Requests that are being answered, now.", one(in_flight))
    yield gauge("hark_http_connections", "Connections that are open, now.", one(connections))
    yield histogram(
        "hark_event_loop_lag_seconds", "How late the event loop was, twice a second.", [({}, broker.loop_lateness)]
    )


def _statuses(requests: Requests) -> Rows:
    for (route, method), answers in requests.routes.items():
        for status, number in answers.statuses.items():
            yield {"route": route, "method": method, "status": str(status)}, number
    if requests.odd:
        yield {"route": OTHER, "method": OTHER, "status": OTHER}, requests.odd
