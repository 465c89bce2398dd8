"""The spans of a client: `push QUEUE` and `process QUEUE`. Imported only if OpenTelemetry is in use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from hark._version import __version__
from hark.api.types.delivery import Delivered
from hark.client.arguments import NewMessage
from hark.client.pushing import Pushed
from hark.client.tracing import Note, PushInSpan, PushMany
from hark.model.messages import MAX_STATE

SYSTEM = "hark"
OUTCOME = "hark.outcome"
_MOST_LINKS = 128
_w3c = TraceContextTextMapPropagator()


def current_context() -> Mapping[str, str] | None:
    """The W3C headers of the current span. None if there is no span."""
    if not trace.get_current_span().get_span_context().is_valid:
        return None
    carrier: dict[str, str] = {}
    _w3c.inject(carrier)
    if len(carrier.get("tracestate", "")) > MAX_STATE:
        del carrier["tracestate"]
    return carrier


def with_context(message: NewMessage) -> NewMessage:
    """The message with the context of the current span, unless there is no span or the message has a context."""
    if message.traceparent is not None or (context := current_context()) is None:
        return message
    return msgspec.structs.replace(message, **context)


def pushing(messages: Sequence[NewMessage]) -> PushInSpan | None:
    """What pushes the messages within a span, if the program is in a span and they have no context yet."""
    if not messages or any(message.traceparent is not None for message in messages):
        return None
    return partial(_push, messages) if trace.get_current_span().get_span_context().is_valid else None


async def _push(messages: Sequence[NewMessage], push: PushMany) -> list[Pushed]:
    first = messages[0]
    attributes = _attributes("push", "send", first.queue)
    if len(messages) > 1:
        attributes["messaging.batch.message_count"] = len(messages)
    if first.partition is not None:
        attributes["messaging.destination.partition.id"] = first.partition
    tracer = _tracer(trace.get_tracer_provider())
    with tracer.start_as_current_span(f"push {first.queue}", kind=SpanKind.PRODUCER, attributes=attributes) as span:
        pushed = await push([with_context(message) for message in messages])
        if len(pushed) == 1:
            span.set_attribute("messaging.message.id", pushed[0].id)
        return pushed


@contextmanager
def process_span(messages: Sequence[Delivered]) -> Iterator[Note]:
    """A span around the processing of messages: a child of one message's push, or linked to several pushes."""
    first = messages[0]
    attributes = _attributes("process", "process", first.queue)
    attributes["messaging.consumer.group.name"] = first.consumer_group
    parent: Context | None = None
    links: list[Link] = []
    if len(messages) == 1:
        attributes["messaging.message.id"] = first.id
        attributes["messaging.destination.partition.id"] = first.partition
        attributes["hark.delivery_attempt"] = first.delivery_attempt
        parent = _context_of(first)
    else:
        attributes["messaging.batch.message_count"] = len(messages)
        links = _links(messages)
    # The caller records exceptions, because it knows their meaning: a requested retry is not an error.
    with _tracer(trace.get_tracer_provider()).start_as_current_span(
        f"process {first.queue}",
        parent,
        SpanKind.CONSUMER,
        attributes,
        links,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:

        def note(outcome: str, error: BaseException | None) -> None:
            span.set_attribute(OUTCOME, outcome)
            if error is not None:
                span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))

        yield note


def _attributes(name: str, kind: str, queue: str) -> dict[str, AttributeValue]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
    }


def _context_of(message: Delivered) -> Context | None:
    """The trace context of a message. An unreadable context counts as none."""
    if message.traceparent is None:
        return None
    carrier = {"traceparent": message.traceparent}
    if message.tracestate is not None:
        carrier["tracestate"] = message.tracestate
    return _w3c.extract(carrier)


def _links(messages: Sequence[Delivered]) -> list[Link]:
    """A link to each push that the messages come from."""
    pushes = {message.traceparent: message for message in messages if message.traceparent is not None}
    contexts = (_context_of(message) for message in list(pushes.values())[:_MOST_LINKS])
    found = (trace.get_current_span(context).get_span_context() for context in contexts)
    return [Link(one) for one in found if one.is_valid]


@lru_cache(maxsize=4)
def _tracer(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("hark", __version__)
