"""Producers and consumers at full load together, also beside a transaction that stays open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import asyncpg
import httpx
import msgspec

from bench import wrk
from bench.figures import Figure, figure_of
from bench.procfs import rss_mb
from bench.rows import PARTITIONS, QUEUE, ROWS
from bench.servers import Server
from bench.wrk import Sample
from hark.cli.bench import Load, Outcome, generate

PUSH = ROWS["push1"].load
POP = Load(kind="pop", queue=QUEUE, connections=8, batch=100, claims=100, partitions=PARTITIONS, wait=True)
HEAD_START = 1.0
"""Seconds that the consumers begin before the producers: a process has to start for them."""
LOOKS = (0.5, 0.95)
"""Shares of the time after which the backlog is looked at."""
replace = msgspec.structs.replace


class Together(msgspec.Struct, frozen=True):
    """What both did in the same seconds."""

    pushed: Sample
    popped: Outcome
    backlogs: tuple[int, int]
    """Messages not settled, half way and near the end."""

    @property
    def throughput(self) -> float:
        """Messages per second that went all the way through."""
        return min(self.pushed.messages, self.popped.messages) / self.pushed.seconds

    @property
    def left_behind(self) -> float:
        """Of what was pushed between the two looks, the share that the consumers did not keep up with."""
        between = self.pushed.messages * (LOOKS[1] - LOOKS[0])
        return max(0, self.backlogs[1] - self.backlogs[0]) / max(1.0, between)


def together(server: Server, seconds: float) -> Together:
    """Single pushes at 64 connections beside 8 consumers, for so long."""
    url = f"http://127.0.0.1:{server.port}"
    with ThreadPoolExecutor(2) as threads:
        popping = threads.submit(generate, url, replace(POP, seconds=seconds + HEAD_START))
        time.sleep(HEAD_START)
        began = time.monotonic()
        pushing = threads.submit(wrk.run, server.port, PUSH, seconds)
        first, second = (_backlog(url, began + seconds * share) for share in LOOKS)
        return Together(pushing.result(), popping.result()[0], (first, second))


def _backlog(url: str, when: float) -> int:
    time.sleep(max(0.0, when - time.monotonic()))
    reply = httpx.get(f"{url}/api/v1/resources/queues/{QUEUE}/depth", params={"limit": 1}, timeout=30)
    if reply.is_error:
        raise RuntimeError(f"the backlog could not be read: {reply.text}")
    return int(reply.json()["pending"])


def figures(server: Server, row: str, title: str, seconds: float) -> tuple[Together, Figure]:
    """What both did, and as a figure: throughput is of what went through, latency of the pushes, CPU of everything."""
    before = server.cpu()
    both = together(server, seconds)
    used = server.cpu().since(before)
    sample = replace(both.pushed, messages=min(both.pushed.messages, both.popped.messages))
    figure = figure_of(row, title, "hark", sample, cpu=used, rss=rss_mb(server.pid))
    note = f"backlog {both.backlogs[0]:,}, then {both.backlogs[1]:,}"
    return both, replace(figure, note="; ".join(filter(None, (figure.note, note))))


@contextmanager
def open_transaction(url: str) -> Iterator[None]:
    """A transaction with an id and a snapshot, open meanwhile: no row version that it may see can be removed."""
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(url))
        try:
            runner.run(connection.execute("begin isolation level repeatable read"))
            runner.run(connection.execute("select pg_current_xact_id()"))
            yield
        finally:
            runner.run(connection.close())
