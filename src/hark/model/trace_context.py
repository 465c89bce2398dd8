"""W3C trace context as a message carries it: one text, `traceparent` and maybe, after a space, `tracestate`."""

from __future__ import annotations

import re

MAX_STATE = 512
"""Characters of a `tracestate`."""
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_STATE = re.compile(r"[!-~][ -~]*", re.ASCII)


def is_traceparent(text: str) -> bool:
    """Whether it is what W3C Trace Context says: version, trace id, span id and flags, in small hexadecimal digits."""
    return _PARENT.fullmatch(text) is not None


def is_tracestate(text: str) -> bool:
    """Whether it is printable ASCII of a length that is carried on."""
    return len(text) <= MAX_STATE and _STATE.fullmatch(text) is not None


def trace_context(traceparent: str, tracestate: str | None = None) -> str:
    """The two as one text."""
    return f"{traceparent} {tracestate}" if tracestate else traceparent


def parted(context: str) -> tuple[str, str | None]:
    """The two again."""
    traceparent, _, tracestate = context.partition(" ")
    return traceparent, tracestate or None
