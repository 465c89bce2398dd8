"""Tasks: functions that can be called directly, or pushed to run in a worker."""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    Unpack,
    get_type_hints,
    overload,
)

import msgspec

from hark import postgres
from hark.api.types.delivery import StepRefBody
from hark.api.types.tasks import FlowNode
from hark.client.arguments import DeliveryOptions, NewMessage, an_until, new_key, seconds_of
from hark.client.handle import SyncTaskHandle, TaskHandle
from hark.client.pushing import Pushed, new_message
from hark.errors import HarkError, InvalidInput
from hark.model import DEFAULT_PARTITION
from hark.model.messages import UniqueUntil
from hark.worker.flow import Flow, Step
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
    transaction_id: str | None = None
    """That of the push, with a result: a requeued dead letter has another one."""
    flow: StepRefBody | None = None
    """The step of a flow that it is."""
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """The result of the step before, which is the first argument."""


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
        self._decode = _decoder(name, function, parameters)
        # Of the arguments of a step, without the result of the step before.
        self._decode_rest = _decoder(name, function, [p for p in parameters if p.name not in self._positional[:1]])

    def encode(self, args: Sequence[object], kwargs: dict[str, object]) -> msgspec.Raw:
        """Check and encode the arguments of a push. Raises `WrongArguments`, which names the argument."""
        encoded = self._encode(self._bind(args, kwargs))
        self._read(encoded)
        return msgspec.Raw(encoded)

    def encode_rest(self, args: Sequence[object], kwargs: dict[str, object]) -> msgspec.Raw:
        """Check and encode the arguments of a step, whose first argument is the result of the step before."""
        if not self._positional:
            raise WrongArguments(
                f"task {self.task!r} has no positional parameter for the result of the step before; use "
                f"{self.task}.si() if it does not need the result"
            )
        first = f"; {self._positional[0]!r} is the result of the step before"
        try:
            given = self._bind((None, *args), kwargs)
        except WrongArguments as error:
            raise WrongArguments(error.text + first) from None
        del given[self._positional[0]]
        encoded = self._encode(given)
        try:
            self._decode_rest(encoded)
        except msgspec.ValidationError as error:
            raise WrongArguments(f"task {self.task!r}: {self._explain(str(error))}{first}") from error
        return msgspec.Raw(encoded)

    def with_result(self, encoded: msgspec.Raw, result: msgspec.Raw) -> bytes:
        """The arguments of a step, with the result of the step before as the first one."""
        if not self._positional:
            raise WrongArguments(f"task {self.task!r} has no positional parameter for the result of the step before")
        given = msgspec.json.decode(encoded, type=dict[str, msgspec.Raw])
        given[self._positional[0]] = result
        return _encode(given)

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

    def _encode(self, given: dict[str, object]) -> bytes:
        try:
            return _encode(given)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._not_json(given, error) from error

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


def _decoder(
    task: str, function: Callable[..., Any], parameters: Sequence[inspect.Parameter]
) -> Callable[[msgspec.Raw | bytes], msgspec.Struct]:
    """Return the decoder of a struct with a field per parameter. Omitted fields use the function's defaults."""
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
        return msgspec.json.Decoder(struct).decode
    except TypeError as error:
        raise InvalidInput(f"task {task!r}: an annotation has a type that JSON cannot represent: {error}") from error


P = ParamSpec("P")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

Arguments = tuple[Any, ...] | Mapping[str, Any]
"""The arguments of one push: positional, or by name."""
DEFAULT_RETRY = RetryPolicy.exponential()
_MAX_TASK_NAME = 200


class PushOptions(DeliveryOptions, total=False):
    """Options of one push of a task. Times are seconds or a `timedelta`. The default priority is that of the task."""

    unique_key: str | None
    """Key that one task of the queue holds: another push with it is a `duplicate`. The default is `unique` of the
    task."""
    partition: str | None
    """The partition of the queue. The default is `Default`."""
    retry: RetryPolicy | int | None
    """The retry policy or the number of retries of this push. The default is the policy of the task."""


