"""The parts of the server's answers that commands show; everything else in them is left alone."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

NULL = Raw(b"null")


class _Answer(msgspec.Struct, rename="camel", kw_only=True):
    """Base: camelCase on the wire, unknown fields ignored."""


class Pushed(msgspec.Struct, kw_only=True):
    """What became of one pushed message (snake_case on the wire, unlike all others)."""

    status: str
    index: int = 0
    message_id: str | None = None
    partition_id: str | None = None
    transaction_id: str | None = None
    error: str | None = None
    code: str | None = None


class Message(_Answer):
    """A message in a consumer's hands, or on a list; payloads stay the bytes they are."""

    id: str = ""
    transaction_id: str = ""
    partition_id: str = ""
    queue: str | None = None
    partition: str = ""
    offset: int | None = None
    delivery_attempt: int | None = None
    lease_id: str | None = None
    status: str | None = None
    created_at: str = ""
    data: Raw = NULL


class Popped(_Answer):
    """What a pop got."""

    messages: list[Message] = []


class Settled(_Answer):
    """What became of one settlement."""

    success: bool
    error: str | None = None
    code: str | None = None
    dlq: bool = False
    lease_released: bool = False


class Counts(_Answer):
    """Messages by state."""

    total: int | None = None
    pending: int | None = None
    processing: int | None = None
    completed: int | None = None
    failed: int | None = None
    dead_letter: int | None = None


class Queue(_Answer):
    """A queue on the list."""

    name: str
    namespace: str | None = None
    task: str | None = None
    paused: bool = False
    created_at: str | None = None
    partitions: int = 0
    messages: Counts = msgspec.field(default_factory=Counts)


class Queues(_Answer):
    """The list of queues."""

    queues: list[Queue]


class Partition(_Answer):
    """A partition of a queue."""

    id: str
    name: str
    stats: Counts = msgspec.field(default_factory=Counts)
    oldest_message: str | None = None
    newest_message: str | None = None


class QueueDetails(_Answer):
    """One queue."""

    id: str
    name: str
    namespace: str | None = None
    task: str | None = None
    paused: bool = False
    created_at: str | None = None
    partition_count: int | None = None
    partitions: list[Partition] = []
    totals: Counts = msgspec.field(default_factory=Counts)
    expired: int | None = None
    discarded: int | None = None
    options: dict[str, Any] = {}


class Configured(_Answer):
    """A queue that was made."""

    queue: str
    ignored_options: list[str] = []
    options: dict[str, Any] = {}


class Limits(_Answer):
    """How much a queue or a group may take; 0: no bound."""

    max_in_flight: int = 0
    rate_limit: float = 0
    rate_burst: int = 0


class Limited(_Answer):
    """What has limits."""

    limits: Limits


class Group(_Answer):
    """A group of a queue, on the list."""

    name: str
    queue_name: str | None = None
    group_mode: str | None = None
    state: str | None = None
    paused: bool = False
    members: int | None = None
    in_flight: int | None = None
    partitions_with_lag: int | None = None
    total_lag: int | None = None
    max_time_lag: float | None = None
    subscription_mode: str | None = None


class Track(_Answer):
    """A group's place in a partition."""

    partition: str
    offset_lag: int | None = None
    time_lag_seconds: float | None = None
    last_consumed_at: str | None = None
    lease_active: bool = False


class Tracks(_Answer):
    """A group's places in a queue."""

    partitions: list[Track] = []


class DeadLetter(_Answer):
    """A message that could not be delivered."""

    id: str
    dead_letter_id: str | None = None
    transaction_id: str = ""
    queue: str = ""
    partition: str = ""
    consumer_group: str = ""
    attempts: int | None = None
    error_message: str | None = None
    failed_at: str | None = None
    data: Raw = NULL


class DeadLetters(_Answer):
    """A page of dead letters."""

    messages: list[DeadLetter]
    total: int | None = None


class Done(_Answer):
    """The answer to an order: whether it was carried out, and on how much."""

    success: bool = True
    existed: bool = True
    error: str | None = None
    message: str | None = None
    partitions_updated: int | None = None
    next_offset: int | None = None
    deleted_partitions: int | None = None
    purged: int | None = None


class Requeued(_Answer):
    """What became of dead letters that match."""

    requeued: int
    remaining: int


class Deleted(_Answer):
    """How much was deleted."""

    deleted: int


class Entry(_Answer):
    """A key with its value; keys and values stay the bytes they are."""

    key: Raw
    value: Raw = NULL
    versionstamp: str | None = None


class KeyWritten(_Answer):
    """What a write of a key came to."""

    versionstamp: str


class KeysDeleted(_Answer):
    """How many keys were deleted."""

    deleted_count: int


class KeysCounted(_Answer):
    """How many keys there are."""

    count: int


class Health(_Answer):
    """How a server says it feels."""

    status: str
    version: str = ""


class Metrics(_Answer):
    """What a server counts."""

    store: dict[str, float] = {}
