"""The metrics of several server processes as if they were one, and the pipe that they come through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

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
"""Gauges that are of each process, and of the server when they are summed up. Of the others (depths of the store, say)
the first process that has one speaks for all."""
_OWN = ("process_", "python_")
"""What only makes sense for each process by itself begins like this."""

Series = tuple[str, tuple[tuple[str, str], ...]]
"""The name of a sample and its labels."""


class Family(msgspec.Struct, frozen=True, array_like=True):
    """A metric on its way between processes."""

    name: str
    kind: str
    meaning: str
    samples: tuple[tuple[str, dict[str, str], float], ...]


def packed(metrics: Iterable[Metric]) -> list[Family]:
    """Metrics, ready to be sent."""
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
    """Metrics as they were before they were sent."""
    return [_metric(family, family.samples) for family in families]


class Merger:
    """Puts the metrics of processes together, and remembers what those counted that have ended.

    Else a counter would fall when a process ends, which a scraper takes for a restart of the whole server.
    """

    def __init__(self) -> None:
        self._lives: dict[int, tuple[int, list[Family]]] = {}
        """By the number of a worker: which of its processes said something last, and what."""
        self._ended: dict[Series, float] = {}

    def note(self, worker: int, life: int, families: list[Family]) -> None:
        """What a process says of itself; `life` is another number for each process that takes a worker's place."""
        known = self._lives.get(worker)
        if known is not None and known[0] != life:
            for series, value in _growing(known[1]):
                self._ended[series] = self._ended.get(series, 0.0) + value
        self._lives[worker] = (life, families)

    def merged(self) -> list[Family]:
        """All of it; for a process that did not answer what it said last."""
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
        elif first.kind == "gauge" and first.name not in SUMMED:
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
        """What ended processes said of queues counts only as long as a live one speaks of them too: that is bounded."""
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
    """Whether a sample is one of a counter or a histogram."""
    if family.kind == "counter":
        return sample == f"{family.name}_total"
    return family.kind == "histogram" and sample in (f"{family.name}_{part}" for part in ("bucket", "sum", "count"))


def _metric(family: Family, samples: Iterable[tuple[str, Mapping[str, str], float]]) -> Metric:
    metric = Metric(family.name, family.meaning, family.kind)
    for name, labels, value in samples:
        metric.add_sample(name, dict(labels), value)
    return metric


# The scraped worker asks the parent; the parent asks all workers and merges their metrics.


LONGEST = 64 * 2**20
"""Maximum size of an answer in bytes."""
_ANSWER_SECONDS = 5.0
"""Time limit of a scrape for the other processes."""


class Word(msgspec.Struct, omit_defaults=True):
    """A request for metrics, or the answer to one."""

    numbers: list[Family] | None = None
    """None in a request."""


_decode = msgspec.json.Decoder(Word).decode
Answer = Callable[[], Awaitable[list[Family]]]


class ProcessLink:
    """One end of the connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer | None = None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.answer = answer
        """Answers requests of the other side; None until it is known."""
        self._pending: asyncio.Future[list[Family]] | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Answer requests and receive answers until the other side exits."""
        try:
            while line := await self._reader.readline():
                word = _decode(line)
                if word.numbers is None:
                    task = asyncio.create_task(self._reply())
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
                elif self._pending is not None:
                    pending, self._pending = self._pending, None
                    if not pending.done():
                        pending.set_result(word.numbers)
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
            self._say(Word())
        return await asyncio.shield(self._pending)

    async def _reply(self) -> None:
        if self.answer is not None:
            self._say(Word(await self.answer()))

    def _say(self, word: Word) -> None:
        self._writer.write(msgspec.json.encode(word) + b"\n")


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
