"""Load for the crash tests: producers and consumers over HTTP that write down what they see."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import httpx

from tests.crash.history import History, Message

QUEUE = "crash"
# A lease whose answer got lost must not hold up the end for long, nor may many of them make a dead letter.
OPTIONS = {"leaseTime": 2, "retryLimit": 1000}


class Load:
    """Producers with a partition each, and consumers that share them all; each request goes to any of the servers."""

    def __init__(self, urls: Sequence[str], history: History, seed: int) -> None:
        self._urls = urls
        self._history = history
        self._random = random.Random(seed)
        self._stop = asyncio.Event()
        self._acknowledged = 0
        self._progress = asyncio.Event()

    async def prepare(self) -> None:
        """Make the queue."""
        body = {"queue": QUEUE, "options": OPTIONS}
        async with httpx.AsyncClient(timeout=5) as client:
            while await self._attempt(client, "POST", "/api/v1/configure", 200, json=body) is None:
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

    async def produce(self, name: str) -> None:
        """Push numbers in order; a push whose reply is lost is repeated with the same transaction ids."""
        number = 0
        async with httpx.AsyncClient(timeout=5) as client:
            while not self._stop.is_set():
                batch = [str(number + step) for step in range(1, self._random.randint(1, 4) + 1)]
                number += len(batch)
                await self._push(client, name, batch)

    async def _push(self, client: httpx.AsyncClient, name: str, batch: list[str]) -> None:
        items = [
            {"queue": QUEUE, "partition": name, "payload": value, "transactionId": f"{name}-{value}"} for value in batch
        ]
        while True:
            operation = self._history.call(name, "push", [(name, 0, value) for value in batch])
            reply = await self._attempt(client, "POST", "/api/v1/push", 201, json={"items": items})
            if reply is not None:
                assert {item["status"] for item in reply.json()} <= {"queued", "duplicate"}
                self._history.done(operation)
                self._acknowledged += 1
                self._progress.set()
                return

    async def consume(self, name: str) -> None:
        """Pop and settle until told to stop."""
        async with httpx.AsyncClient(timeout=5) as client:
            while not self._stop.is_set():
                await self._consume_once(client, name)

    async def drain(self, name: str) -> None:
        """Pop and settle until the servers say that nothing is left."""
        async with httpx.AsyncClient(timeout=5) as client:
            while not await self._is_drained(client):
                await self._consume_once(client, name)

    async def _is_drained(self, client: httpx.AsyncClient) -> bool:
        reply = await self._attempt(client, "GET", f"/api/v1/resources/queues/{QUEUE}", 200)
        if reply is None:
            return False
        totals = reply.json()["totals"]
        return bool(totals["pending"] == 0 and totals["processing"] == 0)

    async def _consume_once(self, client: httpx.AsyncClient, name: str) -> None:
        operation = self._history.call(name, "pop")
        size = self._random.randint(1, 10)
        url = f"/api/v1/pop/queue/{QUEUE}?batch={size}&partitions=3&wait=true&timeout=200"
        reply = await self._attempt(client, "GET", url, 200, 204)
        if reply is None:
            return
        messages = [] if reply.status_code == 204 else reply.json()["messages"]
        seen: list[Message] = [(m["partition"], m["offset"], m["data"]) for m in messages]
        self._history.done(operation, seen, messages[0]["leaseId"] if messages else "")
        if messages:
            await self._ack(client, name, messages, seen)

    async def _ack(
        self, client: httpx.AsyncClient, name: str, messages: list[dict[str, Any]], seen: list[Message]
    ) -> None:
        acks = [{key: message[key] for key in ("transactionId", "partitionId", "leaseId")} for message in messages]
        operation = self._history.call(name, "ack", seen, messages[0]["leaseId"])
        reply = await self._attempt(client, "POST", "/api/v1/ack/batch", 200, json={"acknowledgments": acks})
        if reply is not None:
            settled = [message for message, answer in zip(seen, reply.json(), strict=True) if answer["success"]]
            self._history.done(operation, settled)

    async def _attempt(
        self, client: httpx.AsyncClient, method: str, path: str, *expected: int, **arguments: Any
    ) -> httpx.Response | None:
        """A request to some server whose reply may be lost; then the servers get a moment to come back."""
        try:
            reply = await client.request(method, self._random.choice(self._urls) + path, **arguments)
        except httpx.TransportError:
            reply = None
        if reply is not None and reply.status_code in expected:
            return reply
        assert reply is None or reply.status_code == 503, f"{method} {path}: {reply.status_code} {reply.text}"
        await asyncio.sleep(0.02)
        return None
