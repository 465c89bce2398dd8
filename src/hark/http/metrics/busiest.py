"""Which queues have series of their own: the busiest, so that their number is bounded whatever clients do.

A counter must never jump, or a scraper sees traffic that was not there. So a queue that was among the others and
becomes one of the busiest is counted from 0 on, for the others keep what came before; and what it has counted when it
is replaced is not given to the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from hark.broker.tallies import MOST_QUEUES, Tallies, Tally

SHOWN = 100
_LOYALTY = 2.0
"""How much busier a queue has to be than one that it replaces: each change costs series."""

_FORGOTTEN = 0.01
"""A score that is as good as none."""
REST = ""
"""The label of all others: no queue has this name."""


class BusiestQueues:
    """The choice, made anew with every look."""

    def __init__(self, tallies: Tallies, most: int = SHOWN) -> None:
        self._tallies = tallies
        self._most = most
        self._seen: dict[str, int] = {}
        """What queues had done at the last look."""
        self._scores: dict[str, float] = {}
        """What they did lately; of what was done before a look, half counts at the next."""
        self._shown: dict[str, tuple[Tally, Tally]] = {}
        """Their tallies, and what these said when they were chosen."""
        self._said: dict[str, Tally] = {}
        """The numbers of the last look."""
        self._retired = Tally()
        """What was said of those that were replaced; what they counted after that goes to the others."""

    def look(self, backlog: Mapping[str, int]) -> dict[str, Tally]:
        """The numbers of the busiest queues, and under `REST` those of all others; `backlog` decides among the idle."""
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
        """Score what was done since the last look; the queues that were not there then."""
        new = set()
        self._scores = {name: score / 2 for name, score in self._scores.items() if score > _FORGOTTEN}
        for name, tally in reversed(self._tallies.queues.items()):
            done, before = tally.activity, self._seen.get(name)
            if done == before:
                break  # The others were busy before it, and so before the last look.
            if before is None:
                new.add(name)
            self._seen[name] = done
            # One that was forgotten in between counts anew.
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
        tally = tally or Tally()  # There is a backlog, but nothing has happened to it here.
        if shown is not None:  # It was forgotten in between, and counts anew.
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
