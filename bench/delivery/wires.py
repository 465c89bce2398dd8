"""Connections to a server, opened by the thousand or shared by many, and what it says of those who wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from hark.cli.bench import Reply, Wire

T = TypeVar("T")

HOST = "127.0.0.1"
DIALS = 200
"""Connections that are opened at the same time."""
GRACE_SECONDS = 30.0
LOOK_SECONDS = 0.02
METRICS = b"/api/v1/system/metrics"


class Waiting(msgspec.Struct, frozen=True):
    """Who waits at a server, and how often somebody was told for nothing."""

    waiting: int
    subscriptions: int
    streams: int
    browsers: int
    empty_wakes: dict[str, int]

    @property
    def left(self) -> int:
        """Everything that must be gone when all clients are; a reservation lives in a subscription."""
        return self.waiting + self.subscriptions + self.streams + self.browsers


class Calls(msgspec.Struct, frozen=True):
    """How many requests of a verb shared how many calls of the engine."""

    calls: int
    requests: int


class Metrics(msgspec.Struct, frozen=True):
    """The part of a server's numbers that the rows need."""

    delivery: Waiting
    batching: dict[str, Calls]


_metrics = msgspec.json.Decoder(Metrics)


async def dial(port: int) -> Wire:
    """One connection."""
    _, wire = await asyncio.get_running_loop().create_connection(lambda: Wire(f"{HOST}:{port}"), HOST, port)
    return wire


async def dial_many(port: int, number: int) -> list[Wire]:
    """Many connections, few at a time: a listener's queue is short."""
    wires: list[Wire] = []
    while len(wires) < number:
        some = min(DIALS, number - len(wires))
        wires += await asyncio.gather(*(dial(port) for _ in range(some)))
    return wires


class Pool:
    """Connections that whoever needs one takes in turn."""

    def __init__(self, port: int, wires: list[Wire]) -> None:
        self.port = port
        self._wires = wires
        self._free: asyncio.Queue[Wire] = asyncio.Queue()
        for wire in wires:
            self._free.put_nowait(wire)

    @asynccontextmanager
    async def wire(self) -> AsyncIterator[Wire]:
        """A connection that nobody else uses meanwhile."""
        wire = await self._free.get()
        try:
            yield wire
        finally:
            self._free.put_nowait(wire)

    async def request(self, method: bytes, path: bytes, body: bytes = b"") -> Reply:
        """One request on the next free connection."""
        async with self.wire() as wire:
            return await wire.request(method, path, body)

    async def answer(self, method: bytes, path: bytes, body: bytes = b"") -> bytes:
        """The body of an answer, which must be a success."""
        status, reply = await self.request(method, path, body)
        if status >= 300:
            raise RuntimeError(f"{method.decode()} {path.decode()} was answered with {status}: {reply.decode()}")
        return reply

    async def metrics(self) -> Metrics:
        """What the server says of itself now."""
        reply = await self.answer(b"GET", METRICS)
        try:
            return _metrics.decode(reply)
        except msgspec.DecodeError as error:
            raise RuntimeError(f"{METRICS.decode()} lacks what the row needs: {error}") from None

    async def look_until(self, holds: Callable[[Metrics], bool], seconds: float) -> Metrics:
        """Ask for the numbers until something holds of them, or for so long; the last ones."""
        deadline = time.monotonic() + seconds
        now = await self.metrics()
        while not holds(now) and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_SECONDS)
            now = await self.metrics()
        return now

    async def parked(self, number: int) -> Metrics:
        """Wait until so many pops wait at the server, and none of them is on its first look any more."""
        then = await self.look_until(lambda now: now.delivery.waiting >= number, GRACE_SECONDS)
        if then.delivery.waiting < number:
            raise RuntimeError(f"of {number} pops that should wait only {then.delivery.waiting} do")
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = await self.metrics()
            if now.batching["pop"] == then.batching["pop"]:
                return now
            then = now

    def close(self) -> None:
        """Let go of the connections."""
        for wire in self._wires:
            wire.close()


@asynccontextmanager
async def pool(port: int, number: int = 1) -> AsyncIterator[Pool]:
    """Some connections, for a while."""
    opened = Pool(port, await dial_many(port, number))
    try:
        yield opened
    finally:
        opened.close()
