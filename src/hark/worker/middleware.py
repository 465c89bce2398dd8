"""Middleware: what wraps every task of a worker, and what sees every push.

The first in the list is the outermost. A middleware is an object like `Middleware`, or a plain async function:

    async def timed(context, call_next):
        started = time.monotonic()
        try:
            return await call_next()
        finally:
            print(context.task, time.monotonic() - started)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeGuard, runtime_checkable

from hark.worker.context import TaskContext, current_or_none
from hark.worker.durations import Durations
from hark.worker.retrying import Discard, Retry

CallNext = Callable[[], Awaitable[Any]]
AnyMiddleware = Callable[[TaskContext, CallNext], Awaitable[Any]]


class Outgoing:
    """A task on its way out: middleware may add headers, which the handler's side finds in its context."""

    __slots__ = ("arguments", "delay", "deliver_at", "headers", "task")

    def __init__(
        self, task: str, arguments: Mapping[str, Any], delay: float | None, deliver_at: datetime | None
    ) -> None:
        self.task = task
        self.arguments = arguments
        self.delay = delay
        self.deliver_at = deliver_at
        self.headers: dict[str, str] = {}


@runtime_checkable
class SeesPushes(Protocol):
    """A middleware that is told of each push before it is sent."""

    async def on_push(self, outgoing: Outgoing) -> None:
        """Add headers, or raise to refuse the push."""


class Middleware:
    """Base to build on: does nothing."""

    async def __call__(self, context: TaskContext, call_next: CallNext) -> Any:  # noqa: ARG002  # For those who build on it.
        """Runs around the handler, and returns what it returned."""
        return await call_next()

    async def on_push(self, outgoing: Outgoing) -> None:
        """Is told of each push before it is sent."""


def sees_pushes(layer: object) -> TypeGuard[SeesPushes]:
    """Whether a middleware wants to be told of pushes."""
    return isinstance(layer, SeesPushes) and getattr(type(layer), "on_push", None) is not Middleware.on_push


def chained(middleware: Sequence[AnyMiddleware], context: TaskContext, call: CallNext) -> CallNext:
    """The handler's call with all middleware around it."""
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
    """Measures how long tasks take, by task and by how they ended, for Prometheus."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.durations = Durations()

    async def __call__(self, context: TaskContext, call_next: CallNext) -> Any:
        """Measure."""
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
        """The text for a scraper; a worker's /metrics has it too."""
        return self.durations.prometheus()


class LoggingContext(Middleware):
    """Gives the log records of a task its name, message id and attempt, and logs its start and end at debug level.

    The fields are `task`, `message_id`, `attempt` and `worker_id` of each record that a handler of `filtered` sees.
    """

    def __init__(self, *filtered: logging.Handler, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("hark.worker.tasks")
        for handler in filtered:
            handler.addFilter(add_task_fields)

    async def __call__(self, context: TaskContext, call_next: CallNext) -> Any:
        """Log around it."""
        self._logger.debug("task begins", extra=fields_of(context))
        result = await call_next()
        self._logger.debug("task is done", extra=fields_of(context))
        return result


def fields_of(context: TaskContext) -> dict[str, object]:
    """What a log record of a task says beside its text."""
    return {
        "task": context.task,
        "message_id": context.message_id,
        "attempt": context.attempt,
        "worker_id": context.worker_id,
    }


def add_task_fields(record: logging.LogRecord) -> bool:
    """A filter for handlers of `logging`: adds the fields of the current task; outside of tasks they are None."""
    context = current_or_none()
    fields = dict.fromkeys(("task", "message_id", "attempt", "worker_id")) if context is None else fields_of(context)
    for name, value in fields.items():
        if not hasattr(record, name):
            setattr(record, name, value)
    return True
