"""Statistics of a worker since its start, for health, metrics and display."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from hark.client.delivery.settling import Settled
from hark.worker.held import Ended
from hark.worker.outcome import Ending

RATE_SECONDS = 10
"""The rate is an average over this many seconds."""
UNKNOWN = "(unknown)"
"""The task name for messages that match no task of the worker. Their own names could be anything."""

OUTCOMES = ("done", "failed", "retried", "dead", "discarded", "handed_back", "lost")


class Counts(msgspec.Struct):
    """How deliveries ended, as counts."""

    done: int = 0
    """Handlers that returned."""
    failed: int = 0
    """Handlers that raised or timed out, and messages that match no task."""
    retried: int = 0
    """Messages that are redelivered, after a failure or on request of the handler."""
    dead: int = 0
    """Messages that were dead-lettered."""
    discarded: int = 0
    """Tasks that the handler discarded."""
    handed_back: int = 0
    """Messages that were released on shutdown, without counting an attempt."""
    lost: int = 0
    """Deliveries whose lease had expired when they ended: another worker receives the message."""
    ended: int = 0
    """All deliveries that ended."""
    seconds: float = 0.0
    """Total time in seconds of the handlers of those deliveries."""

    def add(self, outcome: str) -> None:
        """Count one."""
        setattr(self, outcome, getattr(self, outcome) + 1)


class TaskEvent(msgspec.Struct, frozen=True):
    """One delivery that ended, for `worker.listen`."""

    task: str
    message_id: str
    attempt: int
    """How it ended: done, discarded, failed, retried, refused, handed_back or lost."""
    ending: Ending
    """Time of the handler in seconds."""
    seconds: float
    dead: bool
    """Whether the message was dead-lettered."""
    error: str | None
    """`Type: message`, or None."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a worker, `worker.stats`."""

    worker_id: str
    queue: str
    concurrency: int
    """Number of running handlers."""
    running: int
    stuck: int
    """Functions in threads that still run although their delivery has ended. Each keeps a slot."""
    stopping: bool
    totals: Counts
    tasks: dict[str, Counts]
    rate: float
    """Deliveries that ended per second, over the last 10 seconds."""
    poll_interval: float
    """Current poll interval in seconds."""
    polls: int
    empty_polls: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `worker.run`."""

    worker_id: str
    totals: Counts
    tasks: dict[str, Counts]
    polls: int
    empty_polls: int
    abandoned: int
    """Handlers that did not end in time. Their tasks were released and run again."""


def summary_of(snapshot: Snapshot, abandoned: int) -> Summary:
    """The summary at the end of a run."""
    return Summary(
        worker_id=snapshot.worker_id,
        totals=snapshot.totals,
        tasks=snapshot.tasks,
        polls=snapshot.polls,
        empty_polls=snapshot.empty_polls,
        abandoned=abandoned,
    )


class Stats:
    """Counts, updated on the network thread. Other threads only read."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.totals = Counts()
        self.tasks: dict[str, Counts] = {}
        self._monotonic = monotonic
        self._began = monotonic()
        self._seconds: deque[tuple[int, int]] = deque(maxlen=RATE_SECONDS + 1)

    def add(self, answered: Sequence[tuple[Ended, Settled | None]]) -> None:
        """Count deliveries whose settlement the server has answered."""
        self._count_rate(len(answered))
        for ended, settled in answered:
            counts = self.tasks.get(ended.task)
            if counts is None:
                counts = self.tasks[ended.task] = Counts()
            if ended.ending == "done" and settled is not None and settled.success:
                counts.done += 1  # The same as below, for the most frequent case.
                self.totals.done += 1
            else:
                for outcome in _outcomes(ended, settled):
                    counts.add(outcome)
                    self.totals.add(outcome)
            for all_of in (counts, self.totals):
                all_of.ended += 1
                all_of.seconds += ended.seconds

    @property
    def rate(self) -> float:
        """Deliveries that ended per second, over the last seconds."""
        now = self._monotonic()
        seconds = min(max(now - self._began, 1.0), RATE_SECONDS)
        return sum(count for second, count in self._seconds if second > now - RATE_SECONDS) / seconds

    def _count_rate(self, count: int) -> None:
        second = int(self._monotonic())
        if self._seconds and self._seconds[-1][0] == second:
            count += self._seconds.pop()[1]
        self._seconds.append((second, count))


def event_of(ended: Ended, settled: Settled | None) -> TaskEvent:
    """The event for listeners."""
    return TaskEvent(
        ended.task,
        ended.message.id,
        ended.message.delivery_attempt,
        ended.ending if settled is not None and settled.success else "lost",
        ended.seconds,
        settled is not None and settled.dead_lettered,
        ended.error,
    )


def _outcomes(ended: Ended, settled: Settled | None) -> Sequence[str]:
    if settled is None or not settled.success:
        return ("lost",)
    if ended.ending in ("failed", "refused"):
        return ("failed", "dead" if settled.dead_lettered else "retried")
    if ended.ending == "retried":
        return ("dead",) if settled.dead_lettered else ("retried",)
    return (ended.ending,)
