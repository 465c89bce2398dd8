"""Load for the crash tests: producers and consumers over HTTP that write down what they see."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx

from tests.crash.history import History, Message

QUEUE = "crash"


class Load:
    """Producers with a partition each, and consumers that share them all."""

    def __init__(self, url: str, history: History, seed: int) -> None:
        self._url = url
        self._history = history
        self._random = random.Random(seed)
        self._stop = asyncio.Event()
        self._acknowledged = 0
        self._progress = asyncio.Event()

    def stop(self) -> None:
        """Let producers finish what they began; consumers end when there is nothing left."""
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
        async with httpx.AsyncClient(base_url=self._url, timeout=5) as client:
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
            reply = await attempt(client, "POST", "/api/v1/push", json={"items": items})
            if reply is not None and reply.status_code == 201:
                assert {item["status"] for item in reply.json()} <= {"queued", "duplicate"}
                self._history.done(operation)
                self._acknowledged += 1
                self._progress.set()
                return

    async def consume(self, name: str, *, until_empty: bool = False) -> None:
        """Pop and settle, until told to stop or until nothing is left."""
        async with httpx.AsyncClient(base_url=self._url, timeout=5) as client:
            while until_empty or not self._stop.is_set():
                size = self._random.randint(1, 10)
                operation = self._history.call(name, "pop")
                url = f"/api/v1/pop/queue/{QUEUE}?batch={size}&partitions=3&wait=true&timeout=200"
                reply = await attempt(client, "GET", url)
                if reply is None or reply.status_code not in (200, 204):
                    continue
                messages = [] if reply.status_code == 204 else reply.json()["messages"]
                seen: list[Message] = [(m["partition"], m["offset"], m["data"]) for m in messages]
                self._history.done(operation, seen, messages[0]["leaseId"] if messages else "")
                if not messages and until_empty:
                    return
                await self._ack(client, name, messages, seen)

    async def _ack(
        self, client: httpx.AsyncClient, name: str, messages: list[dict[str, Any]], seen: list[Message]
    ) -> None:
        if not messages:
            return
        acks = [{key: message[key] for key in ("transactionId", "partitionId", "leaseId")} for message in messages]
        operation = self._history.call(name, "ack", seen, messages[0]["leaseId"])
        reply = await attempt(client, "POST", "/api/v1/ack/batch", json={"acknowledgments": acks})
        if reply is not None and reply.status_code == 200:
            settled = [message for message, answer in zip(seen, reply.json(), strict=True) if answer["success"]]
            self._history.done(operation, settled)


async def attempt(client: httpx.AsyncClient, method: str, url: str, **arguments: Any) -> httpx.Response | None:
    """A request whose reply may be lost; gives the server a moment to come back when it can't be reached."""
    try:
        return await client.request(method, url, **arguments)
    except httpx.TransportError:
        await asyncio.sleep(0.02)
        return None
