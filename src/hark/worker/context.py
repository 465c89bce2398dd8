"""The current task, for handlers and middleware."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

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
