"""Where things are in the bucket, under the prefix of the store."""

from __future__ import annotations

META = "meta.json"
POINTER = "snap/latest"


def record(seq: int) -> str:
    """The key of a log record."""
    return f"log/{seq:020d}"


def snapshot(seq: int) -> str:
    """The key of the snapshot of the state up to a record."""
    return f"snap/{seq:020d}"
