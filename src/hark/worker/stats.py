"""What a worker has done since it started, for its health, its metrics and a display."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from hark.client.delivery.settling import Settled
from hark.worker.held import Ended
from hark.worker.outcome import Ending

RATE_SECONDS = 10
"""The rate is an average over so many seconds."""
UNKNOWN = "(unknown)"
"""The name under which messages are counted that no task of the worker fits: others could name anything."""

OUTCOMES = ("done", "failed", "retried", "dead", "discarded", "handed_back", "lost")


class Counts(msgspec.Struct):
    """How deliveries ended."""

    done: int = 0
    failed: int = 0
    """Handlers that raised or timed out, and messages that no task fits."""
    retried: int = 0
    """Will come again: after a failure, or because the handler asked for it."""
    dead: int = 0
    """Became dead letters."""
    discarded: int = 0
    handed_back: int = 0
    """Given back when the worker stopped, as if never taken."""
    lost: int = 0
    """No longer ours when they ended: somebody else gets or got them."""
    ended: int = 0
    """Deliveries that ended, however they did."""
    seconds: float = 0.0
    """Spent in the handlers of those."""

    def add(self, outcome: str) -> None:
        """One more."""
        setattr(self, outcome, getattr(self, outcome) + 1)


class TaskEvent(msgspec.Struct, frozen=True):
    """One delivery that ended."""

    task: str
    message_id: str
    attempt: int
    ending: Ending
    seconds: float
    dead: bool
    """Whether it is a dead letter now."""
    error: str | None
    """`Type: message`."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at one moment."""

    worker_id: str
    queue: str
    concurrency: int
    running: int
    stuck: int
    """Functions that still run although their delivery is over; each holds a slot."""
    stopping: bool
    totals: Counts
    tasks: dict[str, Counts]
    rate: float
    """Tasks that ended per second, of late."""
    poll_interval: float
    polls: int
    empty_polls: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did."""

    worker_id: str
    totals: Counts
    tasks: dict[str, Counts]
    polls: int
    empty_polls: int
    abandoned: int
    """Handlers that did not end when they should have: their tasks were given back, and run elsewhere."""


def summary_of(snapshot: Snapshot, abandoned: int) -> Summary:
    """A worker at the end of its run."""
    return Summary(
        worker_id=snapshot.worker_id,
        totals=snapshot.totals,
        tasks=snapshot.tasks,
        polls=snapshot.polls,
        empty_polls=snapshot.empty_polls,
        abandoned=abandoned,
    )


class Stats:
    """Counts, on the line's loop; others read what they find."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.totals = Counts()
        self.tasks: dict[str, Counts] = {}
        self._monotonic = monotonic
        self._began = monotonic()
        self._seconds: deque[tuple[int, int]] = deque(maxlen=RATE_SECONDS + 1)

    def add(self, answered: Sequence[tuple[Ended, Settled | None]]) -> None:
        """Some ended, and the server has answered."""
        self._count_rate(len(answered))
        for ended, settled in answered:
            counts = self.tasks.get(ended.task)
            if counts is None:
                counts = self.tasks[ended.task] = Counts()
            if ended.ending == "done" and settled is not None and settled.success:
                counts.done += 1  # The same as below, but it is what happens most.
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
    """What listeners are told."""
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
