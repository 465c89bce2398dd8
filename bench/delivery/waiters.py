"""Long polls that wait, and a producer that notes when it pushed what they get."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec

from bench.delivery.wires import GRACE_SECONDS, Pool, dial_many
from bench.rows import SIZE
from hark.cli.bench import Wire, ack_body, payload_of

ACK = b"/api/v1/ack/batch"
PUSH = b"/api/v1/push"
clock = time.perf_counter


class Numbered(msgspec.Struct):
    """What a payload says: which message this is."""

    n: int


class Message(msgspec.Struct):
    """A message that was delivered."""

    data: Numbered


class Popped(msgspec.Struct):
    """The answer to a pop."""

    messages: list[Message]


decode_popped = msgspec.json.Decoder(Popped).decode
_PADDING = payload_of(SIZE - 9)[1:]


def item(queue: str, partition: int, number: int, padding: bytes = _PADDING) -> bytes:
    """One numbered message to push."""
    return b'{"queue":"%s","partition":"p%d","payload":{"n":%d,%s}' % (queue.encode(), partition, number, padding)


def items(parts: Sequence[bytes]) -> bytes:
    """The body of a push."""
    return b'{"items":[' + b",".join(parts) + b"]}"


def waiting_pop(queue: str, timeout_ms: int) -> bytes:
    """The path of a pop of one message that waits."""
    return b"/api/v1/pop/queue/%s?wait=true&timeout=%d" % (queue.encode(), timeout_ms)


class Waiters:
    """Pops that wait, each sent again at once when it is answered; what they got is settled over other connections."""

    def __init__(self, wires: Sequence[Wire], acks: Pool | None) -> None:
        self.arrived: dict[int, float] = {}
        """When each message was wholly there."""
        self.twice = 0
        self.acks = acks
        self._wires = wires
        self._tasks: set[asyncio.Task[None]] = set()
        self._acking: set[asyncio.Task[bytes]] = set()
        self._changed = asyncio.Event()

    @classmethod
    async def open(cls, port: int, paths: Sequence[bytes], acks: Pool | None = None) -> Waiters:
        """Connect and begin to wait, one for each path."""
        waiters = cls(await dial_many(port, len(paths)), acks)
        for wire, path in zip(waiters._wires, paths, strict=True):
            waiters._tasks.add(asyncio.create_task(waiters._wait(wire, path)))
        return waiters

    async def _wait(self, wire: Wire, path: bytes) -> None:
        while True:
            status, reply = await wire.request(b"GET", path)
            now = clock()
            if status == 204:
                continue
            if status != 200:
                raise RuntimeError(f"a waiting pop was answered with {status}: {reply.decode()}")
            for message in decode_popped(reply).messages:
                self.twice += message.data.n in self.arrived
                self.arrived.setdefault(message.data.n, now)
            self._changed.set()
            if self.acks is not None:
                acking = asyncio.create_task(self.acks.answer(b"POST", ACK, ack_body(reply)[0]))
                self._acking.add(acking)
                acking.add_done_callback(self._acking.discard)

    async def until(self, number: int) -> None:
        """Return when so many messages have come, or when that takes too long."""
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                while len(self.arrived) < number:
                    self._raise_what_ended()
                    self._changed.clear()
                    await self._changed.wait()
                if self._acking:
                    await asyncio.gather(*self._acking)
        except TimeoutError:
            self._raise_what_ended()

    def _raise_what_ended(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def close(self) -> None:
        """Leave."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for wire in self._wires:
            wire.close()


async def push_at(producers: Pool, rate: float, numbers: range, queue: str, partitions: int) -> dict[int, float]:
    """Push numbered messages at a rate, whatever becomes of them; when the request of each was written."""
    sent: dict[int, float] = {}

    async def push(number: int) -> None:
        async with producers.wire() as wire:
            sent[number] = clock()
            status, reply = await wire.request(b"POST", PUSH, items([item(queue, number % partitions, number)]))
        if status != 201:
            raise RuntimeError(f"a push was answered with {status}: {reply.decode()}")

    began = clock()
    async with asyncio.TaskGroup() as pushes:
        for turn, number in enumerate(numbers):
            await asyncio.sleep(began + turn / rate - clock())
            pushes.create_task(push(number))
    return sent
