"""The trace that a request belongs to, by its header `traceparent`: messages that it pushes carry it on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hark.http.responses import Scope
from hark.model import NewMessage
from hark.model.trace_context import is_traceparent, is_tracestate, trace_context

CONTEXT = "hark.trace_context"
"""Under this name the scope of a request has its trace context, if it came with one."""
PARENT_HEADER = b"traceparent"
_STATE_HEADER = b"tracestate"


def note_context(scope: Scope, headers: Mapping[bytes, bytes]) -> None:
    """Keep what the headers say; what is malformed is ignored, as W3C Trace Context wants it."""
    traceparent = headers[PARENT_HEADER].decode("latin-1")
    tracestate = headers.get(_STATE_HEADER, b"").decode("latin-1")
    if is_traceparent(traceparent):
        scope[CONTEXT] = trace_context(traceparent, tracestate if is_tracestate(tracestate) else None)


def carry(asked: Mapping[str, Any], messages: Iterable[object]) -> None:
    """Give the messages of a request its trace context, where they have none of their own."""
    if CONTEXT in asked:
        for message in messages:
            if isinstance(message, NewMessage) and message.trace_context is None:
                message.trace_context = asked[CONTEXT]
