"""The nouns of Hark, as the layers hand them to each other.

Times are integer microseconds since the epoch; durations say their unit in their name. Names of queues,
partitions and groups are plain text, checked where they enter. Payloads are JSON bytes, never decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

QUEUE_MODE = "__QUEUE_MODE__"
DEFAULT_PARTITION = "Default"
NULL_PAYLOAD = b"null"

GroupMode = Literal["ordered", "shared"]
SubscriptionMode = Literal["all", "new", "timestamp"]
Status = Literal["completed", "failed", "retry", "dlq"]
MessageState = Literal["pending", "processing", "completed", "dead_letter"]


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


# Push ------------------------------------------------------------------------------------------------------


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

    @property
    def has_options(self) -> bool:
        """Whether it is more than a payload with a transaction id."""
        return not (
            self.trace_id is None
            and not self.delay_ms
            and not self.priority
            and self.deliver_at is None
            and self.backoff_ms is None
            and self.ttl_ms is None
            and not self.sealed
            and self.producer is None
        )


class PushOutcome(msgspec.Struct, gc=False):
    """What became of one pushed message."""

    status: Literal["queued", "duplicate", "failed"]
    transaction_id: str | None
    message_id: str | None = None
    partition_id: str | None = None
    code: str | None = None
    error: str | None = None


# Pop -------------------------------------------------------------------------------------------------------


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


EmptyReason = Literal["", "nothing_ready", "partition_not_found", "lease_held", "window_buffer", "paused", "waiting"]


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


# Read ------------------------------------------------------------------------------------------------------


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A browser's wish for messages of one partition, from an offset on; it takes nothing."""

    queue: str
    partition: str
    offset: int
    limit: int = 100


class ReadResult(msgspec.Struct, gc=False):
    """Messages in offset order (`attempt` is 0), and the offset to go on from."""

    messages: Sequence[Delivery]
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


# Settle ----------------------------------------------------------------------------------------------------


class Settlement(msgspec.Struct, gc=False):
    """What a consumer says of one message. Without `lease_id` the group must hold it on a live lease."""

    transaction_id: str
    partition_id: str
    status: Status = "completed"
    lease_id: str | None = None
    error: str | None = None
    delay_ms: int | None = None
    """With `retry`: how long to wait first."""
    group: str = QUEUE_MODE


class SettleOutcome(msgspec.Struct, gc=False):
    """What became of one settlement. Refused ones have a code, a text, and changed nothing."""

    transaction_id: str
    success: bool
    code: str | None = None
    error: str | None = None
    queue: str | None = None
    partition: str | None = None
    lease_released: bool = False
    dead_lettered: bool = False


class Transaction(msgspec.Struct):
    """Pushes and settlements that happen together or not at all, in this order."""

    operations: Sequence[NewMessage | Settlement]
    required_leases: Sequence[str] = ()
    """Leases that must be live; a settlement without a lease id must be held under one of them."""


class TransactionOutcome(msgspec.Struct):
    """Whether a transaction was applied, with one outcome per operation (up to the one that failed)."""

    success: bool
    results: Sequence[PushOutcome | SettleOutcome]
    code: str | None = None
    error: str | None = None
    failed_index: int | None = None


class Renewal(msgspec.Struct, frozen=True):
    """A wish to hold a lease longer: until now + seconds, if that is later."""

    lease_id: str
    seconds: int = 60


class RenewOutcome(msgspec.Struct, frozen=True):
    """The lease's new end, or why it has none."""

    success: bool
    expires_at: int | None = None
    code: str | None = None
    error: str | None = None


# Administration --------------------------------------------------------------------------------------------


class Seek(msgspec.Struct, frozen=True, kw_only=True):
    """Move a group of a queue: exactly one of `to_end`, `timestamp`, `offset`."""

    queue: str
    group: str
    partition: str | None = None
    to_end: bool = False
    timestamp: int | None = None
    """The next message is the first one created after this time."""
    offset: int | None = None
    """The next message is the one at this offset."""


class SeekOutcome(msgspec.Struct, frozen=True):
    """How many partitions a seek moved, and the next offset of the last one."""

    partitions: int
    next_offset: int | None = None


class GroupDeletion(msgspec.Struct, frozen=True):
    """How much of a group was deleted."""

    partitions: int
    subscriptions: int


class Expired(msgspec.Struct, frozen=True):
    """What `expire` did, and when it has to be called next."""

    leases: int
    next_due: int | None


