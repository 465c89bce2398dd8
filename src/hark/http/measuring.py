"""How requests were answered: by route, method and status, and how long it took until the answer began."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

from hark.histograms import CALL_SECONDS, Histogram
from hark.http.responses import Event, Send
from hark.http.routes.table import WEBSOCKET

MOST_ROUTES = 100
"""Routes (with a method) that are counted one by one; those that are asked for later are summed up as `other`."""
MOST_STATUSES = 400
"""Combinations of route, method and status that are; later ones are summed up as `other`."""
OTHER = "other"
NO_ROUTE = "none"
"""What stands for the route of a request that has none."""
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", WEBSOCKET))
_UPGRADED = 101
"""The status of a WebSocket that was accepted."""


class Answers:
    """The answers of one route and method."""

    __slots__ = ("seconds", "statuses")

    def __init__(self) -> None:
        self.seconds = Histogram(CALL_SECONDS)
        self.statuses: dict[int, int] = {}


class Requests:
    """The numbers of one server."""

    def __init__(self, timer: Callable[[], float] = perf_counter) -> None:
        self._timer = timer
        self.routes: dict[tuple[str, str], Answers] = {}
        """By route and method."""
        self.odd = 0
        """Answers whose status is not counted by itself."""
        self._statuses = 0

    def noting(self, route: str, method: str, send: Send) -> Send:
        """A `send` that notes how the request was answered.

        Every request pays for every line of this; a plain function makes no coroutine of its own.
        """
        answers = self.routes.get((route, method)) or self._admit(route, method)
        timer = self._timer
        started = timer()

        def noted(event: Event) -> Coroutine[Any, Any, None]:
            if "status" in event:  # Only the beginning of an answer has one.
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
        """The numbers of a route that is asked for the first time. Who invents methods gets no place of his own."""
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
