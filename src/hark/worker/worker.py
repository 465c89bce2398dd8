"""The worker, and the options of a run: from the program, the environment, hark.toml or the defaults, in this order."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

import msgspec

from hark.api.types.tasks import CatchUp, Overlap
from hark.client.admin import Interval
from hark.client.arguments import a_name, an_integer
from hark.client.calling import Caller, Transport
from hark.client.inprocess import PollAs
from hark.client.pushing import NewMessage, Pushed
from hark.errors import HarkError, InvalidInput
from hark.model import QUEUE_MODE
from hark.model.messages import UniqueUntil
from hark.polling import PollingStrategy, PollMetrics, strategy_from
from hark.settings import load
from hark.worker.middleware import Address, AnyMiddleware, current_task, unreachable
from hark.worker.periodic import Declaration, Periodic, declare
from hark.worker.queues import weights_of
from hark.worker.retrying import RetryPolicy
from hark.worker.stats import Health, Snapshot, Summary, TaskEvent
from hark.worker.task import AnyTask, Task
from hark.worker.worker_run import WorkerRun

if TYPE_CHECKING:
    from hark.client.client import Client
    from hark.connecting import Target

MAX_CONCURRENCY = 10_000


class WorkerRunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one run of a worker. None: the value of the worker, or of the settings."""

    polling: PollingStrategy | None = None
    """How the worker pauses after it found no work. The default is the setting `worker.polling`: adaptive, 100 ms to
    5 s."""
    concurrency: int | None = None
    """Maximum number of handlers that run at the same time, 1 to 10,000. The default is that of the worker, then the
    setting `worker.concurrency` (10)."""
    grace_seconds: float | None = None
    """Maximum time of a graceful shutdown in seconds, 0 to 86,400. The default is the setting `worker.grace_seconds`
    (30)."""
    wait: bool = True
    """Wait at the server for work (long polling), the default. False: poll, and pause as `polling` says."""
    timeout_ms: int = 30_000
    """How long one request waits at the server, in milliseconds: 0 to 600,000. The default is 30,000."""
    burst: bool = False
    """Return when there is nothing to do, instead of waiting for work."""
    health: tuple[str, int] | None = None
    """Address and port of /health and /metrics, for example `("127.0.0.1", 8080)`. Port 0 selects a free port. The
    default is the setting `worker.health_port`: not served."""
    handle_signals: bool = True
    """Shut down on SIGTERM and SIGINT, the default. Python allows this in the main thread only."""

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            an_integer(self.concurrency, "concurrency", 1, MAX_CONCURRENCY)
        if self.grace_seconds is not None and not 0 <= self.grace_seconds <= 86_400:
            raise InvalidInput(f"grace_seconds: expected 0 to 86400, got {self.grace_seconds!r}")
        if not 0 <= self.timeout_ms <= 600_000:
            raise InvalidInput(f"timeout_ms: expected 0 to 600000, got {self.timeout_ms!r}")
        if self.polling is not None and not isinstance(self.polling, PollingStrategy):
            raise InvalidInput(f"polling: expected a hark.PollingStrategy, got {self.polling!r}")
        match self.health:
            case None:
                return
            case tuple((str(), int(port))) if 0 <= port <= 65_535:
                return
        text = f"expected an address and a port such as ('127.0.0.1', 8080), got {self.health!r}"
        raise InvalidInput(f"health: {text}")


class Plan(WorkerRunOptions, frozen=True, kw_only=True):
    """The options of a run with all defaults filled in."""

    polling: PollingStrategy
    concurrency: int
    lease_seconds: int
    grace_seconds: float
    unknown_task_seconds: int = 3600


