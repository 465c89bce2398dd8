"""What reads have in common on all engines."""

from __future__ import annotations

_READ_BYTES = 1 << 20
_CALL_BYTES = 64 << 20


def read_bound(requests: int) -> int:
    """The bytes of payload at which a read ends that is one of so many in a call; it has one message at least."""
    return min(_READ_BYTES, _CALL_BYTES // max(1, requests))
