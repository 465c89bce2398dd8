"""Statistics of a worker since its start, and its HTTP endpoints for probes and scrapers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from hark.client.delivery.settling import Settled
from hark.errors import InvalidInput
from hark.prometheus import CONTENT_TYPE, counter, gauge, one, text
from hark.worker.retrying import Ended, Ending

RATE_SECONDS = 10
"""The rate is an average over this many seconds."""
UNKNOWN = "(unknown)"
"""The task name for messages that match no task of the worker. Their own names could be anything."""

REQUEST_SECONDS = 5.0
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_MAX_REQUEST = 8192

OUTCOMES = ("done", "failed", "retried", "dead", "discarded", "handed_back", "lost")


class Counts(msgspec.Struct):
    """How deliveries ended, as counts."""

    done: int = 0
    """Handlers that returned."""
    failed: int = 0
    """Handlers that raised or timed out, and messages that match no task."""
    retried: int = 0
    """Messages that are redelivered, after a failure or on request of the handler."""
    dead: int = 0
    """Messages that were dead-lettered."""
    discarded: int = 0
    """Tasks that the handler discarded."""
    handed_back: int = 0
    """Messages that were released on shutdown, without counting an attempt."""
    lost: int = 0
    """Deliveries whose lease had expired when they ended: another worker receives the message."""
    ended: int = 0
    """All deliveries that ended."""
    seconds: float = 0.0
    """Total time in seconds of the handlers of those deliveries."""


class TaskEvent(msgspec.Struct, frozen=True):
    """One delivery that ended, for `worker.listen`."""

    task: str
    message_id: str
    attempt: int
    ending: Ending
    """How it ended."""
    seconds: float
    """Time of the handler in seconds."""
    dead: bool
    """Whether the message was dead-lettered."""
    error: str | None
    """`Type: message`, or None."""


class QueueState(msgspec.Struct, frozen=True):
    """One queue of a worker."""

    weight: int
    running: int
    """Number of running handlers."""
    totals: Counts


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a worker, `worker.stats`."""

    worker_id: str
    queue: str
    """Name of the queue; of several, their names with commas."""
    concurrency: int
    running: int
    """Number of running handlers."""
    stuck: int
    """Functions in threads that still run although their delivery has ended. Each keeps a slot."""
    stopping: bool
    totals: Counts
    queues: dict[str, QueueState]
    """The queues of the worker, with their counts."""
    tasks: dict[str, Counts]
    rate: float
    """Deliveries that ended per second, over the last 10 seconds."""
    poll_interval: float
    """Current poll interval in seconds."""
    polls: int
    empty_polls: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `worker.run`."""

    worker_id: str
    totals: Counts
    tasks: dict[str, Counts]
    queues: dict[str, Counts]
    polls: int
    empty_polls: int
    abandoned: int
    """Handlers that did not end in time. Their tasks were released and run again."""


class Stats:
    """Counts, updated on the network thread. Other threads only read."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, queues: Iterable[str] = ()) -> None:
        self.totals = Counts()
        self.queues = {name: Counts() for name in queues}
        """By queue, if there are several. They are counted apart, so that a worker of one queue does not pay for it."""
        self.tasks: dict[str, Counts] = {}
        self._monotonic = monotonic
        self._began = monotonic()
        self._seconds: deque[tuple[int, int]] = deque(maxlen=RATE_SECONDS + 1)

    def add(self, answered: Sequence[tuple[Ended, Settled | None]]) -> None:
        """Count deliveries whose settlement the server has answered."""
        second, count = int(self._monotonic()), len(answered)
        if self._seconds and self._seconds[-1][0] == second:
            count += self._seconds.pop()[1]
        self._seconds.append((second, count))
        if self.queues:
            for ended, settled in answered:
                _count(ended, settled, self.queues[ended.message.queue])
        for ended, settled in answered:
            counts = self.tasks.get(ended.task)
            if counts is None:
                counts = self.tasks[ended.task] = Counts()
            if ended.ending == "done" and settled is not None and settled.success:
                for all_of in (counts, self.totals):  # The same as below, for the most frequent case.
                    all_of.done += 1
                    all_of.ended += 1
                    all_of.seconds += ended.seconds
            else:
                _count(ended, settled, counts)
                _count(ended, settled, self.totals)

    @property
    def rate(self) -> float:
        """Deliveries that ended per second, over the last seconds."""
        now = self._monotonic()
        seconds = min(max(now - self._began, 1.0), RATE_SECONDS)
        return sum(count for second, count in self._seconds if second > now - RATE_SECONDS) / seconds


