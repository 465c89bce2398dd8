"""Runs the handlers of received messages: coroutines on the event loop, other functions in threads.

They are not the threads of `concurrent.futures`: Python waits for those at exit, and a worker must be able to abandon a
function that does not end.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from hark.api.types.delivery import Delivered, StepRefBody, TaskEndBody
from hark.client.delivery.settling import SettleDecision
from hark.client.tracing import processing
from hark.errors import HarkError, InvalidInput, NotFound
from hark.worker.middleware import AnyMiddleware, Clients, TaskContext, chained, current_task, fields_of
from hark.worker.pool import START_SECONDS, NotPicklable, ProcessDied, Processes, Run, cpus
from hark.worker.retrying import Ended, Ending, InFlight, TimedOut, decide, text_of, trace_of
from hark.worker.stats import UNKNOWN
from hark.worker.task import RESULT_SECONDS, AnyTask, NotATask, WrongArguments, unseal

_Work = tuple[Callable[[], Any], contextvars.Context, "asyncio.Future[Any]"]


class Threads:
    """A limited number of daemon threads, started on demand."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads = 0
        self._busy = 0

    def submit(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a function in a thread, with the caller's context variables. The future gets its result."""
        future: asyncio.Future[Any] = self._loop.create_future()
        # Mark the exception as retrieved, otherwise asyncio logs it.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._busy += 1
        if self._busy > self._threads and self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()
        self._work.put((call, contextvars.copy_context(), future))
        return future

    def close(self) -> None:
        """Let idle threads end."""
        for _ in range(self._threads):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            call, context, future = work
            try:
                result, error = context.run(call), None
            except BaseException as failure:
                result, error = None, failure
            try:
                self._loop.call_soon_threadsafe(self._ended, future, result, error)
            except RuntimeError:
                return  # The worker has ended, and its loop is closed.
            del call, context, future, work, result, error  # An idle thread keeps no objects alive.

    def _ended(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if future.done():
            return
        if isinstance(error, StopIteration):
            error = RuntimeError("the function raised StopIteration")  # A future cannot carry StopIteration.
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


CANCELLED_DELAY_MS = 1000
"""Delay before a task runs again whose handler cancelled itself, because it might do so each time."""
KILL_SECONDS = 5.0
"""How long the executor waits for a process that it killed. A process that hangs in the kernel keeps its slot."""
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_log = logging.getLogger("hark.worker")

MAX_UNKNOWN_DELAY = 60.0
"""Maximum number of seconds for which a message of an unknown task is handed back."""
UNKNOWN_WARNING = 60.0
"""Seconds between two warnings of one unknown task."""
MAX_UNKNOWN = 10_000
"""Maximum number of such messages that a worker remembers."""

Interruption = Literal["lost", "handed_back", "cancelled"]
MAX_RESULT_BYTES = 900_000
"""Maximum size of a result. Larger ones belong into a store of files."""


class WrongResult(InvalidInput):
    """A handler returned a value that cannot be stored as its result."""

    code = "wrong_result"


class UnknownTask(NotFound):
    """A message names a task that this worker does not have; another worker may have it."""

    code = "unknown_task"

    def __init__(self, task: str, known: Iterable[str]) -> None:
        self.task = task
        has = ", ".join(sorted(known)) or "no tasks"
        super().__init__(f"this worker has no task {task!r} (it has: {has}); run a worker that has it")


class UnknownTasks:
    """Messages whose task this worker does not have. They are handed back, after a growing delay, for a limited time.

    Another worker can have the task: during a rolling update, for example.
    """

    def __init__(self, seconds: float, monotonic: Callable[[], float]) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._seen: dict[str, tuple[float, int]] = {}
        """When each message was received first, and how often it was handed back, by its id."""
        self._warned: dict[str, float] = {}
        """When a warning named each task."""

    def refuse(self, message: Delivered, error: UnknownTask) -> SettleDecision:
        """How to settle a message of an unknown task."""
        now = self._monotonic()
        first, times = self._seen.pop(message.id, (now, 0))
        if now - first >= self._seconds:
            text = f"{type(error).__name__}: {error}; no worker with it received the message in {self._seconds:g} s"
            return SettleDecision(message, "dlq", text)
        delay = min(2.0**times, MAX_UNKNOWN_DELAY)
        if len(self._seen) >= MAX_UNKNOWN and now - next(iter(self._seen.values()))[0] >= 2 * self._seconds:
            del self._seen[next(iter(self._seen))]  # Another worker has settled it.
        if len(self._seen) < MAX_UNKNOWN:
            self._seen[message.id] = first, times + 1
        else:  # Its time begins when there is room.
            delay = MAX_UNKNOWN_DELAY
        if now - self._warned.get(error.task, -UNKNOWN_WARNING) >= UNKNOWN_WARNING:
            if len(self._warned) >= MAX_UNKNOWN:
                self._warned.clear()
            self._warned[error.task] = now
            fields = {"message_id": message.id, "queue": message.queue, "task": error.task}
            text = "cannot run message %s of queue %s: %s; it was handed back, and is dead-lettered after %g s"
            _log.warning(text, message.id, message.queue, error, self._seconds, extra={"fields": fields})
        return SettleDecision(message, "retry", None, round(delay * 1000))


class Job(msgspec.Struct, eq=False):
    """One message whose handler is running."""

    in_flight: InFlight
    message: Delivered
    task: AnyTask
    own_schedule: bool
    """Whether the message has its own retry delays."""
    context: TaskContext
    started: float
    result_ttl: int | None
    """How many seconds the result is kept; None: it is not stored."""
    transaction_id: str
    """That of the first run of the task."""
    flow: StepRefBody | None = None
    begun: bool = False
    runner: asyncio.Task[None] | None = None
    thread: asyncio.Future[Any] | None = None
    """The thread of a function that is not async, while and after it runs."""
    kill: Callable[[], None] | None = None
    """Kills the process that the function runs in. The thread then ends, too."""
    interruption: Interruption | None = None
    over: bool = False
    """Its end was reported. Whatever the handler still does is ignored."""


class Executor:
    """Runs the handlers of received messages, and reports in batches how they ended."""

    def __init__(
        self,
        tasks: Mapping[str, AnyTask],
        middleware: Sequence[AnyMiddleware],
        *,
        worker_id: str,
        concurrency: int,
        finished: Callable[[Sequence[Ended], int], None],
        report: Callable[[Delivered, float | None, str | None], None] = lambda *_: None,
        clients: Clients | None = None,
        unknown: UnknownTasks | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unknown = unknown or UnknownTasks(3600, monotonic)
        self._tasks = tasks
        self._middleware = middleware
        self._worker_id = worker_id
        self._finished = finished
        self._report = report
        self._clients = clients
        self._monotonic = monotonic
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(concurrency, "hark-task")
        self._processes = Processes()
        self._cpus = asyncio.Semaphore(cpus())
        self._jobs: set[Job] = set()
        self._ended: list[Ended] = []
        self._slots = 0
        self._flushing = False
        self._stopping = False
        self._abandoned = 0
        self.stuck = 0
        """Functions that still run although their delivery has ended. Each keeps a slot."""

    @property
    def running(self) -> int:
        """Number of running handlers."""
        return len(self._jobs)

    def receive(self, in_flight: InFlight) -> None:
        """Start the handlers of these messages."""
        for message in in_flight.messages:
            if self._stopping:
                self._end(Ended(in_flight, message, SettleDecision(message, "retry"), "handed_back", UNKNOWN))
                continue
            try:
                job = self._job(in_flight, message)
            except Exception as error:
                self._refuse(in_flight, message, error)
                continue
            self._jobs.add(job)
            job.runner = self._loop.create_task(self._run(job))

    def lose(self, in_flight: InFlight) -> None:
        """Cancel the handlers of a lost lease."""
        for job in [job for job in self._jobs if job.in_flight is in_flight]:
            self._interrupt(job, "lost")
            if job.thread is not None:
                self._conclude(job, "lost")

    def cancel_tasks(self, in_flight: InFlight, ids: Sequence[str]) -> None:
        """Cancel the handlers of these messages of a lease. A function in a thread sees that it is cancelled."""
        for job in [job for job in self._jobs if job.in_flight is in_flight and job.message.id in ids]:
            job.context.cancelled = True
            if job.thread is None or job.thread.done() or job.kill is not None:
                self._interrupt(job, "cancelled")
            elif job.interruption is None:
                job.interruption = "cancelled"

    def stop(self) -> None:
        """Start no more handlers. Messages that still arrive are released."""
        self._stopping = True

    async def wait(self, seconds: float) -> bool:
        """Wait until no handler is running, at most this many seconds. Returns whether that is so."""
        runners = [job.runner for job in self._jobs if job.runner is not None]
        if runners and seconds > 0:
            await asyncio.wait(runners, timeout=seconds)
        return not self._jobs

    def cancel(self) -> None:
        """Cancel running handlers. Functions in threads cannot be cancelled: their messages are released."""
        for job in list(self._jobs):
            self._interrupt(job, "handed_back")
            if job.thread is not None and not job.thread.done():
                self._abandoned += job.kill is None
                self._conclude(job, "handed_back")

    def close(self) -> int:
        """Release the messages of handlers that did not end. Returns the number of abandoned handlers."""
        self._abandoned += len(self._jobs)
        for job in list(self._jobs):
            self._conclude(job, "handed_back")
        self.flush()
        self._threads.close()
        self._processes.close()
        return self._abandoned

    def flush(self) -> None:
        """Report now how handlers ended."""
        self._flushing = False
        ended, slots, self._ended, self._slots = self._ended, self._slots, [], 0
        if ended or slots:
            self._finished(ended, slots)

    def _job(self, in_flight: InFlight, message: Delivered) -> Job:
        """The job of a message. Raises if the message matches no task."""
        envelope = unseal(message.data)
        task = self._tasks.get(envelope.task)
        if task is None:
            raise UnknownTask(envelope.task, self._tasks)
        encoded: msgspec.Raw | bytes = envelope.arguments
        if envelope.input is not msgspec.UNSET:
            encoded = task.signature.with_result(envelope.arguments, envelope.input)
        context = TaskContext(
            task=task.name,
            message_id=message.id,
            attempt=message.delivery_attempt,
            arguments=task.signature.decode(encoded),
            headers=_NO_HEADERS if envelope.headers is None else envelope.headers,
            queue=message.queue,
            worker_id=self._worker_id,
            _report=functools.partial(self._report, message),
            _clients=self._clients,
        )
        return Job(
            in_flight,
            message,
            task,
            envelope.own_schedule,
            context,
            self._monotonic(),
            # Schedules and other clients push without it.
            task.result_ttl if envelope.result_ttl is None else envelope.result_ttl,
            envelope.transaction_id or message.transaction_id,
            envelope.flow,
        )

    def _refuse(self, in_flight: InFlight, message: Delivered, error: Exception) -> None:
        """Dead-letter a message that can never run. Hand back one that another worker may know."""
        if isinstance(error, UnknownTask):
            decision = self._unknown.refuse(message, error)
            if decision.status == "retry":
                self._end(Ended(in_flight, message, decision, "handed_back", UNKNOWN))
                return
        else:
            text = f"{type(error).__name__}: {error}" if isinstance(error, HarkError) else text_of(error)
            final = isinstance(error, NotATask | WrongArguments)
            decision = SettleDecision(message, "dlq" if final else "failed", text)
        fields = {"message_id": message.id, "queue": message.queue}
        template = "cannot run message %s of queue %s: %s"
        _log.warning(template, message.id, message.queue, decision.error, extra={"fields": fields})
        ending: Ending = "refused" if decision.status == "dlq" else "failed"
        self._end(Ended(in_flight, message, decision, ending, UNKNOWN, 0.0, decision.error))

    async def _run(self, job: Job) -> None:
        """Run a handler from its start to its end."""
        context = job.context
        job.begun = True
        current_task.set(context)
        error: str | None = None
        ending: Ending = "done"
        with processing((job.message,)) as note:
            try:
                result = await chained(self._middleware, context, functools.partial(self._call, job))()
                decision = SettleDecision(job.message, task=_stored(job, result))
                note(ending, None)
            except KeyboardInterrupt:
                self._conclude(job, "handed_back")
                raise
            except BaseException as failure:
                ending, decision, error = self._decide(job, failure)
                note(ending, failure if ending == "failed" else None)
        if job.interruption == "lost":
            self._conclude(job, "lost")
        else:
            self._conclude(job, ending, decision, error)

    async def _call(self, job: Job) -> Any:
        """Call the function, within the time limit of its task."""
        task, arguments = job.task, job.context.arguments
        if task.in_process:
            return await self._call_in_process(job)
        if not task.is_async:
            return await self._call_in_thread(job)
        call = task.signature.call(task.function, arguments)
        return await call if task.timeout is None else await _within(task.timeout, call)

    async def _call_in_thread(self, job: Job) -> Any:
        """A thread cannot be stopped: after its time limit it continues, but its result is ignored."""
        task = job.task
        job.thread = self._threads.submit(functools.partial(task.signature.call, task.function, job.context.arguments))
        try:
            await asyncio.wait((job.thread,), timeout=task.timeout)
        except asyncio.CancelledError:
            if not job.thread.done():
                raise
            # The function has just ended: its work is done, and must not be repeated.
        if not job.thread.done():
            raise TimedOut(task.timeout or 0.0)
        result = job.thread.result()
        if not inspect.isawaitable(result):
            return result
        return await result if task.timeout is None else await _within(task.timeout, result)

    async def _call_in_process(self, job: Job) -> Any:
        """A process can be killed: at its time limit, when the task is cancelled, and when its lease is lost."""
        async with self._cpus:
            run = Run(self._processes, job.task, job.context)
            begun: asyncio.Future[None] = self._loop.create_future()
            job.kill = run.kill
            job.thread = thread = self._threads.submit(
                lambda: run(lambda: self._loop.call_soon_threadsafe(begun.set_result, None))
            )
            limit: float | None = START_SECONDS
            try:
                await asyncio.wait((begun, thread), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                if begun.done():  # The time limit does not include the start of the process.
                    limit = job.task.timeout
                    await asyncio.wait((thread,), timeout=limit)
            except asyncio.CancelledError:
                if not thread.done():
                    raise
            if not thread.done():
                run.kill()
                await asyncio.wait((thread,), timeout=KILL_SECONDS)
                if not thread.done() or isinstance(thread.exception(), ProcessDied):
                    raise TimedOut(limit or 0.0)
            try:
                return thread.result()
            except NotPicklable as error:
                raise WrongResult(f"task {job.task.name!r}: {error}") from None

    def _decide(self, job: Job, failure: BaseException) -> tuple[Ending, SettleDecision, str | None]:
        """How to settle after an exception."""
        message = job.message
        if job.interruption == "cancelled":
            return "discarded", _cancelled(job), "the task was cancelled"
        if job.interruption is not None:
            return "handed_back", SettleDecision(message, "retry"), None
        if isinstance(failure, asyncio.CancelledError):
            return "handed_back", SettleDecision(message, "retry", None, CANCELLED_DELAY_MS), None
        if isinstance(failure, WrongResult):  # A repetition would return the same.
            ending: Ending = "failed"
            decision = SettleDecision(message, "dlq", text_of(failure))
        else:
            ending, decision = decide(message, failure, job.task.retry, job.own_schedule)
        if job.result_ttl is not None or job.flow is not None:
            state = "cancelled" if decision.status == "completed" else "failed"  # It was discarded.
            decision = msgspec.structs.replace(decision, task=_end(job, state) if decision.status != "retry" else None)
        text = text_of(failure).partition("\n")[0]
        if ending == "failed":
            # The traceback is logged here once. The message carries it to the dead letters.
            template, fields = "task %s failed (message %s, attempt %d): %s", fields_of(job.context)
            values = job.task.name, message.id, message.delivery_attempt, text
            _log.warning(template, *values, exc_info=trace_of(failure), extra=fields)
        return ending, decision, text

    def _interrupt(self, job: Job, why: Interruption) -> None:
        if job.interruption is None:
            job.interruption = why
            job.context.lose()
        if job.kill is not None:
            job.kill()
        if job.runner is not None:
            job.runner.cancel()
        if not job.begun:  # A task that was cancelled before its start cannot report its end.
            if why == "cancelled":
                self._conclude(job, "discarded", _cancelled(job))
            else:
                self._conclude(job, why)

    def _conclude(
        self, job: Job, ending: Ending, decision: SettleDecision | None = None, error: str | None = None
    ) -> None:
        """Report once how a job ended. A thread keeps its slot until it really ends."""
        if job.over:
            return
        if ending == "handed_back" and decision is None:
            decision = SettleDecision(job.message, "retry")
        job.over = True
        self._jobs.discard(job)
        seconds = self._monotonic() - job.started
        if (still_runs := job.thread is not None and not job.thread.done()) and job.thread is not None:
            job.context.lose()
            job.thread.add_done_callback(self._release)
            self.stuck += 1
        ended = Ended(job.in_flight, job.message, decision, ending, job.task.name, seconds, error)
        self._end(ended, slots=0 if still_runs else 1)

    def _release(self, _thread: asyncio.Future[Any]) -> None:
        self.stuck -= 1
        self._end(None)

    def _end(self, ended: Ended | None, slots: int = 1) -> None:
        if ended is not None:
            self._ended.append(ended)
        self._slots += slots
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)


async def _within(seconds: float, call: Awaitable[Any]) -> Any:
    """Await a handler, and cancel it at its time limit."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await call
    except TimeoutError as error:
        if limit.expired():
            raise TimedOut(seconds) from error.__cause__
        raise


def _end(job: Job, state: str, result: bytes = b"null") -> TaskEndBody:
    ttl = RESULT_SECONDS if job.result_ttl is None else job.result_ttl
    return TaskEndBody(job.transaction_id, state, msgspec.Raw(result), ttl, job.flow)


def _cancelled(job: Job) -> SettleDecision:
    """Settle a task that was cancelled while it ran. Those who wait for it are notified."""
    return SettleDecision(job.message, task=_end(job, "cancelled"))


def _stored(job: Job, result: object) -> TaskEndBody | None:
    """The result to store. Raises `WrongResult`."""
    if job.result_ttl is None and job.flow is None:
        return None
    try:
        encoded = msgspec.json.encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WrongResult(f"task {job.task.name!r}: the result cannot be encoded as JSON: {error}") from error
    if len(encoded) > MAX_RESULT_BYTES:
        raise WrongResult(
            f"task {job.task.name!r}: the result has {len(encoded)} bytes, at most {MAX_RESULT_BYTES} are allowed; "
            "store it elsewhere and return a reference to it"
        )
    return _end(job, "done", encoded)
