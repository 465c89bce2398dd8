"""The sync client, and its queues: the async client behind a portal."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import update_wrapper
from typing import Any, ParamSpec, Self, TypeVar, Unpack, cast, overload

from hark.client.arguments import NewMessage, PushOptions, a_function, a_name, name_of
from hark.client.builder import Builder, Choices
from hark.client.client import Client as AsyncClient
from hark.client.delivery.consuming import Consumed, what_ran
from hark.client.delivery.consuming import Messages as AsyncMessages
from hark.client.delivery.message import Message as AsyncMessage
from hark.client.handle import SyncTaskHandle
from hark.client.queue import BufferedQueue as AsyncBufferedQueue
from hark.client.queue import Queue as AsyncQueue
from hark.connecting import connect as connect_async
from hark.errors import InvalidInput
from hark.sync import parts
from hark.sync.parts import BorrowedLoop, Message, Portal, blocking

P = ParamSpec("P")
T = TypeVar("T")

_EXIT_SECONDS = 5.0
"""Maximum number of seconds that a program waits at its exit for a client that it did not close."""


def _blocking_client(connect: Callable[P, AsyncClient]) -> Callable[P, Client]:
    def connected(*args: P.args, **kwargs: P.kwargs) -> Client:
        """Connect to a Hark server with a blocking client. The arguments are those of `hark.connect`.

        ```python
        with hark.sync.connect("http://localhost:6632") as client:
            client.queue("orders").push({"id": 1})
        ```

        Use the client as a context manager, or call `close` at the end. Raises `InvalidInput` if an argument is
        invalid.
        """
        return Client(connect(*args, **kwargs), Portal())

    update_wrapper(connected, connect, ("__name__", "__qualname__"))
    return connected


connect = _blocking_client(connect_async)


class Client:
    """A client with blocking calls. `hark.sync.connect` creates it, and any number of threads can share it.

    All methods raise `ConnectionFailed` if no server answers, and another `HarkError` if the server rejects the
    request.
    """

    def __init__(self, inner: AsyncClient, portal: Portal) -> None:
        self.inner = inner
        self.portal = portal
        # For programs that do not close the client: buffered messages are not lost.
        atexit.register(self._close_at_exit)

    def queue(self, name: str | None = None) -> Queue:
        """A queue to push to and to consume from.

        Without a name, call `namespace` or `task` on the result to consume from all queues with that label.
        """
        return Queue(self, Choices(queue=None if name is None else a_name(name, "queue")))

    @property
    def kv(self) -> parts.KeyValue:
        """The key-value store."""
        return parts.KeyValue(self.inner.kv, self.portal)

    @property
    def admin(self) -> parts.Admin:
        """Administration of the server: queues, messages, leases, waiting consumers, health and maintenance mode."""
        return parts.Admin(self.inner.admin, self.portal)

    @property
    def groups(self) -> parts.Groups:
        """Administration of consumer groups: list, seek, pause, purge, limit and delete."""
        return parts.Groups(self.inner.groups, self.portal)

    @property
    def schedules(self) -> parts.Schedules:
        """Schedules: messages that the server pushes at due times."""
        return parts.Schedules(self.inner.schedules, self.portal)

    @property
    def traces(self) -> parts.Traces:
        """Trace events that consumers recorded about messages."""
        return parts.Traces(self.inner.traces, self.portal)

    @overload
    def handle(
        self, id: str, transaction_id: str, result_type: type[T], *, group: str | None = None
    ) -> SyncTaskHandle[T]: ...
    @overload
    def handle(
        self, id: str, transaction_id: str, result_type: Any = ..., *, group: str | None = None
    ) -> SyncTaskHandle[Any]: ...
    def handle(
        self, id: str, transaction_id: str, result_type: Any = Any, *, group: str | None = None
    ) -> SyncTaskHandle[Any]:
        """The handle of a task that another process pushed, from the `id` and the `transaction_id` of its handle.

        `result_type` is the type that the result is decoded and checked as. `group` is the consumer group of the
        workers, if the queue has several.
        """
        inner = self.inner.handle(id, transaction_id, result_type, group=group)
        return SyncTaskHandle(inner, lambda make: self.portal.run(make()))

    def transaction(self) -> parts.Transaction:
        """A new transaction of pushes, settlements and key-value writes.

        The server applies all of it or nothing. Use it as `with client.transaction() as transaction`.
        """
        return parts.Transaction(self.inner.transaction(), self.portal)

    def dlq(self, queue: str | None = None, group: str | None = None) -> parts.DeadLetters:
        """The dead letters of one queue and one consumer group. None means all queues, or all groups."""
        return parts.DeadLetters(self.inner.dlq(queue, group), self.portal)

    flush = blocking(AsyncClient.flush)
    _open = blocking(AsyncClient.open)

    def close(self) -> None:
        """Send buffered messages, release messages that no handler has started, and close all connections.

        Raises `FlushFailed` if buffered messages could not be sent.
        """
        self._end(self.inner.close)

    def _close_at_exit(self) -> None:
        self._end(lambda: asyncio.wait_for(self.inner.close(), _EXIT_SECONDS))

    def _end(self, close: Callable[[], Coroutine[object, object, None]]) -> None:
        atexit.unregister(self._close_at_exit)
        if self.portal.closed:
            return
        try:
            self.portal.run(close())
        finally:
            self.portal.close()

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class BorrowedClient(Client):
    """The client of a worker, for handlers in threads: `current().sync_client`. The worker closes it."""

    def __init__(self, inner: AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
        self.inner = inner
        self.portal = BorrowedLoop(loop)

    def close(self) -> None:
        """Do nothing: the client belongs to the worker."""


Handler = Callable[[Message], object] | Callable[[list[Message]], object]
OnSuccess = Callable[[Message, object], object] | Callable[[list[Message], object], object]
OnError = Callable[[Message, Exception], object] | Callable[[list[Message], Exception], object]


class _Portable(Builder[Client]):
    """A builder whose operations run on the event loop behind a sync client."""

    __slots__ = ()

    @property
    def portal(self) -> Portal:
        """The portal that runs its operations."""
        return self._client.portal


class Queue(_Portable):
    """A queue to push to, consume from and administer, with blocking calls. `client.queue("orders")` creates it.

    Methods such as `partition`, `group` and `batch` return a copy with that option.
    """

    __slots__ = ()

    @property
    def inner(self) -> AsyncQueue:
        """The async queue that does the work."""
        return AsyncQueue(self._client.inner, self._choices)

    push = blocking(AsyncQueue.push)
    push_many = blocking(AsyncQueue.push_many)
    configure = blocking(AsyncQueue.configure)
    create = blocking(AsyncQueue.create)
    delete = blocking(AsyncQueue.delete)
    pause = blocking(AsyncQueue.pause)
    resume = blocking(AsyncQueue.resume)
    purge = blocking(AsyncQueue.purge)
    stats = blocking(AsyncQueue.stats)
    depth = blocking(AsyncQueue.depth)
    limits = blocking(AsyncQueue.limits)
    _pop = blocking(AsyncQueue.pop)

    def message(self, data: object, **options: Unpack[PushOptions]) -> NewMessage:
        """Build a message with push options, for `push_many`. The options are those of `push`."""
        return self.inner.message(data, **options)

    def buffer(self, max_items: int = 100, max_ms: int = 1000) -> BufferedQueue:
        """Push through a buffer: pushes return immediately, and messages are sent together.

        The buffer is sent when it has `max_items` messages (1 to 10,000, default 100), or `max_ms` milliseconds after
        the first one (1 to 3,600,000, default 1000). Buffered messages are not stored yet: they are lost if the program
        crashes.
        """
        return BufferedQueue(self._client, self.inner.buffer(max_items, max_ms)._choices)

    def pop(self) -> list[Message]:
        """Receive up to `batch` messages with one request. Returns an empty list if there are none.

        With `wait`, the request waits for the first message, `timeout` milliseconds at most. You hold the messages for
        the lease time of the queue, or of `lease`. Inside `with message` the lease is renewed.
        """
        return [Message(message, self.portal) for message in self._pop()]

    def messages(self) -> Messages:
        """Iterate over messages. The iteration is endless, unless `limit` or `idle` ends it.

        ```python
        for message in client.queue("orders").group("billing").messages():
            with message:
                print(message.data)
        ```
        """
        return Messages(self.inner.messages(), self.portal)

    def consume(self, handler: Handler) -> Consumption:
        """Call a handler in threads for each message: `queue.consume(handler).run()`.

        `limit`, `idle` or `stop` ends it. The handler gets one message if `batch` is 1 or with `each()`, otherwise the
        list of messages of a batch. When it returns, its messages are acknowledged. When it raises, they are rejected
        with the error text and the traceback. `concurrency` handlers run at the same time.
        """
        return Consumption(self, handler)

    @property
    def admin(self) -> parts.QueueAdmin:
        """Administration of this queue: options, statistics, pause, purge and delete."""
        return parts.QueueAdmin(self.inner.admin, self.portal)

    def dlq(self) -> parts.DeadLetters:
        """The dead letters of the queue, or of the selected group."""
        return parts.DeadLetters(self.inner.dlq(), self.portal)


class BufferedQueue(_Portable):
    """A queue whose pushes return immediately. `flush` sends the buffered messages and raises the errors."""

    __slots__ = ()

    @property
    def inner(self) -> AsyncBufferedQueue:
        """The async queue that does the work."""
        return AsyncBufferedQueue(self._client.inner, self._choices)

    push = blocking(AsyncBufferedQueue.push)
    push_many = blocking(AsyncBufferedQueue.push_many)
    flush = blocking(AsyncBufferedQueue.flush)


class Messages:
    """An iterator over messages, received in batches. `queue.messages()` creates it.

    However the iteration ends, messages that were received but not yet returned are released.
    """

    def __init__(self, inner: AsyncMessages, portal: Portal) -> None:
        self.inner = inner
        self.portal = portal
        self._steps = portal.iterate(inner)
        self._turn = threading.Lock()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """Wait for the next message. Threads that share an iteration take turns."""
        with self._turn:
            return Message(next(self._steps), self.portal)

    close = blocking(AsyncMessages.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Consumption:
    """A consumption: `run` runs it. `stop` ends it, from another thread or from the handler."""

    def __init__(self, queue: Queue, handler: Handler) -> None:
        self._portal = queue.portal
        self._threads = ThreadPoolExecutor(queue._choices.concurrency, thread_name_prefix="hark-handler")
        self._inner = queue.inner.consume(self._in_thread(handler, "handler"))

    def on_success(self, callback: OnSuccess) -> Self:
        """Call this function with the message or messages and the handler's result, instead of acknowledging.

        The function must settle the messages.
        """
        self._inner.on_success(self._in_thread(callback, "on_success"))
        return self

    def on_error(self, callback: OnError) -> Self:
        """Call this function with the message or messages and the exception, before they are rejected.

        The function can settle the messages itself; unsettled ones are rejected.
        """
        self._inner.on_error(self._in_thread(callback, "on_error"))
        return self

    def run(self) -> Consumed:
        """Consume until it ends. Ctrl-C waits for running handlers; a second Ctrl-C does not."""
        with self._threads:
            return self._portal.run(self._inner.run(), interrupted=self.stop)

    def stop(self) -> None:
        """Stop receiving messages, and end when the running handlers have ended."""
        self._portal.post(self._inner.stop)

    def _in_thread(self, function: Callable[..., object], field: str) -> Callable[..., object]:
        """Run a user's function in a thread, with sync messages."""
        if inspect.iscoroutinefunction(a_function(function, field)):
            raise InvalidInput(f"{field}: {_is_async(function)}")

        async def call(given: AsyncMessage | list[AsyncMessage], *more: object) -> object:
            several = given if isinstance(given, list) else [given]
            messages = [Message(message, self._portal) for message in several]
            wrapped = messages if isinstance(given, list) else messages[0]
            loop = asyncio.get_running_loop()
            context = copy_context()  # Includes the span of the message, if tracing is active.
            result = await loop.run_in_executor(self._threads, lambda: context.run(function, wrapped, *more))
            if inspect.iscoroutine(result):
                result.close()  # It was not awaited, so none of its code has run.
                raise TypeError(_is_async(function))
            return what_ran(function, result)

        return cast(Callable[..., object], call)


def _is_async(function: object) -> str:
    return f"{name_of(function)} is async; use a function that is not async, or the async client (hark.connect)"
