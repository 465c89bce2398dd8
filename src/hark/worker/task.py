"""Tasks: functions that can be called here, or pushed to run in a worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from hark.client.producing.pushing import NewMessage, Pushed, new_message
from hark.errors import InvalidInput
from hark.worker.arguments import Signature
from hark.worker.envelope import Envelope, seal
from hark.worker.middleware import Outgoing, sees_pushes
from hark.worker.retrying import RetryPolicy, seconds_of

if TYPE_CHECKING:
    from hark.worker.middleware import AnyMiddleware

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_RETRY = RetryPolicy.exponential()
_MAX_TASK_NAME = 200


class Outlet(Protocol):
    """Where tasks are pushed to: a worker, as a task knows it."""

    @property
    def queue(self) -> str:
        """The queue of its tasks."""

    @property
    def middleware(self) -> Sequence[AnyMiddleware]:
        """Some of it sees pushes."""

    async def send(self, message: NewMessage) -> Pushed:
        """Push it; it is stored when this returns."""

    def push_from_thread(self, push: Callable[[], Coroutine[Any, Any, Pushed]]) -> Pushed:
        """Run a push for a function that is not async."""


class PushOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How one push differs from the others of its task."""

    delay: float | timedelta | None = None
    deliver_at: datetime | None = None
    priority: int | None = None
    key: str | None = None
    partition: str | None = None
    ttl: float | timedelta | None = None
    retry: RetryPolicy | None = None


_PLAIN = PushOptions()


