"""Messages that are due at a time, and consumers that wait for them."""

from __future__ import annotations

import asyncio
import random
import time

import msgspec

from bench.delivery.apart import keep_what_is
from bench.delivery.deliver import ACKERS, PRODUCERS, WAITERS, WARM_MESSAGES, Delivered, Watch
from bench.delivery.waiters import PUSH, Waiters, clock, item, items, push_at, waiting_pop
from bench.delivery.wires import Pool, pool
from bench.rows import QUEUE
from bench.servers import Server

RATE = 100.0
LEAST_SECONDS = 0.3
"""From a push to the time that its message is due: longer than a push takes."""
MOST_SECONDS = 2.0
TIMEOUT_MS = 30_000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Where, and for how long."""

    server: Server
    seconds: float


async def at_their_times(plan: Plan) -> Delivered:
    """Messages with delivery times in no order, to pops that wait; latencies count from the time each was due."""
    path = waiting_pop(QUEUE, TIMEOUT_MS) + b"&groupMode=shared"
    async with pool(plan.server.port, PRODUCERS) as producers, pool(plan.server.port, ACKERS) as acks:
        waiters = await Waiters.open(plan.server.port, [path] * WAITERS, acks)
        await acks.parked(WAITERS)
        await push_at(producers, 2 * RATE, range(WARM_MESSAGES), QUEUE, 1)
        await waiters.until(WARM_MESSAGES)
        keep_what_is()
        numbers = range(WARM_MESSAGES, WARM_MESSAGES + int(RATE * plan.seconds))
        watch = Watch(plan.server)
        due = await _push_due(producers, numbers)
        await asyncio.sleep(MOST_SECONDS)
        await waiters.until(numbers.stop)
        done = watch.outcome(due, waiters)
        await waiters.close()
        return done


async def _push_due(producers: Pool, numbers: range) -> dict[int, float]:
    """Push at a rate; when each message is due, by the clock that the waiters use."""
    due: dict[int, float] = {}
    chance = random.Random(len(numbers))
    wall = time.time() - clock()

    async def push(number: int) -> None:
        moment = clock() + chance.uniform(LEAST_SECONDS, MOST_SECONDS)
        milliseconds = int((moment + wall) * 1e3)
        due[number] = milliseconds / 1e3 - wall
        body = item(QUEUE, 0, number).replace(b'"payload"', b'"deliverAt":%d,"payload"' % milliseconds, 1)
        await producers.answer(b"POST", PUSH, items([body]))

    began = clock()
    async with asyncio.TaskGroup() as pushes:
        for turn, number in enumerate(numbers):
            await asyncio.sleep(began + turn / RATE - clock())
            pushes.create_task(push(number))
    return due
