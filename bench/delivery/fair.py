"""How evenly a thousand equal consumers share the work: over WebSockets, and in rounds of long polls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec

from bench.delivery.sockets import Socket
from bench.delivery.waiters import ACK, PUSH, decode_popped, item, items, waiting_pop
from bench.delivery.wires import DIALS, GRACE_SECONDS, Metrics, Pool, dial_many, pool
from bench.rows import QUEUE
from hark.cli.bench import ack_body

CONSUMERS = 1000
PARTITIONS = 1000
MESSAGES = 10_000
CREDIT = 10
ROUNDS = 10
TIMEOUT_MS = 120_000
PUSH_BATCH = 1000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The server, and how many share how much."""

    port: int
    consumers: int = CONSUMERS
    messages: int = MESSAGES
    rounds: int = ROUNDS


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages each consumer got."""

    counts: list[int]
    seconds: float
    empty_wakes: dict[str, int]
    """Told for nothing, by what told them."""

    @property
    def spread(self) -> int:
        """Between the one that got most and the one that got least."""
        return max(self.counts) - min(self.counts)

    @property
    def all_empty(self) -> int:
        """Told for nothing, whatever by."""
        return sum(self.empty_wakes.values())


def empty_wakes(before: Metrics, after: Metrics) -> dict[str, int]:
    """Empty wake-ups between two looks, without those sources that had none."""
    earlier = before.delivery.empty_wakes
    changes = {source: count - earlier.get(source, 0) for source, count in after.delivery.empty_wakes.items()}
    return {source: count for source, count in changes.items() if count}


async def push_all(producers: Pool, messages: int, partitions: int) -> None:
    """Push so many, turning through the partitions."""
    for start in range(0, messages, PUSH_BATCH):
        numbers = range(start, min(messages, start + PUSH_BATCH))
        await producers.answer(b"POST", PUSH, items([item(QUEUE, number % partitions, number) for number in numbers]))


# WebSockets ------------------------------------------------------------------------------------------------


class _Delivered(msgspec.Struct, rename="camel"):
    transaction_id: str
    partition_id: str
    lease_id: str


class _Outcome(msgspec.Struct):
    success: bool
    error: str | None = None


class _Frame(msgspec.Struct):
    type: str
    messages: list[_Delivered] = []
    results: list[_Outcome] = []
    error: str = ""


class _Ack(msgspec.Struct, tag="ack"):
    items: list[_Delivered]


_decode = msgspec.json.Decoder(_Frame).decode
_encode = msgspec.json.Encoder().encode


class Progress:
    """How far all consumers have come together."""

    def __init__(self, consumers: int, messages: int) -> None:
        self.subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsubscribed = consumers
        self._unsettled = messages

    def subscribe_one(self) -> None:
        """One more consumer is subscribed."""
        self._unsubscribed -= 1
        if not self._unsubscribed:
            self.subscribed.set_result(None)

    def settle(self, messages: int) -> None:
        """So many more are settled."""
        self._unsettled -= messages
        if self._unsettled <= 0 and not self.settled.done():
            self.settled.set_result(None)

    def fail(self, why: str) -> None:
        """Something went wrong for one of them."""
        for future in (self.subscribed, self.settled):
            if not future.done():
                future.set_exception(RuntimeError(why))


class SocketConsumer(Socket):
    """Takes one message after the other and settles each over its socket."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.count = 0
        self._progress = progress
        self._leaving = False

    def on_text(self, text: bytes) -> None:
        """A frame came."""
        came = _decode(text)
        if came.type == "messages":
            self.count += len(came.messages)
            self.send(_encode(_Ack(came.messages)))
        elif came.type == "settled":
            self._progress.settle(len(came.results))
            if refused := [result.error for result in came.results if not result.success]:
                self._progress.fail(f"an ack was refused: {refused[0]}")
        elif came.type == "subscribed":
            self._progress.subscribe_one()
        elif came.type == "error":
            self._progress.fail(f"the server said {came.error}")

    def on_end(self) -> None:
        """The connection is over."""
        if not self._leaving:
            self._progress.fail(self.ended)

    def leave(self) -> None:
        """Close, on purpose."""
        self._leaving = True
        self.close()


async def over_sockets(plan: Plan) -> Shares:
    """All consumers wait with credit; then all messages are pushed."""
    progress = Progress(plan.consumers, plan.messages)
    consumers = [SocketConsumer(progress) for _ in range(plan.consumers)]
    path = b"/api/v1/consume?credit=%d" % CREDIT
    for start in range(0, plan.consumers, DIALS):
        await asyncio.gather(*(consumer.open(plan.port, path) for consumer in consumers[start : start + DIALS]))
    for consumer in consumers:
        consumer.send(_encode({"type": "subscribe", "id": "s", "queue": QUEUE, "batch": 1}))
    async with pool(plan.port) as producers, asyncio.timeout(4 * GRACE_SECONDS):
        await progress.subscribed
        before, began = await producers.metrics(), time.perf_counter()
        await push_all(producers, plan.messages, max(PARTITIONS, plan.consumers))
        await progress.settled
        seconds, after = time.perf_counter() - began, await producers.metrics()
    for consumer in consumers:
        consumer.leave()
    counts = [consumer.count for consumer in consumers]
    return Shares(counts=counts, seconds=seconds, empty_wakes=empty_wakes(before, after))


# Long polls ------------------------------------------------------------------------------------------------


async def over_polls(plan: Plan) -> Shares:
    """In each round all consumers wait, then there is one message for each of them."""
    wires = await dial_many(plan.port, plan.consumers)
    counts = [0] * plan.consumers
    path = waiting_pop(QUEUE, TIMEOUT_MS)
    seconds = 0.0
    async with pool(plan.port) as producers:
        before = await producers.metrics()
        for _ in range(plan.rounds):
            polls = [asyncio.create_task(wire.request(b"GET", path)) for wire in wires]
            await producers.parked(plan.consumers)
            began = time.perf_counter()
            await push_all(producers, plan.consumers, plan.consumers)
            async with asyncio.timeout(GRACE_SECONDS):
                replies = [reply for _, reply in await asyncio.gather(*polls)]
            seconds += time.perf_counter() - began
            _count(counts, replies)
            for reply in replies:
                await producers.answer(b"POST", ACK, ack_body(reply)[0])
        after = await producers.metrics()
    for wire in wires:
        wire.close()
    return Shares(counts=counts, seconds=seconds, empty_wakes=empty_wakes(before, after))


def _count(counts: list[int], replies: Sequence[bytes]) -> None:
    for number, reply in enumerate(replies):
        if not reply:
            raise RuntimeError("a waiting pop was answered empty while there was a message for everybody")
        counts[number] += len(decode_popped(reply).messages)
