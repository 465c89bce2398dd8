"""The worker: tasks by name, and the loop that runs them.

worker = Worker("http://localhost:6632", queue="emails", concurrency=20)

@worker.task("send_email", timeout=30)
async def send_email(to: str, subject: str) -> None: ...

await send_email.push(to="a@b.c", subject="hi")    # anywhere
await worker.run()                                 # in the process that does the work
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

from hark.client.producing.pushing import NewMessage, Pushed
from hark.errors import HarkError, InvalidInput
from hark.model import QUEUE_MODE
from hark.worker.brokerless import polled_by_store
from hark.worker.context import current_or_none
from hark.worker.middleware import AnyMiddleware
from hark.worker.options import WorkerRunOptions, check_concurrency, plan_for
from hark.worker.retrying import RetryPolicy
from hark.worker.shift import Shift
from hark.worker.stats import Snapshot, Summary, TaskEvent
from hark.worker.task import AnyTask, Task

if TYPE_CHECKING:
    from hark.client.client import Client
    from hark.connecting import Target

P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger("hark.worker")


class Worker:
    """Runs the tasks of one queue, whoever pushed them.

    Its group is shared: any number of workers take from the queue, each message goes to one of them. What a worker
    takes is leased for `lease` seconds and renewed while its handler runs; it takes no more than it can start at once.
    """

    def __init__(
        self,
        target: Target | None = None,
        *,
        queue: str,
        concurrency: int | None = None,
        group: str | None = None,
        lease: int | None = None,
        token: str | None = None,
        ca_file: str | None = None,
        client: Client | None = None,
        middleware: Sequence[AnyMiddleware] = (),
        name: str = "worker",
    ) -> None:
        """`target`, `token` and `ca_file` are what `hark.connect` takes.

        `concurrency` (10) and `lease` (30) come from the settings if None.
        """
        for field, value in (("target", target), ("token", token), ("ca_file", ca_file)):
            if value is not None and client is not None:
                raise InvalidInput(f"{field}: expected either a {field} or a client, got both")
        if not queue:
            raise InvalidInput("queue: must not be empty; it says where the tasks of this worker wait")
        if concurrency is not None:
            check_concurrency(concurrency)
        if lease is not None and not (isinstance(lease, int) and lease >= 1):
            raise InvalidInput(f"lease: expected whole seconds from 1 on, got {lease!r}")
        self.queue = queue
        self.group = group or QUEUE_MODE
        self.name = name
        self.middleware = tuple(middleware)
        self.tasks: dict[str, AnyTask] = {}
        self._target = target
        self._token = token
        self._ca_file = ca_file
        self._given_client = client
        self._concurrency = concurrency
        self._lease = lease
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = WeakKeyDictionary()
        self._listeners: list[Callable[[TaskEvent], None]] = []
        self._shift: Shift | None = None

    # Tasks ----------------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        name: str | None = None,
        /,
        *,
        retry: RetryPolicy | None = None,
        timeout: float | timedelta | None = None,
        unique: bool | Sequence[str] = False,
        priority: int | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(
        self,
        name: str | Callable[P, R] | None = None,
        /,
        *,
        retry: RetryPolicy | None = None,
        timeout: float | timedelta | None = None,
        unique: bool | Sequence[str] = False,
        priority: int | None = None,
    ) -> Task[P, R] | Callable[[Callable[P, R]], Task[P, R]]:
        """Make a function a task of this worker, under a name or its own.

        `timeout`: seconds that its handler may take. An async one is cancelled then; a function in a thread can't be:
        its message fails at once, and it keeps its slot until it ends. `retry`: what happens when it fails.
        `unique`: pushed again with equal arguments (all, or those named) it answers `duplicate`, for as long as the
        first message is kept, which is also some time after it is done (`completedRetentionSeconds` of the queue;
        with `dropSettled` it is gone at once).
        """

        def make(function: Callable[P, R]) -> Task[P, R]:
            own = name if isinstance(name, str) else getattr(function, "__name__", "")
            if own in self.tasks:
                raise InvalidInput(f"there is a task {own!r} already; give this one another name: @worker.task(...)")
            task = Task(self, own, function, retry=retry, timeout=timeout, unique=unique, priority=priority)
            self.tasks[own] = task
            return task

        return make if name is None or isinstance(name, str) else make(name)

    # The client through which tasks are pushed ------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """The client of the loop that runs, made when it is first needed; for use within a coroutine."""
        if self._given_client is not None:
            return self._given_client
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            from hark.connecting import connect  # Knows clients, and all kinds of servers.

            client = self._clients[loop] = connect(self._target, token=self._token, ca_file=self._ca_file)
        return client

    async def send(self, message: NewMessage) -> Pushed:
        """Push a message of a task; if this worker runs, it knows of it at once."""
        pushed = await self.client.pusher.push(message)
        if self._shift is not None:
            self._shift.expect(message)
        return pushed

    def push_from_thread(self, push: Callable[[], Coroutine[Any, Any, Pushed]]) -> Pushed:
        """Push for a function that is not async: by the loop of `run` in a handler's thread, else by one of its own."""
        if _has_loop():
            raise HarkError("push_sync is for functions that are not async; here, use: await task.push(...)")
        if self._shift is not None:
            return asyncio.run_coroutine_threadsafe(push(), self._shift.loop).result()
        if self._given_client is not None:
            raise HarkError("push_sync: the client of this worker belongs to a loop elsewhere; give the worker a URL")

        async def push_and_close() -> Pushed:
            async with self:
                return await push()

        return asyncio.run(push_and_close())

    @contextmanager
    def connect_to(self, target: Target | None = None, *, client: Client | None = None) -> Iterator[Worker]:
        """Work with another server within the block, for tests; with a target, close the worker before its end."""
        before = self._target, self._token, self._ca_file, self._given_client, self._clients
        self._target, self._given_client, self._clients = target, client, WeakKeyDictionary()
        self._token = self._ca_file = None  # They are for the server that it has otherwise.
        try:
            yield self
        finally:
            self._target, self._token, self._ca_file, self._given_client, self._clients = before

    async def close(self) -> None:
        """Hang up in this loop: the client that was made here is closed, a given one is not."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    async def __aenter__(self) -> Worker:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    # Running --------------------------------------------------------------------------------------------------

    async def run(self, options: WorkerRunOptions | None = None) -> Summary:
        """Run tasks until stopped: by `stop`, by SIGTERM or SIGINT, or in a burst when there is nothing to do.

        When it stops it pulls nothing more, lets running handlers finish, cancels those that do not, and gives what is
        unfinished back at once, uncounted; all of that within the grace period. A second signal makes it hurry.
        """
        if self._shift is not None:
            raise HarkError("this worker runs already", code="already_running")
        plan = plan_for(options or WorkerRunOptions(), concurrency=self._concurrency, lease=self._lease)
        client = self.client
        plan, poll_metrics = polled_by_store(client.caller.transport, plan)
        shift = self._shift = Shift(
            client.caller.transport,
            self.queue,
            self.group,
            self.tasks,
            self.middleware,
            plan,
            self._listeners,
            name=self.name,
            sockets=client.sockets,
            headers=client.headers,
            retry=client.caller.retry,
            poll_metrics=poll_metrics,
        )
        try:
            return await shift.run()
        finally:
            self._shift = None
            if not shift.is_in_place:
                await self._close_within(shift.seconds_left)

    async def _close_within(self, seconds: float) -> None:
        """Hang up, without waiting for ever for pushes that a handler began and nobody answers."""
        try:
            async with asyncio.timeout(seconds):
                await self.close()
        except TimeoutError:
            _log.warning("pushes that were under way got no answer in time")

    async def ready(self) -> None:
        """Wait until `run`, which was called elsewhere in this loop, has everything open and pulls."""
        if self._shift is None:
            await asyncio.sleep(0)  # The task that runs it may just have been made.
        if self._shift is None:
            raise HarkError("this worker does not run", code="not_running")
        await self._shift.ready()

    async def stop(self) -> None:
        """Stop gracefully, and wait until `run` is about to return; nothing happens if it does not run.

        A handler may call it too; then it does not wait, since the run waits for the handler.
        """
        shift = self._shift
        if shift is not None:
            shift.stop()
            if current_or_none() is None:
                await shift.over()

    @property
    def stats(self) -> Snapshot | None:
        """What the worker does and did since its start; None while it does not run."""
        return None if self._shift is None else self._shift.snapshot()

    @property
    def health_port(self) -> int | None:
        """Where it answers /health and /metrics; None while it does not."""
        return None if self._shift is None else self._shift.health_port

    def listen(self, listener: Callable[[TaskEvent], None]) -> Callable[[], None]:
        """Call a function with each delivery that ended, in the loop of `run`; calling the answer ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)


def _has_loop() -> bool:
    """Whether the caller runs in an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
