"""What may be said of a message when it is pushed, wherever that is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TypedDict
from uuid import UUID

from hark.client.parameters import KeyParts


class PushOptions(TypedDict, total=False):
    """The options of a push; times are in seconds."""

    key: str | None
    """The idempotency key: a second push with it is `duplicate`."""
    delay: float | timedelta | None
    deliver_at: datetime | None
    priority: int | None
    """0 to 9, higher first, in shared groups."""
    ttl: float | timedelta | None
    retry_delays: Sequence[float | timedelta] | None
    """The wait before each retry; there are as many retries."""
    keys_if_undelivered: Sequence[KeyParts] | None
    """Keys that get the payload if the message becomes a dead letter."""
    trace_id: str | UUID | None
