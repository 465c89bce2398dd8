"""Counters of requests, messages and engine calls of this server since its start."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Literal, TypeVar, cast

from hark.clock import MILLISECOND, Clock
from hark.errors import HarkError
from hark.model import (
    Delivery,
    KeyWrite,
    KeyWritten,
    NewMessage,
    PopRequest,
    PopResult,
    PushOutcome,
    Settlement,
    SettleOutcome,
    Transaction,
    TransactionOutcome,
)
from hark.prometheus import Histogram

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


class OperationTally:
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
        self._tallies: dict[Operation, OperationTally] = {}

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
            tally = self._tallies.setdefault(operation, OperationTally())
            tally.add((self._clock.now() - started) / MILLISECOND, failed)

    def tallies(self) -> Mapping[Operation, OperationTally]:
        """Those that were asked for at all."""
        return self._tallies


# These are plain numbers, because every batch updates them. Their readers (metrics, the sampler) change nothing.


Q = TypeVar("Q")
A = TypeVar("A")

MOST_QUEUES = 10_000
"""Queues with numbers of their own; the one that was busy longest ago is forgotten for a new one."""

_UNSETTLED = {"retry": "retried", "failed": "failed", "dlq": "failed"}
"""What a settlement is counted as that completes nothing and makes no dead letter."""
_ALL_LISTS = {list}
_AGES = 64
"""More bits than the age of any message in microseconds has."""


class Tally:
    """The numbers of one queue, or of many."""

    __slots__ = (
        "completed",
        "dead_lettered",
        "delivered",
        "duplicates",
        "failed",
        "pushed",
        "redelivered",
        "refused",
        "retried",
    )

    def __init__(self) -> None:
        self.pushed = 0
        """Messages stored."""
        self.duplicates = 0
        """Messages not stored because they were there already."""
        self.refused = 0
        """Messages not stored because the queue was full, say."""
        self.delivered = 0
        """Messages handed out, again or for the first time."""
        self.redelivered = 0
        """Those of them that had been handed out before."""
        self.completed = 0
        self.failed = 0
        """Settled as failed, or sent to the dead letters of a queue that keeps none: they come again or are dropped."""
        self.retried = 0
        """Given back by their consumers to be delivered again, uncounted."""
        self.dead_lettered = 0
        """Dead-lettered by a settlement."""

    @property
    def settled(self) -> int:
        """Messages that consumers said something of, however it ended."""
        return self.completed + self.failed + self.retried + self.dead_lettered

    @property
    def activity(self) -> int:
        """One number to tell busy queues from quiet ones: it grows with all that happens."""
        return self.pushed + self.duplicates + self.refused + self.delivered + self.settled

    def add(self, other: Tally) -> None:
        """Take over the numbers of another."""
        for name in Tally.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Tallies:
    """The counts of this server. `MeasuredEngine` reports each verb with its requests and answers."""

    def __init__(self, clock: Clock, most_queues: int = MOST_QUEUES) -> None:
        self._clock = clock
        self._most = most_queues
        self.queues: OrderedDict[str, Tally] = OrderedDict()
        """By queue, the one that was busy longest ago first."""
        self.total = Tally()
        """All queues together, also those that are not in `queues` any more."""
        self.changed_queues: set[str] = set()
        """Queues that something happened to since the sampler took this set and left a new one."""
        self.push_requests = self.pop_requests = self.empty_pops = self.settle_requests = self.transactions = 0
        self.refused_settlements = 0
        self.expired_leases = 0
        self.ages = [0] * _AGES
        """At i: messages that were at least 2**(i-1) and less than 2**i microseconds old at their first delivery."""
        self.age_sum = 0
        """Their ages in all, in microseconds."""

    def of(self, queue: str) -> Tally:
        """The numbers of a queue that something happens to now."""
        self.changed_queues.add(queue)
        queues = self.queues
        tally = queues.get(queue)
        if tally is not None:
            queues.move_to_end(queue)
            return tally
        if len(queues) >= self._most:
            queues.popitem(last=False)
        tally = queues[queue] = Tally()
        return tally

    # Verbs -------------------------------------------------------------------------------------------------
    # They run over each message of a batch: what is the same for all that follow each other is done once, the common
    # case comes first, and nothing is called for a single message.

    def pushed(
        self,
        requests: Sequence[Sequence[NewMessage]],
        answers: Sequence[Sequence[PushOutcome] | HarkError],
        *,
        alone: bool = True,
    ) -> None:
        """Messages came, by pushes or (not alone) with another request."""
        if alone:
            self.push_requests += len(requests)
        queue, tally, run, stored = None, self.total, 0, 0
        for message, outcome in _answered(requests, answers):
            if message.queue != queue:
                tally.pushed += run
                stored += run
                queue, run = message.queue, 0
                tally = self.of(queue)
            if outcome.status == "queued":
                run += 1
            elif outcome.status == "duplicate":
                tally.duplicates += 1
                self.total.duplicates += 1
            elif outcome.code != "sealing_mismatch":  # These are encrypted again and pushed again.
                tally.refused += 1
                self.total.refused += 1
        tally.pushed += run
        self.total.pushed += stored + run

    def popped(self, requests: Sequence[PopRequest], answers: Sequence[PopResult | HarkError]) -> None:
        """Consumers asked."""
        self.pop_requests += len(requests)
        ages, now, age_sum, queue, tally, delivered = self.ages, self._clock.now(), 0, None, self.total, 0
        for request, result in zip(requests, answers, strict=True):
            if isinstance(result, HarkError):
                continue
            messages = result.messages
            if not messages:
                self.empty_pops += 1
                continue
            completed = request.auto_ack and not result.lease_id
            if request.queue is None:
                self._note_labelled(messages, completed)
            else:
                if request.queue != queue:
                    queue = request.queue
                    tally = self.of(queue)
                number = len(messages)
                tally.delivered += number
                delivered += number
                if completed:
                    tally.completed += number
                    self.total.completed += number
            for message in messages:
                if message.attempt == 1:
                    created_at = message.created_at  # Later than now, by the clock of another machine, is now.
                    age = now - created_at if created_at < now else 0
                    age_sum += age
                    ages[age.bit_length()] += 1
                else:
                    self.of(message.queue).redelivered += 1
                    self.total.redelivered += 1
        self.total.delivered += delivered
        self.age_sum += age_sum

    def settled(
        self,
        requests: Sequence[Sequence[Settlement]],
        answers: Sequence[Sequence[SettleOutcome] | HarkError],
        *,
        alone: bool = True,
    ) -> None:
        """Consumers said what became of messages, alone or with another request."""
        if alone:
            self.settle_requests += len(requests)
        queue, tally, run, done = None, self.total, 0, 0
        for item, outcome in _answered(requests, answers):
            if outcome.lease_id is None or outcome.queue is None:  # It changed nothing.
                self.refused_settlements += not outcome.success
                continue
            if outcome.queue != queue:
                tally.completed += run
                done += run
                queue, run = outcome.queue, 0
                tally = self.of(queue)
            if item.status == "completed":
                run += 1
            else:
                kind = "dead_lettered" if outcome.dead_lettered else _UNSETTLED[item.status]
                for one in (tally, self.total):
                    setattr(one, kind, getattr(one, kind) + 1)
        tally.completed += run
        self.total.completed += done + run

    def transacted(self, requests: Sequence[Transaction], answers: Sequence[TransactionOutcome | HarkError]) -> None:
        """Transactions were applied, or not."""
        self.transactions += len(requests)
        for transaction, outcome in zip(requests, answers, strict=True):
            if isinstance(outcome, HarkError) or not outcome.success:
                continue
            for operation, result in zip(transaction.operations, outcome.results, strict=False):
                if isinstance(operation, NewMessage) and isinstance(result, PushOutcome):
                    self.pushed([[operation]], [[result]], alone=False)
                elif isinstance(operation, Settlement) and isinstance(result, SettleOutcome):
                    self.settled([[operation]], [[result]], alone=False)
            if transaction.keys is not None and outcome.keys is not None:
                self.pushed([transaction.keys.messages], [outcome.keys.messages], alone=False)

    def wrote_keys(self, requests: Sequence[KeyWrite], answers: Sequence[KeyWritten | HarkError]) -> None:
        """Keys were written, maybe with messages."""
        for write, written in zip(requests, answers, strict=True):
            if write.messages and not isinstance(written, HarkError) and written.success:
                self.pushed([write.messages], [written.messages], alone=False)

    # Messages ----------------------------------------------------------------------------------------------

    def _note_labelled(self, messages: Sequence[Delivery], completed: bool) -> None:
        """A pop by namespace or task: its messages may be of several queues."""
        for message in messages:
            for tally in (self.of(message.queue), self.total):
                tally.delivered += 1
                tally.completed += completed


def _answered(requests: Sequence[Sequence[Q]], answers: Sequence[Sequence[A] | HarkError]) -> Iterator[tuple[Q, A]]:
    """The items of all requests with their outcomes, without the requests that could not be judged."""
    answered = cast(Sequence[Sequence[A]], answers)
    if set(map(type, answers)) != _ALL_LISTS:
        pairs = [
            (items, found) for items, found in zip(requests, answered, strict=True) if not isinstance(found, HarkError)
        ]
        requests, answered = [items for items, _ in pairs], [found for _, found in pairs]
    return zip(chain.from_iterable(requests), chain.from_iterable(answered), strict=True)
