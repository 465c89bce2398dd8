"""Chooses the busiest queues, which have separate time series, so that the number of series is bounded.

A counter must never jump, or Prometheus would see traffic that did not happen. So the counter of a newly chosen queue
starts at 0, and its earlier messages stay in the counter of all other queues. When a queue is replaced, its messages
are not added to the other queues.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from hark.broker.tallies import MOST_QUEUES, Tallies, Tally

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
        self._said: dict[str, Tally] = {}
        """The values of the last scrape."""
        self._retired = Tally()
        """The last values of replaced queues; their later messages count among the other queues."""

    def look(self, backlog: Mapping[str, int]) -> dict[str, Tally]:
        """Return the values of the busiest queues, and of all others as `REST`; `backlog` ranks idle queues."""
        new = self._note_busy()
        chosen = self._choose(backlog)
        for name in set(self._shown).difference(chosen):
            del self._shown[name]
            self._retired.add(self._said[name])
        for name in chosen:
            self._admit(name, is_new=name in new)
        numbers = {name: _difference(tally, base) for name, (tally, base) in self._shown.items()}
        rest = _difference(self._tallies.total, self._retired)
        for tally in numbers.values():
            rest = _difference(rest, tally)
        self._said = numbers
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
            self._retired.add(self._said[name])
        base = Tally()
        if not is_new:
            base.add(tally)
        self._shown[name] = (tally, base)


def _difference(tally: Tally, base: Tally) -> Tally:
    result = Tally()
    for name in Tally.__slots__:
        setattr(result, name, getattr(tally, name) - getattr(base, name))
    return result
