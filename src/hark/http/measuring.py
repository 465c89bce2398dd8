"""Counts responses by route, method and status, and the time until each response began."""

from __future__ import annotations

from hark.histograms import CALL_SECONDS, Histogram

MOST_ROUTES = 100
"""Number of routes (with a method) that have separate counters; further routes are counted together as `other`."""
MOST_STATUSES = 400
"""Number of combinations of route, method and status with separate counters; further ones count as `other`."""
OTHER = "other"
NO_ROUTE = "none"
"""The route label of requests that match no route."""
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"))


class Answers:
    """Counters of one route and method."""

    __slots__ = ("_requests", "seconds", "statuses")

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self.seconds = Histogram(CALL_SECONDS)
        self.statuses: dict[int, int] = {}

    def add(self, status: int, seconds: float) -> None:
        """Count a response that began after `seconds`."""
        self.seconds.add(seconds)
        try:
            self.statuses[status] += 1
        except KeyError:
            if self._requests.admits_status():
                self.statuses[status] = 1


class Requests:
    """Request counters of one server process."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], Answers] = {}
        """Counters by route and method."""
        self.odd = 0
        """Responses beyond the number of separate status counters."""
        self._statuses = 0

    def of(self, route: str, method: str) -> Answers:
        """Return the counters of a route. Unknown methods share one counter."""
        return self.routes.get((route, method)) or self._admit(route, method)

    def _admit(self, route: str, method: str) -> Answers:
        key = (route, method if method in _METHODS else OTHER)
        if key not in self.routes and len(self.routes) >= MOST_ROUTES:
            key = (OTHER, OTHER)
        return self.routes.setdefault(key, Answers(self))

    def admits_status(self) -> bool:
        """Return whether one more status of a route gets a counter of its own; otherwise count it as odd."""
        if self._statuses < MOST_STATUSES:
            self._statuses += 1
            return True
        self.odd += 1
        return False
