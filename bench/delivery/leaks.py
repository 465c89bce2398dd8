"""What misbehaving clients leave behind: leases, memory, waiting pops, streams, lost messages. It should be nothing.

They come in waves. After each wave somebody who behaves settles every message, the ones that ended in dead sockets
too, which come again when their lease is over; then nothing may be left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median

import msgspec

from bench.delivery.states import MEETING, STREAMS, WAYS, Field, Ledger, Way, acks_late, leaves_waiting, stalls
from bench.delivery.waiters import ACK, decode_popped
from bench.delivery.wires import Pool, pool
from bench.procfs import open_files, rss_mb
from hark.cli.bench import ack_body

LATE = "late"
HELPERS = 64
WAVE_SECONDS = 60.0
GONE_SECONDS = 10.0
STALL_EVERY = 10
"""Waves between two in which somebody keeps a write waiting: that moves megabytes."""
SETTINGS = {"HARK_RETENTION_INTERVAL_MS": "500"}
"""What the server is told: messages that are done go away at once, so that only a leak makes it grow."""
RELEASED = (leaves_waiting.__name__, stalls.__name__)
"""States in which nothing reached the client: what was meant for it must be free at once."""
LONG_LEASE = 3600
OPTIONS = {
    "leaseTime": 1,
    "retryLimit": 1000,
    "retentionEnabled": True,
    "completedRetentionSeconds": 1,
}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The server, and how often every client misbehaves in every state."""

    port: int
    pid: int
    rounds: int
    wave: int
    """Rounds at the same time."""


class Leaks(msgspec.Struct, frozen=True, kw_only=True):
    """What was left."""

    clients: int
    messages: int
    unsettled: dict[str, int]
    """By queue, messages that nobody could settle; an empty one: nothing was lost."""
    left: int
    """Waiting pops, streams, browsers and subscriptions without a client, after the worst wave."""
    leases: int
    """Leases that nobody holds, after the worst wave."""
    rss_mb: list[float]
    """After each wave."""
    open_files: list[int]
    """Of the server, sockets among them, after each wave."""
    seconds: float

    @property
    def lost(self) -> int:
        """Messages that nobody could settle."""
        return sum(self.unsettled.values())

    @property
    def growth_mb(self) -> float:
        """Of the server's memory, from the first quarter of the waves to the last."""
        return growth(self.rss_mb)


def growth(values: Sequence[float]) -> float:
    """From the middle of the first quarter to that of the last."""
    quarter = max(1, len(values) // 4)
    return median(values[-quarter:]) - median(values[:quarter])


def queues() -> list[str]:
    """One for every way to consume and state to leave in, so that clients of one state meet only their like."""
    leaving = [_queue(way, state) for way in WAYS for state in (leaves_waiting, *MEETING)]
    return [*leaving, *(_queue(way, stalls) for way in STREAMS), LATE]


def _queue(way: Way, state: Callable[..., object]) -> str:
    return f"{way.name}-{state.__name__}"


async def misbehave(plan: Plan) -> Leaks:
    """All rounds, in waves, with a look at what is left after each."""
    ledger, began = Ledger(), time.perf_counter()
    rss: list[float] = []
    files: list[int] = []
    left = leases = 0
    async with pool(plan.port, HELPERS) as helpers:
        await _configure(helpers)
        for number, start in enumerate(range(0, plan.rounds, plan.wave)):
            rounds = min(plan.wave, plan.rounds - start)
            await _wave(Field(helpers, ledger), rounds, stalling=number % STALL_EVERY == 0)
            await sweep_all(helpers, ledger)
            rss.append(rss_mb(plan.pid))
            files.append(open_files(plan.pid))
            if ledger.lost:
                break  # Its sweepers still wait: they would be taken for what was left.
            left = max(left, await gone(helpers))
            leases = max(leases, await leases_held(helpers))
    return Leaks(
        clients=plan.rounds * (len(queues()) - len(STREAMS)),
        messages=ledger.pushed,
        unsettled={queue: len(numbers) for queue, numbers in ledger.open.items() if numbers},
        left=left,
        leases=leases,
        rss_mb=rss,
        open_files=files,
        seconds=time.perf_counter() - began,
    )


async def _configure(helpers: Pool) -> None:
    for queue in queues():
        lease = {"leaseTime": LONG_LEASE} if queue.endswith(RELEASED) else {}
        body = msgspec.json.encode({"queue": queue, "options": OPTIONS | lease})
        await helpers.answer(b"POST", b"/api/v1/configure", body)


async def _wave(field: Field, rounds: int, *, stalling: bool) -> None:
    await _leave_before_anything_comes(field, rounds)
    async with asyncio.timeout(WAVE_SECONDS), asyncio.TaskGroup() as clients:
        for partition in range(rounds):
            for way in WAYS:
                for state in MEETING:
                    clients.create_task(state(field, way, _queue(way, state), partition))
        for way in STREAMS if stalling else ():
            clients.create_task(stalls(field, way, _queue(way, stalls)))
    field.leave()
    async with asyncio.timeout(WAVE_SECONDS), asyncio.TaskGroup() as clients:
        for partition in range(rounds):
            clients.create_task(acks_late(field, LATE, partition))


class _Outcome(msgspec.Struct):
    success: bool


_decode_outcomes = msgspec.json.Decoder(list[_Outcome]).decode


async def _leave_before_anything_comes(field: Field, rounds: int) -> None:
    """When the server has noticed that all have left, messages come: nobody may hold them."""
    ways_and_partitions = [(way, partition) for way in WAYS for partition in range(rounds)]
    async with asyncio.timeout(WAVE_SECONDS), asyncio.TaskGroup() as clients:
        for way, partition in ways_and_partitions:
            clients.create_task(leaves_waiting(field, way, _queue(way, leaves_waiting), partition))
    await gone(field.pool)
    await asyncio.gather(
        *(field.push(_queue(way, leaves_waiting), partition) for way, partition in ways_and_partitions)
    )


async def sweep_all(helpers: Pool, ledger: Ledger) -> None:
    """Settle whatever was pushed and is not settled, as far as that is possible in a reasonable time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(WAVE_SECONDS):
            await asyncio.gather(*(sweep(helpers, ledger, queue) for queue in queues()))


async def sweep(helpers: Pool, ledger: Ledger, queue: str) -> None:
    """Settle whatever was pushed to a queue and is not settled."""
    path = f"/api/v1/pop/queue/{queue}?wait=true&timeout=5000&batch=100&partitions=100".encode()
    while ledger.open.get(queue):
        status, reply = await helpers.request(b"GET", path)
        if status == 204:
            continue
        if status != 200:
            raise RuntimeError(f"a pop was answered with {status}: {reply.decode()}")
        outcomes = _decode_outcomes(await helpers.answer(b"POST", ACK, ack_body(reply)[0]))
        for message, outcome in zip(decode_popped(reply).messages, outcomes, strict=True):
            if outcome.success:  # Else it was too late, and the message comes again.
                ledger.settle(queue, message.data.n)


async def gone(helpers: Pool) -> int:
    """What the server still has of clients that left, when it has had some time to notice."""
    return (await helpers.look_until(lambda now: not now.delivery.left, GONE_SECONDS)).delivery.left


class _Group(msgspec.Struct):
    members: int
    """Live leases."""


async def leases_held(helpers: Pool) -> int:
    """Leases at the server, though everything is settled."""
    groups: Sequence[_Group] = msgspec.json.decode(
        await helpers.answer(b"GET", b"/api/v1/consumer-groups"), type=list[_Group]
    )
    return sum(group.members for group in groups)
