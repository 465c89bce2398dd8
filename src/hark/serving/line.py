"""The connection between a worker and its parent: requests for metrics, and the answers.

The scraped worker asks the parent; the parent asks all workers and merges their metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from prometheus_client.metrics_core import Metric

from hark.errors import Unavailable
from hark.http.metrics.scrape import Metrics
from hark.serving.merging import Family, packed, unpacked

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


class Line:
    """One end of the connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer | None = None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.answer = answer
        """Answers requests of the other side; None until it is known."""
        self._asked: asyncio.Future[list[Family]] | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def hear(self) -> None:
        """Answer requests and receive answers until the other side exits."""
        try:
            while line := await self._reader.readline():
                word = _decode(line)
                if word.numbers is None:
                    task = asyncio.create_task(self._reply())
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
                elif self._asked is not None:
                    asked, self._asked = self._asked, None
                    if not asked.done():
                        asked.set_result(word.numbers)
        except OSError:
            pass  # The other side exited.
        finally:
            if self._asked is not None and not self._asked.done():
                self._asked.set_exception(ConnectionError("the other process exited"))
                self._asked.exception()  # Mark it as retrieved: no caller may be waiting for it any more.

    async def ask(self) -> list[Family]:
        """The metrics of the other side. Concurrent callers share the answer. Raises `OSError` if it exited."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self._say(Word())
        return await asyncio.shield(self._asked)

    async def _reply(self) -> None:
        if self.answer is not None:
            self._say(Word(await self.answer()))

    def _say(self, word: Word) -> None:
        self._writer.write(msgspec.json.encode(word) + b"\n")


def share(metrics: Metrics, line: Line) -> None:
    """Add the metrics of this process to those of all processes, and serve the sum to scrapers."""

    async def own() -> list[Family]:
        return packed(await metrics.collect())

    async def everybody() -> list[Metric]:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return unpacked(await line.ask())
        except (TimeoutError, OSError) as error:
            text = "the other processes of this server do not respond; retry"
            raise Unavailable(text, code="metrics_unavailable") from error

    line.answer = own
    metrics.everybody = everybody
