"""A worker whose server lives in its own process, on a store that has to be polled.

Both the worker and the engine could poll. Only the polls of the engine cost something and can find new work, so the
engine uses the polling strategy of the worker. The worker waits for the engine, which knows immediately what it has
read, what was pushed here and when a delay ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

import msgspec

from hark.client.pushing import NewMessage, Pushed
from hark.client.transport.api import Transport
from hark.client.transport.inprocess import PollAs
from hark.errors import HarkError, InvalidInput
from hark.model import QUEUE_MODE
from hark.polling import PollingStrategy, PollMetrics
from hark.worker.middleware import AnyMiddleware, current_or_none
from hark.worker.options import Plan, WorkerRunOptions, check_concurrency, plan_for
from hark.worker.retrying import RetryPolicy
from hark.worker.stats import Snapshot, Summary, TaskEvent
from hark.worker.task import AnyTask, Task
from hark.worker.worker_run import WorkerRun

if TYPE_CHECKING:
    from hark.client.client import Client
    from hark.connecting import Target


def polled_by_store(transport: Transport, plan: Plan) -> tuple[Plan, PollMetrics | None]:
    """Give the strategy of a run to the store, if it polls. Returns the remaining plan, and the poll metrics."""
    poll_as: PollAs | None = getattr(transport, "poll_as", None)  # Only transports in this process have it.
    if poll_as is None:
        return plan, None
    metrics = poll_as(plan.polling)
    waiting = msgspec.structs.replace(plan, wait=not plan.burst, polling=PollingStrategy.adaptive())
    return waiting, metrics


P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger("hark.worker")


class Worker:
    """Runs the tasks of one queue.

    ```python
    worker = hark.Worker("http://localhost:6632", queue="emails", concurrency=20)

    @worker.task("send_email", timeout=30)
    async def send_email(to: str, subject: str) -> None: ...

    await send_email.push(to="a@b.c", subject="hi")    # in any process
    await worker.run()                                 # in the worker process
    ```

    Any number of workers can share a queue: each message goes to one of them. A worker receives only as many messages
    as it can start immediately, and renews their leases while the handlers run. If a worker crashes, another one
    receives its messages when their leases expire.
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
        """Create a worker. Nothing is sent before `run` or the first push.

        - `target`, `token`, `ca_file`: the server, as for `hark.connect`.
        - `queue`: the name of the queue.
        - `concurrency`: maximum number of handlers that run at the same time, 1 to 10,000. The default is the setting
          `worker.concurrency` (10).
        - `group`: the consumer group. The default is the default group of the queue. Workers use shared groups.
        - `lease`: lease time in seconds; leases are renewed while handlers run. The default is the setting
          `worker.lease_seconds` (30).
        - `client`: an open client to use instead of a target. The worker does not close it.
        - `middleware`: functions that wrap every task; the first one is the outermost.
        - `name`: the start of the worker's id in lists of leases and waiting consumers.

        Raises `InvalidInput` if an argument is invalid.
        """
        for field, value in (("target", target), ("token", token), ("ca_file", ca_file)):
            if value is not None and client is not None:
                raise InvalidInput(f"{field}: expected either a {field} or a client, got both")
        if not queue:
            raise InvalidInput("queue: must not be empty; name the queue of this worker's tasks")
        if concurrency is not None:
            check_concurrency(concurrency)
        if lease is not None and not (isinstance(lease, int) and lease >= 1):
            raise InvalidInput(f"lease: expected an integer of at least 1 second, got {lease!r}")
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
        self._worker_run: WorkerRun | None = None

    # Tasks ----------------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        name: str | None = None,
        /,
        *,
        retry: RetryPolicy | int | None = None,
        timeout: float | timedelta | None = None,
        unique: bool | Sequence[str] = False,
        priority: int | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(
        self,
        name: str | Callable[P, R] | None = None,
        /,
        *,
        retry: RetryPolicy | int | None = None,
        timeout: float | timedelta | None = None,
        unique: bool | Sequence[str] = False,
        priority: int | None = None,
    ) -> Task[P, R] | Callable[[Callable[P, R]], Task[P, R]]:
        """Register a function as a task of this worker. The function can be async or not.

        The name is part of the messages. The default is the name of the function.

        - `retry`: what happens when the task fails: a policy, or a number of retries with exponential delays. The
          default is `RetryPolicy.exponential()`: 5 retries after 1, 2, 4, 8 and 16 seconds, each varied by 20 % at
          random.
        - `timeout`: time limit of the handler in seconds, or a `timedelta`. The default is no limit. An async handler
          is cancelled at the limit. A function in a thread cannot be cancelled: its message fails immediately, and the
          function keeps its slot until it ends.
        - `unique`: True, or the names of arguments. A second push with equal arguments returns the status `duplicate`,
          for as long as the first message is stored. That includes some time after it is completed (queue option
          `completedRetentionSeconds`); with the queue option `dropSettled` it ends on completion.
        - `priority`: priority of its messages, 0 to 9. The default is 0.

        Raises `InvalidInput` if the name is in use, or if the function cannot be a task (for example with `*args`).
        """

        def make(function: Callable[P, R]) -> Task[P, R]:
            own = name if isinstance(name, str) else getattr(function, "__name__", "")
            if own in self.tasks:
                raise InvalidInput(f"the worker already has a task {own!r}; choose another: @worker.task('...')")
            task = Task(self, own, function, retry=retry, timeout=timeout, unique=unique, priority=priority)
            self.tasks[own] = task
            return task

        return make if name is None or isinstance(name, str) else make(name)

    # The client that pushes tasks -------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """The client of the running event loop, created on first use. For use within a coroutine."""
        if self._given_client is not None:
            return self._given_client
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            from hark.connecting import connect  # Imported here: it knows all kinds of targets.

            client = self._clients[loop] = connect(self._target, token=self._token, ca_file=self._ca_file)
        return client

    async def send(self, message: NewMessage) -> Pushed:
        """Push the message of a task. A running worker that polls then knows when the message is due."""
        pushed = await self.client.pusher.push(message)
        if self._worker_run is not None:
            self._worker_run.expect(message)
        return pushed

    def push_from_thread(self, push: Callable[[], Coroutine[Any, Any, Pushed]]) -> Pushed:
        """Push for a function that is not async: on the loop of `run` if the worker runs, otherwise on a new loop."""
        if _has_loop():
            raise HarkError("push_sync cannot be called in an event loop; use: await task.push(...)")
        if self._worker_run is not None:
            return asyncio.run_coroutine_threadsafe(push(), self._worker_run.loop).result()
        if self._given_client is not None:
            raise HarkError("push_sync: the client given to this worker belongs to another event loop; give it a URL")

        async def push_and_close() -> Pushed:
            async with self:
                return await push()

        return asyncio.run(push_and_close())

    @contextmanager
    def connect_to(self, target: Target | None = None, *, client: Client | None = None) -> Iterator[Worker]:
        """Use another server within the block, for tests.

        With a target, close the worker before the end of the block.
        """
        before = self._target, self._token, self._ca_file, self._given_client, self._clients
        self._target, self._given_client, self._clients = target, client, WeakKeyDictionary()
        self._token = self._ca_file = None  # They belong to the worker's usual server.
        try:
            yield self
        finally:
            self._target, self._token, self._ca_file, self._given_client, self._clients = before

    async def close(self) -> None:
        """Close the client that the worker created in this event loop. A client that you gave stays open."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    async def __aenter__(self) -> Worker:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    # Running --------------------------------------------------------------------------------------------------

    async def run(self, options: WorkerRunOptions | None = None) -> Summary:
        """Run tasks until `stop`, SIGTERM or SIGINT. With `burst`, until there is nothing to do. Returns a summary.

        On shutdown the worker receives nothing more, lets running handlers finish, cancels those that do not finish,
        and releases unfinished tasks without counting an attempt. All of that takes at most the grace period
        (`grace_seconds`, default 30). A second signal cancels the handlers immediately.

        Raises `HarkError` with the code `already_running` if the worker is running.
        """
        if self._worker_run is not None:
            raise HarkError("this worker is already running; create another Worker to run two", code="already_running")
        plan = plan_for(options or WorkerRunOptions(), concurrency=self._concurrency, lease=self._lease)
        client = self.client
        plan, poll_metrics = polled_by_store(client.caller.transport, plan)
        worker_run = self._worker_run = WorkerRun(
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
            return await worker_run.run()
        finally:
            self._worker_run = None
            if not worker_run.runs_inline:
                await self._close_within(worker_run.seconds_left)

    async def _close_within(self, seconds: float) -> None:
        """Close the client, with a time limit for pushes of handlers that get no answer."""
        try:
            async with asyncio.timeout(seconds):
                await self.close()
        except TimeoutError:
            _log.warning("pushes of handlers got no answer within the grace period; they may not be stored")

    async def ready(self) -> None:
        """Wait until `run`, which was called in another task of this event loop, is ready to receive messages.

        Raises `HarkError` with the code `not_running` if the worker is not running.
        """
        if self._worker_run is None:
            await asyncio.sleep(0)  # The task that calls `run` may not have started yet.
        if self._worker_run is None:
            raise HarkError("this worker is not running; call run() first", code="not_running")
        await self._worker_run.ready()

    async def stop(self) -> None:
        """Shut down gracefully, and wait until `run` is about to return. Does nothing if the worker is not running.

        A handler can call it, too. It then does not wait, because the run waits for the handler.
        """
        worker_run = self._worker_run
        if worker_run is not None:
            worker_run.stop()
            if current_or_none() is None:
                await worker_run.over()

    @property
    def stats(self) -> Snapshot | None:
        """Counts and state of the running worker. None if it is not running."""
        return None if self._worker_run is None else self._worker_run.snapshot()

    @property
    def health_port(self) -> int | None:
        """The port of /health and /metrics. None if the worker does not serve them."""
        return None if self._worker_run is None else self._worker_run.health_port

    def listen(self, listener: Callable[[TaskEvent], None]) -> Callable[[], None]:
        """Call a function with a `TaskEvent` after each delivery, in the event loop of `run`.

        Returns a function that removes the listener.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)


def _has_loop() -> bool:
    """Whether the caller runs in an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
