"""The current task, and middleware that wraps every task of a worker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from hark.errors import HarkError, InvalidInput
from hark.prometheus import Histogram, histogram, text
from hark.worker.retrying import Discard, Retry

if TYPE_CHECKING:
    from hark.client.client import Client
    from hark.sync.client import Client as SyncClient


class Address(msgspec.Struct, frozen=True):
    """How another process connects to the server that the tasks come from: arguments of `hark.connect`."""

    target: str | tuple[str, ...] | None
    token: str | None
    ca_file: str | None


def unreachable() -> HarkError:
    """The error of a call in a process of a task whose server is in the process of the worker."""
    return HarkError("this process cannot reach the server of the worker; give the worker a URL instead of a client")


class Clients(Protocol):
    """The clients of a run of a worker."""

    @property
    def address(self) -> Address | None:
        """How another process connects to the server. None: it cannot."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of the handlers. None in a process of a task."""

    @property
    def client(self) -> Client:
        """The client of that loop."""

    @property
    def sync_client(self) -> SyncClient:
        """The same for threads."""


current_task: ContextVar[TaskContext | None] = ContextVar("hark.worker.current", default=None)
"""The task that runs in this context."""


class TaskContext(msgspec.Struct, kw_only=True, eq=False):
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

    task: str
    """Name of the task."""
    message_id: str
    """Id of the message."""
    attempt: int
    """Number of this delivery attempt, from 1. Failures and expired leases count."""
    arguments: Mapping[str, Any]
    """The arguments of the task, by name."""
    headers: Mapping[str, str]
    """Headers that middleware added to the message when it was pushed."""
    queue: str
    """Name of the queue."""
    worker_id: str
    """Id of the worker."""
    is_lost: bool = False
    """Whether this delivery is no longer valid: its lease expired, it timed out, or the worker released it.

    A function in a thread cannot be cancelled. A long one should check this from time to time, and return.
    """
    cancelled: bool = False
    """Whether the task was cancelled. An async handler gets `CancelledError`; a function in a thread should return."""
    _event: asyncio.Event | None = None
    _report: Callable[[float | None, str | None], None] | None = None
    _clients: Clients | None = None

    @property
    def client(self) -> Client:
        """The client of the server that the task came from, for async handlers and middleware. Do not close it."""
        clients = self._clients
        if clients is None:
            raise LookupError("this task has no client: no worker runs it")
        with suppress(RuntimeError):
            if asyncio.get_running_loop() is clients.loop:
                return clients.client
        raise HarkError("current().client belongs to the event loop of the worker; use current().sync_client here")

    @property
    def sync_client(self) -> SyncClient:
        """The same with blocking calls, for handlers in threads. In a process it is a client of its own."""
        if self._clients is None:
            raise LookupError("this task has no client: no worker runs it")
        return self._clients.sync_client

    def progress(self, progress: float | None = None, note: str | None = None) -> None:
        """Report how far the task is, from 0 to 1, with a note. The handle, the CLI and the dashboard show it.

        Returns at once. Of many reports within a short time, only the last one is sent.
        """
        if progress is not None and not (isinstance(progress, int | float) and 0 <= progress <= 1):
            raise InvalidInput(f"progress: expected a number from 0 to 1, got {progress!r}")
        if note is not None and not isinstance(note, str):
            raise InvalidInput(f"note: expected a text, got {note!r}")
        if self._report is not None:
            self._report(progress, note)

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
    if (context := current_task.get()) is None:
        raise LookupError("no task is running here: call current() in a handler or middleware of a worker")
    return context


BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
"""Upper bounds of the buckets, in seconds."""


CallNext = Callable[[], Awaitable[Any]]
"""What a middleware awaits to run the rest of the middleware and the handler."""
AnyMiddleware = Callable[[TaskContext, CallNext], Awaitable[Any]]


class Outgoing(msgspec.Struct, eq=False):
    """A task before it is pushed. Middleware can add `headers`, which the handler finds in its context."""

    task: str
    """Name of the task."""
    arguments: Mapping[str, Any]
    """The arguments, by name."""
    delay: float | None
    """Delay in seconds, or None."""
    deliver_at: datetime | None
    """The time of delivery, or None."""
    headers: dict[str, str] = {}
    """Headers of the message. Add strings here."""


class Middleware:
    """Base class for middleware. Override `__call__`, `on_push` or both. The first middleware of a worker is outermost.

    class Timed(Middleware):
        async def __call__(self, context, call_next):
            started = time.monotonic()
            try:
                return await call_next()
            finally:
                print(context.task, time.monotonic() - started)

    An async function with the same parameters as `__call__` is a middleware, too.
    """

    async def __call__(self, context: TaskContext, call_next: CallNext) -> Any:  # noqa: ARG002  # For those who build on it.
        """Runs around the handler. Call `await call_next()` and return its result."""
        return await call_next()

    async def on_push(self, outgoing: Outgoing) -> None:
        """Called before each push. Add headers to `outgoing.headers`, or raise to reject the push."""


def chained(middleware: Sequence[AnyMiddleware], context: TaskContext, call: CallNext) -> CallNext:
    """The handler's call, wrapped by all middleware."""
    for layer in reversed(middleware):
        call = partial(layer, context, call)
    return call


class MetricsMiddleware(Middleware):
    """Measures how long tasks take, by task and outcome, for Prometheus.

    `hark.Worker(..., middleware=[MetricsMiddleware()])` adds the metric to the worker's /metrics.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.seconds: dict[tuple[str, str], Histogram] = {}
        """The durations by task and outcome."""

    async def __call__(self, context: TaskContext, call_next: CallNext) -> Any:
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
            self.seconds.setdefault((context.task, outcome), Histogram(BOUNDS)).add(self._monotonic() - started)

    def prometheus(self) -> str:
        """The metric in the text format of Prometheus. The worker's /metrics includes it."""
        rows = [
            ({"task": task, "outcome": outcome}, self.seconds[task, outcome]) for task, outcome in sorted(self.seconds)
        ]
        return text([histogram("worker_task_seconds", "How long tasks took.", rows)]).decode()


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
        self._logger.debug("task started", extra=fields_of(context))
        result = await call_next()
        self._logger.debug("task completed", extra=fields_of(context))
        return result


_FIELDS = ("task", "message_id", "attempt", "worker_id")


def fields_of(context: TaskContext | None) -> dict[str, object]:
    """The fields of a task's log records. Outside of tasks they are None."""
    return {name: getattr(context, name, None) for name in _FIELDS}


def add_task_fields(record: logging.LogRecord) -> bool:
    """A logging filter that adds the fields of the current task."""
    for name, value in fields_of(current_task.get()).items():
        if not hasattr(record, name):
            setattr(record, name, value)
    return True
