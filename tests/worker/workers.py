"""Workers for tests, and a look at what the server has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from hark.api.types.delivery import AckAnswer, PopReply
from hark.client.calling import Caller
from hark.client.transport.api import Answer, Request
from hark.client.transport.http import HttpTransport
from hark.errors import HarkError
from hark.worker import Summary, TaskEvent, Worker, WorkerRunOptions
from tests.client.transports import Script
from tests.whole import whole

SECONDS = 20.0
"""What never takes that long has failed."""


class Running:
    """A worker that runs in this loop."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.events: list[TaskEvent] = []
        self.summary: Summary | None = None
        self._changed = asyncio.Event()

    def on_event(self, event: TaskEvent) -> None:
        """A delivery ended."""
        self.events.append(event)
        self._changed.set()

    async def ended(self, count: int) -> list[TaskEvent]:
        """Wait until so many deliveries ended."""
        async with asyncio.timeout(SECONDS):
            while len(self.events) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.events


@asynccontextmanager
async def running(worker: Worker, **options: Any) -> AsyncIterator[Running]:
    """Run the worker within the block, and stop it gracefully at its end."""
    found = Running(worker)
    unlisten = worker.listen(found.on_event)
    task = asyncio.create_task(worker.run(WorkerRunOptions(handle_signals=False, **options)))
    try:
        await asyncio.sleep(0)  # Its first step: from here on there is something to stop.
        yield found
    finally:
        await worker.stop()
        unlisten()
        found.summary = await task


async def burst(worker: Worker, **options: Any) -> Summary:
    """Run what there is to do now."""
    async with asyncio.timeout(SECONDS):
        return await worker.run(WorkerRunOptions(handle_signals=False, burst=True, **options))


async def ask(url: str, route: str, **query: Any) -> Any:
    """What the server says to a GET."""
    transport = HttpTransport(url)
    try:
        return msgspec.json.decode((await Caller(transport).call("GET", f"/api/v1/{route}", query=query)).body)
    finally:
        await transport.close()


async def until_it_waits(url: str, queue: str) -> None:
    """Until the server knows of a consumer that waits; it is another process, which tells no event."""
    async with asyncio.timeout(SECONDS):
        while not await _waits(url, queue):
            pass


async def until_no_consumer_waits(url: str, queue: str) -> None:
    """Until the server knows of no consumer that waits there."""
    async with asyncio.timeout(SECONDS):
        while await _waits(url, queue):
            pass


async def _waits(url: str, queue: str) -> bool:
    found: list[dict[str, object]] = (await ask(url, "consumers", limit=1000))["consumers"]
    return any(one.get("queue") == queue for one in found)


async def dead_letters(url: str, queue: str) -> list[dict[str, Any]]:
    """The dead letters of a queue."""
    found: list[dict[str, Any]] = (await ask(url, "dlq", queue=queue))["messages"]
    return found


async def post(url: str, route: str, body: object) -> None:
    """Tell the server something."""
    transport = HttpTransport(url)
    try:
        await Caller(transport).call("POST", f"/api/v1/{route}", body=body)
    finally:
        await transport.close()


async def push_raw(url: str, queue: str, *payloads: object, **options: Any) -> None:
    """Push messages as any client might."""
    await post(url, "push", {"items": [{"queue": queue, "payload": payload, **options} for payload in payloads]})


def wire_message(id: str) -> dict[str, object]:
    """A task as a pop brings it."""
    return {
        "id": id,
        "transactionId": id,
        "traceId": None,
        "data": {"task": "t"},
        "producerSub": None,
        "createdAt": "2030-01-01T00:00:00Z",
        "partitionId": "p",
        "partition": "Default",
        "leaseId": "lease",
        "consumerGroup": "g",
        "queue": "q",
        "offset": 1,
        "priority": 0,
        "deliveryAttempt": 1,
    }


class ScriptedServer(Script):
    """A transport whose pops the test answers; acks succeed unless it says otherwise, and pushes stay unanswered."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.acks: list[list[dict[str, object]]] = []
        self.failures: list[HarkError] = []
        """Raised by the next acks, one each."""
        self._pops: asyncio.Queue[Answer | HarkError] = asyncio.Queue()
        self.polled = asyncio.Semaphore(0)
        self.pushed = asyncio.Event()

    def answer_pop(self, *ids: str) -> None:
        """The next pop gets these messages."""
        messages = [wire_message(one) for one in ids]
        self._pops.put_nowait(Answer(200 if ids else 204, msgspec.json.encode(whole({"messages": messages}, PopReply))))

    def fail_pop(self, error: HarkError) -> None:
        """The next pop gets this."""
        self._pops.put_nowait(error)

    async def send(self, request: Request) -> Answer:
        """Answer as the test says."""
        if "/pop/" in request.path:
            assert request.query is not None
            self.batches.append(int(request.query["batch"] or 0))
            self.polled.release()
            answer = await self._pops.get()
            if isinstance(answer, HarkError):
                raise answer
            return answer
        if request.path == "/api/v1/push":
            self.pushed.set()
            await asyncio.Event().wait()
        assert request.path == "/api/v1/ack/batch", request.path
        if self.failures:
            raise self.failures.pop(0)
        items = msgspec.json.decode(request.body or b"")["acknowledgments"]
        self.acks.append(items)
        return Answer(200, msgspec.json.encode(whole([{"success": True} for _ in items], list[AckAnswer])))
