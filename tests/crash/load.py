"""Load for the crash tests: producers and consumers that write down what they see, over HTTP or without a server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx
import msgspec

from hark.client.calling import ConnectionFailed, Request, Transport
from tests.crash.history import History, Message, Output, problems, recorded
from tests.crash.server import ROUNDS, SEED, Server, running

QUEUE = "crash"
OUTPUT = "crash-output"
PIPELINE = "pipeline"
"""The group that writes each message to the output, in one transaction with its acknowledgement."""
# A lease whose answer got lost must not hold up the end for long, nor may many of them make a dead letter.
OPTIONS = {"leaseTime": 1, "retryLimit": 1000}
_DRAIN_BATCH = 200
_LATE = 0.2
_ACK_FIELDS = ("transactionId", "partitionId", "leaseId")
TIMEOUT_SECONDS = 5.0


class Reply(msgspec.Struct, frozen=True):
    """What was answered."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body as Python has it."""
        return msgspec.json.decode(self.body)


class Way(Protocol):
    """One client's way to the queue."""

    async def ask(self, method: str, path: str, body: object = None) -> Reply | None:
        """Send a request once; None: the reply is lost."""


OpenWay = Callable[[], AbstractAsyncContextManager[Way]]


def over_http(urls: Sequence[str], seed: int) -> OpenWay:
    """Each request goes to any of the servers."""
    chance = random.Random(seed)

    @asynccontextmanager
    async def open_way() -> AsyncIterator[Way]:
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
            yield _Http(client, lambda: chance.choice(urls))

    return open_way


def through(transport: Transport, seconds: float = TIMEOUT_SECONDS) -> OpenWay:
    """All requests go to the server in this process."""

    @asynccontextmanager
    async def open_way() -> AsyncIterator[Way]:
        yield _InProcess(transport, seconds)

    return open_way


class _Http:
    def __init__(self, client: httpx.AsyncClient, url: Callable[[], str]) -> None:
        self._client = client
        self._url = url

    async def ask(self, method: str, path: str, body: object = None) -> Reply | None:
        content = {} if body is None else {"json": body}
        try:
            reply = await self._client.request(method, self._url() + path, **content)  # type: ignore[arg-type]  # JSON
        except httpx.TransportError:
            return None
        return Reply(reply.status_code, reply.content)


class _InProcess:
    def __init__(self, transport: Transport, seconds: float) -> None:
        self._transport, self._seconds = transport, seconds

    async def ask(self, method: str, path: str, body: object = None) -> Reply | None:
        path, _, query = path.partition("?")
        pairs = dict(pair.split("=") for pair in query.split("&") if pair)
        content = None if body is None else msgspec.json.encode(body)
        try:
            answer = await self._transport.send(Request(method, path, pairs, content, self._seconds))
        except ConnectionFailed:
            return None
        return Reply(answer.status, answer.body)


