"""The client: access to everything that a server offers, over one transport."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any, Self, TypeVar, overload

from hark.client.admin import Admin, Groups, Schedules, Traces
from hark.client.arguments import a_name
from hark.client.builder import Choices
from hark.client.calling import Caller, CallPolicy, Transport, client_closed
from hark.client.delivery.leases import Holds
from hark.client.delivery.message import Message
from hark.client.delivery.prefetcher import ConsumerSession, PollSource, Prefetcher, Source
from hark.client.delivery.settling import Settler
from hark.client.delivery.socket import SocketSource, source_of
from hark.client.handle import TaskHandle, handle_of
from hark.client.keys import KeyValue
from hark.client.pushing import Buffers, Pusher
from hark.client.queue import DeadLetters, Queue
from hark.client.transaction import Transaction
from hark.polling import PollingStrategy

T = TypeVar("T")

_PLAIN_POLL_MS = 1000
_HURRY_SECONDS = 1.0
"""Time limit in seconds of each closing step after `close` was cancelled."""


class Client:
    """A client of one server, or of several servers on the same store. `hark.connect` creates it.

    ```python
    async with hark.connect("http://localhost:6632") as client:
        await client.queue("orders").push({"id": 1})
    ```

    A client belongs to the event loop that first uses it, and any number of coroutines can share it. Create one client
    per program, not one per request. All methods raise `ConnectionFailed` if no server answers, and another `HarkError`
    if the server rejects the request.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        retry: CallPolicy | None = None,
        polling: PollingStrategy | None = None,
        sockets: bool = False,
        on_open: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.caller = Caller(transport, retry)
        self.pusher = Pusher(self.caller)
        """Sends pushes. Concurrent pushes share a request."""
        self.settler = Settler(self.caller)
        """Sends settlements. Concurrent settlements share a request."""
        self.buffers = Buffers(self.pusher)
        self._polling = polling or PollingStrategy.adaptive()
        self.sockets = sockets
        """Whether messages are delivered over WebSockets."""
        self._on_open = on_open
        self._opened = self._closed = False
        self._holds = Holds(transport, retry)
        self._session = ConsumerSession(self.caller, self.settler, self._holds)
        self._prefetchers: set[Prefetcher] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @cached_property
    def kv(self) -> KeyValue:
        """The key-value store."""
        return KeyValue(self.caller)

    @cached_property
    def admin(self) -> Admin:
        """Administration of the server: queues, messages, leases, waiting consumers, health and maintenance mode."""
        return Admin(self.caller)

    @cached_property
    def groups(self) -> Groups:
        """Administration of consumer groups: list, seek, pause, purge, limit and delete."""
        return Groups(self.caller)

    @cached_property
    def schedules(self) -> Schedules:
        """Schedules: messages that the server pushes at due times."""
        return Schedules(self.caller)

    @cached_property
    def traces(self) -> Traces:
        """Trace events that consumers recorded about messages."""
        return Traces(self.caller)

    def queue(self, name: str | None = None) -> Queue:
        """A queue to push to and to consume from.

        Without a name, call `namespace` or `task` on the result to consume from all queues with that label.
        """
        return Queue(self, Choices(queue=None if name is None else a_name(name, "queue")))

    @overload
    def handle(
        self, id: str, transaction_id: str, result_type: type[T], *, group: str | None = None
    ) -> TaskHandle[T]: ...
    @overload
    def handle(
        self, id: str, transaction_id: str, result_type: Any = ..., *, group: str | None = None
    ) -> TaskHandle[Any]: ...
    def handle(
        self, id: str, transaction_id: str, result_type: Any = Any, *, group: str | None = None
    ) -> TaskHandle[Any]:
        """The handle of a task that another process pushed, from the `id` and the `transaction_id` of its handle.

        `result_type` is the type that the result is decoded and checked as. `group` is the consumer group of the
        workers, if the queue has several.
        """
        return handle_of(self.caller, id, transaction_id, result_type, group)

    def transaction(self) -> Transaction:
        """A new transaction of pushes, settlements and key-value writes.

        The server applies all of it or nothing. Use it as `async with client.transaction() as transaction`.
        """
        return Transaction(self.caller)

    def dlq(self, queue: str | None = None, group: str | None = None) -> DeadLetters:
        """The dead letters of one queue and one consumer group. None means all queues, or all groups."""
        return DeadLetters(self.caller, queue, group)

    async def pop(self, choices: Choices) -> list[Message]:
        """One pop request with these choices."""
        self._check_open()
        choices = choices.of_a_pop()
        source = PollSource(self.caller, choices, self.settler.give_back)
        try:
            delivered = await source.take(choices.batch)
        except asyncio.CancelledError:
            self.retire(source)
            raise
        # With renew_lease(True) leases are renewed from delivery on, otherwise from `async with message` on.
        return await self._session.receive(delivered, choices, begin=choices.renew is True)

    def open_prefetcher(self, choices: Choices, apart: bool = False) -> Prefetcher:
        """A prefetcher of messages, which receives in the thread of the lease keeper if `apart`."""
        io_thread = self._holds.io_thread() if apart else None
        self._check_open()
        strategy = self._polling
        if choices.polling:
            strategy = PollingStrategy.fixed(interval_ms=choices.poll_ms or _PLAIN_POLL_MS)
        caller, settler = (self.caller, self.settler) if io_thread is None else (io_thread.caller, None)
        source, settler = source_of(caller, choices, self.sockets, self._holds.hurry, settler)
        session = self._session
        if isinstance(source, SocketSource):  # What came over a socket is settled over it.
            session = ConsumerSession(self.caller, settler, self._holds, io_thread)
        prefetcher = Prefetcher(session, source, choices, strategy, self._prefetchers.discard, io_thread)
        self._prefetchers.add(prefetcher)
        return prefetcher

    def retire(self, left: Prefetcher | Source) -> None:
        """Close a prefetcher that has no consumer any more."""
        task = asyncio.ensure_future(left.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def open(self) -> None:
        """Prepare the transport: a server in this process starts here. Entering the context calls this."""
        self._check_open()
        if not self._opened and self._on_open is not None:
            await self._on_open()
        self._opened = True

    async def flush(self) -> None:
        """Send all buffered messages and wait until all pushes and settlements in flight have an answer.

        Raises `FlushFailed` if buffered messages could not be sent.
        """
        await self.buffers.flush()
        await self.pusher.drain()
        await self.settler.drain()

    async def close(self) -> None:
        """Send buffered messages, release messages that no handler has started, and close all connections.

        `close` does not wait for running handlers: call `stop` on a consumption and await it first. Otherwise their
        messages are redelivered when their leases expire. Raises `FlushFailed` if buffered messages could not be sent.
        """
        if self._closed:
            return
        self._closed = True
        steps: list[Callable[[], Awaitable[object]]] = [
            self.buffers.close,
            lambda: asyncio.gather(*(prefetcher.close() for prefetcher in list(self._prefetchers)), *self._tasks),
            self.pusher.close,
            self.settler.drain,
            self._holds.close,
            self.caller.transport.close,
        ]
        failure: BaseException | None = None
        for step in steps:
            # A step that fails must not prevent the others. A caller that cancels `close` must not wait long, but
            # threads and connections must not outlive the client.
            hurry = isinstance(failure, asyncio.CancelledError)
            try:
                async with asyncio.timeout(_HURRY_SECONDS if hurry else None):
                    await step()
            except (Exception, asyncio.CancelledError) as error:
                if failure is None or isinstance(error, asyncio.CancelledError):
                    failure = error
        if failure is not None:
            raise failure

    def _check_open(self) -> None:
        if self._closed:
            raise client_closed()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()
