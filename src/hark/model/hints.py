"""Notifications that messages may be ready."""

from __future__ import annotations

from typing import Literal

import msgspec

News = Literal["message", "free"]
"""`message`: messages arrived. `free`: something else made messages ready, such as an expired lease or a seek."""


class Hint(msgspec.Struct, frozen=True):
    """A notification that messages of a queue may be ready. A lost hint costs latency, never a message."""

    queue: str
    group: str | None = None
    """The group that it concerns; None: every group except those in `told`."""
    partitions: tuple[str, ...] | None = None
    """The partitions that it concerns; None: any partition of the queue."""
    news: News = "free"
    told: tuple[str, ...] = ()
    """Groups that it does not concern: they have separate hints, or cannot receive the messages."""
    ended: tuple[str, ...] = ()
    """Leases that ended."""
    counts: tuple[int, ...] = ()
    """For a shared group: approximate number of ready messages in each of `partitions`; (): one poll each.

    For an arrival for every group: number of new messages."""
