"""Tasks: functions that can be called directly, or pushed to run in a worker."""

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
    """The worker as a task sees it."""

    @property
    def queue(self) -> str:
        """The queue of its tasks."""

    @property
    def middleware(self) -> Sequence[AnyMiddleware]:
        """The middleware, which may handle pushes."""

    async def send(self, message: NewMessage) -> Pushed:
        """Push a message. It is stored when this returns."""

    def push_from_thread(self, push: Callable[[], Coroutine[Any, Any, Pushed]]) -> Pushed:
        """Run a push for a function that is not async."""


class PushOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one push of a task. Times are seconds or a `timedelta`."""

    delay: float | timedelta | None = None
    """Wait this long before the task can run."""
    deliver_at: datetime | None = None
    """Run the task not before this time, which must have a time zone. An alternative to `delay`."""
    priority: int | None = None
    """0 to 9. The default is the priority of the task."""
    key: str | None = None
    """Idempotency key. A second push with the same key is a `duplicate`."""
    partition: str | None = None
    """The partition of the queue. The default is `Default`."""
    ttl: float | timedelta | None = None
    """Expire the task if it has not started within this time."""
    retry: RetryPolicy | None = None
    """The retry policy of this push. The default is the policy of the task."""


_PLAIN = PushOptions()


class Task(Generic[P, R]):
    """A function that workers run by name. `@worker.task` creates it.

    Calling it runs the function directly. `push` sends it to the queue, to run in a worker.
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
            raise InvalidInput(f"task name {name!r}: expected 1 to {_MAX_TASK_NAME} characters")
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
        """Run the function directly, in this process."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name!r} of the queue {self._outlet.queue!r}>"

    @overload
    async def push(self, *args: P.args, **kwargs: P.kwargs) -> Pushed: ...
    @overload
    async def push(self, *args: Any, delay: float | timedelta, **kwargs: Any) -> Pushed: ...
    async def push(self, *args: Any, **kwargs: Any) -> Pushed:
        """Push the task to the queue, to run in a worker. It is stored when this returns.

        `delay` is the time in seconds (or a `timedelta`) before it can run. For other options use `options`. A type
        checker sees wrong arguments, but not together with `delay`; use `options(delay=60).push(...)` for that.

        Raises `WrongArguments` if the function does not take these arguments. Nothing is sent then.
        """
        delay: float | timedelta | None = kwargs.pop("delay", None)  # No parameter of a task can have this name.
        return await self.send(_PLAIN if delay is None else PushOptions(delay=delay), args, kwargs)

    def push_sync(self, *args: P.args, **kwargs: P.kwargs) -> Pushed:
        """Push the task from a function that is not async, and wait until it is stored.

        In a handler's thread it uses the connection of the worker. Elsewhere each call opens and closes a connection:
        use `hark.sync` in a program that is not async and pushes often.
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
        """Push options for this task: `await send_email.options(delay=60, priority=5).push(to="a@b.c", subject="hi")`.

        - `delay`: seconds (or a `timedelta`) before the task can run. `deliver_at`: the time instead, with a time zone.
        - `priority`: 0 to 9. The default is the priority of the task.
        - `key`: idempotency key. A second push with the same key is a `duplicate`.
        - `partition`: the partition of the queue.
        - `ttl`: the task expires if it has not started within this many seconds.
        - `retry`: the retry policy of this push, instead of the task's policy.
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
        """Check the arguments and push with these options."""
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
        """Push for a function that is not async."""
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
            if not isinstance(value, str):  # No consumer could decode the message.
                raise InvalidInput(f"header {name!r} of task {self.name!r}: expected a string, got {value!r}")
        return outgoing.headers

    def _key(self, options: PushOptions, encoded: msgspec.Raw) -> str | None:
        if options.key is not None or self.unique is None:
            return options.key
        return self.signature.unique_key(encoded, self.unique)


class TaskPush(Generic[P]):
    """A task with push options."""

    __slots__ = ("_options", "_task")

    def __init__(self, task: Task[P, Any], options: PushOptions) -> None:
        self._task = task
        self._options = options

    async def push(self, *args: P.args, **kwargs: P.kwargs) -> Pushed:
        """Push the task to the queue. It is stored when this returns."""
        return await self._task.send(self._options, args, kwargs)

    def push_sync(self, *args: P.args, **kwargs: P.kwargs) -> Pushed:
        """Push the task from a function that is not async, and wait until it is stored."""
        return self._task.send_from_thread(self._options, args, kwargs)


AnyTask = Task[..., Any]


def _checked_timeout(name: str, timeout: float | timedelta) -> float:
    seconds = seconds_of(f"timeout of task {name!r}", timeout)
    if not seconds:
        raise InvalidInput(f"timeout of task {name!r}: expected seconds above 0, or None for no limit, got 0")
    return seconds


def _unique_names(name: str, unique: bool | Sequence[str], known: tuple[str, ...]) -> tuple[str, ...] | None:
    """The arguments that make a task unique. None if it is not unique."""
    if unique is False:
        return None
    if unique is True:
        return known
    names = (unique,) if isinstance(unique, str) else tuple(unique)
    for one in names:
        if one not in known:
            expected = f"one of {', '.join(known)}" if known else "no names: the function has no arguments"
            raise InvalidInput(f"task {name!r}: unique contains {one!r}, expected {expected}")
    return names
