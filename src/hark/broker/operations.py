"""How often each operation of the key-value API was asked for, how long it took, and how often it failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from hark.clock import MILLISECOND, Clock
from hark.errors import HarkError
from hark.histograms import Histogram

Operation = Literal[
    "get",
    "set",
    "delete",
    "list",
    "count",
    "paginate",
    "atomic_commit",
    "queue_enqueue",
    "queue_dequeue",
    "queue_ack",
    "queue_nack",
    "cleanup",
]

BUCKETS_MS = (1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000)
_FAILED = 500
"""The status from which on it is not the client who did something wrong."""


class Tally:
    """The numbers of one operation."""

    __slots__ = ("count", "errors", "milliseconds")

    def __init__(self) -> None:
        self.count = self.errors = 0
        self.milliseconds = Histogram(BUCKETS_MS)
        """How long they took."""

    def add(self, ms: float, failed: bool) -> None:
        """One more."""
        self.count += 1
        self.errors += failed
        self.milliseconds.add(ms)


class Operations:
    """The numbers of all operations since the start."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tallies: dict[Operation, Tally] = {}

    @contextmanager
    def measure(self, operation: Operation) -> Iterator[None]:
        """Count what happens inside; what the client did wrong is not a failure of the operation."""
        started = self._clock.now()
        failed = True
        try:
            yield
            failed = False
        except HarkError as error:
            failed = error.status >= _FAILED
            raise
        finally:
            tally = self._tallies.setdefault(operation, Tally())
            tally.add((self._clock.now() - started) / MILLISECOND, failed)

    def tallies(self) -> Mapping[Operation, Tally]:
        """Those that were asked for at all."""
        return self._tallies
