"""Calls of the engine: batched, counted and timed."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, TypeVar, cast

from hark.batching import Batcher, BatchSizes, when_done
from hark.broker.tallies import Tallies
from hark.clock import Clock
from hark.engine.api import Engine
from hark.errors import EngineFailure, HarkError
from hark.model import (
    MessageFacts,
    NewMessage,
    PopRequest,
    PopResult,
    PushOutcome,
    Renewal,
    RenewOutcome,
    Settlement,
    SettleOutcome,
    Transaction,
    TransactionOutcome,
)
from hark.prometheus import CALL_SECONDS, Histogram
from hark.settings import Settings

_MOST = 100_000

_PopKey = tuple[str | None, str | None, str | None, str]


class LastPolls:
    """The last time that each group asked, by what it asked for; the oldest are forgotten when there are too many."""

    def __init__(self, clock: Clock, most: int = _MOST) -> None:
        self._clock = clock
        self._most = most
        self._last: dict[_PopKey, int] = {}
        self.since = clock.now()
        """Who is not known has not asked since then."""

    def note(self, request: PopRequest) -> None:
        """A consumer asks."""
        key = (request.queue, request.namespace, request.task, request.group)
        if key not in self._last and len(self._last) >= self._most:
            self.since = max(self.since, self._last.pop(next(iter(self._last))))
        self._last[key] = self._clock.now()

    def last(self, message: MessageFacts, group: str) -> int | None:
        """Time of the group's last pop that could have received a message; None: no pop since `since`."""
        keys: list[_PopKey] = [(message.queue, None, None, group)]
        for namespace in (None, message.namespace):
            keys += [(None, namespace, task, group) for task in (None, message.task)]
        found = [self._last[key] for key in keys if key in self._last]
        return max(found, default=None)


# Every verb of the protocol is wrapped, also those that it will get: so nothing goes to the store uncounted.
# The hot verbs take batches, so that what this costs is shared by all who are in one.


_HOT = ("push", "pop", "settle", "transact", "renew")
"""Verbs that may return a future, which needs no task."""
VERBS = (
    *_HOT,
    *(name for name, verb in inspect.getmembers(Engine, inspect.iscoroutinefunction) if not name.startswith("_")),
)
"""The asynchronous verbs of the protocol."""
_TOUCHING = frozenset({"purge", "pause", "limit_group"})
"""Verbs that change the queue which is their first argument, and of which no hint tells."""
_REACHING = frozenset({"push", "settle", "transact", "write_keys", "ping"})
"""Verbs that are answered by the store itself, on every engine: others may be answered by what a server remembers."""
_MOST_CODES = 60
"""Kinds of failures that are counted one by one, over all verbs; more are summed up as `other`."""

Verb = Callable[..., Awaitable[Any]]
Note = Callable[[Any, Any], None]


class EngineCalls:
    """How long the calls of each verb took, and how those ended that failed."""

    def __init__(self, timer: Callable[[], float] = perf_counter) -> None:
        self.timer = timer
        """Seconds from any start."""
        self.seconds: dict[str, Histogram] = {}
        """By verb, for those that were called."""
        self.errors: dict[tuple[str, str], int] = {}
        """By verb and code: calls that raised."""
        self.answered_at: float | None = None
        """When the store itself last answered, if nothing failed since."""

    def ended(self, verb: str, started: float, *, answered: bool = False) -> None:
        """A call came to its end, by an answer or an error."""
        found = self.seconds.get(verb)
        if found is None:
            found = self.seconds[verb] = Histogram(CALL_SECONDS)
        now = self.timer()
        found.add(now - started)
        if answered and verb in _REACHING:
            self.answered_at = now

    def failed(self, verb: str, error: BaseException) -> None:
        """A call raised."""
        key = (verb, error.code if isinstance(error, HarkError) else "internal")
        if key not in self.errors and len(self.errors) >= _MOST_CODES:
            key = ("other", "other")
        self.errors[key] = self.errors.get(key, 0) + 1
        if not isinstance(error, HarkError) or isinstance(error, EngineFailure):
            self.answered_at = None


def instrumented(engine: Engine, calls: EngineCalls, tallies: Tallies) -> Engine:
    """The same engine, with every call noted."""
    return cast(Engine, _InstrumentedEngine(engine, calls, tallies))


class _InstrumentedEngine:
    """Stands for an engine."""

    def __init__(self, engine: Engine, calls: EngineCalls, tallies: Tallies) -> None:
        self._engine = engine
        notes: dict[str, Note] = {
            "push": tallies.pushed,
            "pop": tallies.popped,
            "settle": tallies.settled,
            "transact": tallies.transacted,
            "write_keys": tallies.wrote_keys,
        }
        for verb in VERBS:
            note = notes.get(verb)
            hot = verb in _HOT or note is not None
            wrapped = _noted(engine, verb, calls, note) if hot else _timed(engine, verb, calls)
            setattr(self, verb, _touching(wrapped, tallies) if verb in _TOUCHING else wrapped)

    @property
    def shared(self) -> bool:
        """See `Engine.shared`."""
        return self._engine.shared

    @property
    def follows(self) -> bool:
        """See `Engine.follows`."""
        return self._engine.follows

    def __getattr__(self, name: str) -> Any:
        # What is not a verb: `on_hints`, and what some engines have beside the protocol.
        return getattr(self._engine, name)


