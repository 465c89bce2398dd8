"""A queue for programs without an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack, cast

from hark.client.builder import ClientBuilder
from hark.client.delivery.consuming import Consumed, what_ran
from hark.client.delivery.iterating import Messages as AsyncMessages
from hark.client.delivery.message import Message as AsyncMessage
from hark.client.producing.new_message import NewMessage
from hark.client.producing.push_options import PushOptions
from hark.client.queue import BufferedQueue as AsyncBufferedQueue
from hark.client.queue import Queue as AsyncQueue
from hark.client.values import a_function, name_of
from hark.errors import InvalidInput
from hark.sync.facade import blocking
from hark.sync.message import Message
from hark.sync.parts import DeadLetters, QueueAdmin
from hark.sync.portal import Portal

if TYPE_CHECKING:
    from hark.sync.client import Client  # noqa: F401  # Named by the base class.

Handler = Callable[[Message], object] | Callable[[list[Message]], object]
OnSuccess = Callable[[Message, object], object] | Callable[[list[Message], object], object]
OnError = Callable[[Message, Exception], object] | Callable[[list[Message], Exception], object]


class _Portable(ClientBuilder["Client"]):
    """A builder whose verbs work on the loop behind a sync client."""

    __slots__ = ()

    @property
    def portal(self) -> Portal:
        """Where it works."""
        return self._client.portal


class Queue(_Portable):
    """A queue, or several by their labels: push to it, take from it, administer it."""

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
        """A message with options of its own, for `push_many`."""
        return self.inner.message(data, **options)

    def buffer(self, max_items: int = 100, max_ms: int = 1000) -> BufferedQueue:
        """Pushes that return at once, and are sent when there are `max_items` or after `max_ms`."""
        return BufferedQueue(self._client, self.inner.buffer(max_items, max_ms)._choices)

    def pop(self) -> list[Message]:
        """Take what is there, up to `batch` messages, in one request; with `wait`, wait for the first one."""
        return [Message(message, self.portal) for message in self._pop()]

    def messages(self) -> Messages:
        """Messages one by one, without end: `for message in ...messages(): with message: ...`."""
        return Messages(self.inner.messages(), self.portal)

    def consume(self, handler: Handler) -> Consumption:
        """Handle messages in threads until `limit`, `idle` or `stop` end it: `queue.consume(handler).run()`.

        The handler gets one message when `batch` is 1 or with `each()`, else the list of a batch. What it gets is acked
        when it returns and nacked with the error when it raises; `concurrency` handlers run at a time.
        """
        return Consumption(self, handler)

    @property
    def admin(self) -> QueueAdmin:
        """All verbs about the queue as a whole."""
        return QueueAdmin(self.inner.admin, self.portal)

    def dlq(self) -> DeadLetters:
        """The dead letters of the queue, or of the group."""
        return DeadLetters(self.inner.dlq(), self.portal)


class BufferedQueue(_Portable):
    """A queue whose pushes return at once; `flush` sends them, and tells of what failed."""

    __slots__ = ()

    @property
    def inner(self) -> AsyncBufferedQueue:
        """The async queue that does the work."""
        return AsyncBufferedQueue(self._client.inner, self._choices)

    push = blocking(AsyncBufferedQueue.push)
    push_many = blocking(AsyncBufferedQueue.push_many)
    flush = blocking(AsyncBufferedQueue.flush)


class Messages:
    """Messages one by one, taken in batches. However the iteration ends, what was not begun is handed back at once."""

    def __init__(self, inner: AsyncMessages, portal: Portal) -> None:
        self.inner = inner
        self.portal = portal
        self._steps = portal.iterate(inner)
        self._turn = threading.Lock()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """The next message, when there is one; threads that share an iteration take turns."""
        with self._turn:
            return Message(next(self._steps), self.portal)

    close = blocking(AsyncMessages.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Consumption:
    """Messages into a handler, by `run`; `stop` ends it from another thread, or from the handler."""

    def __init__(self, queue: Queue, handler: Handler) -> None:
        self._portal = queue.portal
        self._threads = ThreadPoolExecutor(queue._choices.concurrency, thread_name_prefix="hark-handler")
        self._inner = queue.inner.consume(self._in_thread(handler, "handler"))

    def on_success(self, callback: OnSuccess) -> Self:
        """Call this with what the handler got and what it returned, instead of acking."""
        self._inner.on_success(self._in_thread(callback, "on_success"))
        return self

    def on_error(self, callback: OnError) -> Self:
        """Call this with what the handler got and its exception, before it is nacked."""
        self._inner.on_error(self._in_thread(callback, "on_error"))
        return self

    def run(self) -> Consumed:
        """Consume until it ends. Ctrl-C waits for the handlers that run; a second one does not."""
        with self._threads:
            return self._portal.run(self._inner.run(), interrupted=self.stop)

    def stop(self) -> None:
        """Take nothing more, and end when the handlers that run have ended."""
        self._portal.post(self._inner.stop)

    def _in_thread(self, function: Callable[..., object], field: str) -> Callable[..., object]:
        """A function of the user, run in a thread and with messages that wait."""
        if inspect.iscoroutinefunction(a_function(function, field)):
            raise InvalidInput(f"{field}: {_is_async(function)}")

        async def call(given: AsyncMessage | list[AsyncMessage], *more: object) -> object:
            wrapped: object
            if isinstance(given, list):
                wrapped = [Message(message, self._portal) for message in given]
            else:
                wrapped = Message(given, self._portal)
            loop = asyncio.get_running_loop()
            context = copy_context()  # With the span of the message, where there are any.
            result = await loop.run_in_executor(self._threads, lambda: context.run(function, wrapped, *more))
            if inspect.iscoroutine(result):
                result.close()  # As it was not awaited, nothing of it has run.
                raise TypeError(_is_async(function))
            return what_ran(function, result)

        return cast(Callable[..., object], call)


def _is_async(function: object) -> str:
    return f"{name_of(function)} is async; use the async client (hark.connect)"
