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
    """What the fixture `hark_server` gives; also usable without pytest:

        with HarkServer() as server:
            async with server.connect() as client:
                await client.queue("orders").push({"id": 1})
            server.assert_pushed("orders", {"id": 1})

    It runs in a thread of this process and speaks real HTTP, so whatever talks to a Hark server can talk to it. Its
    methods may be called from async tests too: they do not need the loop of the test.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._thread = ServerThread(settings or Settings())
        self.clock = ServerClock(self._thread.clock, self._advance)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.stop()

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._thread.url

    def connect(self) -> Client:
        """A client of it: `async with server.connect() as client`."""
        from hark.connecting import connect

        return connect(self.url)

    # What happened -----------------------------------------------------------------------------------------

    def pushed(self, queue: str | None = None, *, partition: str | None = None) -> list[StoredMessage]:
        """All messages that were pushed and not deleted, in the order of the pushes, settled or not."""
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
        """Fail unless so many messages were pushed like this (`times=None`: one or more), and answer them.

            hark_server.assert_pushed("orders", {"id": 1}, partition="customer-7")
            hark_server.assert_pushed("orders", lambda data: data["total"] > 100, times=2)
            hark_server.assert_pushed("emails", task="send_email", arguments={"to": "a@b.c", "subject": "hi"})

        `data` and `arguments` are values to equal, or functions that judge; `key` is the idempotency key. The text of
        the failure shows what was pushed, the nearest first.
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
        """Fail if a message like this was pushed; without more than a queue, if anything was."""
        __tracebackhide__ = True
        self.assert_pushed(queue, data, times=0, partition=partition, key=key, task=task, arguments=arguments)

    def dead_letters(self, queue: str | None = None, *, group: str | None = None) -> list[DeadMessage]:
        """The messages that could not be delivered, the oldest failure first."""
        where = DeadLetterFilter(queue=queue, group=group, limit=_ALL)
        page = self._thread.call(lambda: self._thread.broker.dead_letters(where))
        return [dead(letter) for letter in reversed(page.items)]

    # Taking ------------------------------------------------------------------------------------------------

    def drain(self, queue: str | None = None, *, group: str | None = None) -> list[ReceivedMessage]:
        """Take everything that can be delivered now, of a queue or of all, acknowledge it, and answer it in order.

        What is delayed, leased to somebody, or waits for a retry stays: advance the clock first. Without a group it
        is taken as consumers without one would.
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
        """How many pops wait for a message at this moment."""

        async def count() -> int:
            return self._thread.broker.waiting

        return self._thread.call(count)

    # Workers -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def serving(self, worker: Worker) -> AsyncIterator[Worker]:
        """Point a worker of the application, and the pushes of its tasks, to this server for a while.

        async with hark_server.serving(app.worker):
            await app.sign_up("ada")                          # pushes a task, as it always does
            hark_server.assert_pushed("emails", task="send_email", arguments={"to": "ada"})
        """
        with worker.connect_to(self.url):
            try:
                yield worker
            finally:
                await worker.close()

    async def run_worker(self, worker: Worker, *, concurrency: int | None = None) -> Summary:
        """Run a worker with this server until nothing is left to do now, and answer what it did.

        What is delayed or waits for a retry is left: advance the clock and run it again.

            summary = await hark_server.run_worker(app.worker)
            assert summary.totals.done == 1
        """
        from hark.worker import WorkerRunOptions

        options = WorkerRunOptions(burst=True, concurrency=concurrency, handle_signals=False)
        async with self.serving(worker):
            return await worker.run(options)

    # The server itself -------------------------------------------------------------------------------------

    async def _read(self, where: MessageFilter) -> list[StoredMessage]:
        broker = self._thread.broker
        await self._thread.engine.rest()
        views = [
            await broker.message(view.partition_id, view.id) for view in reversed(await broker.engine.messages(where))
        ]
        return [stored(view) for view in views if view is not None]

    def _advance(self, seconds: float) -> None:
        self._thread.call(lambda: self._thread.advance(seconds))
