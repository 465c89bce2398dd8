"""Trace context of a request, from its header `traceparent`. The messages that it pushes carry it on."""

from __future__ import annotations

from collections.abc import Iterable

from hark.http.exchange import Exchange
from hark.model import NewMessage
from hark.model.trace_context import is_traceparent, is_tracestate, trace_context

PARENT_HEADER = b"traceparent"
_STATE_HEADER = b"tracestate"


def note_context(exchange: Exchange) -> None:
    """Store the trace context of the headers. Invalid headers are ignored, as W3C Trace Context requires."""
    traceparent = exchange.headers[PARENT_HEADER].decode("latin-1")
    tracestate = exchange.headers.get(_STATE_HEADER, b"").decode("latin-1")
    if is_traceparent(traceparent):
        exchange.trace_context = trace_context(traceparent, tracestate if is_tracestate(tracestate) else None)


def carry(exchange: Exchange, messages: Iterable[object]) -> None:
    """Set the trace context of the request on its messages that have none."""
    if exchange.trace_context is not None:
        for message in messages:
            if isinstance(message, NewMessage) and message.trace_context is None:
                message.trace_context = exchange.trace_context