class Task(Generic[P, R]):
    """A function with a name, under which workers know it.

    Calling it runs it here, like the function it was made of. `push` sends it to the queue.
    """

    def __init__(
        self,
        outlet: Outlet,
        name: str,
        function: Callable[P, R],
        *,
        retry: RetryPolicy | None = None,
        timeout: float | timedelta | None = None,
        unique: bool | Sequence[str] = False,
        priority: int | None = None,
    ) -> None:
        if not name or len(name) > _MAX_TASK_NAME:
            raise InvalidInput(f"the name of a task is {name!r}, expected 1 to {_MAX_TASK_NAME} characters")
        self.name = name
        self.function = function
        self.signature = Signature(name, function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.retry = DEFAULT_RETRY if retry is None else retry
        self.timeout = None if timeout is None else _checked_timeout(name, timeout)
        self.unique = _unique_names(name, unique, self.signature.names)
        if self.unique is not None:
            self.signature.check_unique(self.unique)
        self.priority = priority
        self._outlet = outlet
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name!r} of the queue {self._outlet.queue!r}>"

    @overload
    async def push(self, *args: P.args, **kwargs: P.kwargs) -> Pushed: ...
    @overload
    async def push(self, *args: Any, delay: float | timedelta, **kwargs: Any) -> Pushed: ...
    async def push(self, *args: Any, **kwargs: Any) -> Pushed:
        """Send it to the queue, to run in a worker, maybe after so many seconds; it is stored when this returns.

        Arguments that the function does not take raise `WrongArguments`, and nothing is sent. A type checker sees
        wrong ones too; with `delay` only through `options(delay=60).push(...)`, since Python's types have no place
        for a keyword beside those of the function.
        """
        delay: float | timedelta | None = kwargs.pop("delay", None)  # No parameter of a task has this name.
        return await self.send(_PLAIN if delay is None else PushOptions(delay=delay), args, kwargs)

    def push_sync(self, *args: P.args, **kwargs: P.kwargs) -> Pushed:
        """Push from a function that is not async.

        A handler in a thread uses the connection of its worker. Elsewhere each push opens and closes one; a program
        that is not async and pushes a lot is better off with `hark.sync`.
        """
        return self.send_from_thread(_PLAIN, args, kwargs)

    def options(
        self,
        *,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        priority: int | None = None,
        key: str | None = None,
        partition: str | None = None,
        ttl: float | timedelta | None = None,
        retry: RetryPolicy | None = None,
    ) -> TaskPush[P]:
        """The same task, pushed otherwise: `await send_email.options(delay=60, priority=5).push(to="a@b.c")`.

        `delay` and `ttl` are seconds, `deliver_at` the time instead, `key` an idempotency key, `retry` another policy.
        """
        return TaskPush(
            self,
            PushOptions(
                delay=delay,
                deliver_at=deliver_at,
                priority=priority,
                key=key,
                partition=partition,
                ttl=ttl,
                retry=retry,
            ),
        )

    async def send(self, options: PushOptions, args: Sequence[object], kwargs: dict[str, object]) -> Pushed:
        """Push with these options and arguments, both checked now."""
        encoded = self.signature.encode(args, kwargs)
        headers = await self._headers(options, encoded)
        policy = options.retry
        message = new_message(
            self._outlet.queue,
            seal(Envelope(task=self.name, arguments=encoded, headers=headers or None, own_schedule=policy is not None)),
            partition=options.partition,
            key=self._key(options, encoded),
            delay=options.delay,
            deliver_at=options.deliver_at,
            priority=self.priority if options.priority is None else options.priority,
            ttl=options.ttl,
            retry_delays=self.retry.delays if policy is None else policy.jittered(),
        )
        return await self._outlet.send(message)

    def send_from_thread(self, options: PushOptions, args: Sequence[object], kwargs: dict[str, object]) -> Pushed:
        """The same for a function that is not async."""
        return self._outlet.push_from_thread(lambda: self.send(options, args, kwargs))

    async def _headers(self, options: PushOptions, encoded: msgspec.Raw) -> dict[str, str]:
        layers: Sequence[object] = self._outlet.middleware
        watching = [layer for layer in layers if sees_pushes(layer)]
        if not watching:
            return {}
        delay = None if options.delay is None else seconds_of("delay", options.delay)
        outgoing = Outgoing(self.name, self.signature.decode(encoded), delay, options.deliver_at)
        for layer in watching:
            await layer.on_push(outgoing)
        for name, value in outgoing.headers.items():
            if not isinstance(value, str):  # Nobody could read the message.
                raise InvalidInput(f"header {name!r} of task {self.name!r}: expected text, got {value!r}")
        return outgoing.headers

    def _key(self, options: PushOptions, encoded: msgspec.Raw) -> str | None:
        if options.key is not None or self.unique is None:
            return options.key
        return self.signature.unique_key(encoded, self.unique)


class TaskPush(Generic[P]):
    """A task and how it is pushed."""

    __slots__ = ("_options", "_task")

    def __init__(self, task: Task[P, Any], options: PushOptions) -> None:
        self._task = task
        self._options = options

    async def push(self, *args: P.args, **kwargs: P.kwargs) -> Pushed:
        """Send it to the queue; it is stored when this returns."""
        return await self._task.send(self._options, args, kwargs)

    def push_sync(self, *args: P.args, **kwargs: P.kwargs) -> Pushed:
        """Push from a function that is not async."""
        return self._task.send_from_thread(self._options, args, kwargs)


AnyTask = Task[..., Any]


def _checked_timeout(name: str, timeout: float | timedelta) -> float:
    seconds = seconds_of(f"timeout of task {name!r}", timeout)
    if not seconds:
        raise InvalidInput(f"timeout of task {name!r} is 0, expected seconds, or None for no limit")
    return seconds


def _unique_names(name: str, unique: bool | Sequence[str], known: tuple[str, ...]) -> tuple[str, ...] | None:
    """The arguments by which a task is unique; None if it is not."""
    if unique is False:
        return None
    if unique is True:
        return known
    names = (unique,) if isinstance(unique, str) else tuple(unique)
    for one in names:
        if one not in known:
            raise InvalidInput(f"task {name!r}: unique names {one!r}, expected one of {', '.join(known) or 'nothing'}")
    return names
