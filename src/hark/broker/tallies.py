"""Counters of requests, messages and engine calls of this server since its start."""

from __future__ import annotations

import asyncio
import inspect
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Literal, TypeVar, cast

import msgspec

from hark import model
from hark.batching import when_done
from hark.clock import MILLISECOND, Clock
from hark.engine.api import Engine
from hark.errors import EngineFailure, HarkError
from hark.prometheus import CALL_SECONDS, Histogram

Q = TypeVar("Q")
A = TypeVar("A")

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
"""An operation of the key-value API."""

BUCKETS_MS = (1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000)
_FAILED = 500
"""The lowest HTTP status of errors that are not errors of the client."""


class OperationTally(msgspec.Struct, eq=False):
    """The counters of one operation."""

    count: int = 0
    errors: int = 0
    milliseconds: Histogram = msgspec.field(default_factory=lambda: Histogram(BUCKETS_MS))
    """The durations."""


class Operations:
    """The counters of all key-value operations."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.tallies: dict[Operation, OperationTally] = {}
        """The counters of each operation that was called."""

    @contextmanager
    def measure(self, operation: Operation) -> Iterator[None]:
        """Count an operation. An error of the client is not a failure of the operation."""
        started = self._clock.now()
        failed = True
        try:
            yield
            failed = False
        except HarkError as error:
            failed = error.status >= _FAILED
            raise
        finally:
            tally = self.tallies.setdefault(operation, OperationTally())
            tally.count += 1
            tally.errors += failed
            tally.milliseconds.add((self._clock.now() - started) / MILLISECOND)


# Tallies are plain numbers, because every batch updates them. Their readers (metrics, the sampler) change nothing.


MOST_QUEUES = 10_000
"""Maximum number of queues with their own counters. A new queue replaces the one that was busy longest ago."""

_UNSETTLED = {"retry": "retried", "failed": "failed", "dlq": "failed"}
"""The counter of each kind of settlement that neither completes nor dead-letters."""
_AGES = 64
"""More bits than the age of any message in microseconds."""


class Tally(msgspec.Struct, eq=False):
    """The counters of one queue, or of many."""

    pushed: int = 0
    """Stored messages."""
    duplicates: int = 0
    """Messages that were not stored because they exist already."""
    refused: int = 0
    """Messages that were not stored for another reason, such as a full queue."""
    delivered: int = 0
    """Deliveries, first and repeated ones."""
    redelivered: int = 0
    """Repeated deliveries."""
    completed: int = 0
    failed: int = 0
    """Messages settled as failed, or dead-lettered in a queue without dead letters."""
    retried: int = 0
    """Messages given back for redelivery, without using an attempt."""
    dead_lettered: int = 0
    """Messages dead-lettered by a settlement."""

    @property
    def settled(self) -> int:
        """Settled messages, with any outcome."""
        return self.completed + self.failed + self.retried + self.dead_lettered

    @property
    def activity(self) -> int:
        """A number that grows with every event. It tells busy queues from idle ones."""
        return self.pushed + self.duplicates + self.refused + self.delivered + self.settled

    def add(self, other: Tally) -> None:
        """Add the counters of another tally."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Tallies:
    """The counters of this server. The measured engine reports each verb with its requests and answers."""

    def __init__(self, clock: Clock, most_queues: int = MOST_QUEUES) -> None:
        self._clock = clock
        self._most = most_queues
        self.queues: OrderedDict[str, Tally] = OrderedDict()
        """By queue; the one that was busy longest ago is first."""
        self.total = Tally()
        """The sum over all queues, including those that are no longer in `queues`."""
        self.changed_queues: set[str] = set()
        """Queues with events since the sampler replaced this set by an empty one."""
        self.push_requests = self.pop_requests = self.empty_pops = self.settle_requests = self.transactions = 0
        self.refused_settlements = 0
        self.expired_leases = 0
        self.ages = [0] * _AGES
        """At i: messages whose age at their first delivery was at least 2**(i-1) and less than 2**i microseconds."""
        self.age_sum = 0
        """The sum of these ages in microseconds."""

    def of(self, queue: str) -> Tally:
        """The counters of a queue that has an event now."""
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
    # These loops run over each message of a batch: neighbours of the same queue are counted together, the common case
    # comes first, and no function is called for a single message.

    def pushed(
        self,
        requests: Sequence[Sequence[model.NewMessage]],
        answers: Sequence[Sequence[model.PushOutcome] | HarkError],
        *,
        alone: bool = True,
    ) -> None:
        """Count messages of push requests, or (not alone) of other requests."""
        if alone:
            self.push_requests += len(requests)
        queue, tally, run, stored = None, self.total, 0, 0
        for messages, outcomes in zip(requests, answers, strict=True):
            if isinstance(outcomes, HarkError):
                continue
            for message, outcome in zip(messages, outcomes, strict=True):
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

    def popped(self, requests: Sequence[model.PopRequest], answers: Sequence[model.PopResult | HarkError]) -> None:
        """Count pops and their messages."""
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
        requests: Sequence[Sequence[model.Settlement]],
        answers: Sequence[Sequence[model.SettleOutcome] | HarkError],
        *,
        alone: bool = True,
    ) -> None:
        """Count messages of settle requests, or (not alone) of other requests."""
        if alone:
            self.settle_requests += len(requests)
        queue, tally, run, done = None, self.total, 0, 0
        for items, outcomes in zip(requests, answers, strict=True):
            if isinstance(outcomes, HarkError):
                continue
            for item, outcome in zip(items, outcomes, strict=True):
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

    def transacted(
        self, requests: Sequence[model.Transaction], answers: Sequence[model.TransactionOutcome | HarkError]
    ) -> None:
        """Count transactions, and the messages of those that were applied."""
        self.transactions += len(requests)
        for transaction, outcome in zip(requests, answers, strict=True):
            if isinstance(outcome, HarkError) or not outcome.success:
                continue
            messages, pushed, settlements, settled = [], [], [], []
            for operation, result in zip(transaction.operations, outcome.results, strict=False):
                if isinstance(operation, model.NewMessage) and isinstance(result, model.PushOutcome):
                    messages.append(operation)
                    pushed.append(result)
                elif isinstance(operation, model.Settlement) and isinstance(result, model.SettleOutcome):
                    settlements.append(operation)
                    settled.append(result)
            if messages:
                self.pushed([messages], [pushed], alone=False)
            if settlements:
                self.settled([settlements], [settled], alone=False)
            if transaction.keys is not None and outcome.keys is not None:
                self.pushed([transaction.keys.messages], [outcome.keys.messages], alone=False)

    def wrote_keys(self, requests: Sequence[model.KeyWrite], answers: Sequence[model.KeyWritten | HarkError]) -> None:
        """Count the messages of key writes."""
        for write, written in zip(requests, answers, strict=True):
            if write.messages and not isinstance(written, HarkError) and written.success:
                self.pushed([write.messages], [written.messages], alone=False)

    def _note_labelled(self, messages: Sequence[model.Delivery], completed: bool) -> None:
        """Count a pop by namespace or task, whose messages may be of several queues."""
        for message in messages:
            for tally in (self.of(message.queue), self.total):
                tally.delivered += 1
                tally.completed += completed


