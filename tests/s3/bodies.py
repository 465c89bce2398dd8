"""Objects whose bytes a test can tell apart."""

from __future__ import annotations

import random


def body(seq: int, length: int = 1000) -> bytes:
    """What the object of a record has; another record has other bytes."""
    return random.Random(seq).randbytes(length)