class Collected(msgspec.Struct, frozen=True):
    """How many messages a step of retention looked at and removed; `more` if it did not get to the end."""

    examined: int
    removed: int
    more: bool


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters; absent fields match all."""

    queue: str | None = None
    group: str | None = None
    partition: str | None = None
    since: int | None = None
    until: int | None = None
    id: str | None = None
    """A dead letter's own id or the id of the message that died."""
    limit: int = 100
    offset: int = 0


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that could not be delivered to a group."""

    id: str
    message_id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    group: str
    payload: msgspec.Raw
    sealed: bool
    producer: str | None
    trace_id: str | None
    attempts: int
    error: str
    created_at: int
    failed_at: int


class DeadLetters(msgspec.Struct, frozen=True):
    """A page of dead letters, newest failure first, and how many match in all."""

    items: Sequence[DeadLetter]
    total: int


class Counts(msgspec.Struct, kw_only=True):
    """Messages by state; `pending` and `processing` as the group that is furthest behind sees them."""

    total: int = 0
    pending: int = 0
    processing: int = 0
    completed: int = 0
    failed: int = 0
    dead_letter: int = 0


class PartitionStats(msgspec.Struct, kw_only=True):
    """A partition and its messages by state."""

    id: str
    name: str
    created_at: int
    counts: Counts
    oldest: int | None
    newest: int | None


class QueueStats(msgspec.Struct, kw_only=True):
    """A queue and its messages by state."""

    info: QueueInfo
    partitions: int
    counts: Counts
    expired: int = 0
    """Messages not delivered because their time to live was over."""
    discarded: int = 0
    """Messages without retries left, dropped because the queue keeps no dead letters."""


class GroupStats(msgspec.Struct, kw_only=True):
    """A group of a queue."""

    group: str
    queue: str
    mode: GroupMode
    subscription: Subscription
    created_at: int
    last_seen: int
    paused: bool
    lag: int
    """Messages not yet settled."""
    partitions_with_lag: int
    oldest_waiting: int | None
    """Creation time of the oldest message not yet settled."""
    leases: int


class TrackStats(msgspec.Struct, kw_only=True):
    """A group's place in a partition."""

    group: str
    queue: str
    partition: str
    partition_id: str
    cursor: int
    lag: int
    oldest_waiting: int | None
    last_settled: int | None
    lease_id: str | None
    lease_expires_at: int | None


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages; absent fields match all."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    state: MessageState | None = None
    since: int | None = None
    until: int | None = None
    limit: int = 200
    offset: int = 0


class GroupView(msgspec.Struct, kw_only=True):
    """What one group has done with one message."""

    group: str
    state: MessageState
    attempts: int
    error: str | None
    lease_expires_at: int | None


class MessageView(msgspec.Struct, kw_only=True):
    """A stored message as an administrator sees it."""

    id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    namespace: str
    task: str
    offset: int
    state: MessageState
    trace_id: str | None
    producer: str | None
    priority: int
    queue_priority: int
    created_at: int
    deliver_at: int | None
    groups: Sequence[GroupView]
    payload: msgspec.Raw | None = None
    """Only when one message is asked for."""
    sealed: bool = False


class NewTrace(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a consumer records about a message."""

    partition_id: str
    transaction_id: str
    data: bytes
    group: str = QUEUE_MODE
    event: str = "info"
    names: tuple[str, ...] = ()


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded event."""

    id: str
    event: str
    data: msgspec.Raw
    group: str
    created_at: int
    names: Sequence[str]
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    payload: msgspec.Raw | None
    sealed: bool


class TraceName(msgspec.Struct, frozen=True):
    """A name that events were recorded under."""

    name: str
    traces: int
    messages: int
    last_seen: int


# Key-value -------------------------------------------------------------------------------------------------

KeyPart = str | float | bool
Key = tuple[KeyPart, ...]
"""1 to 20 parts, ordered by type (string, number, boolean) and then by value (rule 25)."""


class KeyEntry(msgspec.Struct, frozen=True):
    """A stored value; its version changes with every write."""

    key: Key
    value: msgspec.Raw
    version: int
    expires_at: int | None = None


class KeyRange(msgspec.Struct, frozen=True, kw_only=True):
    """Strict descendants of a prefix, a page of them."""

    prefix: Key
    after: Key | None = None
    limit: int = 100
    reverse: bool = False


class KeyCheck(msgspec.Struct, frozen=True):
    """A version that a key must have for a write to happen; None: it must be absent."""

    key: Key
    version: int | None


class KeyMutation(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one key."""

    kind: Literal["set", "delete", "sum", "min", "max", "append"]
    key: Key
    value: bytes = NULL_PAYLOAD
    ttl_ms: int | None = None


class KeyWrite(msgspec.Struct, frozen=True):
    """Checks, changes and messages that happen together or not at all."""

    checks: Sequence[KeyCheck] = ()
    mutations: Sequence[KeyMutation] = ()
    messages: Sequence[NewMessage] = ()


class KeyWritten(msgspec.Struct, frozen=True):
    """The version of all that was written, or the first check that failed."""

    success: bool
    version: int | None = None
    failed_check: int | None = None


# Hints -----------------------------------------------------------------------------------------------------

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
