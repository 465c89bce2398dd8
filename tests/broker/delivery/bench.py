"""A delivery on pops that are answered when the test says so, for what happens between two awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from hark.broker.delivery.delivery import Delivery
from hark.broker.delivery.stream import Stream
from hark.broker.tallies import Tallies
from hark.errors import HarkError
from hark.model import Delivery as Message
from hark.model import Hint, PopRequest, PopResult, StoredMessage
from hark.settings import Settings
from hark.testing.server import FakeTimers

from .harness import ANY, GROUP, QUEUE, SharedEngine, WatchedEngine, turns


class BlockedPops:
    """Answers each pop when the test says so."""

    def __init__(self) -> None:
        self.requests: list[tuple[PopRequest, asyncio.Future[PopResult]]] = []
        self.given_back: list[str] = []
        self.refusal: HarkError | None = None

    @property
    def open(self) -> int:
        """How many are not answered yet."""
        return sum(not future.done() for _, future in self.requests)

    def submit(self, request: PopRequest) -> asyncio.Future[PopResult]:
        """Note a pop."""
        if self.refusal is not None:
            raise self.refusal
        future: asyncio.Future[PopResult] = asyncio.get_running_loop().create_future()
        self.requests.append((request, future))
        return future

    def give_back(self, result: PopResult) -> None:
        """Note what was not received."""
        self.given_back.append(result.lease_id)

    def unseal(self, result: PopResult) -> None:
        """Nothing is sealed."""

    def show(self, messages: Sequence[StoredMessage]) -> None:
        """All can be read."""

    def answer(self, result: PopResult | HarkError, index: int | None = None) -> None:
        """Answer one of them, or the first that is open."""
        future = (
            self.requests[index][1]
            if index is not None
            else next(future for _, future in self.requests if not future.done())
        )
        if future.done():  # Whoever asked is gone: as the batcher does it.
            if isinstance(result, PopResult):
                self.give_back(result)
        elif isinstance(result, HarkError):
            future.set_exception(result)
        else:
            future.set_result(result)


class Bench:
    """A delivery on pops in the hands of the test."""

    def __init__(self, settings: Settings | None = None, *, shared: bool = False) -> None:
        self.timers = FakeTimers()
        self.pops = BlockedPops()
        engine = (SharedEngine if shared else WatchedEngine)(self.timers.clock)
        self.delivery = Delivery(
            engine, settings or Settings(), self.timers, lambda: 0.5, self.pops, Tallies(self.timers.clock)
        )

    def wait(self, request: PopRequest = ANY, seconds: float = 60, priority: int = 0) -> asyncio.Future[PopResult]:
        """A long poll."""
        return self.delivery.wait(request, seconds, priority)

    async def parked(
        self, request: PopRequest = ANY, seconds: float = 60, priority: int = 0
    ) -> asyncio.Future[PopResult]:
        """A long poll that has found nothing and waits."""
        open_before = self.pops.open
        task = self.wait(request, seconds, priority)
        await turns()
        if self.pops.open > open_before:
            self.pops.answer(EMPTY, len(self.pops.requests) - 1)
            await turns()
        assert not task.done()
        return task

    async def stream(self, credit: int, request: PopRequest = ANY, priority: int = 0) -> Stream:
        """A stream with one subscription, which has found nothing."""
        stream = self.delivery.streams.open(credit)
        stream.subscribe("s", request, priority)
        await turns()
        while self.pops.open:
            self.pops.answer(EMPTY)
            await turns()
        return stream

    def push(self, *partitions: str, queue: str = QUEUE, group: str = GROUP) -> None:
        """The hint of a push."""
        everyone = Hint(queue, None, partitions, "message", (group,))
        self.delivery.hint([everyone, Hint(queue, group, partitions, "message")])


EMPTY = PopResult(reason="nothing_ready")


def result(lease: str, *partitions: str, queue: str = QUEUE, expires_at: int | None = None) -> PopResult:
    """Messages of partitions under a lease."""
    messages = []
    for index, partition in enumerate(partitions or ("p",)):
        id, partition_id = f"{lease}-{index}", f"id of {partition}"
        payload = msgspec.Raw(b"1")
        messages.append(Message(id, id, None, payload, False, None, 0, queue, partition, partition_id, index + 1, 0, 1))
    return PopResult(messages, lease, len(set(partitions)) or 1, expires_at=expires_at)
