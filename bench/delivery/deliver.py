"""From push to delivery at a client that waits, on one server or from one to another."""

from __future__ import annotations

import asyncio
import time

import msgspec

from bench.delivery.apart import keep_what_is
from bench.delivery.waiters import Waiters, clock, push_at, waiting_pop
from bench.delivery.wires import pool
from bench.procfs import Cpu
from bench.rows import QUEUE
from bench.servers import Server

RATE = 200.0
PARTITIONS = 200
WAITERS = 50
TIMEOUT_MS = 30_000
PRODUCERS = 8
ACKERS = 8
WARM_MESSAGES = 400
"""Pushed before those that count: they make the partitions."""
FALLBACK_QUEUES = 20
FALLBACK_RATE = 2.0
"""Pushes per second, each to another queue: at every moment of an interval between two looks."""
BACKED_OFF_SECONDS = 8.0
"""After so long without news the looks behind the hints come at their longest interval."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Where to push, where to wait, and for how long."""

    pushed_at: Server
    popped_at: Server
    seconds: float


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the messages that count."""

    latencies_ms: list[float]
    pushed: int
    lost: int
    twice: int
    seconds: float
    generator_cpu: float
    cpu: Cpu
    """Of the server that delivers."""

    @property
    def throughput(self) -> float:
        """Messages per second."""
        return len(self.latencies_ms) / self.seconds


class Watch:
    """The time and the CPU that client and server use from now on."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._began, self._own, self._its = clock(), time.process_time(), server.cpu()

    def outcome(self, sent: dict[int, float], waiters: Waiters) -> Delivered:
        """What became of what was sent: from when each was written to when it was there."""
        arrived, seconds = waiters.arrived, clock() - self._began
        return Delivered(
            latencies_ms=[(arrived[number] - written) * 1e3 for number, written in sent.items() if number in arrived],
            pushed=len(sent),
            lost=len(sent.keys() - arrived.keys()),
            twice=waiters.twice,
            seconds=seconds,
            generator_cpu=(time.process_time() - self._own) / seconds,
            cpu=self._server.cpu().since(self._its),
        )


async def at_a_rate(plan: Plan) -> Delivered:
    """Messages at a fixed rate to pops that wait, each of which waits again at once."""
    async with pool(plan.pushed_at.port, PRODUCERS) as producers, pool(plan.popped_at.port, ACKERS) as acks:
        waiters = await Waiters.open(plan.popped_at.port, [waiting_pop(QUEUE, TIMEOUT_MS)] * WAITERS, acks)
        await acks.parked(WAITERS)
        await push_at(producers, RATE, range(WARM_MESSAGES), QUEUE, PARTITIONS)
        await waiters.until(WARM_MESSAGES)
        keep_what_is()
        numbers = range(WARM_MESSAGES, WARM_MESSAGES + int(RATE * plan.seconds))
        watch = Watch(plan.popped_at)
        sent = await push_at(producers, RATE, numbers, QUEUE, PARTITIONS)
        await waiters.until(numbers.stop)
        done = watch.outcome(sent, waiters)
        await waiters.close()
        return done


async def without_hints(plan: Plan) -> Delivered:
    """One message to each of several queues at which the looks behind the hints have become rare."""
    queues = [f"{QUEUE}{number}" for number in range(FALLBACK_QUEUES)]
    async with pool(plan.pushed_at.port, PRODUCERS) as producers, pool(plan.popped_at.port, ACKERS) as acks:
        waiters = await Waiters.open(
            plan.popped_at.port, [waiting_pop(queue, 4 * TIMEOUT_MS) for queue in queues], acks
        )
        await acks.parked(FALLBACK_QUEUES)
        await asyncio.sleep(BACKED_OFF_SECONDS)
        watch = Watch(plan.popped_at)
        sent: dict[int, float] = {}
        for number, queue in enumerate(queues):
            sent |= await push_at(producers, FALLBACK_RATE, range(number, number + 1), queue, 1)
            await asyncio.sleep(1 / FALLBACK_RATE)
        await waiters.until(FALLBACK_QUEUES)
        done = watch.outcome(sent, waiters)
        await waiters.close()
        return done
