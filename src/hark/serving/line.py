"""What goes between a worker and its parent while both serve: questions for metrics, and the answers.

Whoever is scraped asks the parent, the parent asks all workers, and puts together what they say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from prometheus_client.metrics_core import Metric

from hark.errors import Unavailable
from hark.http.metrics.scrape import Load, Metrics
from hark.serving.merging import Family, packed, unpacked

LONGEST = 64 * 2**20
"""Bytes of an answer."""
_ANSWER_SECONDS = 5.0
"""How long a scrape waits for the other processes."""


class Word(msgspec.Struct, omit_defaults=True):
    """A question, or the answer to the other side's."""

    numbers: list[Family] | None = None
    """None: it is a question."""


_decode = msgspec.json.Decoder(Word).decode
Answer = Callable[[], Awaitable[list[Family]]]


class Line:
    """One end of it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer | None = None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.answer = answer
        """How questions of the other side are answered; None: not yet."""
        self._asked: asyncio.Future[list[Family]] | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def hear(self) -> None:
        """Answer questions and take answers until the other side is gone."""
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
            pass  # It is gone too.
        finally:
            if self._asked is not None and not self._asked.done():
                self._asked.set_exception(ConnectionError("the other process is gone"))
                self._asked.exception()  # Nobody may be waiting for it any more.

    async def ask(self) -> list[Family]:
        """What the other side says; those who ask at the same time share the answer. Raises `OSError` if it is gone."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self._say(Word())
        return await asyncio.shield(self._asked)

    async def _reply(self) -> None:
        if self.answer is not None:
            self._say(Word(await self.answer()))

    def _say(self, word: Word) -> None:
        self._writer.write(msgspec.json.encode(word) + b"\n")


def share(metrics: Metrics, line: Line, load: Load) -> None:
    """Let the metrics of this process be part of those of all, and all of them be what a scraper gets."""

    async def own() -> list[Family]:
        return packed(await metrics.collect(load))

    async def everybody() -> list[Metric]:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return unpacked(await line.ask())
        except (TimeoutError, OSError) as error:
            text = "the other processes of this server do not answer; try again"
            raise Unavailable(text, code="metrics_unavailable") from error

    line.answer = own
    metrics.everybody = everybody