_MOST_TARGETS = 100_000
_Target = tuple[str | None, str | None, str | None, str]
"""Queue, namespace, task and group of a pop."""


class LastPolls:
    """The time of the last pop of each target. The oldest are forgotten when there are too many."""

    def __init__(self, clock: Clock, most: int = _MOST_TARGETS) -> None:
        self._clock = clock
        self._most = most
        self._last: dict[_Target, int] = {}
        self.since = clock.now()
        """There was no pop of an unknown target since then."""

    def note(self, request: model.PopRequest) -> None:
        """Record a pop."""
        target = (request.queue, request.namespace, request.task, request.group)
        if target not in self._last and len(self._last) >= self._most:
            self.since = max(self.since, self._last.pop(next(iter(self._last))))
        self._last[target] = self._clock.now()

    def last(self, message: model.MessageFacts, group: str) -> int | None:
        """Time of the group's last pop that could have received a message; None: no pop since `since`."""
        targets: list[_Target] = [(message.queue, None, None, group)]
        for namespace in (None, message.namespace):
            targets += [(None, namespace, task, group) for task in (None, message.task)]
        found = [self._last[target] for target in targets if target in self._last]
        return max(found, default=None)


# Every verb of the protocol is wrapped, so every call of the store is counted. The hot verbs take batches, which share
# the cost.


_HOT = ("push", "pop", "settle", "transact", "renew")
"""Verbs that may return a future, which needs no task."""
VERBS = (
    *_HOT,
    *(name for name, verb in inspect.getmembers(Engine, inspect.iscoroutinefunction) if not name.startswith("_")),
)
"""The asynchronous verbs of the protocol."""
_TOUCHING = ("purge", "pause", "limit_group")
"""Verbs that change the queue that is their first argument without a hint."""
_REACHING = frozenset({"push", "settle", "transact", "write_keys", "ping"})
"""Verbs that every engine answers from its store. Others may be answered from a cache."""
_MOST_CODES = 60
"""Maximum number of pairs of verb and code with their own counter. Further ones are counted as `other`."""

