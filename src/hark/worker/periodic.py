"""Schedules of tasks: `@worker.periodic` declares them, and the worker creates them at its start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from hark.client.arguments import a_name
from hark.errors import HarkError, InvalidInput
from hark.worker.task import Envelope, Task

if TYPE_CHECKING:
    from hark.client.admin import Schedules

P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger("hark.worker")

_RETRY_SECONDS = 5.0


Declaration = dict[str, Any]
"""A schedule that a worker declares: the arguments of `Schedules.put` beside its name."""


class Periodic:
    """Declares schedules with these times. `worker.periodic` creates it: use it above `@worker.task`, or call it."""

    def __init__(self, declared: dict[str, Declaration], name: str | None, **settings: Any) -> None:
        self._declared = declared
        self._name = name
        self._settings = settings

    def __call__(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Task[P, R]:
        """Declare a schedule of a task with these arguments. Returns the task.

        Raises `WrongArguments` if the function does not take these arguments.
        """
        if not isinstance(task, Task):
            raise InvalidInput("periodic: expected a task; write @worker.periodic(...) above @worker.task")
        name = a_name(f"{task.queue}.{task.name}" if self._name is None else self._name, "name")
        if name in self._declared:
            raise InvalidInput(f"the worker already has a schedule {name!r}; give this one another name: name='...'")
        envelope = Envelope(task=task.name, arguments=task.signature.encode(args, kwargs))
        message = {"priority": task.priority, "retry_delays": task.retry.delays}
        self._declared[name] = {"queue": task.queue, "data": envelope, **message, **self._settings}
        return task


async def declare(
    declared: Mapping[str, Declaration],
    schedules: Callable[[], Schedules],
    *,
    until_stored: bool,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Create or change the declared schedules. `until_stored`: try again while the server is unavailable."""
    for name, declaration in declared.items():
        while True:
            try:
                await schedules().put(name, **declaration)
                break
            except HarkError as error:
                if not (until_stored and error.retryable):
                    raise
                _log.warning("cannot declare schedule %s; retrying in %g s: %s", name, _RETRY_SECONDS, error.text)
                await sleep(_RETRY_SECONDS)
