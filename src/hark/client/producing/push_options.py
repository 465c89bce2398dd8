"""Push options, shared by queues, buffers and transactions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TypedDict
from uuid import UUID

from hark.client.parameters import KeyParts


class PushOptions(TypedDict, total=False):
    """Options of a push. Times are seconds or a `timedelta`."""

    key: str | None
    """Idempotency key, 1 to 255 bytes. A second push with the same key to the same partition is a `duplicate`, for
    as long as the first message is stored. The default is a new unique key."""
    delay: float | timedelta | None
    """Wait this long before the message can be delivered. The default is no delay."""
    deliver_at: datetime | None
    """Deliver the message not before this time, which must have a time zone. An alternative to `delay`."""
    priority: int | None
    """0 to 9, default 0. Shared groups receive messages with a higher priority first."""
    ttl: float | timedelta | None
    """Expire the message if it was not delivered within this time. The default is the `ttl` of the queue."""
    retry_delays: Sequence[float | timedelta] | None
    """Delay before each retry, at most 100. The number of delays is the number of retries. The default is the
    queue's policy."""
    keys_if_undelivered: Sequence[KeyParts] | None
    """Keys of the key-value store that get the payload if the message is dead-lettered."""
    trace_id: str | UUID | None
    """A UUID that consumers get with the message, for your own tracing."""
