"""The handle of a pushed task: its state, its result, its cancellation."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

import msgspec

from hark.api import operations
from hark.api.types.tasks import FlowStatus, TaskStatus
from hark.client.arguments import a_name, seconds_of
from hark.client.pushing import Pushed
from hark.errors import Conflict, HarkError, InvalidInput
from hark.ids import partition_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from hark.api.operations import Operation
    from hark.client.calling import Caller

S = TypeVar("S", TaskStatus, FlowStatus)
T = TypeVar("T")

_WAIT_SECONDS = 30.0
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


class Handle(Generic[S, T]):
    """A pushed task or flow. `await handle.result()` waits until it is done."""

    _cancelled = "was cancelled or discarded"

    def __init__(self, caller: Callable[[], Caller], result_type: Any) -> None:
        self._caller = caller
        self._type = result_type

    async def state(self) -> S:
        """The state now: of a task with its progress, of a flow with its steps."""
        return await self._show(None)

    async def result(self, timeout: float | timedelta | None = None) -> T:  # noqa: ASYNC109  # As asyncio.wait has it.
        """Wait until it is done, and return its result: of a flow, that of the last step.

        Raises `TaskFailed` with the remote traceback if the task or a step is dead-lettered; `TaskCancelled` if it was
        cancelled, or if the handler discarded it; and `TimeoutError` if it has not ended within `timeout` seconds
        (default: no limit).
        """
        end = math.inf if timeout is None else time.monotonic() + seconds_of(timeout, "timeout")
        while True:
            left = end - time.monotonic()
            status: S | None = None
            if left <= 0:
                status = await self._show(None)
            else:
                with suppress(TimeoutError):  # The time of a server in tests can stand still.
                    async with asyncio.timeout(None if left == math.inf else left):
                        status = await self._show(min(left, _WAIT_SECONDS))
            if status is not None and status.state in ("done", "failed", "cancelled"):
                return self._outcome(status)
            if status is not None and left <= 0:
                raise TimeoutError(f"{self._what} has not ended: it is {status.state}")

    async def cancel(self) -> bool:
        """Cancel it. Returns False if it has ended before."""
        raise NotImplementedError

    @property
    def _what(self) -> str:
        """Its name and id, for errors."""
        raise NotImplementedError

    async def _show(self, seconds: float | None) -> S:
        """The state, after a wait for the end of these seconds at most."""
        raise NotImplementedError

    async def _ask(
        self, operation: Operation[S], names: Sequence[str], seconds: float | None, query: dict[str, str]
    ) -> S:
        if seconds is not None:
            query |= {"wait": "true", "timeout": str(round(seconds * 1000))}
        return await self._caller().ask(operation, *names, query=query, seconds=(seconds or 0) + 10)

    def _outcome(self, status: S) -> T:
        if status.state == "cancelled":
            raise TaskCancelled(f"{self._what} {self._cancelled}")
        if status.state == "failed":
            first, _, trace = (status.error or "no error text").partition("\n")
            raise TaskFailed(f"{self._what} failed: {first}", traceback=trace)
        if status.result is msgspec.UNSET:
            raise ResultMissing(f"{self._what} is done, but its result is not stored any more")
        try:
            return cast(T, msgspec.json.decode(status.result, type=self._type))
        except msgspec.ValidationError as error:
            raise InvalidInput(f"the result of {self._what} is not of its declared type: {error}") from error


class _OfPush:
    """The attributes of the push as those of a handle."""

    pushed: Pushed

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


class TaskHandle(_OfPush, Handle[TaskStatus, T]):
    """A pushed task. `await handle.result()` waits until a worker has done it.

    The attributes of the push are those of `hark.Pushed`: `status`, `id`, `transaction_id`, `partition_id`, `queue`.
    Another process makes an equal handle from two of them: `client.handle(id, transaction_id)`.
    """

    def __init__(
        self,
        task: str,
        pushed: Pushed,
        caller: Callable[[], Caller],
        result_type: Any,
        *,
        stores: bool = True,
        group: str | None = None,
    ) -> None:
        super().__init__(caller, result_type)
        self.task = task
        """Name of the task; empty if the handle was made from ids, like `queue`."""
        self.pushed = pushed
        """Result of the push."""
        self._stores = stores
        self._group = group

    def __repr__(self) -> str:
        return f"<TaskHandle {self.task!r} {self.id}>"

    async def result(self, timeout: float | timedelta | None = None) -> T:  # noqa: ASYNC109  # As asyncio.wait has it.
        """Wait until the task is done, and return its result.

        Raises `TaskFailed` with the remote traceback if the task is dead-lettered, `TaskCancelled` if it was cancelled,
        and `TimeoutError` if it has not ended within `timeout` seconds (default: no limit).
        """
        if not self._stores:
            raise InvalidInput(
                f"task {self.task!r} stores no results; declare it with @worker.task({self.task!r}, result=True)"
            )
        return await super().result(timeout)

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

    @property
    def _what(self) -> str:
        return f"{f'task {self.task!r}' if self.task else 'the task'} ({self.id})"

    async def _show(self, seconds: float | None) -> TaskStatus:
        query = {"id": self.id} if self._group is None else {"id": self.id, "consumerGroup": self._group}
        return await self._ask(operations.SHOW_TASK, (self.partition_id, self.transaction_id), seconds, query)


class SyncHandle(Generic[S, T]):
    """A handle with blocking calls, for functions that are not async."""

    def __init__(self, inner: Handle[S, T], run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]) -> None:
        self.inner: Handle[S, T] = inner
        """The async handle that does the work."""
        self._run = run

    def __repr__(self) -> str:
        return repr(self.inner)

    def state(self) -> S:
        """The state now: of a task with its progress, of a flow with its steps."""
        return cast(S, self._run(self.inner.state))

    def result(self, timeout: float | timedelta | None = None) -> T:
        """Wait until it is done, and return its result. Raises what `result` of the async handle raises."""
        return cast(T, self._run(lambda: self.inner.result(timeout)))

    def cancel(self) -> bool:
        """Cancel it. Returns False if it has ended before. See `cancel` of the async handle."""
        return cast(bool, self._run(self.inner.cancel))


class SyncTaskHandle(_OfPush, SyncHandle[TaskStatus, T]):
    """The handle of a pushed task with blocking calls, for functions that are not async."""

    def __init__(self, inner: TaskHandle[T], run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]) -> None:
        super().__init__(inner, run)
        self.task = inner.task
        """Name of the task."""
        self.pushed = inner.pushed
        """Result of the push."""


def handle_of(
    caller: Caller, id: str, transaction_id: str, result_type: type[T] | Any = Any, group: str | None = None
) -> TaskHandle[T]:
    """A handle of a task that another process pushed."""
    partition_id = partition_id_of(id)
    if partition_id is None:
        raise InvalidInput(f"id: expected the id of a message, as handle.id has it, got {id!r}")
    pushed = Pushed("queued", id, a_name(transaction_id, "transaction_id"), partition_id, "")
    return TaskHandle("", pushed, lambda: caller, result_type, group=group)
