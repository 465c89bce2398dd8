"""The handle of a pushed task: its state, its result, its cancellation."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

import msgspec

from hark.api import operations
from hark.api.types.messages import TaskStatus
from hark.client.arguments import seconds_of
from hark.errors import Conflict, HarkError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from hark.client.calling import Caller
    from hark.client.pushing import Pushed

T = TypeVar("T")

WAIT_SECONDS = 30.0
"""How long one request waits at the server. A wait repeats it."""


class TaskFailed(Conflict):
    """The task failed, and is a dead letter. `traceback` is that of its last attempt, from the worker."""

    code = "task_failed"

    def __init__(self, text: str, *, traceback: str = "") -> None:
        super().__init__(text)
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.text}\n\nin the worker:\n{self.traceback}" if self.traceback else self.text


class TaskCancelled(Conflict):
    """The task was cancelled before it was done, or its handler discarded it."""

    code = "task_cancelled"


class ResultMissing(Conflict):
    """The task is done, but its result is not stored: it has expired, or the task stores none."""

    code = "result_missing"


class TaskHandle(Generic[T]):
    """A pushed task. `await handle.result()` waits until a worker has done it.

    The attributes of the push are those of `hark.Pushed`: `status`, `id`, `transaction_id`, `partition_id`, `queue`.
    """

    def __init__(
        self, task: str, pushed: Pushed, caller: Callable[[], Caller], result_type: Any, *, stores: bool
    ) -> None:
        self.task = task
        """Name of the task."""
        self.pushed = pushed
        """Result of the push."""
        self._caller = caller
        self._type = result_type
        self._stores = stores

    def __repr__(self) -> str:
        return f"<TaskHandle {self.task!r} {self.id}>"

    @property
    def status(self) -> Literal["queued", "duplicate"]:
        """`queued`, or `duplicate` if an equal task was pushed before. The handle is then that of the first one."""
        return self.pushed.status

    @property
    def id(self) -> str:
        """Id of the message."""
        return self.pushed.id

    @property
    def transaction_id(self) -> str:
        """Idempotency key of the push."""
        return self.pushed.transaction_id

    @property
    def partition_id(self) -> str:
        """Id of the partition that stores the message."""
        return self.pushed.partition_id

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self.pushed.queue

    async def state(self) -> TaskStatus:
        """The state of the task now, with its progress."""
        return await self._show(None)

    async def result(self, timeout: float | timedelta | None = None) -> T:  # noqa: ASYNC109  # As asyncio.wait has it.
        """Wait until the task is done, and return its result.

        Raises `TaskFailed` with the remote traceback if the task is dead-lettered, `TaskCancelled` if it was cancelled,
        and `TimeoutError` if it has not ended within `timeout` seconds (default: no limit).
        """
        if not self._stores:
            raise InvalidInput(
                f"task {self.task!r} stores no results; declare it with @worker.task({self.task!r}, result=True)"
            )
        end = math.inf if timeout is None else time.monotonic() + seconds_of(timeout, "timeout")
        while True:
            left = max(0.0, end - time.monotonic())
            status = await self._show(min(left, WAIT_SECONDS))
            if status.state in ("done", "failed", "cancelled"):
                return self._outcome(status)
            if time.monotonic() >= end:
                raise TimeoutError(f"task {self.task!r} ({self.id}) has not ended: it is {status.state}")

    async def cancel(self) -> bool:
        """Cancel the task. Returns False if it has ended before.

        A task that no worker has received is removed. A running one learns of it with the next renewal of its lease: an
        async handler gets `asyncio.CancelledError`, a function in a thread sees `current().cancelled`.
        """
        try:
            await self._caller().send(operations.CANCEL_MESSAGE, self.id, query={"running": "true"})
        except HarkError as error:
            if error.code in ("message_settled", "message_not_found"):
                return False
            raise
        return True

    async def _show(self, seconds: float | None) -> TaskStatus:
        query = {} if seconds is None else {"wait": "true", "timeout": str(round(seconds * 1000))}
        names = (self.partition_id, self.transaction_id)
        return await self._caller().ask(operations.SHOW_TASK, *names, query=query, seconds=(seconds or 0) + 10)

    def _outcome(self, status: TaskStatus) -> T:
        if status.state == "cancelled":
            raise TaskCancelled(f"task {self.task!r} ({self.id}) was cancelled or discarded")
        if status.state == "failed":
            first, _, trace = (status.error or "no error text").partition("\n")
            raise TaskFailed(f"task {self.task!r} ({self.id}) failed: {first}", traceback=trace)
        if status.result is msgspec.UNSET:
            raise ResultMissing(f"task {self.task!r} ({self.id}) is done, but its result is not stored any more")
        try:
            return cast(T, msgspec.json.decode(status.result, type=self._type))
        except msgspec.ValidationError as error:
            raise InvalidInput(f"the result of task {self.task!r} is not of its declared type: {error}") from error
