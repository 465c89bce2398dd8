"""Tasks: functions that can be called directly, or pushed to run in a worker."""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, get_type_hints, overload

import msgspec

from hark.client.arguments import seconds_of
from hark.client.pushing import new_message
from hark.errors import InvalidInput
from hark.worker.handle import TaskHandle
from hark.worker.middleware import Middleware, Outgoing
from hark.worker.retrying import RetryPolicy, policy_of

if TYPE_CHECKING:
    from hark.worker.worker import Worker


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, rename="camel"):
    """`{"task": "send_email", "arguments": {"to": "a@b.c"}}`, optionally with headers."""

    task: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    headers: dict[str, str] | None = None
    own_schedule: bool = False
    """Whether the message has its own retry delays, instead of those of the task's policy."""
    result_ttl: int | None = None
    """How many seconds the result is kept; None: no result is stored."""


_decode = msgspec.json.Decoder(Envelope).decode
_encode = msgspec.json.Encoder().encode


class NotATask(InvalidInput):
    """A message without a task name in its payload."""

    code = "not_a_task"


def unseal(payload: msgspec.Raw | bytes) -> Envelope:
    """Decode a payload. Raises `NotATask`."""
    try:
        return _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = f'the payload is not a task: {error}; expected {{"task": "name", "arguments": {{...}}}}'
        raise NotATask(text) from error


OPTION_NAMES = frozenset({"delay"})
"""Keyword arguments that `push` uses itself."""

_encode_canonically = msgspec.json.Encoder(order="deterministic").encode
_FIELD = re.compile(r"`\$\.([^`.\[]+)")
_NAMED = re.compile(r"field `([^`]+)`")


class WrongArguments(InvalidInput, TypeError):
    """A task was pushed or delivered with arguments that its function does not take."""

    code = "wrong_arguments"


