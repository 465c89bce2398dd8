"""The sync client: the async one behind a portal."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hark.client.calling import CallPolicy
from hark.client.choices import Choices
from hark.client.client import Client as AsyncClient
from hark.client.transport.api import Transport
from hark.client.transport.inprocess import AsgiApp
from hark.client.values import a_name
from hark.clock import Clock
from hark.connecting import connect as connect_async
from hark.polling import PollingStrategy
from hark.settings import Settings
from hark.sync.facade import blocking
from hark.sync.parts import Admin, DeadLetters, Groups, KeyValue, Traces, Transaction
from hark.sync.portal import Portal
from hark.sync.queue import Queue

if TYPE_CHECKING:
    from hark.engine.api import Engine

_EXIT_SECONDS = 5.0
"""How long a program that ends waits for a client that it did not close."""


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
    """A sync client of a server; close it when you are done, or use it as a context manager. As `hark.connect`."""
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
    """A client whose calls wait; any number of threads may share it."""

    def __init__(self, inner: AsyncClient, portal: Portal) -> None:
        self.inner = inner
        self.portal = portal
        # For a program that forgets to close it: what it has buffered is not lost.
        atexit.register(self._close_at_exit)

    def queue(self, name: str | None = None) -> Queue:
        """A queue to push to or to take from; without a name, say `namespace` or `task` to take from several."""
        return Queue(self, Choices(queue=None if name is None else a_name(name, "queue")))

    @property
    def kv(self) -> KeyValue:
        """The key-value store."""
        return KeyValue(self.inner.kv, self.portal)

    @property
    def admin(self) -> Admin:
        """The server, and all its queues and messages."""
        return Admin(self.inner.admin, self.portal)

    @property
    def groups(self) -> Groups:
        """The consumer groups."""
        return Groups(self.inner.groups, self.portal)

    @property
    def traces(self) -> Traces:
        """What consumers recorded about messages."""
        return Traces(self.inner.traces, self.portal)

    def transaction(self) -> Transaction:
        """Pushes, settlements and writes of keys that happen whole or not at all."""
        return Transaction(self.inner.transaction(), self.portal)

    def dlq(self, queue: str | None = None, group: str | None = None) -> DeadLetters:
        """The dead letters of all queues, or of one."""
        return DeadLetters(self.inner.dlq(queue, group), self.portal)

    flush = blocking(AsyncClient.flush)
    _open = blocking(AsyncClient.open)

    def close(self) -> None:
        """Send what is buffered, hand back what was not begun, and hang up. Raises what could not be sent."""
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
