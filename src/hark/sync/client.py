"""The sync client: the async client behind a portal."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hark.client.arguments import a_name
from hark.client.builder import Choices
from hark.client.calling import CallPolicy
from hark.client.client import Client as AsyncClient
from hark.client.transport.api import Transport
from hark.client.transport.inprocess import AsgiApp
from hark.clock import Clock
from hark.connecting import connect as connect_async
from hark.polling import PollingStrategy
from hark.settings import Settings
from hark.sync.parts import Admin, DeadLetters, Groups, KeyValue, Traces, Transaction
from hark.sync.portal import Portal, blocking
from hark.sync.queue import Queue

if TYPE_CHECKING:
    from hark.engine.api import Engine

_EXIT_SECONDS = 5.0
"""Maximum number of seconds that a program waits at its exit for a client that it did not close."""


def connect(
    target: str | Sequence[str] | AsgiApp | Engine | Transport | None = None,
    *,
    token: str | None = None,
    ca_file: str | None = None,
    retry: CallPolicy | None = None,
    polling: PollingStrategy | None = None,
    headers: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> Client:
    """Connect to a Hark server with a blocking client. The arguments are those of `hark.connect`.

    ```python
    with hark.sync.connect("http://localhost:6632") as client:
        client.queue("orders").push({"id": 1})
    ```

    Use the client as a context manager, or call `close` at the end. Raises `InvalidInput` if an argument is invalid.
    """
    inner = connect_async(
        target,
        token=token,
        ca_file=ca_file,
        retry=retry,
        polling=polling,
        headers=headers,
        settings=settings,
        clock=clock,
    )
    return Client(inner, Portal())


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
    def kv(self) -> KeyValue:
        """The key-value store."""
        return KeyValue(self.inner.kv, self.portal)

    @property
    def admin(self) -> Admin:
        """Administration of the server: queues, messages, leases, waiting consumers, health and maintenance mode."""
        return Admin(self.inner.admin, self.portal)

    @property
    def groups(self) -> Groups:
        """Administration of consumer groups: list, seek, pause, purge, limit and delete."""
        return Groups(self.inner.groups, self.portal)

    @property
    def traces(self) -> Traces:
        """Trace events that consumers recorded about messages."""
        return Traces(self.inner.traces, self.portal)

    def transaction(self) -> Transaction:
        """A new transaction of pushes, settlements and key-value writes.

        The server applies all of it or nothing. Use it as `with client.transaction() as transaction`.
        """
        return Transaction(self.inner.transaction(), self.portal)

    def dlq(self, queue: str | None = None, group: str | None = None) -> DeadLetters:
        """The dead letters of one queue and one consumer group. None means all queues, or all groups."""
        return DeadLetters(self.inner.dlq(queue, group), self.portal)

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
