"""Keys among very many: lists below a prefix, and watchers that are told of writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec

from bench.delivery.apart import keep_what_is
from bench.delivery.wires import HOST, Pool, pool
from bench.servers import Server

BASE = b"/keyval/api"
WRITE = 1000
"""Keys in one atomic write."""
FAMILY = 1000
"""Keys below one prefix."""
LISTED = 100
LISTS = 2000
WATCHERS = 20
WRITE_RATE = 50.0
GRACE_SECONDS = 10.0
clock = time.perf_counter


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Where, and how much."""

    server: Server
    keys: int = 0
    seconds: float = 0


class Delays(msgspec.Struct, frozen=True):
    """How long after they were sent writes were seen, and how many were not."""

    latencies_ms: list[float]
    lost: int
    seconds: float


async def list_prefixes(plan: Plan) -> list[float]:
    """Milliseconds of each list of a hundred keys below prefixes all over a large store."""
    families = max(1, plan.keys // FAMILY)
    async with pool(plan.server.port, 4) as wires:
        for first in range(0, plan.keys, 4 * WRITE):
            await asyncio.gather(
                *(_fill(wires, start) for start in range(first, min(first + 4 * WRITE, plan.keys), WRITE))
            )
        keep_what_is()
        taken = []
        for turn in range(LISTS):
            path = BASE + b"/keys?prefix=family-%d&limit=%d" % (turn * 7919 % families, LISTED)
            began = clock()
            reply = await wires.answer(b"GET", path)
            taken.append((clock() - began) * 1e3)
            found = reply.count(b'"versionstamp"')
            if found != LISTED:
                raise RuntimeError(f"a list has {found} entries, not {LISTED}")
        return taken


async def _fill(wires: Pool, start: int) -> None:
    sets = [
        {
            "type": "set",
            "key": [f"family-{number // FAMILY}", "member", number],
            "value": {"n": number, "pad": "x" * 80},
        }
        for number in range(start, start + WRITE)
    ]
    await wires.answer(b"POST", BASE + b"/atomic", msgspec.json.encode({"mutations": sets}))


async def watch_writes(plan: Plan) -> Delays:
    """Writes to keys that are watched, each by a connection of its own."""
    delays: dict[str, asyncio.Queue[tuple[int, float]]] = {f"watched-{n}": asyncio.Queue() for n in range(WATCHERS)}
    watchers = [asyncio.create_task(_watch(plan.server.port, name, seen)) for name, seen in delays.items()]
    latencies: list[float] = []
    lost = 0
    began = clock()
    async with pool(plan.server.port, 4) as wires:
        for name, seen in delays.items():
            await _written(wires, name, 0, seen)
        keep_what_is()
        for number in range(1, int(WRITE_RATE * plan.seconds)):
            await asyncio.sleep(began + number / WRITE_RATE - clock())
            name = f"watched-{number % WATCHERS}"
            latency = await _written(wires, name, number, delays[name])
            if latency is None:
                lost += 1
            else:
                latencies.append(latency)
    for watcher in watchers:
        watcher.cancel()
    await asyncio.gather(*watchers, return_exceptions=True)
    return Delays(latencies, lost, clock() - began)


async def _written(wires: Pool, name: str, number: int, seen: asyncio.Queue[tuple[int, float]]) -> float | None:
    """Milliseconds from when a write was sent until its watcher had it; None: it never did."""
    sent = clock()
    await wires.answer(b"PUT", BASE + b"/keys/" + name.encode(), b"%d" % number)
    try:
        async with asyncio.timeout(GRACE_SECONDS):
            while (delays := await seen.get())[0] != number:
                pass
    except TimeoutError:
        return None
    return (delays[1] - sent) * 1e3


async def _watch(port: int, name: str, seen: asyncio.Queue[tuple[int, float]]) -> None:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"GET %s/watch?keys=%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (BASE, name.encode()))
    try:
        async for data in change_events(reader):
            now = clock()
            for entry in msgspec.json.decode(data, type=list[_Entry]):
                if entry.value is not None:
                    seen.put_nowait((entry.value, now))
    finally:
        writer.close()


class _Entry(msgspec.Struct):
    value: int | None


async def change_events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The data of change events; the head of the answer, chunk sizes and other lines are stepped over."""
    changed = False
    while not reader.at_eof():
        line = (await reader.readline()).strip()
        if line == b"event: change":
            changed = True
        elif line.startswith(b"data:") and changed:
            changed = False
            yield line.removeprefix(b"data:").strip()
