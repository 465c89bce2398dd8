"""Load for the crash tests: producers and consumers that write down what they see."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.crash.history import History, Message
from tests.crash.ways import OpenWay, Reply, Way

QUEUE = "crash"
# A lease whose answer got lost must not hold up the end for long, nor may many of them make a dead letter.
OPTIONS = {"leaseTime": 2, "retryLimit": 1000}
_DRAIN_BATCH = 200


class Load:
    """Producers with a partition each, and consumers that share them all.

    `widest`: messages are numbers with zeros before them, up to so many digits: a store may keep long ones elsewhere.
    """

    def __init__(self, open_way: OpenWay, history: History, seed: int, widest: int = 1) -> None:
        self._open_way = open_way
        self._history = history
        self._random = random.Random(seed)
        self._widest = widest
        self._stop = asyncio.Event()
        self._acknowledged = 0
        self._progress = asyncio.Event()

    async def prepare(self) -> None:
        """Make the queue."""
        body = {"queue": QUEUE, "options": OPTIONS}
        async with self._open_way() as way:
            while await self._attempt(way, "POST", "/api/v1/configure", 200, body=body) is None:
                pass

    def stop(self) -> None:
        """Let producers and consumers finish what they began."""
        self._stop.set()

    async def wait_for_pushes(self, number: int) -> None:
        """Wait until so many more pushes were acknowledged."""
        target = self._acknowledged + number
        while self._acknowledged < target:
            self._progress.clear()
            await self._progress.wait()

    async def produce(self, name: str, last: int = 0, open_batch: list[str] | None = None) -> None:
        """Push numbers in order, from `last` on; a push whose reply is lost is repeated with the same transaction ids.

        `open_batch`: what it was about to push when it was killed.
        """
        async with self._open_way() as way:
            if open_batch:
                await self._push(way, name, open_batch)
            while not self._stop.is_set():
                numbers = range(last + 1, last + 1 + self._random.randint(1, 4))
                last = numbers[-1]
                await self._push(way, name, [str(n).zfill(self._random.randint(1, self._widest)) for n in numbers])

    async def _push(self, way: Way, name: str, batch: list[str]) -> None:
        items = [
            {"queue": QUEUE, "partition": name, "payload": value, "transactionId": f"{name}-{value}"} for value in batch
        ]
        while True:
            operation = self._history.call(name, "push", [(name, 0, value) for value in batch])
            reply = await self._attempt(way, "POST", "/api/v1/push", 201, body={"items": items})
            if reply is not None:
                assert {item["status"] for item in reply.json()} <= {"queued", "duplicate"}
                self._history.done(operation)
                self._acknowledged += 1
                self._progress.set()
                return

    async def consume(self, name: str) -> None:
        """Pop and settle until told to stop."""
        async with self._open_way() as way:
            while not self._stop.is_set():
                await self._consume_once(way, name)

    async def drain(self, name: str) -> None:
        """Pop and settle until the servers say that nothing is left."""
        async with self._open_way() as way:
            while not await self._is_drained(way):
                await self._consume_once(way, name, _DRAIN_BATCH)

    async def _is_drained(self, way: Way) -> bool:
        reply = await self._attempt(way, "GET", f"/api/v1/resources/queues/{QUEUE}", 200)
        if reply is None:
            return False
        totals = reply.json()["totals"]
        return bool(totals["pending"] == 0 and totals["processing"] == 0)

    async def _consume_once(self, way: Way, name: str, most: int = 10) -> None:
        operation = self._history.call(name, "pop")
        size = self._random.randint(1, most)
        url = f"/api/v1/pop/queue/{QUEUE}?batch={size}&partitions=3&wait=true&timeout=200"
        reply = await self._attempt(way, "GET", url, 200, 204)
        if reply is None:
            return
        messages = [] if reply.status == 204 else reply.json()["messages"]
        seen: list[Message] = [(m["partition"], m["offset"], m["data"]) for m in messages]
        self._history.done(operation, seen, messages[0]["leaseId"] if messages else "")
        if messages:
            await self._ack(way, name, messages, seen)

    async def _ack(self, way: Way, name: str, messages: list[dict[str, Any]], seen: list[Message]) -> None:
        acks = [{key: message[key] for key in ("transactionId", "partitionId", "leaseId")} for message in messages]
        operation = self._history.call(name, "ack", seen, messages[0]["leaseId"])
        reply = await self._attempt(way, "POST", "/api/v1/ack/batch", 200, body={"acknowledgments": acks})
        if reply is not None:
            settled = [message for message, answer in zip(seen, reply.json(), strict=True) if answer["success"]]
            self._history.done(operation, settled)

    async def _attempt(self, way: Way, method: str, path: str, *expected: int, body: object = None) -> Reply | None:
        """A request whose reply may be lost; then those who serve get a moment to come back."""
        reply = await way.ask(method, path, body)
        if reply is not None and reply.status in expected:
            return reply
        assert reply is None or reply.status == 503, f"{method} {path}: {reply}"
        await asyncio.sleep(0.02)
        return None