def _count(ended: Ended, settled: Settled | None, counts: Counts) -> None:
    for outcome in _outcomes(ended, settled):
        setattr(counts, outcome, getattr(counts, outcome) + 1)
    counts.ended += 1
    counts.seconds += ended.seconds


def event_of(ended: Ended, settled: Settled | None) -> TaskEvent:
    """The event for listeners."""
    return TaskEvent(
        ended.task,
        ended.message.id,
        ended.message.delivery_attempt,
        ended.ending if settled is not None and settled.success else "lost",
        ended.seconds,
        settled is not None and settled.dead_lettered,
        ended.error,
    )


def _outcomes(ended: Ended, settled: Settled | None) -> Sequence[str]:
    if settled is None or not settled.success:
        return ("lost",)
    if ended.ending in ("failed", "refused"):
        return ("failed", "dead" if settled.dead_lettered else "retried")
    if ended.ending == "retried":
        return ("dead",) if settled.dead_lettered else ("retried",)
    return (ended.ending,)


def prometheus(snapshot: Snapshot, polling: str, middleware: Sequence[object]) -> str:
    """All metrics of a worker: tasks, slots, polling and middleware."""
    ended = [
        ({"task": task, "outcome": outcome}, getattr(counts, outcome))
        for task, counts in sorted(snapshot.tasks.items())
        for outcome in OUTCOMES
    ]
    own = text(
        (
            counter("worker_tasks_total", "Deliveries of tasks, by outcome.", ended),
            counter(
                "worker_queue_tasks_total",
                "Deliveries of tasks, by queue and outcome.",
                [
                    ({"queue": name, "outcome": outcome}, getattr(state.totals, outcome))
                    for name, state in snapshot.queues.items()
                    for outcome in OUTCOMES
                ],
            ),
            gauge(
                "worker_queue_running",
                "Handlers that are running, by queue.",
                [({"queue": name}, state.running) for name, state in snapshot.queues.items()],
            ),
            gauge("worker_running", "Handlers that are running.", one(snapshot.running)),
            gauge(
                "worker_stuck", "Functions in threads that still run after their delivery ended.", one(snapshot.stuck)
            ),
            gauge("worker_slots", "Maximum number of handlers that run at the same time.", one(snapshot.concurrency)),
        )
    )
    return own.decode() + polling + "".join(each.prometheus() for each in middleware if hasattr(each, "prometheus"))


class Health(msgspec.Struct, frozen=True, rename="camel"):
    """Health of a worker."""

    status: str
    """`running`, `stopping`, `silent` (the server has not answered for too long) or `stuck` (all slots are blocked)."""
    worker: str
    queue: str
    concurrency: int
    running: int
    stuck: int
    """Functions in threads that did not end in time. Each keeps a slot."""
    seconds_since_answer: float
    """Seconds since the server last answered a poll."""
    problem: str | None
    """The error of the last poll, or None."""
    queues: dict[str, int]
    """Number of running handlers, by queue."""


class HealthEndpoint:
    """Answers probes until closed, in the network thread: also while a handler blocks the handlers' event loop."""

    def __init__(self, health: Callable[[], Health], metrics: Callable[[], str]) -> None:
        self._health = health
        self._metrics = metrics
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen. Returns the port, which is a free one for port 0."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_MAX_REQUEST)
        except OSError as error:
            raise InvalidInput(f"health: cannot listen on {host}:{port}: {error.strerror or error}") from error
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # An invalid request gets no answer.
        finally:
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        target = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            answer = _response(405, "text/plain", b"only GET\n")
        elif target == b"/health":
            health = self._health()
            status = 200 if health.status == "running" else 503
            answer = _response(status, "application/json", msgspec.json.encode(health))
        elif target == b"/metrics":
            answer = _response(200, CONTENT_TYPE, self._metrics().encode())
        else:
            answer = _response(404, "text/plain", b"not found; use /health or /metrics\n")
        return answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == b"HEAD" else answer


def _response(status: int, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