class Signature:
    """The parameters of a function: encodes the arguments of a push, and decodes and checks those of a message."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.task = name
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidInput(f"task {name!r}: a task cannot be a generator function; remove the yield")
        parameters = list(inspect.signature(function).parameters.values())
        for parameter in parameters:
            _check_parameter(name, parameter)
        self._positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        self._by_position_only = {p.name for p in parameters if p.kind is p.POSITIONAL_ONLY}
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self.names = tuple(p.name for p in parameters)
        self._decode = msgspec.json.Decoder(_struct_of(name, function, parameters)).decode

    def encode(self, args: Sequence[object], kwargs: dict[str, object]) -> msgspec.Raw:
        """Check and encode the arguments of a push. Raises `WrongArguments`, which names the argument."""
        given = self._bind(args, kwargs)
        try:
            encoded = _encode(given)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._not_json(given, error) from error
        self._read(encoded)
        return msgspec.Raw(encoded)

    def decode(self, encoded: msgspec.Raw | bytes) -> dict[str, Any]:
        """Check and decode the arguments of a message, by name. Omitted arguments are not included."""
        values = msgspec.structs.asdict(self._read(encoded))
        if self._defaults:
            return {name: value for name, value in values.items() if value is not msgspec.UNSET}
        return values

    def call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Call the function with these arguments."""
        if not self._by_position_only:
            return function(**arguments)
        first = [arguments[name] for name in self._positional if name in self._by_position_only and name in arguments]
        rest = {name: value for name, value in arguments.items() if name not in self._by_position_only}
        return function(*first, **rest)

    def check_unique(self, names: Sequence[str]) -> None:
        """Check that the defaults of these arguments can be part of a key."""
        for name in names:
            try:
                _encode_canonically(self._defaults.get(name))
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                raise InvalidInput(
                    f"task {self.task!r}: unique includes {name!r}, whose default cannot be encoded as JSON: {error}; "
                    "name the arguments that count: unique=(...)"
                ) from error

    def unique_key(self, encoded: msgspec.Raw, names: Sequence[str]) -> str:
        """A key that is equal for equal values of these arguments, given or by default."""
        values = self._defaults | self.decode(encoded)
        chosen = {name: values[name] for name in names}
        digest = hashlib.sha256(_encode_canonically([self.task, chosen])).hexdigest()
        return f"{self.task[:60]}:{digest}"

    def _bind(self, args: Sequence[object], kwargs: dict[str, object]) -> dict[str, object]:
        """Give each positional argument its name."""
        if len(args) > len(self._positional):
            raise WrongArguments(
                f"task {self.task!r} takes {len(self._positional)} positional arguments, {len(args)} were given"
            )
        given = dict(zip(self._positional, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise WrongArguments(f"task {self.task!r}: argument {name!r} was given twice")
            if name in self._by_position_only:
                raise WrongArguments(f"task {self.task!r}: argument {name!r} is positional only")
            given[name] = value
        return given

    def _read(self, encoded: msgspec.Raw | bytes) -> msgspec.Struct:
        try:
            found: msgspec.Struct = self._decode(encoded)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise WrongArguments(f"task {self.task!r}: {self._explain(str(error))}") from error
        return found

    def _explain(self, text: str) -> str:
        """The error of msgspec in terms of arguments."""
        takes = f"it takes {', '.join(self.names) or 'no arguments'}"
        if (named := _NAMED.search(text)) and text.startswith("Object missing"):
            return f"argument {named[1]!r} is missing; {takes}"
        if named and text.startswith("Object contains unknown"):
            return f"unknown argument {named[1]!r}; {takes}"
        if field := _FIELD.search(text):
            reason = text.partition(" - at ")[0]
            return f"argument {field[1]!r}: {reason[:1].lower()}{reason[1:]}"
        return f"the arguments cannot be decoded: {text}"

    def _not_json(self, given: dict[str, object], error: Exception) -> WrongArguments:
        """Name the argument that cannot be encoded."""
        for name, value in given.items():
            try:
                _encode(value)
            except (TypeError, ValueError, OverflowError, RecursionError) as reason:
                return WrongArguments(f"task {self.task!r}: argument {name!r} cannot be encoded as JSON: {reason}")
        return WrongArguments(f"task {self.task!r}: the arguments cannot be encoded as JSON: {error}")


def _check_parameter(task: str, parameter: inspect.Parameter) -> None:
    """Reject parameters that cannot be part of a message, or that `push` uses itself."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        text = f"*{parameter.name} cannot be a parameter of a task, because its types are unknown"
        raise InvalidInput(f"task {task!r}: {text}; name each argument, or use a list or a dict")
    if parameter.name in OPTION_NAMES:
        text = f"the parameter {parameter.name!r} is an option of push"
        raise InvalidInput(f"task {task!r}: {text}; rename it, for example to {parameter.name}_seconds")


def _struct_of(task: str, function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> Any:
    """A struct with a field per parameter. Omitted fields use the function's defaults."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:
        raise InvalidInput(
            f"task {task!r}: cannot resolve an annotation: {error}; define or import its type in the module of the task"
        ) from error
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in parameters:
        kind = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, kind | msgspec.UnsetType, msgspec.UNSET))
    try:
        struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.Decoder(struct)  # Checks the types now, not at the first push.
    except TypeError as error:
        raise InvalidInput(f"task {task!r}: an annotation has a type that JSON cannot represent: {error}") from error
    return struct


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

DEFAULT_RETRY = RetryPolicy.exponential()
_MAX_TASK_NAME = 200


class PushOptions(TypedDict, total=False):
    """Options of one push of a task. Times are seconds or a `timedelta`."""

    delay: float | timedelta | None
    """Wait this long before the task can run."""
    deliver_at: datetime | None
    """Run the task not before this time, which must have a time zone. An alternative to `delay`."""
    priority: int | None
    """0 to 9. The default is the priority of the task."""
    key: str | None
    """Idempotency key. A second push with the same key is a `duplicate`."""
    partition: str | None
    """The partition of the queue. The default is `Default`."""
    ttl: float | timedelta | None
    """Expire the task if it has not started within this time."""
    retry: RetryPolicy | int | None
    """The retry policy or the number of retries of this push. The default is the policy of the task."""


