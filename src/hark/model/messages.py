"""Messages on their way in and out: push, pop, read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from hark.model.words import DEFAULT_PARTITION, NULL_PAYLOAD, QUEUE_MODE, GroupMode, Key, SubscriptionMode


class NewMessage(msgspec.Struct, gc=False):
    """A message to push. Checked by the HTTP layer; the engine gives it its offset."""

    queue: str
    partition: str = DEFAULT_PARTITION
    payload: bytes = NULL_PAYLOAD
    transaction_id: str | None = None
    trace_id: str | None = None
    producer: str | None = None
    sealed: bool = False
    """The payload is ciphertext (a JSON string); must agree with the queue's `encryption_enabled`."""
    priority: int = 0
    delay_ms: int = 0
    deliver_at: int | None = None
    backoff_ms: tuple[int, ...] | None = None
    """The message's own retry schedule; None: the queue's."""
    ttl_ms: int | None = None
    undelivered_keys: tuple[Key, ...] = ()
    """Keys of the key-value store that get the payload if it can't be delivered (`keysIfUndelivered`)."""
    trace_context: str | None = None
    """The W3C trace context of whoever pushed it (see `trace_context.py`)."""

    @property
    def has_options(self) -> bool:
        """Whether it is more than a payload with a transaction id and a producer."""
        return not (
            self.trace_id is None
            and not self.delay_ms
            and not self.priority
            and self.deliver_at is None
            and self.backoff_ms is None
            and self.ttl_ms is None
            and not self.sealed
            and not self.undelivered_keys
            and self.trace_context is None
        )


class PushOutcome(msgspec.Struct, gc=False):
    """What became of one pushed message."""

    status: Literal["queued", "duplicate", "failed"]
    transaction_id: str | None
    message_id: str | None = None
    partition_id: str | None = None
    code: str | None = None
    error: str | None = None


class Subscription(msgspec.Struct, frozen=True):
    """Where a group starts that is seen for the first time."""

    mode: SubscriptionMode = "all"
    since: int | None = None
    """For `timestamp`: messages after this time."""


class PopRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer's wish for messages. Either `queue`, or `namespace` and/or `task`."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    group: str = QUEUE_MODE
    group_mode: GroupMode | None = None
    batch: int = 1
    partitions: int = 1
    auto_ack: bool = False
    subscription: Subscription = Subscription()
    lease_ms: int | None = None
    """How long to hold what it gets, unless the queue has a `lock_duration`; None: the queue's `lease_time`."""
    patient: bool = False
    """Whoever asks is told when there is more, so that "nothing" need not be the last word: a store far away may
    answer by what it has heard of."""
    consumer: str = ""
    """Who asks, in words for people: shown with the lease."""


class Delivery(msgspec.Struct, gc=False):
    """A message in a consumer's hands."""

    id: str
    transaction_id: str
    trace_id: str | None
    payload: msgspec.Raw
    sealed: bool
    producer: str | None
    created_at: int
    queue: str
    partition: str
    partition_id: str
    offset: int
    priority: int
    attempt: int
    """1 for the first delivery; failed and expired ones count."""
    trace_context: str | None = None
    """The W3C trace context of whoever pushed it."""


class StoredMessage(Delivery, gc=False):
    """A message as it is stored, for those who read it without taking it: also what it was pushed with."""

    deliver_at: int | None = None
    expires_at: int | None = None
    backoff_ms: tuple[int, ...] | None = None
    undelivered_keys: tuple[Key, ...] = ()


EmptyReason = Literal[
    "",
    "nothing_ready",
    "partition_not_found",
    "lease_held",
    "window_buffer",
    "paused",
    "waiting",
    "rate_limited",
    "max_in_flight",
]


class PopResult(msgspec.Struct, gc=False):
    """What a pop got: messages under one lease, or none and why."""

    messages: Sequence[Delivery] = ()
    lease_id: str = ""
    partitions: int = 0
    reason: EmptyReason = ""
    look_again_at: int | None = None
    """When empty: the earliest known time at which something may be ready (a hint for those who wait)."""
    expires_at: int | None = None
    """When the lease ends, unless it is renewed."""


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A browser's wish for messages of one partition, from an offset on; it takes nothing."""

    queue: str
    partition: str
    offset: int
    limit: int = 100


class ReadResult(msgspec.Struct, gc=False):
    """Messages in offset order (`attempt` is 0), and the offset to go on from."""

    messages: Sequence[StoredMessage]
    next_offset: int
    more: bool
    """Whether there may be more behind them now."""


class Position(msgspec.Struct, frozen=True, gc=False):
    """Where a browser stands in a partition."""

    partition: str
    offset: int
    """The next one to read."""


BrowseFrom = Literal["head", "tail"] | int
"""Where a browser starts: the oldest retained message, only what comes from now on, or after a time."""
