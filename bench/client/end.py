"""End to end through Hark's client: `python -m bench.client.end PLAN`, and prints what it measured.

It uses only what the client publishes, so it also runs with the client of another checkout.
"""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec
import uvloop

import hark
from bench.client.program import QUEUE
from bench.procfs import Cpu
from bench.servers import Server

RATE = 500.0
PARTITIONS = 100
HANDLERS = 8
WARM_SECONDS = 1.0
GRACE_SECONDS = 30.0
PADDING = "x" * 240
clock = time.perf_counter


class Plan(msgspec.Struct, frozen=True):
    """The server, and for how long it is used."""

    server: Server
    seconds: float


class Result(msgspec.Struct, frozen=True):
    """What became of the messages that count."""

    latencies_ms: list[float]
    """From the call of push to the call of the handler."""
    lost: int
    seconds: float
    cpu: Cpu
    """Of the server."""
    own_cpu: float
    """Share of one core that this process used."""


async def run(plan: Plan) -> Result:
    """Push at fixed times, and consume and acknowledge beside it, over connections of their own."""
    url = f"http://127.0.0.1:{plan.server.port}"
    arrived: dict[int, float] = {}

    async def handle(message: hark.Message) -> None:
        arrived.setdefault(message.data["n"], clock())

    async with hark.connect(url) as producer, hark.connect(url) as consumer:
        queues = [producer.queue(QUEUE).partition(f"p{number}") for number in range(PARTITIONS)]
        consuming = consumer.queue(QUEUE).group("end").concurrency(HANDLERS).consume(handle)
        running = asyncio.ensure_future(consuming.run())
        warm = await _push_at(queues, range(int(RATE * WARM_SECONDS)))
        await _until(arrived, len(warm))
        server, own, began = plan.server.cpu(), time.process_time(), clock()
        sent = await _push_at(queues, range(len(warm), len(warm) + int(RATE * plan.seconds)))
        await _until(arrived, len(warm) + len(sent))
        seconds = clock() - began
        used, own = plan.server.cpu().since(server), time.process_time() - own
        consuming.stop()
        await running
    latencies = [(arrived[number] - at) * 1e3 for number, at in sent.items() if number in arrived]
    return Result(latencies, len(sent) - len(latencies), seconds, used, own / seconds)


async def _push_at(queues: list[hark.Queue], numbers: range) -> dict[int, float]:
    """Push numbered messages at fixed times, whatever becomes of those before; when each push was called."""
    sent: dict[int, float] = {}

    async def push(number: int) -> None:
        sent[number] = clock()
        await queues[number % PARTITIONS].push({"n": number, "padding": PADDING})

    began = clock()
    async with asyncio.TaskGroup() as pushes:
        for turn, number in enumerate(numbers):
            await asyncio.sleep(began + turn / RATE - clock())
            pushes.create_task(push(number))
    return sent


async def _until(arrived: dict[int, float], number: int) -> None:
    """Return when this number of messages has arrived, or when that takes too long."""
    deadline = clock() + GRACE_SECONDS
    while len(arrived) < number and clock() < deadline:  # noqa: ASYNC110 (an event for each message would cost)
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    print(msgspec.json.encode(uvloop.run(run(msgspec.json.decode(sys.argv[1], type=Plan)))).decode())