Verb = Callable[..., Awaitable[Any]]
Note = Callable[[Any, Any], None]


class EngineCalls(msgspec.Struct, eq=False):
    """The durations and failures of the calls of each verb."""

    timer: Callable[[], float] = perf_counter
    """A clock in seconds, from any start."""
    seconds: dict[str, Histogram] = {}
    """The durations by verb."""
    errors: dict[tuple[str, str], int] = {}
    """The number of failures by verb and code."""
    answered_at: float | None = None
    """When the store last answered; None after a later failure."""

    def ended(self, verb: str, started: float, error: BaseException | None = None) -> None:
        """Record the end of a call, by an answer, an error or a cancellation."""
        seconds = self.seconds.get(verb)
        if seconds is None:
            seconds = self.seconds[verb] = Histogram(CALL_SECONDS)
        now = self.timer()
        took = now - started
        seconds.counts[bisect_left(seconds.bounds, took)] += 1  # As `Histogram.add` does.
        seconds.sum += took
        if error is None:
            if verb in _REACHING:
                self.answered_at = now
        elif isinstance(error, Exception):
            key = (verb, error.code if isinstance(error, HarkError) else "internal")
            if key not in self.errors and len(self.errors) >= _MOST_CODES:
                key = ("other", "other")
            self.errors[key] = self.errors.get(key, 0) + 1
            if not isinstance(error, HarkError) or isinstance(error, EngineFailure):
                self.answered_at = None


def instrumented(engine: Engine, calls: EngineCalls, tallies: Tallies) -> Engine:
    """The same engine, with every call counted and timed."""
    return cast(Engine, _InstrumentedEngine(engine, calls, tallies))


class _InstrumentedEngine:
    def __init__(self, engine: Engine, calls: EngineCalls, tallies: Tallies) -> None:
        self._engine = engine
        self.shared = engine.shared
        self.follows = engine.follows
        notes: dict[str, Note] = {
            "push": tallies.pushed,
            "pop": tallies.popped,
            "settle": tallies.settled,
            "transact": tallies.transacted,
            "write_keys": tallies.wrote_keys,
        }
        for verb in VERBS:
            wrap = _hot if verb in _HOT else _timed
            wrapped = wrap(engine, verb, calls, notes.get(verb))
            setattr(self, verb, _changing(wrapped, tallies) if verb in _TOUCHING else wrapped)

    def __getattr__(self, name: str) -> Any:
        # What is not a verb: `on_hints`, and what some engines have beside the protocol.
        return getattr(self._engine, name)


def _changing(verb: Verb, tallies: Tallies) -> Verb:
    """Note the queue of a call as changed, also if its outcome is unknown."""

    async def call(queue: str, *args: Any, **named: Any) -> Any:
        tallies.changed_queues.add(queue)
        return await verb(queue, *args, **named)

    return call


def _timed(engine: Engine, verb: str, calls: EngineCalls, note: Note | None) -> Verb:
    async def call(*args: Any, **named: Any) -> Any:
        started = calls.timer()
        try:
            answer = await getattr(engine, verb)(*args, **named)
        except BaseException as error:
            calls.ended(verb, started, error)
            raise
        calls.ended(verb, started)
        if note is not None:
            note(args[0], answer)
        return answer

    return call


def _hot(engine: Engine, verb: str, calls: EngineCalls, note: Note | None) -> Verb:
    """Wrap a verb that takes a batch. A future that the engine returns stays a future."""
    inner = getattr(engine, verb)

    def call(requests: Any) -> Awaitable[Any]:
        started = calls.timer()
        try:
            answer: Awaitable[Any] = inner(requests)
        except Exception as error:
            calls.ended(verb, started, error)
            raise
        if not isinstance(answer, asyncio.Future):
            answer = asyncio.ensure_future(answer)
        when_done(answer, partial(done, requests, started))
        return answer

    def done(requests: Any, started: float, answer: asyncio.Future[Any]) -> None:
        error = asyncio.CancelledError() if answer.cancelled() else answer.exception()
        calls.ended(verb, started, error)
        if error is None and note is not None:
            note(requests, answer.result())

    return call
