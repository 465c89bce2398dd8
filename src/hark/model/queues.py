"""Queues and what they do with their messages."""

from __future__ import annotations

import msgspec


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a queue does with its messages; the field names are those of the HTTP API."""

    lease_time: int = 300
    """Seconds that a consumer holds what it popped."""
    retry_limit: int = 3
    """Retries after the first attempt, before the dead letters."""
    retry_delay: int = 0
    """Milliseconds before the first retry."""
    retry_multiplier: float = 1
    """What each further retry multiplies the delay by."""
    retry_max_delay: int = 3_600_000
    """The longest delay between retries, in milliseconds."""
    delayed_processing: int = 0
    """Seconds that a message must be old before it is delivered."""
    window_buffer: int = 0
    """Seconds without a push before a partition is delivered (at the longest 10 times that)."""
    priority: int = 0
    """Pops over several queues take from the highest first."""
    max_size: int = 0
    """Messages not yet done by the slowest group, beyond which pushes are refused; 0: no bound."""
    ttl: int = 0
    """Seconds after which a message that was not delivered is no longer; 0: never."""
    dead_letter_queue: bool = True
    """False: nothing is ever kept as a dead letter."""
    dlq_after_max_retries: bool = True
    """False: a message without retries left is discarded and counted."""
    retention_enabled: bool = False
    """Whether the next two have effect."""
    retention_seconds: int = 0
    """Age at which messages are removed, consumed or not; 0: never."""
    completed_retention_seconds: int = 0
    """Age at which messages that every group has settled are removed; 0: the server's default."""
    max_wait_time_seconds: int = 0
    """Age at which messages that some group has not settled are removed; 0: never."""
    encryption_enabled: bool = False
    """Payloads are encrypted at rest."""
    max_in_flight: int = 0
    """Messages that all groups together may hold on leases at most; 0: no bound."""
    rate_limit: float = 0
    """Messages per second that are delivered at most, to all groups together; 0: no bound."""
    rate_burst: int = 0
    """Messages that may be delivered at once after a pause; 0: as many as `rate_limit` allows in a second."""
    drop_settled: bool = False
    """Messages are removed as soon as every group has settled them."""
    lock_duration: int = 0
    """Milliseconds that a consumer of the key-value API holds what it got; 0: the server's `queue.lock_duration`."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How much a group may take; 0: no bound. The names mean what they do in `QueueOptions`."""

    max_in_flight: int = 0
    rate_limit: float = 0
    rate_burst: int = 0


class QueueSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as a user wants it."""

    name: str
    namespace: str = ""
    task: str = ""
    options: QueueOptions = QueueOptions()


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as it is stored."""

    id: str
    name: str
    namespace: str
    task: str
    options: QueueOptions
    created_at: int
    paused: bool
    partition_id: str | None = None
    """The id of the partition `Default`, in the answer to `configure`."""