@asynccontextmanager
async def loaded(servers: Sequence[Server], directory: Path, clients: int) -> AsyncIterator[Load]:
    """Servers under load; at the end they are drained, and what was seen is judged."""
    with recorded(directory / "history.jsonl") as history:
        load = Load(over_http([server.url for server in servers], SEED), history, SEED)
        async with running(*servers):
            await load.prepare()
            async with asyncio.TaskGroup() as tasks:
                for number in range(clients):
                    tasks.create_task(load.produce(f"producer-{number}"))
                    tasks.create_task(load.consume(f"consumer-{number}"))
                yield load
                await load.wait_for_pushes(10)
                load.stop()
            await asyncio.wait_for(load.drain("drain"), 60)
    assert problems(history) == []
    assert len(history.named("ack")) > ROUNDS


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

    async def transform(self, name: str) -> None:
        """Pop for the pipeline and write to the output, often after the lease has expired, until told to stop."""
        async with self._open_way() as way:
            while not self._stop.is_set():
                await self._transform_once(way, name, late=self._random.random() < _LATE)

    async def drain(self, name: str) -> None:
        """Pop and settle until the servers say that nothing is left."""
        async with self._open_way() as way:
            while not await self._is_drained(way):
                await self._consume_once(way, name, _DRAIN_BATCH)

    async def drain_pipeline(self, name: str) -> None:
        """Pop for the pipeline and write to the output until the servers say that nothing is left."""
        async with self._open_way() as way:
            while not await self._is_drained(way):
                await self._transform_once(way, name, _DRAIN_BATCH, late=False)

    async def _is_drained(self, way: Way) -> bool:
        reply = await self._attempt(way, "GET", f"/api/v1/resources/queues/{QUEUE}", 200)
        if reply is None:
            return False
        totals = reply.json()["totals"]
        return bool(totals["pending"] == totals["scheduled"] == totals["processing"] == 0)

    async def _consume_once(self, way: Way, name: str, most: int = 10) -> None:
        messages, seen = await self._pop(way, name, "pop", f"batch={self._random.randint(1, most)}&partitions=3")
        if messages:
            await self._ack(way, name, messages, seen)

    async def _pop(self, way: Way, name: str, as_: str, query: str) -> tuple[list[dict[str, Any]], list[Message]]:
        operation = self._history.call(name, as_)
        reply = await self._attempt(way, "GET", f"/api/v1/pop/queue/{QUEUE}?{query}&wait=true&timeout=200", 200, 204)
        if reply is None:
            return [], []
        messages = [] if reply.status == 204 else reply.json()["messages"]
        seen: list[Message] = [(m["partition"], m["offset"], m["data"]) for m in messages]
        self._history.done(operation, seen, messages[0]["leaseId"] if messages else "")
        return messages, seen

    async def _transform_once(self, way: Way, name: str, most: int = 5, *, late: bool) -> None:
        """Acknowledge messages, push their payloads to the output and note the last one, in one transaction."""
        messages, seen = await self._pop(
            way, name, "take", f"consumerGroup={PIPELINE}&batch={self._random.randint(1, most)}"
        )
        if not messages:
            return
        if late:
            # A consumer that takes longer than its lease, at any point around its end.
            await asyncio.sleep(OPTIONS["leaseTime"] * self._random.uniform(0.8, 2))
        acks = [
            {"type": "ack", "consumerGroup": PIPELINE, **{key: message[key] for key in _ACK_FIELDS}}
            for message in messages
        ]
        items = [{"queue": OUTPUT, "partition": partition, "payload": value} for partition, _, value in seen]
        partition, _, value = seen[-1]
        note = {"checks": [], "mutations": [{"type": "set", "key": [QUEUE, partition], "value": value}]}
        operation = self._history.call(name, "commit", seen, messages[0]["leaseId"])
        body = {"operations": [*acks, {"type": "push", "items": items}], "kv": note}
        reply = await self._attempt(way, "POST", "/api/v1/transaction", 200, body=body)
        if reply is not None:
            self._history.done(operation, seen if reply.json()["success"] else [])

    async def output(self) -> Output:
        """What the pipeline wrote, read while nothing fails."""
        lines: dict[str, list[str]] = {}
        notes: dict[str, str] = {}
        async with self._open_way() as way:
            path = f"/api/v1/pop/queue/{OUTPUT}?batch=1000&autoAck=true"
            while (reply := await self._attempt(way, "GET", path, 200, 204)) is None or reply.status == 200:
                assert reply is not None, "a server failed after all faults had ended"
                for message in reply.json()["messages"]:
                    lines.setdefault(message["partition"], []).append(message["data"])
            for partition in lines:
                reply = await self._attempt(way, "GET", f"/keyval/api/keys/{QUEUE}/{partition}", 200)
                assert reply is not None
                notes[partition] = reply.json()["value"]
        return Output(lines, notes)

    async def _ack(self, way: Way, name: str, messages: list[dict[str, Any]], seen: list[Message]) -> None:
        acks = [{key: message[key] for key in _ACK_FIELDS} for message in messages]
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