def _timed(engine: Engine, verb: str, calls: EngineCalls) -> Verb:
    async def call(*args: Any, **named: Any) -> Any:
        started = calls.timer()
        try:
            answer = await getattr(engine, verb)(*args, **named)
        except BaseException as error:
            if isinstance(error, Exception):
                calls.failed(verb, error)
            calls.ended(verb, started)
            raise
        calls.ended(verb, started, answered=True)
        return answer

    return call


def _touching(verb: Verb, tallies: Tallies) -> Verb:
    """A verb that those should hear of who look at the queue."""

    async def call(queue: str, *args: Any, **named: Any) -> Any:
        tallies.changed_queues.add(queue)
        return await verb(queue, *args, **named)

    return call


def _noted(engine: Engine, verb: str, calls: EngineCalls, note: Note | None) -> Verb:
    """A verb that takes a batch and answers each item of it. What the engine returns as a future stays one."""
    inner = getattr(engine, verb)

    def call(requests: Any) -> Awaitable[Any]:
        started = calls.timer()
        try:
            answer: Awaitable[Any] = inner(requests)
        except Exception as error:
            calls.failed(verb, error)
            calls.ended(verb, started)
            raise
        if not isinstance(answer, asyncio.Future):
            answer = asyncio.ensure_future(answer)
        when_done(answer, partial(done, requests, started))
        return answer

    def done(requests: Any, started: float, answer: asyncio.Future[Any]) -> None:
        cancelled = answer.cancelled()
        error = None if cancelled else answer.exception()
        calls.ended(verb, started, answered=not cancelled and error is None)
        if error is not None:
            calls.failed(verb, error)
        elif note is not None and not cancelled:
            note(requests, answer.result())

    return call


Q = TypeVar("Q")
A = TypeVar("A")

Pop = Callable[[Sequence[PopRequest]], Awaitable[Sequence[PopResult | HarkError]]]

_CALLS = 2
"""Calls of one verb at a time, in a store of many servers: one is prepared or answered while the other runs."""


class Batchers:
    """One batcher for each verb that many use at once."""

    def __init__(
        self, engine: Engine, settings: Settings, give_back: Callable[[PopResult], object], pop_at_once: Pop
    ) -> None:
        self._engine = engine
        self._settings = settings
        # In a store of many servers calls that push to the same partitions wait for each other, so all that waits goes
        # with one call; those of the other verbs pass each other by.
        self.push: Batcher[Sequence[NewMessage], list[PushOutcome]] = self.make("push", engine.push, max_calls=1)
        # Pops that settle wait for the disk, those that only lease do not: they must not share a call.
        self.pop: Batcher[PopRequest, PopResult] = self.make("pop", engine.pop, give_back)
        self.pop_auto_ack: Batcher[PopRequest, PopResult] = self.make("pop", pop_at_once)
        self.settle: Batcher[Sequence[Settlement], list[SettleOutcome]] = self.make("ack", engine.settle)
        self.transact: Batcher[Transaction, TransactionOutcome] = self.make("transaction", engine.transact)
        self.renew: Batcher[Renewal, RenewOutcome] = self.make("renew", engine.renew)

    def make(
        self,
        name: str,
        call: Callable[[Sequence[Q]], Awaitable[Sequence[A | HarkError]]],
        orphaned: Callable[[A], object] | None = None,
        max_calls: int = _CALLS,
    ) -> Batcher[Q, A]:
        """A batcher of one verb; `orphaned` gets answers that no caller waits for any more."""
        batching, limits = self._settings.batching, self._settings.limits
        return Batcher(
            name,
            call,
            max_items=batching.max_items,
            max_wait=batching.max_wait_ms / 1000,
            max_pending=limits.max_pending,
            max_calls=max_calls if self._engine.shared and not self._engine.follows else None,
            orphaned=orphaned,
        )

    async def drain(self) -> None:
        """Wait until all that was accepted is answered."""
        for batcher in (self.push, self.pop, self.pop_auto_ack, self.settle, self.transact, self.renew):
            await batcher.drain()

    def sizes(self) -> dict[str, BatchSizes]:
        """By verb, how many requests shared a call."""
        return {
            "push": self.push.sizes,
            "pop": self.pop.sizes,
            "pop_auto_ack": self.pop_auto_ack.sizes,
            "ack": self.settle.sizes,
            "transaction": self.transact.sizes,
            "renew": self.renew.sizes,
        }
