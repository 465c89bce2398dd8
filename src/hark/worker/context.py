"""What a handler and its middleware may know about the task that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

_current: ContextVar[TaskContext] = ContextVar("hark.worker.current")


class TaskContext:
    """One delivery of one task, from its start to its end."""

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
        self.message_id = message_id
        self.attempt = attempt
        """1 for the first; failed and expired ones count."""
        self.arguments = arguments
        self.headers = headers
        """What middleware put into the message at its push."""
        self.queue = queue
        self.worker_id = worker_id
        self.is_lost = False
        """Whether this delivery no longer counts: its lease or its time is over, or the worker gave it back.

        A function in a thread can't be cancelled; one that takes long should look here now and then, and return.
        """
        self._event: asyncio.Event | None = None

    @property
    def lost(self) -> asyncio.Event:
        """The same as an event, for whoever runs in the worker's loop."""
        if self._event is None:
            self._event = asyncio.Event()
            if self.is_lost:
                self._event.set()
        return self._event

    def lose(self) -> None:
        """This delivery is over, whatever its handler does."""
        self.is_lost = True
        if self._event is not None:
            self._event.set()


def current() -> TaskContext:
    """The task that the caller runs in; raises `LookupError` outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError("no task runs here: current() is for handlers and middleware of a worker") from None


def current_or_none() -> TaskContext | None:
    """The task that the caller runs in, if any."""
    return _current.get(None)


def enter(context: TaskContext) -> None:
    """Make it the current one of this asyncio task (whose context ends with it)."""
    _current.set(context)