class Task(Generic[P, R]):
    """A function that workers run by name. `@worker.task` creates it.

    Calling it runs the function directly. `push` sends it to the queue, to run in a worker.
    """

    def __init__(
        self,
        worker: Worker,
        name: str,
        function: Callable[P, R],
        *,
        retry: RetryPolicy | int | None = None,
        timeout: float | timedelta | None = None,
        unique: bool | Sequence[str] = False,
        priority: int | None = None,
        result: bool = False,
        result_ttl: float | timedelta | None = None,
        queue: str | None = None,
        pool: Literal["thread", "process"] | None = None,
    ) -> None:
        if not name or len(name) > _MAX_TASK_NAME:
            raise InvalidInput(f"task name {name!r}: expected 1 to {_MAX_TASK_NAME} characters")
        self.name = name
        self.function = function
        self.signature = Signature(name, function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.retry = DEFAULT_RETRY if retry is None else policy_of(retry)
        self.timeout = None if timeout is None else seconds_of(timeout, f"timeout of task {name!r}")
        if self.timeout == 0:
            raise InvalidInput(f"timeout of task {name!r}: expected seconds above 0, or None for no limit, got 0")
        self.unique = _unique_names(name, unique, self.signature.names)
        if self.unique is not None:
            self.signature.check_unique(self.unique)
        self.priority = priority
        self.result_ttl = _seconds_kept(name, result, result_ttl)
        self.result_type = _result_type(name, function) if self.result_ttl is not None else Any
        self.queue = worker.queue if queue is None else queue
        """Name of its queue."""
        if self.queue not in worker.queues:
            known = ", ".join(map(repr, worker.queues))
            raise InvalidInput(f"queue of task {name!r}: expected a queue of the worker ({known}), got {queue!r}")
        self.in_process = _is_in_process(name, function, pool)
        """Whether it runs in a process of its own."""
        self._worker = worker
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function directly, in this process."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name!r} of the queue {self.queue!r}>"

    @overload
    async def push(self: Task[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]: ...
    @overload
    async def push(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]: ...
    @overload
    async def push(self, *args: Any, delay: float | timedelta, **kwargs: Any) -> TaskHandle[Any]: ...
    async def push(self, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Push the task to the queue, to run in a worker. It is stored when this returns.

        `delay` is the time in seconds (or a `timedelta`) before it can run. For other options use `options`. A type
        checker sees wrong arguments, but not together with `delay`; use `options(delay=60).push(...)` for that.

        Raises `WrongArguments` if the function does not take these arguments. Nothing is sent then.
        """
        delay: float | timedelta | None = kwargs.pop("delay", None)  # No parameter of a task can have this name.
        return await self.send({"delay": delay}, args, kwargs)

    @overload
    def push_sync(self: Task[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]: ...
    @overload
    def push_sync(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]: ...
    def push_sync(self, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Push the task from a function that is not async, and wait until it is stored.

        In a handler's thread it uses the connection of the worker. Elsewhere each call opens and closes a connection:
        use `hark.sync` in a program that is not async and pushes often.
        """
        return self._worker.push_from_thread(lambda: self.send({}, args, kwargs))

    def options(self, **options: Unpack[PushOptions]) -> TaskPush[P, R]:
        """Push options for this task: `await send_email.options(delay=60, priority=5).push(to="a@b.c", subject="hi")`.

        The options are the fields of `PushOptions`: `delay`, `deliver_at`, `priority`, `key`, `partition`, `ttl` and
        `retry`.
        """
        if unknown := options.keys() - PushOptions.__annotations__.keys():
            raise TypeError(f"options() got an unexpected keyword argument {min(unknown)!r}")
        retry = options.get("retry")
        return TaskPush(self, {**options, "retry": None if retry is None else policy_of(retry)})

    async def send(self, options: PushOptions, args: Sequence[object], kwargs: dict[str, object]) -> TaskHandle[Any]:
        """Check the arguments and push with these options."""
        encoded = self.signature.encode(args, kwargs)
        headers = await self._headers(options, encoded)
        retry, key, priority = options.get("retry"), options.get("key"), options.get("priority")
        if key is None and self.unique is not None:
            key = self.signature.unique_key(encoded, self.unique)
        envelope = Envelope(
            task=self.name,
            arguments=encoded,
            headers=headers or None,
            own_schedule=retry is not None,
            result_ttl=self.result_ttl,
        )
        message = new_message(
            self.queue,
            msgspec.Raw(_encode(envelope)),
            partition=options.get("partition"),
            key=key,
            delay=options.get("delay"),
            deliver_at=options.get("deliver_at"),
            priority=self.priority if priority is None else priority,
            ttl=options.get("ttl"),
            retry_delays=self.retry.delays if retry is None else policy_of(retry).jittered(),
        )
        pushed = await self._worker.send(message)
        return TaskHandle(
            self.name, pushed, lambda: self._worker.client.caller, self.result_type, stores=self.result_ttl is not None
        )

    async def _headers(self, options: PushOptions, encoded: msgspec.Raw) -> dict[str, str]:
        hooks = [layer.on_push for layer in self._worker.middleware if hasattr(layer, "on_push")]
        hooks = [hook for hook in hooks if getattr(hook, "__func__", None) is not Middleware.on_push]
        if not hooks:
            return {}
        delay = options.get("delay")
        seconds = None if delay is None else seconds_of(delay, "delay")
        outgoing = Outgoing(self.name, self.signature.decode(encoded), seconds, options.get("deliver_at"))
        for hook in hooks:
            await hook(outgoing)
        for name, value in outgoing.headers.items():
            if not isinstance(value, str):  # No consumer could decode the message.
                raise InvalidInput(f"header {name!r} of task {self.name!r}: expected a string, got {value!r}")
        return outgoing.headers


class TaskPush(Generic[P, R]):
    """A task with push options."""

    __slots__ = ("_options", "_task")

    def __init__(self, task: Task[P, R], options: PushOptions) -> None:
        self._task = task
        self._options = options

    @overload
    async def push(self: TaskPush[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]: ...
    @overload
    async def push(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]: ...
    async def push(self, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Push the task to the queue. It is stored when this returns."""
        return await self._task.send(self._options, args, kwargs)

    @overload
    def push_sync(self: TaskPush[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]: ...
    @overload
    def push_sync(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]: ...
    def push_sync(self, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Push the task from a function that is not async, and wait until it is stored."""
        return self._task._worker.push_from_thread(lambda: self._task.send(self._options, args, kwargs))


AnyTask = Task[..., Any]


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


def _is_in_process(name: str, function: Callable[..., Any], pool: str | None) -> bool:
    """Check the pool of a task. Another process imports its function by name."""
    if pool not in (None, "thread", "process"):
        raise InvalidInput(f"pool of task {name!r}: expected 'thread' or 'process', got {pool!r}")
    if pool is not None and inspect.iscoroutinefunction(function):
        raise InvalidInput(f"pool of task {name!r}: an async function runs in the event loop; remove async or the pool")
    qualname = getattr(function, "__qualname__", "<")
    if pool == "process" and "<" in qualname:
        raise InvalidInput(
            f"pool of task {name!r}: another process cannot import {qualname!r}; define it at the top level of a module"
        )
    return pool == "process"


RESULT_SECONDS = 3600


def _seconds_kept(name: str, result: bool, result_ttl: float | timedelta | None) -> int | None:
    """How long the results of a task are kept. None: they are not stored."""
    if result_ttl is None:
        return RESULT_SECONDS if result else None
    seconds = math.ceil(seconds_of(result_ttl, f"result_ttl of task {name!r}"))
    if seconds < 1:
        raise InvalidInput(f"result_ttl of task {name!r}: expected at least 1 second, got {result_ttl!r}")
    return seconds


def _result_type(name: str, function: Callable[..., Any]) -> Any:
    """The type of a function's results; Any without an annotation."""
    kind = get_type_hints(function, include_extras=True).get("return", Any)
    try:
        msgspec.json.Decoder(kind)
    except TypeError as error:
        raise InvalidInput(f"task {name!r}: its result has a type that JSON cannot represent: {error}") from error
    return kind
