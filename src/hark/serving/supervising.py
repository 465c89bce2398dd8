"""Several processes that are one: started, replaced and stopped together, and with merged metrics."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec
from prometheus_client.metrics_core import Metric

from hark.errors import HarkError, Unavailable

if TYPE_CHECKING:
    from hark.http.metrics import Metrics

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STABLE_SECONDS = 60.0
"""A process that ran this long before it exited did not fail to start: the pauses start again from the first one."""


class Process(Protocol):
    """A process that can be started again."""

    number: int
    serves: bool
    """Whether the process reported that it is ready, and has not exited since."""

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises `HarkError` if it cannot start."""

    def send(self, number: signal.Signals, /) -> bool:
        """Send a signal to the process, if it runs, ready or not. Returns whether it does."""

    async def ended(self) -> int:
        """Wait until the process exits. Returns its exit code."""


class ChildProcess:
    """A process that this one starts, with a socket between the two."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.serves = False
        """Whether the process reported that it is ready, and has not exited since."""
        self.lives = 0
        """Number of processes so far."""
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to the process, if it runs, ready or not. Returns whether it does."""
        if self._process is None or self._process.returncode is not None:
            return False
        self._process.send_signal(number)
        return True

    async def ended(self) -> int:
        """Wait until the process exits and all that it reported is read. Returns its exit code."""
        if self._process is None or self._writer is None:
            return 0
        code = await self._process.wait()
        await self._exited()
        self._writer.close()
        self.serves = False
        return code

    async def _exited(self) -> None:
        """Called when the process has exited, before the socket is closed."""


