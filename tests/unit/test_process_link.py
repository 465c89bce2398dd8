"""The line between a worker and its parent: questions for metrics go both ways over it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from hark.errors import Unavailable
from hark.http.metrics import Metrics
from hark.prometheus import counter, one
from hark.serving import supervising as lines
from hark.serving.supervising import LONGEST, Answer, Family, ProcessLink, packed, share


def families(number: int) -> list[Family]:
    """Metrics of one number."""
    return packed([counter("hark_pushed_messages_total", "Pushed.", one(number))])


def answering(*numbers: int) -> Answer:
    """Says one number after the other."""
    rest = iter(numbers)

    async def answer() -> list[Family]:
        return families(next(rest))

    return answer


@asynccontextmanager
async def connected(
    parent: Answer | None = None, worker: Answer | None = None
) -> AsyncIterator[tuple[ProcessLink, ProcessLink]]:
    """Both ends, hearing."""
    ends, listening, writers = [], [], []
    for one_socket, answer in zip(socket.socketpair(), (parent, worker), strict=True):
        reader, writer = await asyncio.open_unix_connection(sock=one_socket, limit=LONGEST)
        ends.append(ProcessLink(reader, writer, answer))
        listening.append(asyncio.create_task(ends[-1].listen()))
        writers.append(writer)
    try:
        yield ends[0], ends[1]
    finally:
        for writer in writers:
            writer.close()
        await asyncio.gather(*listening)


async def test_both_sides_may_ask_at_the_same_time() -> None:
    async with connected(answering(1), answering(2)) as (parent, worker):
        of_worker, of_parent = await asyncio.gather(parent.ask(), worker.ask())
    assert (of_worker, of_parent) == (families(2), families(1))


async def test_those_who_ask_together_share_an_answer_and_later_ones_get_another() -> None:
    async with connected(answering(1, 2)) as (_, worker):
        first, second = await asyncio.gather(worker.ask(), worker.ask())
        assert first == second == families(1)
        assert await worker.ask() == families(2)


async def test_the_one_that_gives_up_waiting_leaves_the_others_their_answer() -> None:
    begin = asyncio.Event()

    async def late() -> list[Family]:
        await begin.wait()
        return families(3)

    async with connected(late) as (_, worker):
        impatient, patient = asyncio.ensure_future(worker.ask()), asyncio.ensure_future(worker.ask())
        await asyncio.sleep(0)
        impatient.cancel()
        begin.set()
        assert await patient == families(3)


async def test_an_answer_of_many_series_comes_through() -> None:
    many = packed(
        [counter("hark_queue_pushed_messages_total", "x", [({"queue": f"{n}" * 50}, n) for n in range(4000)])]
    )

    async def answer() -> list[Family]:
        return many

    async with connected(answer) as (_, worker):
        assert await worker.ask() == many


class _Metrics:
    """Of a server that shares them."""

    all_processes: lines.Answer | None = None


async def test_a_scrape_is_refused_when_the_parent_is_gone() -> None:
    metrics = _Metrics()
    async with connected() as (parent, worker):
        share(cast(Metrics, metrics), worker)
        assert metrics.all_processes is not None
        waiting = asyncio.ensure_future(metrics.all_processes())
        await asyncio.sleep(0)
        parent._writer.close()
        with pytest.raises(Unavailable) as refused:
            await waiting
    assert refused.value.code == "metrics_unavailable"


async def test_a_scrape_is_refused_when_the_parent_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_ANSWER_SECONDS", 0)
    metrics = _Metrics()
    async with connected() as (_, worker):
        share(cast(Metrics, metrics), worker)
        assert metrics.all_processes is not None
        with pytest.raises(Unavailable):
            await metrics.all_processes()
