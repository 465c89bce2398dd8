"""The parts of the server's responses that commands show; all other fields are ignored."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

NULL = Raw(b"null")


class _Answer(msgspec.Struct, rename="camel", kw_only=True):
    """Base: camelCase on the wire, unknown fields ignored."""


class Pushed(msgspec.Struct, kw_only=True):
    """The outcome of one pushed message (snake_case on the wire, unlike all others)."""

    status: str
    index: int = 0
    message_id: str | None = None
    partition_id: str | None = None
    transaction_id: str | None = None
    error: str | None = None
    code: str | None = None


class Message(_Answer):
    """A message that was received or listed; its payload stays as it was sent, byte for byte."""

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
    """The messages of a pop."""

    messages: list[Message] = []


class Settled(_Answer):
    """The outcome of settling one message."""

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
    """A queue in the list."""

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
    """A queue that was created or configured."""

    queue: str
    ignored_options: list[str] = []
    options: dict[str, Any] = {}


class Limits(_Answer):
    """The limits of a queue or a group; 0 means unlimited."""

    max_in_flight: int = 0
    rate_limit: float = 0
    rate_burst: int = 0


class Limited(_Answer):
    """A response with limits."""

    limits: Limits


class Group(_Answer):
    """A group of a queue, in the list."""

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
    """A group's position in a partition."""

    partition: str
    offset_lag: int | None = None
    time_lag_seconds: float | None = None
    last_consumed_at: str | None = None
    lease_active: bool = False


class Tracks(_Answer):
    """A group's positions in a queue."""

    partitions: list[Track] = []


class DeadLetter(_Answer):
    """A dead letter."""

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
    """The outcome of an administrative request, with its counts."""

    success: bool = True
    existed: bool = True
    error: str | None = None
    message: str | None = None
    partitions_updated: int | None = None
    next_offset: int | None = None
    deleted_partitions: int | None = None
    purged: int | None = None


class Requeued(_Answer):
    """The outcome of requeueing the dead letters that match."""

    requeued: int
    remaining: int


class Deleted(_Answer):
    """The number of deleted entries."""

    deleted: int


class Entry(_Answer):
    """A key with its value, byte for byte."""

    key: Raw
    value: Raw = NULL
    versionstamp: str | None = None


class KeyWritten(_Answer):
    """The version of a key that was written."""

    versionstamp: str


class KeysDeleted(_Answer):
    """The number of deleted keys."""

    deleted_count: int


class KeysCounted(_Answer):
    """The number of keys."""

    count: int


class Health(_Answer):
    """The health of a server."""

    status: str
    version: str = ""


class Metrics(_Answer):
    """The metrics of a server."""

    store: dict[str, float] = {}
