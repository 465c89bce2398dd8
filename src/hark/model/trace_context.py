"""W3C trace context of a message: one text with `traceparent` and optionally, after a space, `tracestate`."""

from __future__ import annotations

import re

MAX_STATE = 512
"""Maximum number of characters of a `tracestate`."""
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_STATE = re.compile(r"[!-~][ -~]*", re.ASCII)


def is_traceparent(text: str) -> bool:
    """Return whether text is a valid `traceparent`: version, trace id, span id and flags in lower-case hexadecimal."""
    return _PARENT.fullmatch(text) is not None


def is_tracestate(text: str) -> bool:
    """Return whether text is printable ASCII within the length limit."""
    return len(text) <= MAX_STATE and _STATE.fullmatch(text) is not None


def trace_context(traceparent: str, tracestate: str | None = None) -> str:
    """Return both headers as one text."""
    return f"{traceparent} {tracestate}" if tracestate else traceparent


def parted(context: str) -> tuple[str, str | None]:
    """Return the two headers of a text."""
    traceparent, _, tracestate = context.partition(" ")
    return traceparent, tracestate or None
