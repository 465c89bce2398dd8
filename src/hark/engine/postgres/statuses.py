"""What the procedures for pops say of a candidate."""

from __future__ import annotations

from hark.model import EmptyReason

TAKEN, NOTHING, LEASED, LOCKED, WAITING, WINDOW, PAUSED, GONE, UNUSED, RATE, IN_FLIGHT = range(11)
MORE = TAKEN
"""In `share_v1`, of a candidate that has more."""
NOT_NOW = (NOTHING, LEASED, WAITING, WINDOW)
CLOSED = (PAUSED, RATE, IN_FLIGHT)
"""The whole group can't take any more."""
REASONS: dict[int, EmptyReason] = {
    NOTHING: "nothing_ready",
    LEASED: "lease_held",
    LOCKED: "lease_held",
    WAITING: "waiting",
    WINDOW: "window_buffer",
    PAUSED: "paused",
    GONE: "partition_not_found",
    RATE: "rate_limited",
    IN_FLIGHT: "max_in_flight",
}
