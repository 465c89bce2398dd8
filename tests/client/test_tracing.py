"""One trace from whoever pushes, through the server, to whoever handles the message."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import cast

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

import hark
import hark.sync
from hark.broker import Broker
from hark.client.client import Client
from hark.client.delivery.message import Message
from hark.client.transport.inprocess import AsgiTransport
from hark.clock import SystemClock
from hark.engine.sqlite import SqliteEngine
from hark.http.app import App
from hark.serving.tracing import Tracing
from hark.settings import Settings
from hark.worker import RetryPolicy, Worker, WorkerRunOptions


class Spans:
    """What was recorded."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of a name, in the order in which they ended."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span of a name."""
        [span] = self.named(name)
        return span

    @property
    def names(self) -> set[str]:
        """Of all spans."""
        return {span.name for span in self._exporter.get_finished_spans()}


def context(span: ReadableSpan) -> SpanContext:
    """Which span it is."""
    return cast(SpanContext, span.get_span_context())


def parent(span: ReadableSpan) -> int | None:
    """The id of the span that it is within."""
    return None if span.parent is None else span.parent.span_id


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """Spans of this program, for one test."""
    recorded = Spans()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", recorded.provider)
    return recorded


@pytest.fixture
async def client(spans: Spans) -> AsyncIterator[Client]:
    """A client of a server in this process, both with spans."""
    settings = Settings()
    tracing = Tracing(spans.provider)
    clock = SystemClock()
    broker = Broker(tracing.engine(SqliteEngine(":memory:", clock=clock)), settings, clock)
    app = App(broker, settings)
    transport = AsgiTransport(tracing.app(app), broker.close, broker.start)
    async with hark.connect(transport) as connected:
        yield connected


async def pushed(client: Client, spans: Spans, *data: object) -> None:
    """Push messages, each within a span of its own."""
    for one in data:
        with spans.tracer.start_as_current_span(f"order {one}"):
            await client.queue("orders").push(one)


async def test_a_trace_goes_from_the_producer_through_the_server_to_the_handler(client: Client, spans: Spans) -> None:
    seen: list[int] = []
    await pushed(client, spans, 1)
    await (
        client.queue("orders")
        .limit(1)
        .consume(lambda _message: seen.append(trace.get_current_span().get_span_context().span_id))
    )
    order, push, process = spans.one("order 1"), spans.one("push orders"), spans.one("process orders")
    request, store = spans.one("POST /api/v1/push"), spans.one("store push")
    trace_ids = {context(span).trace_id for span in (order, push, request, store, process)}
    assert len(trace_ids) == 1
    assert parent(push) == context(order).span_id
    assert parent(request) == context(push).span_id
    assert parent(store) == context(request).span_id
    assert parent(process) == context(push).span_id
    assert seen == [context(process).span_id]
    assert (push.kind, request.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.SERVER, SpanKind.CONSUMER)


async def test_spans_have_the_attributes_of_messaging(client: Client, spans: Spans) -> None:
    with spans.tracer.start_as_current_span("order"):
        done = await client.queue("orders").partition("p1").push(1)
    await client.queue("orders").limit(1).consume(lambda _message: None)
    common = {"messaging.system": "hark", "messaging.destination.name": "orders", "messaging.message.id": done.id}
    common |= {"messaging.destination.partition.id": "p1"}
    assert dict(spans.one("push orders").attributes or {}) == common | {
        "messaging.operation.name": "push",
        "messaging.operation.type": "send",
    }
    assert dict(spans.one("process orders").attributes or {}) == common | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "__QUEUE_MODE__",
        "hark.delivery_attempt": 1,
        "hark.outcome": "completed",
    }
    request = dict(spans.one("POST /api/v1/push").attributes or {})
    assert (request["http.route"], request["http.response.status_code"]) == ("/api/v1/push", 201)


async def test_retries_and_a_requeued_dead_letter_stay_in_the_trace(client: Client, spans: Spans) -> None:
    await client.queue("orders").configure(retry_limit=0)
    await pushed(client, spans, 1)

    async def refuse(_message: Message) -> None:
        raise ValueError("no")

    await client.queue("orders").limit(1).consume(refuse)
    [letter] = [letter async for letter in client.dlq("orders")]
    await client.dlq("orders").requeue(letter.id)
    await client.queue("orders").limit(1).consume(lambda _message: None)
    failed, done = spans.named("process orders")
    push = context(spans.one("push orders")).span_id
    assert (parent(failed), parent(done)) == (push, push)
    assert (failed.attributes or {})["hark.outcome"] == "failed"
    assert failed.status.status_code is StatusCode.ERROR
    assert [event.name for event in failed.events] == ["exception"]
    assert (done.attributes or {})["hark.outcome"] == "completed"


async def test_a_batch_is_linked_to_the_pushes_that_it_comes_from(client: Client, spans: Spans) -> None:
    await pushed(client, spans, 1, 2)
    await client.queue("orders").batch(2).limit(2).consume(lambda _messages: None)
    process = spans.one("process orders")
    assert process.parent is None
    assert {link.context.span_id for link in process.links} == {
        context(span).span_id for span in spans.named("push orders")
    }
    assert (process.attributes or {})["messaging.batch.message_count"] == 2


async def test_many_messages_of_one_push_share_its_span(client: Client, spans: Spans) -> None:
    with spans.tracer.start_as_current_span("order"):
        await client.queue("orders").push_many([1, 2])
    push = spans.one("push orders")
    assert (push.attributes or {})["messaging.batch.message_count"] == 2
    await client.queue("orders").limit(2).consume(lambda _message: None)
    assert [parent(span) for span in spans.named("process orders")] == [context(push).span_id] * 2


async def test_buffered_messages_and_those_of_transactions_belong_to_the_span_that_they_were_given_in(
    client: Client, spans: Spans
) -> None:
    with spans.tracer.start_as_current_span("first"):
        await client.queue("orders").buffer().push(1)
    with spans.tracer.start_as_current_span("second"):
        await client.queue("orders").buffer().push(2)
    await client.flush()
    with spans.tracer.start_as_current_span("third"):
        async with client.transaction() as transaction:
            transaction.push("orders", 3)
    await client.queue("orders").limit(3).consume(lambda _message: None)
    wanted = [context(spans.one(name)).span_id for name in ("first", "second", "third")]
    assert [parent(span) for span in spans.named("process orders")] == wanted


async def test_a_block_around_a_message_is_a_span_and_one_within_a_handler_is_no_second(
    client: Client, spans: Spans
) -> None:
    await pushed(client, spans, 1, 2)
    async for message in client.queue("orders").limit(1).messages():
        async with message:
            inner = trace.get_current_span().get_span_context().span_id

    async def handle(message: Message) -> None:
        async with message:
            pass

    await client.queue("orders").limit(1).consume(handle)
    block, handler = spans.named("process orders")
    assert context(block).span_id == inner
    assert [(span.attributes or {})["hark.outcome"] for span in (block, handler)] == ["completed", "completed"]


def test_programs_without_a_loop_have_the_same_spans(url: str, queue: str, spans: Spans) -> None:
    seen: list[int] = []

    def note(_message: object) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    with hark.sync.connect(url) as client:
        with spans.tracer.start_as_current_span("order"):
            client.queue(queue).push_many([1, 2])
        [message] = client.queue(queue).pop()
        with message:
            note(message)
        client.queue(queue).limit(1).consume(note).run()
    push = spans.one(f"push {queue}")
    assert parent(push) == context(spans.one("order")).span_id
    done = spans.named(f"process {queue}")
    assert [parent(span) for span in done] == [context(push).span_id] * 2
    assert seen == [context(span).span_id for span in done]
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_the_tasks_of_a_worker_are_in_the_trace_of_the_one_that_pushed_them(client: Client, spans: Spans) -> None:
    worker = Worker(client=client, queue="tasks")

    @worker.task("count")
    async def count(n: int) -> None:
        if n > 1:
            raise ValueError("too many")

    count_retrying = worker.task("count_in_thread", retry=RetryPolicy.never())(_raise)
    with spans.tracer.start_as_current_span("order"):
        await count.push(1)
        await count_retrying.push()
    await worker.run(WorkerRunOptions(handle_signals=False, burst=True))
    pushes = {context(span).span_id for span in spans.named("push tasks")}
    done = spans.named("process tasks")
    assert {parent(span) for span in done} == pushes
    assert sorted(str((span.attributes or {})["hark.outcome"]) for span in done) == ["done", "failed"]


def _raise() -> None:
    raise ValueError("no")


async def test_without_a_current_span_nothing_is_carried(client: Client, spans: Spans) -> None:
    await client.queue("orders").push(1)
    [message] = await client.queue("orders").pop()
    assert (message.delivered.traceparent, message.delivered.tracestate) == (None, None)
    assert "push orders" not in spans.names


async def test_pushes_at_the_same_time_each_keep_their_trace(client: Client, spans: Spans) -> None:
    await asyncio.gather(*(pushed(client, spans, number) for number in range(5)))
    found: dict[object, int] = {}
    await (
        client.queue("orders")
        .limit(5)
        .consume(lambda message: found.update({message.data: trace.get_current_span().get_span_context().trace_id}))
    )
    assert found == {number: context(spans.one(f"order {number}")).trace_id for number in range(5)}


def test_a_program_without_opentelemetry_does_not_get_it_from_us() -> None:
    program = """
import asyncio, sys, hark
from hark.clock import SystemClock
from hark.engine.sqlite import SqliteEngine

async def main():
    async with hark.connect(SqliteEngine(":memory:", clock=SystemClock())) as client:
        await client.queue("orders").push(1)
        await client.queue("orders").limit(1).consume(lambda message: None)

asyncio.run(main())
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "[]\n"
