"""Trace context of a request, from its header `traceparent`. The messages that it pushes carry it on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hark.http.responses import Scope
from hark.model import NewMessage
from hark.model.trace_context import is_traceparent, is_tracestate, trace_context

CONTEXT = "hark.trace_context"
"""Key of the trace context in the scope of a request."""
PARENT_HEADER = b"traceparent"
_STATE_HEADER = b"tracestate"


def note_context(scope: Scope, headers: Mapping[bytes, bytes]) -> None:
    """Store the trace context of the headers. Invalid headers are ignored, as W3C Trace Context requires."""
    traceparent = headers[PARENT_HEADER].decode("latin-1")
    tracestate = headers.get(_STATE_HEADER, b"").decode("latin-1")
    if is_traceparent(traceparent):
        scope[CONTEXT] = trace_context(traceparent, tracestate if is_tracestate(tracestate) else None)


def carry(asked: Mapping[str, Any], messages: Iterable[object]) -> None:
    """Set the trace context of the request on its messages that have none."""
    if CONTEXT in asked:
        for message in messages:
            if isinstance(message, NewMessage) and message.trace_context is None:
                message.trace_context = asked[CONTEXT]
