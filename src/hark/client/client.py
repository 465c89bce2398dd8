"""The client: access to everything that a server offers, over one transport."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import cached_property
from types import TracebackType
from typing import Self

from hark.client.admin import Admin, Traces
from hark.client.arguments import a_name
from hark.client.builder import Choices
from hark.client.calling import Caller, CallPolicy
from hark.client.delivery.consuming import Consumption, Handler, Messages
from hark.client.delivery.io_thread import IoThread
from hark.client.delivery.leases import Holds, LeaseKeeper
from hark.client.delivery.message import Message
from hark.client.delivery.prefetcher import ConsumerSession, Prefetcher, pop_params_of
from hark.client.delivery.settling import Settler
from hark.client.delivery.socket import SocketSource
from hark.client.delivery.sources import PollSource, PopParams, Source
from hark.client.groups import DeadLetters, Groups
from hark.client.keys import KeyValue
from hark.client.pushing import Buffers, Pusher
from hark.client.queue import Queue
from hark.client.transaction import Transaction
from hark.client.transport.api import Transport, client_closed
from hark.polling import PollingStrategy

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
        headers: Mapping[str, str] | None = None,
        on_open: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.caller = Caller(transport, retry)
        self._polling = polling or PollingStrategy.adaptive()
        self.sockets = sockets
        """Whether messages are delivered over WebSockets."""
        self.headers = headers
        """Headers for WebSocket connections. The transport adds the headers of other requests."""
        self._on_open = on_open
        self._opened = self._closed = False
        self._holds = Holds(transport, retry)
        self._prefetchers: set[Prefetcher] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.buffers = Buffers(lambda: self.pusher)

    # Parts, created on first use ---------------------------------------------------------------------------

    @cached_property
    def pusher(self) -> Pusher:
        """Sends pushes. Concurrent pushes share a request."""
        return Pusher(self.caller)

    @cached_property
    def settler(self) -> Settler:
        """Sends settlements. Concurrent settlements share a request."""
        return Settler(self.caller)

    async def keeper(self) -> LeaseKeeper:
        """The lease keeper, which renews leases in a separate thread."""
        return await self._holds.keeper()

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
    def traces(self) -> Traces:
        """Trace events that consumers recorded about messages."""
        return Traces(self.caller)

    def queue(self, name: str | None = None) -> Queue:
        """A queue to push to and to consume from.

        Without a name, call `namespace` or `task` on the result to consume from all queues with that label.
        """
        return Queue(self, Choices(queue=None if name is None else a_name(name, "queue")))

    def transaction(self) -> Transaction:
        """A new transaction of pushes, settlements and key-value writes.

        The server applies all of it or nothing. Use it as `async with client.transaction() as transaction`.
        """
        return Transaction(self.caller)

    def dlq(self, queue: str | None = None, group: str | None = None) -> DeadLetters:
        """The dead letters of one queue and one consumer group. None means all queues, or all groups."""
        return DeadLetters(self.caller, queue, group)

    # Used by queues ----------------------------------------------------------------------------------------

    async def pop(self, choices: Choices) -> list[Message]:
        """One pop request with these choices."""
        self._check_open()
        # With renew_lease(True) leases are renewed from delivery on, otherwise from `async with message` on.
        seconds = choices.renewed_seconds if choices.renew else None
        params = pop_params_of(choices, wait=choices.wait or False, lease_seconds=seconds or choices.lease_seconds)
        source = PollSource(self.caller, params, self.settler.give_back)
        try:
            delivered = await source.take(choices.batch)
        except asyncio.CancelledError:
            self._retire(source)
            raise
        return await self._session.receive(delivered, choices, params.lease_seconds, begin=seconds is not None)

    def iterate(self, choices: Choices) -> Messages:
        """Iterate over messages with these choices."""
        params = self._waiting_params(choices)
        return Messages(lambda: self._open_prefetcher(choices, params), self._retire, choices)

    def consume(self, choices: Choices, handler: Handler) -> Consumption:
        """Consume messages into a handler with these choices."""
        params = self._waiting_params(choices)
        # A handler that blocks the event loop must not keep the messages of the others from being read and renewed.
        apart = choices.concurrency > 1 and choices.renewed_seconds is not None
        return Consumption(lambda: self._open_prefetcher(choices, params, apart), choices, handler)

    @cached_property
    def _session(self) -> ConsumerSession:
        return ConsumerSession(self.caller, self.settler, self._holds)

    @staticmethod
    def _waiting_params(choices: Choices) -> PopParams:
        wait = not choices.polling and choices.wait is not False
        params = pop_params_of(choices, wait=wait, lease_seconds=choices.renewed_seconds or choices.lease_seconds)
        if choices.idle_ms is not None and choices.idle_ms < params.timeout_ms:
            return pop_params_of(choices, wait=wait, lease_seconds=params.lease_seconds, timeout_ms=choices.idle_ms)
        return params

    async def _open_prefetcher(self, choices: Choices, params: PopParams, apart: bool = False) -> Prefetcher:
        """A supply of messages, received in the thread of the lease keeper if `apart`."""
        io_thread = await self._holds.io_thread() if apart else None
        self._check_open()
        strategy = self._polling
        if choices.polling:
            strategy = PollingStrategy.fixed(interval_ms=choices.poll_ms or _PLAIN_POLL_MS)
        source, session = self._source(params, io_thread)
        # A poll that does not wait would find nothing before the ack and then rest. A socket needs no poll at all.
        overlaps = params.wait and session is self._session
        prefetcher = Prefetcher(
            session,
            source,
            choices,
            params.lease_seconds,
            strategy,
            self._prefetchers.discard,
            overlaps=overlaps,
            io_thread=io_thread,
        )
        self._prefetchers.add(prefetcher)
        return prefetcher

    def _source(self, params: PopParams, io_thread: IoThread | None) -> tuple[Source, ConsumerSession]:
        """The source of messages and the session that settles them. With WebSockets both use the same socket."""
        caller = self.caller if io_thread is None else io_thread.caller
        if self.sockets and params.wait and params.timeout_ms:
            source = SocketSource(caller, params, headers=self.headers, disconnected=self._holds.hurry)
            return source, ConsumerSession(self.caller, source.settler, self._holds, io_thread)
        settler = self.settler if io_thread is None else Settler(caller)
        return PollSource(caller, params, settler.give_back), self._session

    def _retire(self, left: Prefetcher | Source) -> None:
        """Close a supply or source that has no consumer any more."""
        task = asyncio.ensure_future(left.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Opening and closing -----------------------------------------------------------------------------------

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
        steps: list[Callable[[], Coroutine[object, object, object]]] = [
            self.buffers.close,
            self._close_prefetchers,
            self._drain,
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

    async def _close_prefetchers(self) -> None:
        await asyncio.gather(*(prefetcher.close() for prefetcher in list(self._prefetchers)), *self._tasks)

    async def _drain(self) -> None:
        await self.pusher.close()
        await self.settler.drain()

    def _check_open(self) -> None:
        if self._closed:
            raise client_closed()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