def plan_for(
    options: WorkerRunOptions,
    *,
    concurrency: int | None = None,
    lease: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Plan:
    """Combine run options, the arguments of the worker and the settings."""
    settings = load({}, environment).settings
    worker = settings.worker
    served = ("127.0.0.1", worker.health_port) if worker.health_port else None
    return Plan(
        polling=strategy_from(settings, options.polling),
        concurrency=options.concurrency or concurrency or worker.concurrency,
        lease_seconds=lease or worker.lease_seconds,
        grace_seconds=worker.grace_seconds if options.grace_seconds is None else options.grace_seconds,
        unknown_task_seconds=worker.unknown_task_seconds,
        wait=options.wait and not options.burst,
        timeout_ms=options.timeout_ms,
        burst=options.burst,
        health=options.health or served,
        handle_signals=options.handle_signals,
    )


def polled_by_store(transport: Transport, plan: Plan) -> tuple[Plan, PollMetrics | None]:
    """Give the strategy of a run to the store, if it polls. Returns the remaining plan, and the poll metrics.

    Both the worker and an engine in this process could poll. Only the polls of the engine cost something and can find
    new work, so the engine uses the polling strategy of the worker. The worker waits for the engine, which knows
    immediately what it has read, what was pushed here and when a delay ends.
    """
    poll_as: PollAs | None = getattr(transport, "poll_as", None)  # Only transports in this process have it.
    if poll_as is None:
        return plan, None
    metrics = poll_as(plan.polling)
    waiting = msgspec.structs.replace(plan, wait=not plan.burst, polling=PollingStrategy.adaptive())
    return waiting, metrics


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_log = logging.getLogger("hark.worker")


class Worker:
    """Runs the tasks of a queue, or of several.

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
        queue: str | None = None,
        queues: Mapping[str, int] | Sequence[str] | None = None,
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
        - `queue`: the name of the queue; or
        - `queues`: the names of several queues, which share the slots of the worker: a list, or a dict with weights
          such as `{"emails": 3, "reports": 1}`. When all have work, a queue gets slots in proportion to its weight;
          a queue without work leaves its slots to the others. Each task names its queue.
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
        if concurrency is not None:
            an_integer(concurrency, "concurrency", 1, MAX_CONCURRENCY)
        if lease is not None and not (isinstance(lease, int) and lease >= 1):
            raise InvalidInput(f"lease: expected an integer of at least 1 second, got {lease!r}")
        self.queues = weights_of(queue, queues)
        """The weights of the queues, by name."""
        self.queue = next(iter(self.queues))
        """Name of the queue; of several, the first one."""
        self.group = group or QUEUE_MODE
        self.name = name
        self.middleware = tuple(middleware)
        self.tasks: dict[str, AnyTask] = {}
        self.schedules: dict[str, Declaration] = {}
        """The schedules that `periodic` declared, by name."""
        self._target = target
        self._token = token
        self._ca_file = ca_file
        self._given_client = client
        self._unreachable = False
        self._concurrency = concurrency
        self._lease = lease
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = WeakKeyDictionary()
        self.listeners: list[Callable[[TaskEvent], None]] = []
        self._worker_run: WorkerRun | None = None
        self._declaring: asyncio.Task[None] | None = None

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
        unique_until: UniqueUntil = "done",
        priority: int | None = None,
        result: bool = False,
        result_ttl: float | timedelta | None = None,
        queue: str | None = None,
        pool: Literal["thread", "process"] | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(
        self, name: str | Callable[P, R] | None = None, /, **options: Any
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
          until the first task is done or dead-lettered. `unique_until`: `"started"` ends that when a worker receives
          the first task, `"retained"` when its message is removed.
        - `priority`: priority of its messages, 0 to 9. The default is 0.
        - `result`: store the result, in one transaction with the settlement: `await handle.result()` returns it.
          `result_ttl`: how long it is kept, in seconds or as a `timedelta`. The default is one hour.
        - `queue`: the queue of the task, one of those of the worker. The default is the first one.
        - `pool`: `"process"` runs a function that is not async in a process of its own, for computations. The process
          is killed at the time limit, when the task is cancelled, and when its lease is lost; the next task gets a new
          one. The default for such functions is a thread.

        Raises `InvalidInput` if the name is in use, or if the function cannot be a task (for example with `*args`).
        """

        def make(function: Callable[P, R]) -> Task[P, R]:
            own = name if isinstance(name, str) else getattr(function, "__name__", "")
            if own in self.tasks:
                raise InvalidInput(f"the worker already has a task {own!r}; choose another: @worker.task('...')")
            self.tasks[own] = task = Task(self, own, function, **options)
            return task

        return make if name is None or isinstance(name, str) else make(name)

    def periodic(
        self,
        *,
        cron: str | None = None,
        every: Interval | None = None,
        name: str | None = None,
        timezone: str | None = None,
        start_at: datetime | None = None,
        jitter: Interval | None = None,
        overlap: Overlap = "allow",
        catch_up: CatchUp = "latest",
        partition: str | None = None,
    ) -> Periodic:
        """Declare a schedule of a task: the server pushes the task at its due times.

        ```python
        @worker.periodic(cron="0 8 * * MON-FRI", timezone="Europe/Berlin", overlap="skip")
        @worker.task
        async def send_report(kind: str = "daily") -> None: ...

        worker.periodic(cron="0 9 1 * *", name="monthly-report")(send_report, kind="monthly")
        ```

        Every worker creates the schedule at its start; an equal one is not changed. If the declaration is removed, the
        schedule stays until it is deleted. Give exactly one of `cron` and `every` (seconds, a `timedelta`, or a text
        such as `"5m"`).

        - `name`: the name of the schedule. The default is the queue and the task: `emails.send_report`.
        - `timezone`: the time zone of `cron`. The default is UTC.
        - `start_at`: no due time is before this time, and intervals count from it.
        - `jitter`: delay each due time by a part of this time.
        - `overlap`: `skip` skips a due time while the message of the run before is not settled.
        - `catch_up`: what happens with due times at which no server ran: `none` is pushed, the `latest`, or `all`.
        - `partition`: the partition of the messages.

        Raises `InvalidInput` if the name is in use.
        """
        if (cron is None) == (every is None):
            raise InvalidInput("periodic: expected exactly one of cron and every, such as every='5m'")
        return Periodic(
            self.schedules,
            None if name is None else a_name(name, "name"),
            cron=cron,
            every=every,
            timezone=timezone,
            start_at=start_at,
            jitter=jitter,
            overlap=overlap,
            catch_up=catch_up,
            partition=partition,
        )

    async def declare_schedules(self) -> None:
        """Create the schedules of `periodic`, as `run` does at its start, or change those that differ."""
        await declare(self.schedules, lambda: self.client.schedules, until_stored=False)

    # The client that pushes tasks -------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """The client of the running event loop, created on first use. For use within a coroutine."""
        if self._unreachable:
            raise unreachable()
        if self._given_client is not None:
            return self._given_client
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            from hark.connecting import connect  # Imported here: it knows all kinds of targets.

            client = self._clients[loop] = connect(self._target, token=self._token, ca_file=self._ca_file)
        return client

    @property
    def address(self) -> Address | None:
        """How another process connects to the server; None if it cannot, because the server is in this process."""
        target = self._target
        if self._given_client is not None or not (target is None or isinstance(target, str | Sequence)):
            return None
        target = target if target is None or isinstance(target, str) else tuple(target)
        return Address(target, self._token, self._ca_file)

    def move_to(self, address: Address | None) -> None:
        """Use this server from now on, in a process of a task. None: it cannot be reached, and calls fail."""
        self._unreachable = address is None
        if address is not None:
            self._target, self._token, self._ca_file = address.target, address.token, address.ca_file

    def caller_of_handle(self) -> Callable[[], Caller]:
        """Return what gives a handle its connection, as long as the worker uses the server that it uses now."""
        server = self._server

        def caller() -> Caller:
            if self._server != server:
                raise HarkError(
                    "the worker now uses another server than the one that has this task; in a test, use the handle "
                    "within `async with hark_server.serving(worker)`",
                    code="wrong_server",
                )
            return self.client.caller

        return caller

    @property
    def _server(self) -> tuple[Target | None, str | None, str | None, Client | None]:
        return self._target, self._token, self._ca_file, self._given_client

    async def send(self, message: NewMessage) -> Pushed:
        """Push the message of a task. A running worker that polls then knows when the message is due."""
        pushed = await self.client.pusher.push(message)
        if self._worker_run is not None:
            self._worker_run.expect(message)
        return pushed

    async def send_many(self, messages: Sequence[NewMessage]) -> list[Pushed]:
        """Push the messages of several tasks, in requests of up to 1,000."""
        pushed = await self.client.pusher.push_many(messages)
        if self._worker_run is not None:
            for message in messages:
                self._worker_run.expect(message)
        return pushed

    def run_from_thread(self, push: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Push, or wait for a task, for a function that is not async.

        It happens on the loop of `run` if the worker runs, otherwise on a new loop.
        """
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise HarkError("push_sync and its handles cannot be used in an event loop; use: await task.push(...)")
        if self._worker_run is not None:
            return asyncio.run_coroutine_threadsafe(push(), self._worker_run.loop).result()
        if self._given_client is not None:
            raise HarkError("push_sync: the client given to this worker belongs to another event loop; give it a URL")

        async def push_and_close() -> T:
            async with self:
                return await push()

        return asyncio.run(push_and_close())

    @contextmanager
    def connect_to(self, target: Target | None = None, *, client: Client | None = None) -> Iterator[Worker]:
        """Use another server within the block, for tests.

        With a target, close the worker before the end of the block.
        """
        before, clients = self._server, self._clients
        self._target, self._given_client, self._clients = target, client, WeakKeyDictionary()
        self._token = self._ca_file = None  # They belong to the worker's usual server.
        try:
            yield self
        finally:
            self._target, self._token, self._ca_file, self._given_client = before
            self._clients = clients

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
        worker_run = self._worker_run = WorkerRun(self, client, plan, poll_metrics)
        try:
            if plan.burst:
                await self.declare_schedules()
            else:
                self._declaring = self._start_to_declare(worker_run)
            summary = await worker_run.run()
            if self._declaring is not None and self._declaring.done():
                self._declaring.result()
            return summary
        finally:
            self._worker_run = None
            if self._declaring is not None:
                self._declaring.cancel()
                await asyncio.wait([self._declaring])
                self._declaring = None
            if not worker_run.io_thread.is_inline:
                try:
                    async with asyncio.timeout(worker_run.seconds_left):
                        await self.close()
                except TimeoutError:
                    _log.warning("pushes of handlers got no answer within the grace period; they may not be stored")

    def _start_to_declare(self, worker_run: WorkerRun) -> asyncio.Task[None] | None:
        """Declare the schedules while the worker runs already. The run ends with the error if one is refused."""
        if not self.schedules:
            return None

        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                worker_run.stop()

        task = asyncio.create_task(declare(self.schedules, lambda: self.client.schedules, until_stored=True))
        task.add_done_callback(done)
        return task

    async def ready(self) -> None:
        """Wait until `run`, which was called in another task of this event loop, is ready to receive messages.

        Its schedules are declared then, too.

        Raises `HarkError` with the code `not_running` if the worker is not running.
        """
        if self._worker_run is None:
            await asyncio.sleep(0)  # The task that calls `run` may not have started yet.
        if self._worker_run is None:
            raise HarkError("this worker is not running; call run() first", code="not_running")
        worker_run, declaring = self._worker_run, self._declaring
        await worker_run.ready.wait()
        if declaring is not None:
            await asyncio.wait([declaring])

    async def stop(self) -> None:
        """Shut down gracefully, and wait until `run` is about to return. Does nothing if the worker is not running.

        A handler can call it, too. It then does not wait, because the run waits for the handler.
        """
        worker_run = self._worker_run
        if worker_run is not None:
            worker_run.stop()
            if current_task.get() is None:
                await worker_run.over.wait()

    @property
    def stats(self) -> Snapshot | None:
        """Counts and state of the running worker. None if it is not running."""
        return None if self._worker_run is None else self._worker_run.snapshot()

    @property
    def health(self) -> Health | None:
        """The answer to /health of the running worker. None if it does not run yet."""
        return None if self._worker_run is None else self._worker_run.health()

    @property
    def metrics(self) -> str | None:
        """The answer to /metrics of the running worker. None if it does not run."""
        return None if self._worker_run is None else self._worker_run.metrics()

    @property
    def health_port(self) -> int | None:
        """The port of /health and /metrics. None if the worker does not serve them."""
        return None if self._worker_run is None else self._worker_run.health_port

    def listen(self, listener: Callable[[TaskEvent], None]) -> Callable[[], None]:
        """Call a function with a `TaskEvent` after each delivery, in the event loop of `run`.

        Returns a function that removes the listener.
        """
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)
