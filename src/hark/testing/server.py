"""A real server for a test: HTTP on a free port, a store in memory, and a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from hark.model import QUEUE_MODE, DeadLetterFilter, MessageFilter, PopRequest
from hark.settings import Settings
from hark.testing.clock import ServerClock
from hark.testing.matching import ANYTHING, Expected, check_count
from hark.testing.messages import DeadMessage, ReceivedMessage, StoredMessage, dead, received, stored
from hark.testing.thread import ServerThread

if TYPE_CHECKING:
    from hark.client.client import Client
    from hark.worker import Summary, Worker

_ALL = 1_000_000_000
_AT_ONCE = 1000


class HarkServer:
    """A Hark server for tests. The fixture `hark_server` returns one; without pytest, use it as a context manager:

        with HarkServer() as server:
            async with server.connect() as client:
                await client.queue("orders").push({"id": 1})
            server.assert_pushed("orders", {"id": 1})

    It runs in a thread of this process and speaks real HTTP, so every client of a Hark server can use it. Async tests
    can call its methods directly: they do not need the test's event loop.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._thread = ServerThread(settings or Settings())
        self.clock = ServerClock(self._thread.clock, self._advance)
        """The clock of the server. It stands still until the test moves it."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.stop()

    @property
    def url(self) -> str:
        """The URL of the server, for example `http://127.0.0.1:54321`."""
        return self._thread.url

    def connect(self) -> Client:
        """A client of this server: `async with server.connect() as client`."""
        from hark.connecting import connect

        return connect(self.url)

    # Inspection --------------------------------------------------------------------------------------------

    def pushed(self, queue: str | None = None, *, partition: str | None = None) -> list[StoredMessage]:
        """All pushed messages in the order of the pushes, settled or not. Deleted messages are not included."""
        where = MessageFilter(queue=queue, partition=partition, limit=_ALL)
        return self._thread.call(lambda: self._read(where))

    def assert_pushed(
        self,
        queue: str,
        data: Any = ANYTHING,
        *,
        times: int | None = 1,
        partition: str | None = None,
        key: str | None = None,
        task: str | None = None,
        arguments: Any = ANYTHING,
    ) -> list[StoredMessage]:
        """Fail unless exactly `times` matching messages were pushed (None: at least one). Returns the messages.

            hark_server.assert_pushed("orders", {"id": 1}, partition="customer-7")
            hark_server.assert_pushed("orders", lambda data: data["total"] > 100, times=2)
            hark_server.assert_pushed("emails", task="send_email", arguments={"to": "a@b.c", "subject": "hi"})

        `data` and `arguments` are values that must be equal, or functions that return whether a value matches. `key` is
        the idempotency key. The text of the `AssertionError` lists pushed messages, the closest match first.
        """
        __tracebackhide__ = True
        expected = Expected(queue=queue, data=data, partition=partition, key=key, task=task, arguments=arguments)
        return check_count(expected, self.pushed(queue), times)

    def assert_not_pushed(
        self,
        queue: str,
        data: Any = ANYTHING,
        *,
        partition: str | None = None,
        key: str | None = None,
        task: str | None = None,
        arguments: Any = ANYTHING,
    ) -> None:
        """Fail if a matching message was pushed. With a queue only, fail if anything was pushed to it."""
        __tracebackhide__ = True
        self.assert_pushed(queue, data, times=0, partition=partition, key=key, task=task, arguments=arguments)

    def dead_letters(self, queue: str | None = None, *, group: str | None = None) -> list[DeadMessage]:
        """The dead letters, oldest failure first."""
        where = DeadLetterFilter(queue=queue, group=group, limit=_ALL)
        page = self._thread.call(lambda: self._thread.broker.dead_letters(where))
        return [dead(letter) for letter in reversed(page.items)]

    # Receiving ---------------------------------------------------------------------------------------------

    def drain(self, queue: str | None = None, *, group: str | None = None) -> list[ReceivedMessage]:
        """Receive and acknowledge everything that can be delivered now. Returns it in order.

        Without a queue it drains all queues. Delayed messages, messages in flight and messages that wait for a retry
        stay: advance the clock first. The default for `group` is the default group of the queue.
        """
        return self._thread.call(lambda: self._drain(queue, group or QUEUE_MODE))

    async def _drain(self, queue: str | None, group: str) -> list[ReceivedMessage]:
        broker = self._thread.broker
        await self._thread.engine.rest()
        names = [queue] if queue is not None else [info.name for info in await broker.engine.queue_infos()]
        taken: list[ReceivedMessage] = []
        for name in names:
            wish = PopRequest(queue=name, group=group, batch=_AT_ONCE, partitions=_AT_ONCE, auto_ack=True)
            while (result := await broker.pop(wish)).messages:
                taken += received(result.messages)
        return taken

    @property
    def waiting(self) -> int:
        """Number of waiting pops."""

        async def count() -> int:
            return self._thread.broker.waiting

        return self._thread.call(count)

    # Workers -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def serving(self, worker: Worker) -> AsyncIterator[Worker]:
        """Let a worker of the application, and pushes of its tasks, use this server within the block.

        async with hark_server.serving(app.worker):
            await app.sign_up("ada")                          # pushes a task
            hark_server.assert_pushed("emails", task="send_email", arguments={"to": "ada"})
        """
        with worker.connect_to(self.url):
            try:
                yield worker
            finally:
                await worker.close()

    async def run_worker(self, worker: Worker, *, concurrency: int | None = None) -> Summary:
        """Run a worker with this server until there is nothing to do. Returns its summary.

        Delayed tasks and tasks that wait for a retry stay: advance the clock and run it again.

            summary = await hark_server.run_worker(app.worker)
            assert summary.totals.done == 1
        """
        from hark.worker import WorkerRunOptions

        options = WorkerRunOptions(burst=True, concurrency=concurrency, handle_signals=False)
        async with self.serving(worker):
            return await worker.run(options)

    # The server --------------------------------------------------------------------------------------------

    async def _read(self, where: MessageFilter) -> list[StoredMessage]:
        broker = self._thread.broker
        await self._thread.engine.rest()
        views = [
            await broker.message(view.partition_id, view.id) for view in reversed(await broker.engine.messages(where))
        ]
        return [stored(view) for view in views if view is not None]

    def _advance(self, seconds: float) -> None:
        self._thread.call(lambda: self._thread.advance(seconds))
