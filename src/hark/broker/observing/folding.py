"""The steps of a survey put together: what each queue has, and what all have."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from hark.broker.observing.samples import Depths, QueueDepth
from hark.model import Census, Depth

MOST_QUEUES = 10_000
"""Queues that are remembered one by one."""


class Fold:
    """Takes the entries of a survey in their order; those of one queue follow each other."""

    def __init__(self, census: Census, most_queues: int = MOST_QUEUES) -> None:
        self._census = census
        self._most = most_queues
        self._held: dict[str, int] = {}
        for (queue, _), number in census.in_flight.items():
            self._held[queue] = self._held.get(queue, 0) + number
        self._queue: str | None = None
        self._partitions = self._stored = 0
        self._open: dict[str, int] = {}
        self._oldest: int | None = None
        self._by_queue: dict[str, QueueDepth] = {}
        self._all_partitions = self._all_backlog = 0
        self._all_oldest: int | None = None

    def add(self, depths: Iterable[Depth]) -> None:
        """One step."""
        for depth in depths:
            if depth.queue != self._queue:
                self._close()
                self._queue = depth.queue
            if depth.group is None:
                self._partitions += depth.partitions
                self._stored += depth.messages
            else:
                self._open[depth.group] = self._open.get(depth.group, 0) + depth.messages
            self._oldest = _earlier(self._oldest, depth.oldest)

    def _close(self) -> None:
        """A queue is complete."""
        queue = self._queue
        if queue is None:
            return
        held = self._census.in_flight
        if self._open:
            group = max(self._open, key=self._open.__getitem__)
            backlog = max(0, self._open[group] - held.get((queue, group), 0))
        else:
            backlog = self._stored
        self._by_queue[queue] = QueueDepth(
            self._partitions,
            backlog,
            self._held.get(queue, 0),
            self._oldest,
            self._census.dead_letters.get(queue, 0),
        )
        self._all_partitions += self._partitions
        self._all_backlog += backlog
        self._all_oldest = _earlier(self._all_oldest, self._oldest)
        self._queue, self._partitions, self._stored, self._open, self._oldest = None, 0, 0, {}, None
        if len(self._by_queue) > 2 * self._most:
            self._by_queue = self._longest()

    def _longest(self) -> dict[str, QueueDepth]:
        if len(self._by_queue) <= self._most:
            return self._by_queue
        return dict(heapq.nlargest(self._most, self._by_queue.items(), key=lambda item: item[1].backlog))

    def finish(self, now: int) -> Depths:
        """All of it."""
        self._close()
        return Depths(
            at=now,
            queues=self._census.queues,
            partitions=self._all_partitions,
            backlog=self._all_backlog,
            in_flight=sum(self._held.values()),
            oldest_waiting=self._all_oldest,
            dead_letters=sum(self._census.dead_letters.values()),
            by_queue=self._longest(),
        )


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
