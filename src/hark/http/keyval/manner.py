"""Event streams of the key-value API: the opening and the pings."""

from __future__ import annotations

from hark.http.stream.events import Manner, event
from hark.settings import Settings

_OPENING = b"retry: 1000\n\n"
"""Milliseconds after which a client reconnects when the connection is lost."""
_IDLE_SECONDS = 0.1
"""Time after which an idle client receives the first ping."""


def manner_of(settings: Settings) -> Manner:
    """Return the event options of listeners and watchers."""
    return Manner(
        opening=_OPENING,
        ping=event(b"ping", b""),
        ping_seconds=settings.queue.ping_interval_ms / 1000,
        first_ping_seconds=_IDLE_SECONDS,
        patience=settings.limits.stalled_seconds,
        cache_control=b"no-cache, no-store",
    )
