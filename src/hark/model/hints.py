"""News that there may be work."""

from __future__ import annotations

from typing import Literal

import msgspec

News = Literal["message", "free"]
"""Messages arrived; or something else made work ready: a lease ended, a retry fell due, a seek, new options."""


class Hint(msgspec.Struct, frozen=True):
    """News that there may be work in a queue. Losing one costs latency, never a message."""

    queue: str
    group: str | None = None
    """Whom it concerns; None: every group but those in `told`."""
    partitions: tuple[str, ...] | None = None
    """Where; None: anywhere in the queue."""
    news: News = "free"
    told: tuple[str, ...] = ()
    """Groups that this does not concern: they have hints of their own, or can't take what came."""
    ended: tuple[str, ...] = ()
    """Leases that are over."""
    counts: tuple[int, ...] = ()
    """For a shared group: about how many messages there are to take in each of `partitions`; (): one look each.

    In an arrival for every group: how many came; who takes them is up to the group."""
