"""How the key-value API speaks in events: what opens a stream, and when it says that it still lives."""

from __future__ import annotations

from hark.http.stream.events import Manner, event
from hark.settings import Settings

_OPENING = b"retry: 1000\n\n"
"""Milliseconds after which a browser connects again when it has lost the connection."""
_IDLE_SECONDS = 0.1
"""A client to whom nothing comes for so long after it connected hears that it is connected."""


def manner_of(settings: Settings) -> Manner:
    """The manner of listeners and watchers."""
    return Manner(
        opening=_OPENING,
        ping=event(b"ping", b""),
        ping_seconds=settings.queue.ping_interval_ms / 1000,
        first_ping_seconds=_IDLE_SECONDS,
        patience=settings.limits.stalled_seconds,
        cache_control=b"no-cache, no-store",
    )