def reason(code: int) -> str:
    """How a process ended, as text."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


async def supervise(
    workers: Sequence[Process],
    ready: Callable[[], None],
    limit: float,
    pause: Callable[[int], float],
    is_over: Callable[[int], bool] = lambda _code: False,
    monotonic: Callable[[], float] = time.monotonic,
) -> list[int]:
    """Run processes until SIGINT or SIGTERM. Calls `ready` when all of them are ready. Returns their exit codes.

    Signals are forwarded. `limit` seconds after the first one, processes that still run are killed. `pause` is the time
    before a process is started again, by the number of its failures in a row. A process is not started again if
    `is_over` says so of its exit code.
    """
    stop = asyncio.Event()

    def stop_all(number: signal.Signals) -> None:
        if not stop.is_set():
            loop.call_later(limit, _kill, workers, limit)
        stop.set()
        for worker in workers:
            worker.send(number)

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop_all, number)
    loop.add_signal_handler(signal.SIGHUP, _reload, workers)
    try:
        await _start(workers, stop)
        if not stop.is_set():
            ready()
        keeping = (_keep(worker, stop, pause, is_over, monotonic) for worker in workers)
        return list(await asyncio.gather(*keeping))
    finally:
        stop_all(signal.SIGTERM)
        await asyncio.gather(*(worker.ended() for worker in workers))


def _reload(workers: Sequence[Process]) -> None:
    """Let all workers read certificates and tokens again; workers that are starting read them anyway."""
    for worker in workers:
        if worker.serves:
            worker.send(signal.SIGHUP)


def _kill(workers: Sequence[Process], limit: float) -> None:
    """Kill workers that hang. No acknowledged request is lost: it is stored before it is answered."""
    for worker in workers:
        if worker.send(signal.SIGKILL):
            log.error("worker %d did not shut down within %g s and is killed", worker.number, limit)


async def _start(workers: Sequence[Process], stop: asyncio.Event) -> None:
    """Start all workers. Raises the first error, because the other workers would most likely fail too."""
    starts = [asyncio.create_task(worker.start()) for worker in workers]
    try:
        await asyncio.gather(*starts)
    except HarkError:
        if not stop.is_set():
            raise
    finally:
        for start in starts:
            start.cancel()
        await asyncio.gather(*starts, return_exceptions=True)


async def _keep(
    worker: Process,
    stop: asyncio.Event,
    pause: Callable[[int], float],
    is_over: Callable[[int], bool],
    monotonic: Callable[[], float],
) -> int:
    """Replace a worker whenever it exits, until all shut down. Returns its last exit code."""
    failures, began = 0, monotonic()
    while True:
        if stop.is_set():  # The signal arrived while this worker started.
            worker.send(signal.SIGTERM)
        code = await worker.ended()
        why = f"ended with {reason(code)}"
        if monotonic() - began > STABLE_SECONDS:
            failures = 0
        while not worker.serves:
            if stop.is_set() or is_over(code):
                return code
            failures += 1
            seconds = pause(failures)
            fields = {"worker": worker.number, "reason": why}
            text = "worker %d %s; starting another in %g s"
            log.error(text, worker.number, why, seconds, extra={"fields": fields})
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await stop.wait()
                return code
            try:
                began = monotonic()
                await worker.start()
            except HarkError as error:
                why = f"cannot start: {error}"


# Metrics ---------------------------------------------------------------------------------------------------

SUMMED = frozenset(
    (
        "hark_browsers",
        "hark_fallback_keys",
        "hark_http_connections",
        "hark_http_requests_in_flight",
        "hark_key_watchers",
        "hark_store_pool_connections",
        "hark_store_pool_waiting_calls",
        "hark_store_s3_cache_bytes",
        "hark_store_s3_cache_entries",
        "hark_streams",
        "hark_subscriptions",
        "hark_waiting_pops",
    )
)
"""Gauges that are summed over the processes. Others, such as the backlog of the store, come from the first process."""
_OWN = ("process_", "python_")
"""Prefixes of metrics that are reported for each process, with its number as a label."""

Series = tuple[str, tuple[tuple[str, str], ...]]
"""The name of a sample and its labels."""


class Family(msgspec.Struct, frozen=True, array_like=True):
    """A metric as it is sent between processes."""

    name: str
    kind: str
    meaning: str
    samples: tuple[tuple[str, dict[str, str], float], ...]


def packed(metrics: Iterable[Metric]) -> list[Family]:
    """Return metrics in the form in which they are sent."""
    return [
        Family(
            metric.name,
            metric.type,
            metric.documentation,
            tuple((sample.name, sample.labels, sample.value) for sample in metric.samples),
        )
        for metric in metrics
    ]


def unpacked(families: Iterable[Family]) -> list[Metric]:
    """Return metrics that were sent."""
    metrics = []
    for family in families:
        metrics.append(Metric(family.name, family.meaning, family.kind))
        for sample in family.samples:
            metrics[-1].add_sample(*sample)
    return metrics


class Merger:
    """Merges the metrics of processes, and keeps the counts of processes that have ended.

    Otherwise a counter would fall when a process ends, and a scraper would assume a restart of the whole server.
    """

    def __init__(self, summed: Collection[str] = SUMMED) -> None:
        self._summed = summed
        """Names of gauges that are summed over the processes."""
        self._lives: dict[int, tuple[int, list[Family]]] = {}
        """By number of the worker: number of its last process, and the metrics of that process."""
        self._ended: dict[Series, float] = {}

    def note(self, worker: int, life: int, families: list[Family]) -> None:
        """Store the metrics of a process; `life` is a new number for each process that replaces a worker."""
        known = self._lives.get(worker)
        if known is not None and known[0] != life:
            for series, value in _growing(known[1]):
                self._ended[series] = self._ended.get(series, 0.0) + value
        self._lives[worker] = (life, families)

    def merged(self) -> list[Family]:
        """Return the merged metrics. For a process that did not respond, its last metrics count."""
        by_name: dict[str, list[tuple[int, Family]]] = {}
        for worker, (_, families) in sorted(self._lives.items()):
            for family in families:
                by_name.setdefault(family.name, []).append((worker, family))
        self._forget_queues()
        return [self._merge(found) for found in by_name.values()]

    def _merge(self, found: list[tuple[int, Family]]) -> Family:
        first = found[0][1]
        if first.name.startswith(_OWN):
            samples = tuple(
                (name, {**labels, "worker": str(worker)}, value)
                for worker, family in found
                for name, labels, value in family.samples
            )
        elif first.kind == "gauge" and first.name not in self._summed:
            samples = first.samples
        else:
            sums: dict[Series, float] = {}
            for _, family in found:
                for name, labels, value in family.samples:
                    series = _series(name, labels)
                    sums[series] = sums.get(series, self._ended.get(series, 0.0)) + value
            for series, value in self._ended.items():
                if series not in sums and _family_of(series[0], first):
                    sums[series] = value
            samples = tuple((name, dict(labels), value) for (name, labels), value in sums.items())
        return Family(first.name, first.kind, first.meaning, samples)

    def _forget_queues(self) -> None:
        """Drop the counts of ended processes for queues that no live process reports, so that they stay bounded."""
        shown = {series for _, families in self._lives.values() for series, _ in _growing(families)}
        self._ended = {
            series: value
            for series, value in self._ended.items()
            if series in shown or not any(name == "queue" for name, _ in series[1])
        }


def _growing(families: Iterable[Family]) -> Iterable[tuple[Series, float]]:
    for family in families:
        if family.kind in ("counter", "histogram") and not family.name.startswith(_OWN):
            for name, labels, value in family.samples:
                yield _series(name, labels), value


def _series(name: str, labels: Mapping[str, str]) -> Series:
    return name, tuple(labels.items())


def _family_of(sample: str, family: Family) -> bool:
    """Whether a sample belongs to this counter or histogram."""
    if family.kind == "counter":
        return sample == f"{family.name}_total"
    return family.kind == "histogram" and sample in (f"{family.name}_{part}" for part in ("bucket", "sum", "count"))


# The scraped worker asks the parent; the parent asks all workers and merges their metrics.


LONGEST = 64 * 2**20
"""Maximum size of an answer in bytes."""
_ANSWER_SECONDS = 5.0
"""Time limit of a scrape for the other processes."""


_decode = msgspec.json.Decoder(list[Family] | None).decode
"""Decodes an answer, or None: a request for metrics."""
Answer = Callable[[], Awaitable[list[Family]]]


class ProcessLink:
    """One end of the socket between the parent and a worker."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer | None = None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.answer = answer
        """Function that answers requests of the other side; None until it is set."""
        self._pending: asyncio.Future[list[Family]] | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Answer requests and receive answers until the other side exits."""
        try:
            while line := await self._reader.readline():
                families = _decode(line)
                if families is None:
                    task = asyncio.create_task(self._reply())
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
                elif self._pending is not None:
                    pending, self._pending = self._pending, None
                    if not pending.done():
                        pending.set_result(families)
        except OSError:
            pass  # The other side exited.
        finally:
            if self._pending is not None and not self._pending.done():
                self._pending.set_exception(ConnectionError("the other process exited"))
                self._pending.exception()  # Mark it as retrieved: no caller may be waiting for it any more.

    async def ask(self) -> list[Family]:
        """The metrics of the other side. Concurrent callers share the answer. Raises `OSError` if it exited."""
        if self._pending is None:
            self._pending = asyncio.get_running_loop().create_future()
            self._say(None)
        return await asyncio.shield(self._pending)

    async def _reply(self) -> None:
        if self.answer is not None:
            self._say(await self.answer())

    def _say(self, families: list[Family] | None) -> None:
        self._writer.write(msgspec.json.encode(families) + b"\n")


def share(metrics: Metrics, link: ProcessLink) -> None:
    """Add the metrics of this process to those of all processes, and serve the sum to scrapers."""

    async def own() -> list[Family]:
        return packed(await metrics.collect())

    async def all_processes() -> list[Metric]:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return unpacked(await link.ask())
        except (TimeoutError, OSError) as error:
            text = "the other processes of this server do not respond; retry"
            raise Unavailable(text, code="metrics_unavailable") from error

    link.answer = own
    metrics.all_processes = all_processes
