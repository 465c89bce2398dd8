"""Thousands of pops that wait for nothing: what they cost, and how fast a message still reaches one of them."""

from __future__ import annotations

import asyncio

import msgspec

from bench.delivery.apart import keep_what_is
from bench.delivery.deliver import ACKERS, PARTITIONS, PRODUCERS, Delivered, Watch
from bench.delivery.waiters import Waiters, clock, push_at, waiting_pop
from bench.delivery.wires import pool
from bench.procfs import cpu_of, rss_mb
from bench.rows import QUEUE
from bench.servers import Server

WAITERS = 10_000
QUEUES = 100
TIMEOUT_MS = 120_000
RATE = 50.0
PUSHES = 500
WARM_PUSHES = PARTITIONS


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The server, and for how long it is watched while nothing happens."""

    server: Server
    watch_seconds: float
    waiters: int = WAITERS


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """What waiting costs."""

    delivered: Delivered
    kilobytes_each: float
    cpu_share: float
    """Of one core, by the server's process."""


async def watch(plan: Plan) -> Idle:
    """Park all, look at the server for a while, then push to one of the queues."""
    port, pid = plan.server.port, plan.server.pid
    paths = [waiting_pop(f"{QUEUE}{number % QUEUES}", TIMEOUT_MS) for number in range(plan.waiters)]
    async with pool(port) as looks:
        await looks.metrics()
        before = rss_mb(pid)
        waiters = await Waiters.open(port, paths)
        await looks.parked(plan.waiters)
        kilobytes = (rss_mb(pid) - before) * 1024 / plan.waiters
        used, began = cpu_of(pid).total_us, clock()
        await asyncio.sleep(plan.watch_seconds)
        share = (cpu_of(pid).total_us - used) / 1e6 / (clock() - began)
    async with pool(port, PRODUCERS) as producers, pool(port, ACKERS) as waiters.acks:
        await push_at(producers, RATE * 4, range(WARM_PUSHES), f"{QUEUE}0", PARTITIONS)
        await waiters.until(WARM_PUSHES)
        keep_what_is()
        watching = Watch(plan.server)
        numbers = range(WARM_PUSHES, WARM_PUSHES + PUSHES)
        sent = await push_at(producers, RATE, numbers, f"{QUEUE}0", PARTITIONS)
        await waiters.until(numbers.stop)
        delivered = watching.outcome(sent, waiters)
        await waiters.close()
    return Idle(delivered=delivered, kilobytes_each=kilobytes, cpu_share=share)
