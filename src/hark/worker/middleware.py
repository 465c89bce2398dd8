"""The current task, and middleware that wraps every task of a worker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Protocol, TypeGuard, runtime_checkable

from hark.prometheus import Histogram
from hark.worker.retrying import Discard, Retry

_current: ContextVar[TaskContext] = ContextVar("hark.worker.current")


class TaskContext:
    """The task that is running: one delivery of one message. `hark.worker.current()` returns it.

    ```python
    from hark.worker import current

    @worker.task
    def resize(path: str) -> None:
        for image in images(path):
            if current().is_lost:
                return  # Another worker runs this task.
    ```
    """

    __slots__ = ("_event", "arguments", "attempt", "headers", "is_lost", "message_id", "queue", "task", "worker_id")

    def __init__(
        self,
        *,
        task: str,
        message_id: str,
        attempt: int,
        arguments: Mapping[str, Any],
        headers: Mapping[str, str],
        queue: str,
        worker_id: str,
    ) -> None:
        self.task = task
        """Name of the task."""
        self.message_id = message_id
        """Id of the message."""
        self.attempt = attempt
        """Number of this delivery attempt, from 1. Failures and expired leases count."""
        self.arguments = arguments
        """The arguments of the task, by name."""
        self.headers = headers
        """Headers that middleware added to the message when it was pushed."""
        self.queue = queue
        """Name of the queue."""
        self.worker_id = worker_id
        """Id of the worker."""
        self.is_lost = False
        """Whether this delivery is no longer valid: its lease expired, it timed out, or the worker released it.

        A function in a thread cannot be cancelled. A long one should check this from time to time, and return.
        """
        self._event: asyncio.Event | None = None

    @property
    def lost(self) -> asyncio.Event:
        """The same as an event, for coroutines in the worker's event loop."""
        if self._event is None:
            self._event = asyncio.Event()
            if self.is_lost:
                self._event.set()
        return self._event

    def lose(self) -> None:
        """Mark this delivery as no longer valid."""
        self.is_lost = True
        if self._event is not None:
            self._event.set()


def current() -> TaskContext:
    """The task that the caller runs in. Raises `LookupError` outside of a task."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError("no task is running here: call current() in a handler or middleware of a worker") from None


def current_or_none() -> TaskContext | None:
    """The task that the caller runs in, or None."""
    return _current.get(None)


def enter(context: TaskContext) -> None:
    """Make it the current task of this asyncio task."""
    _current.set(context)


BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
"""Upper bounds of the buckets, in seconds."""


class Durations:
    """One histogram per task and outcome."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], Histogram] = {}

    def add(self, task: str, outcome: str, seconds: float) -> None:
        """Add one duration."""
        self._seconds.setdefault((task, outcome), Histogram(BOUNDS)).add(seconds)

    def count(self, task: str, outcome: str) -> int:
        """The number of durations."""
        found = self._seconds.get((task, outcome))
        return 0 if found is None else found.count

    def prometheus(self) -> str:
        """The histograms in the text format of Prometheus."""
        # Imported here, because it is slow to import and only needed for a scrape.
        from hark.prometheus import histogram, text

        rows = [
            ({"task": task, "outcome": outcome}, found)
            for (task, outcome), found in sorted(self._seconds.items(), key=lambda item: item[0])
        ]
        return text([histogram("worker_task_seconds", "How long tasks took.", rows)]).decode()


# The first middleware in the list is the outermost. A middleware is an object like `Middleware`, or an async function:
#
# async def timed(context, call_next):
# started = time.monotonic()
# try:
# return await call_next()
# finally:
# print(context.task, time.monotonic() - started)


CallNext = Callable[[], Awaitable[Any]]
AnyMiddleware = Callable[[TaskContext, CallNext], Awaitable[Any]]


class Outgoing:
    """A task before it is pushed. Middleware can add `headers`, which the handler finds in its context."""

    __slots__ = ("arguments", "delay", "deliver_at", "headers", "task")

    def __init__(
        self, task: str, arguments: Mapping[str, Any], delay: float | None, deliver_at: datetime | None
    ) -> None:
        self.task = task
        """Name of the task."""
        self.arguments = arguments
        """The arguments, by name."""
        self.delay = delay
        """Delay in seconds, or None."""
        self.deliver_at = deliver_at
        """The time of delivery, or None."""
        self.headers: dict[str, str] = {}
        """Headers of the message. Add strings here."""


