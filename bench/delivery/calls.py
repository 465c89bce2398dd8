"""How many waiting pops one call of the engine serves when a hundred of them want something at the same moment."""

from __future__ import annotations

import asyncio

import msgspec

from bench.delivery.fair import push_all
from bench.delivery.waiters import ACK, waiting_pop
from bench.delivery.wires import GRACE_SECONDS, Calls, Pool, dial_many, pool
from bench.rows import QUEUE
from hark.cli.bench import Wire, ack_body

POPS = 100
ROUNDS = 10
TIMEOUT_MS = 60_000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The server."""

    port: int
    rounds: int = ROUNDS


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Pops per call of the engine."""

    parked: float
    """All waited when the messages came, in one push."""
    arriving: float
    """The messages were there when all pops came."""


async def share(plan: Plan) -> Shared:
    """Both, over some rounds."""
    wires = await dial_many(plan.port, POPS)
    async with pool(plan.port) as producers:
        await _round(producers, wires, parked=False)  # The partitions are made, the group is known.
        rounds = [
            [await _round(producers, wires, parked=parked) for _ in range(plan.rounds)] for parked in (True, False)
        ]
    for wire in wires:
        wire.close()
    parked, arriving = (
        sum(each.requests for each in some) / max(1, sum(each.calls for each in some)) for some in rounds
    )
    return Shared(parked=parked, arriving=arriving)


async def _round(producers: Pool, wires: list[Wire], *, parked: bool) -> Calls:
    path = waiting_pop(QUEUE, TIMEOUT_MS)
    if not parked:
        await push_all(producers, POPS, POPS)
        before = (await producers.metrics()).batching["pop"]
    polls = [asyncio.create_task(wire.request(b"GET", path)) for wire in wires]
    if parked:
        before = (await producers.parked(POPS)).batching["pop"]
        await push_all(producers, POPS, POPS)
    async with asyncio.timeout(GRACE_SECONDS):
        replies = await asyncio.gather(*polls)
    after = (await producers.metrics()).batching["pop"]
    for _, reply in replies:
        await producers.answer(b"POST", ACK, ack_body(reply)[0])
    return Calls(after.calls - before.calls, after.requests - before.requests)
