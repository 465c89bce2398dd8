"""Counts responses by route, method and status, and the time until each response began."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

from hark.histograms import CALL_SECONDS, Histogram
from hark.http.responses import Event, Send
from hark.http.routes.table import WEBSOCKET

MOST_ROUTES = 100
"""Number of routes (with a method) that have separate counters; further routes are counted together as `other`."""
MOST_STATUSES = 400
"""Number of combinations of route, method and status with separate counters; further ones count as `other`."""
OTHER = "other"
NO_ROUTE = "none"
"""The route label of requests that match no route."""
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", WEBSOCKET))
_UPGRADED = 101
"""The status of an accepted WebSocket."""


class Answers:
    """Counters of one route and method."""

    __slots__ = ("seconds", "statuses")

    def __init__(self) -> None:
        self.seconds = Histogram(CALL_SECONDS)
        self.statuses: dict[int, int] = {}


class Requests:
    """Request counters of one server process."""

    def __init__(self, timer: Callable[[], float] = perf_counter) -> None:
        self._timer = timer
        self.routes: dict[tuple[str, str], Answers] = {}
        """Counters by route and method."""
        self.odd = 0
        """Responses beyond the number of separate status counters."""
        self._statuses = 0

    def noting(self, route: str, method: str, send: Send) -> Send:
        """Return a `send` that counts the response.

        This runs for every request. It is a plain function because a coroutine would cost more.
        """
        answers = self.routes.get((route, method)) or self._admit(route, method)
        timer = self._timer
        started = timer()

        def noted(event: Event) -> Coroutine[Any, Any, None]:
            if "status" in event:  # Only the first event of a response has a status.
                seconds, status = timer() - started, event["status"]
                spread = answers.seconds
                spread.counts[bisect_left(CALL_SECONDS, seconds)] += 1
                spread.sum += seconds
                try:
                    answers.statuses[status] += 1
                except KeyError:
                    self._note_first(answers, status)
            elif event["type"] == "websocket.accept":
                self._note_upgrade(answers, timer() - started)
            return send(event)

        return noted

    def _admit(self, route: str, method: str) -> Answers:
        """Return the counters of a new route. Unknown methods share one counter."""
        key = (route, method if method in _METHODS else OTHER)
        if key not in self.routes and len(self.routes) >= MOST_ROUTES:
            key = (OTHER, OTHER)
        return self.routes.setdefault(key, Answers())

    def _note_first(self, answers: Answers, status: int) -> None:
        if self._statuses < MOST_STATUSES:
            self._statuses += 1
            answers.statuses[status] = 1
        else:
            self.odd += 1

    def _note_upgrade(self, answers: Answers, seconds: float) -> None:
        answers.seconds.add(seconds)
        if _UPGRADED in answers.statuses:
            answers.statuses[_UPGRADED] += 1
        else:
            self._note_first(answers, _UPGRADED)
