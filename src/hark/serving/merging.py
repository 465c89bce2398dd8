"""Merges the metrics of several server processes, and sends them over the socket between parent and worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

import msgspec
from prometheus_client.metrics_core import Metric

from hark.errors import Unavailable
from hark.http.metrics import Metrics

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
