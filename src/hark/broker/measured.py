"""An engine whose calls are counted and timed, and whose answers are tallied.

Every verb of the protocol is wrapped, also those that it will get: so nothing goes to the store uncounted.
The hot verbs take batches, so that what this costs is shared by all who are in one.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Any, cast

from hark.broker.tallies import Tallies
from hark.engine.api import Engine
from hark.errors import EngineFailure, HarkError
from hark.histograms import CALL_SECONDS, Histogram

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

    def ended(self, verb: str, started: float) -> None:
        """A call came to its end, by an answer or an error."""
        found = self.seconds.get(verb)
        if found is None:
            found = self.seconds[verb] = Histogram(CALL_SECONDS)
        found.add(self.timer() - started)

    def answered(self, verb: str) -> None:
        """A call was answered."""
        if verb in _REACHING:
            self.answered_at = self.timer()

    def failed(self, verb: str, error: BaseException) -> None:
        """A call raised."""
        key = (verb, error.code if isinstance(error, HarkError) else "internal")
        if key not in self.errors and len(self.errors) >= _MOST_CODES:
            key = ("other", "other")
        self.errors[key] = self.errors.get(key, 0) + 1
        if not isinstance(error, HarkError) or isinstance(error, EngineFailure):
            self.answered_at = None


def measured(engine: Engine, calls: EngineCalls, tallies: Tallies) -> Engine:
    """The same engine, with every call noted."""
    return cast(Engine, _Measured(engine, calls, tallies))


class _Measured:
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
        # What is not a verb: `hear`, and what some engines have beside the protocol.
        return getattr(self._engine, name)


def _timed(engine: Engine, verb: str, calls: EngineCalls) -> Verb:
    async def call(*args: Any, **named: Any) -> Any:
        started = calls.timer()
        try:
            answer = await getattr(engine, verb)(*args, **named)
        except Exception as error:
            calls.failed(verb, error)
            raise
        finally:
            calls.ended(verb, started)
        calls.answered(verb)
        return answer

    return call


def _touching(verb: Verb, tallies: Tallies) -> Verb:
    """A verb that those should hear of who look at the queue."""

    async def call(queue: str, *args: Any, **named: Any) -> Any:
        tallies.touched.add(queue)
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
        answer.add_done_callback(partial(done, requests, started))
        return answer

    def done(requests: Any, started: float, answer: asyncio.Future[Any]) -> None:
        calls.ended(verb, started)
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            calls.failed(verb, error)
            return
        calls.answered(verb)
        if note is not None:
            note(requests, answer.result())

    return call