class Pushes(Generic[P, R_co]):
    """The pushes and the steps of a task, with or without options."""

    _task: Task[P, R_co]
    _options: PushOptions

    @overload
    def push_sync(self: Pushes[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> SyncTaskHandle[T]: ...
    @overload
    def push_sync(self, *args: P.args, **kwargs: P.kwargs) -> SyncTaskHandle[R_co]: ...
    def push_sync(self, *args: Any, **kwargs: Any) -> SyncTaskHandle[Any]:
        """Push the task from a function that is not async, and wait until it is stored. Its handle has blocking calls.

        In a handler's thread it uses the connection of the worker. Elsewhere each call opens and closes a connection:
        use `hark.sync` in a program that is not async and pushes often.
        """
        return self._task.send_from_thread(self._options, args, kwargs)

    @overload
    async def push_many(
        self: Pushes[P, Coroutine[Any, Any, T]], arguments: Iterable[Arguments]
    ) -> list[TaskHandle[T]]: ...
    @overload
    async def push_many(self, arguments: Iterable[Arguments]) -> list[TaskHandle[R_co]]: ...
    async def push_many(self, arguments: Iterable[Arguments]) -> list[TaskHandle[Any]]:
        """Push the task many times, once for each tuple or dict of arguments. Returns the handles in their order.

        `await send_email.push_many([("a@b.c", "hi"), {"to": "d@e.f", "subject": "hi"}])`. A request carries up to 1,000
        tasks. Raises `WrongArguments`, which names the index, if the function does not take some of them. Nothing is
        sent then.
        """
        return await self._task.send_many(self._options, arguments)

    @overload
    def s(self: Pushes[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Flow[T]: ...
    @overload
    def s(self, *args: P.args, **kwargs: P.kwargs) -> Flow[R_co]: ...
    @overload
    def s(self: Pushes[Concatenate[Any, Q], Coroutine[Any, Any, T]], *args: Q.args, **kwargs: Q.kwargs) -> Flow[T]: ...
    @overload
    def s(self: Pushes[Concatenate[Any, Q], R_co], *args: Q.args, **kwargs: Q.kwargs) -> Flow[R_co]: ...
    def s(self, *args: Any, **kwargs: Any) -> Flow[Any]:
        """A step of a flow: `hark.chain(a.s(1), b.s())`.

        The first step of a flow has all its arguments here. A later one gets the result of the step before as its first
        argument, and has the others here.
        """
        return Step(self._task, self._options, args, kwargs, takes_result=True)

    @overload
    def si(self: Pushes[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Flow[T]: ...
    @overload
    def si(self, *args: P.args, **kwargs: P.kwargs) -> Flow[R_co]: ...
    def si(self, *args: Any, **kwargs: Any) -> Flow[Any]:
        """A step of a flow that does not get the result of the step before."""
        return Step(self._task, self._options, args, kwargs, takes_result=False)

    async def push_in(self, connection: postgres.AsyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Push the task in your own PostgreSQL transaction. It is stored when that commits. Returns its key.

        See `hark.postgres`. `connection` is one of asyncpg, psycopg or SQLAlchemy.
        """
        return await postgres.send_message(connection, await self._task.message(self._options, args, kwargs))

    def push_in_sync(
        self, connection: postgres.Connection | postgres.Cursors, /, *args: P.args, **kwargs: P.kwargs
    ) -> str:
        """Push the task in your own PostgreSQL transaction, on a connection that is not async."""
        return postgres.send_message_sync(connection, _completed(self._task.message(self._options, args, kwargs)))


class Task(Pushes[P, R_co]):
    """A function that workers run by name. `@worker.task` creates it.

    Calling it runs the function directly. `push` sends it to the queue, to run in a worker.
    """

    def __init__(
        self,
        worker: Worker,
        name: str,
        function: Callable[P, R_co],
        *,
        retry: RetryPolicy | int | None = None,
        timeout: float | timedelta | None = None,
        unique: bool | Sequence[str] = False,
        unique_until: UniqueUntil = "done",
        priority: int | None = None,
        result: bool = False,
        result_ttl: float | timedelta | None = None,
        queue: str | None = None,
        pool: Literal["thread", "process"] | None = None,
    ) -> None:
        if not name or len(name) > _MAX_TASK_NAME:
            raise InvalidInput(f"task name {name!r}: expected 1 to {_MAX_TASK_NAME} characters")
        self._task, self._options = self, {}
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
        self.unique_until = an_until(unique_until, has_key=True)
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
        self.worker = worker
        """The worker that has the task."""
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the function directly, in this process."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name!r} of the queue {self.queue!r}>"

    @overload
    async def push(self: Task[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]: ...
    @overload
    async def push(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R_co]: ...
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

    @property
    def returns(self) -> Any:
        """The type of the function's results; Any without an annotation."""
        return _result_type(self.name, self.function)

    async def node(
        self, options: PushOptions, args: Sequence[object], kwargs: dict[str, object], *, takes_result: bool
    ) -> FlowNode:
        """Check the arguments of a step, and return it as it is sent."""
        if options.get("key") is not None or options.get("deliver_at") is not None:
            raise InvalidInput(f"task {self.name!r}: a step of a flow has no key and no deliver_at; use delay")
        if options.get("unique_key") is not None:
            raise InvalidInput(f"task {self.name!r}: a step of a flow has no unique_key; give the flow an id")
        encoded = self.signature.encode_rest(args, kwargs) if takes_result else self.signature.encode(args, kwargs)
        headers = await self._headers(options, None if takes_result else encoded)
        message = self._message(options, encoded, None, headers)
        return FlowNode(
            message.queue,
            message.partition or DEFAULT_PARTITION,
            message.payload,
            takes_result,
            message.priority,
            message.delay,
            None if message.backoff_schedule is None else list(message.backoff_schedule),
            message.ttl,
        )

    def options(self, **options: Unpack[PushOptions]) -> TaskPush[P, R_co]:
        """Push options for this task: `await send_email.options(delay=60, priority=5).push(to="a@b.c", subject="hi")`.

        The options are the fields of `PushOptions`: `delay`, `deliver_at`, `priority`, `key`, `unique_key`,
        `partition`, `ttl` and `retry`.
        """
        if unknown := options.keys() - PushOptions.__annotations__.keys():
            raise TypeError(f"options() got an unexpected keyword argument {min(unknown)!r}")
        retry = options.get("retry")
        return TaskPush(self, {**options, "retry": None if retry is None else policy_of(retry)})

    async def send(self, options: PushOptions, args: Sequence[object], kwargs: dict[str, object]) -> TaskHandle[Any]:
        """Check the arguments and push with these options."""
        return self._handle(await self.worker.send(await self.message(options, args, kwargs)))

    async def send_many(self, options: PushOptions, arguments: Iterable[Arguments]) -> list[TaskHandle[Any]]:
        """Check all arguments and push a task for each with these options."""
        messages = []
        if isinstance(arguments, (str, bytes, Mapping)):
            raise WrongArguments(f"task {self.name!r}: push_many takes a list of tuples or dicts, got {arguments!r}")
        for index, one in enumerate(arguments):
            if not isinstance(one, (tuple, Mapping)):
                text = f"item {index}: expected a tuple or a dict of arguments, such as ({one!r},), got {one!r}"
                raise WrongArguments(f"task {self.name!r}: {text}")
            args, kwargs = ((), dict(one)) if isinstance(one, Mapping) else (one, {})
            try:
                messages.append(await self.message(options, args, kwargs))
            except WrongArguments as error:
                raise WrongArguments(f"item {index}: {error}") from error
        return [self._handle(pushed) for pushed in await self.worker.send_many(messages)]

    def _handle(self, pushed: Pushed) -> TaskHandle[Any]:
        return TaskHandle(
            self.name,
            pushed,
            self.worker.caller_of_handle(),
            self.result_type,
            stores=self.result_ttl is not None,
            group=self.worker.group,
        )

    async def message(self, options: PushOptions, args: Sequence[object], kwargs: dict[str, object]) -> NewMessage:
        """Check the arguments, and return the message to push with these options."""
        encoded = self.signature.encode(args, kwargs)
        key = options.get("key")
        unique_key = options.get("unique_key")
        if unique_key is None and key is None and self.unique is not None:
            unique_key = self.signature.unique_key(encoded, self.unique)
        if key is None and self.result_ttl is not None:
            key = new_key()
        return self._message(options, encoded, key, await self._headers(options, encoded), unique_key)

    def _message(
        self,
        options: PushOptions,
        encoded: msgspec.Raw,
        key: str | None,
        headers: dict[str, str],
        unique_key: str | None = None,
    ) -> NewMessage:
        retry, priority = options.get("retry"), options.get("priority")
        envelope = Envelope(
            task=self.name,
            arguments=encoded,
            headers=headers or None,
            own_schedule=retry is not None,
            result_ttl=self.result_ttl,
            transaction_id=None if self.result_ttl is None else key,
        )
        return new_message(
            self.queue,
            msgspec.Raw(_encode(envelope)),
            partition=options.get("partition"),
            key=key,
            unique_key=unique_key,
            unique_until=None if unique_key is None else self.unique_until,
            delay=options.get("delay"),
            deliver_at=options.get("deliver_at"),
            priority=self.priority if priority is None else priority,
            ttl=options.get("ttl"),
            retry_delays=self.retry.delays if retry is None else policy_of(retry).jittered(),
        )

    def send_from_thread(
        self, options: PushOptions, args: Sequence[object], kwargs: dict[str, object]
    ) -> SyncTaskHandle[Any]:
        """The same as `send`, for a function that is not async."""
        run = self.worker.run_from_thread
        return SyncTaskHandle(run(lambda: self.send(options, args, kwargs)), run)

    async def _headers(self, options: PushOptions, encoded: msgspec.Raw | None) -> dict[str, str]:
        hooks = [layer.on_push for layer in self.worker.middleware if hasattr(layer, "on_push")]
        hooks = [hook for hook in hooks if getattr(hook, "__func__", None) is not Middleware.on_push]
        if not hooks:
            return {}
        delay = options.get("delay")
        seconds = None if delay is None else seconds_of(delay, "delay")
        arguments = {} if encoded is None else self.signature.decode(encoded)
        outgoing = Outgoing(self.name, arguments, seconds, options.get("deliver_at"))
        for hook in hooks:
            await hook(outgoing)
        for name, value in outgoing.headers.items():
            if not isinstance(value, str):  # No consumer could decode the message.
                raise InvalidInput(f"header {name!r} of task {self.name!r}: expected a string, got {value!r}")
        return outgoing.headers


class TaskPush(Pushes[P, R_co]):
    """A task with push options."""

    def __init__(self, task: Task[P, R_co], options: PushOptions) -> None:
        self._task = task
        self._options = options

    @overload
    async def push(self: TaskPush[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]: ...
    @overload
    async def push(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R_co]: ...
    async def push(self, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Push the task to the queue. It is stored when this returns."""
        return await self._task.send(self._options, args, kwargs)


def _completed(message: Coroutine[Any, Any, NewMessage]) -> NewMessage:
    """The message, from outside of an event loop or from inside of one that does not mind to wait."""
    try:
        message.send(None)
    except StopIteration as done:
        built: NewMessage = done.value
        return built
    message.close()
    raise HarkError("push_in_sync: a middleware waits in on_push; use: await task.push_in(...)")


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