@runtime_checkable
class SeesPushes(Protocol):
    """A middleware that is called before each push."""

    async def on_push(self, outgoing: Outgoing) -> None:
        """Add headers, or raise to reject the push."""


class Middleware:
    """Base class for middleware. Override `__call__`, `on_push` or both.

    class Timed(Middleware):
        async def __call__(self, context, call_next):
            started = time.monotonic()
            try:
                return await call_next()
            finally:
                print(context.task, time.monotonic() - started)
    """

    async def __call__(self, context: TaskContext, call_next: CallNext) -> Any:  # noqa: ARG002  # For those who build on it.
        """Runs around the handler. Call `await call_next()` and return its result."""
        return await call_next()

    async def on_push(self, outgoing: Outgoing) -> None:
        """Called before each push. Add headers to `outgoing.headers`, or raise to reject the push."""


def sees_pushes(layer: object) -> TypeGuard[SeesPushes]:
    """Whether a middleware handles pushes."""
    return isinstance(layer, SeesPushes) and getattr(type(layer), "on_push", None) is not Middleware.on_push


def chained(middleware: Sequence[AnyMiddleware], context: TaskContext, call: CallNext) -> CallNext:
    """The handler's call, wrapped by all middleware."""
    for layer in reversed(middleware):
        call = _Layer(layer, context, call)
    return call


class _Layer:
    __slots__ = ("_call_next", "_context", "_layer")

    def __init__(self, layer: AnyMiddleware, context: TaskContext, call_next: CallNext) -> None:
        self._layer, self._context, self._call_next = layer, context, call_next

    def __call__(self) -> Awaitable[Any]:
        return self._layer(self._context, self._call_next)


class MetricsMiddleware(Middleware):
    """Measures how long tasks take, by task and outcome, for Prometheus.

    `hark.Worker(..., middleware=[MetricsMiddleware()])` adds the metric to the worker's /metrics.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.durations = Durations()

    async def __call__(self, context: TaskContext, call_next: CallNext) -> Any:
        """Measure one task."""
        started = self._monotonic()
        outcome = "error"
        try:
            result = await call_next()
            outcome = "ok"
            return result
        except Retry:
            outcome = "retry"
            raise
        except Discard:
            outcome = "discard"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self.durations.add(context.task, outcome, self._monotonic() - started)

    def prometheus(self) -> str:
        """The metric in the text format of Prometheus. The worker's /metrics includes it."""
        return self.durations.prometheus()


class LoggingContext(Middleware):
    """Adds the task to log records, and logs its start and end at debug level.

    Each record of the given logging handlers gets the fields `task`, `message_id`, `attempt` and `worker_id`.

        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(task)s %(message_id)s %(message)s"))
        worker = hark.Worker(queue="emails", middleware=[LoggingContext(handler)])
    """

    def __init__(self, *filtered: logging.Handler, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("hark.worker.tasks")
        for handler in filtered:
            handler.addFilter(add_task_fields)

    async def __call__(self, context: TaskContext, call_next: CallNext) -> Any:
        """Log the start and the end of one task."""
        self._logger.debug("task started", extra=fields_of(context))
        result = await call_next()
        self._logger.debug("task completed", extra=fields_of(context))
        return result


def fields_of(context: TaskContext) -> dict[str, object]:
    """The fields of a task's log records."""
    return {
        "task": context.task,
        "message_id": context.message_id,
        "attempt": context.attempt,
        "worker_id": context.worker_id,
    }


def add_task_fields(record: logging.LogRecord) -> bool:
    """A logging filter that adds the fields of the current task. Outside of tasks they are None."""
    context = current_or_none()
    fields = dict.fromkeys(("task", "message_id", "attempt", "worker_id")) if context is None else fields_of(context)
    for name, value in fields.items():
        if not hasattr(record, name):
            setattr(record, name, value)
    return True
