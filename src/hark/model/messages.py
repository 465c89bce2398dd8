"""Messages in push, pop and read; settlements and leases; the key-value store; hints and trace context."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, cast

import msgspec

QUEUE_MODE = "__QUEUE_MODE__"
"""The default group: that of consumers which name none."""
DEFAULT_PARTITION = "Default"
NULL_PAYLOAD = b"null"

GroupMode = Literal["ordered", "shared"]
SubscriptionMode = Literal["all", "new", "timestamp"]
Status = Literal["completed", "failed", "retry", "dlq"]
MessageState = Literal["pending", "scheduled", "processing", "completed", "dead_letter"]
UniqueUntil = Literal["done", "started", "retained"]
"""How long a message holds its unique key."""
ScheduledReason = Literal["delayed", "retry"]
"""Why a message is scheduled: it was pushed with a delay, or it waits for its next attempt (rule 28)."""

KeyPart = str | float | bool
Key = tuple[KeyPart, ...]
"""A key of the key-value store: 1 to 20 parts, ordered by type (string, number, boolean), then by value (rule 25)."""
OWN = cast(KeyPart, None)
"""The first part of Hark's own keys. Clients cannot name these keys, and no list or count of all keys contains them.

It is None at runtime only: the types of the keys of clients do not allow it."""


MAX_STATE = 512
"""Maximum number of characters of a `tracestate`."""
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_STATE = re.compile(r"[!-~][ -~]*", re.ASCII)


def is_traceparent(text: str) -> bool:
    """Return whether text is a valid `traceparent`: version, trace id, span id and flags in lower-case hexadecimal."""
    return _PARENT.fullmatch(text) is not None


def is_tracestate(text: str) -> bool:
    """Return whether text is printable ASCII within the length limit."""
    return len(text) <= MAX_STATE and _STATE.fullmatch(text) is not None


def trace_context(traceparent: str, tracestate: str | None = None) -> str:
    """Return both headers as one text."""
    return f"{traceparent} {tracestate}" if tracestate else traceparent


def parted(context: str) -> tuple[str, str | None]:
    """Return the two headers of a text."""
    traceparent, _, tracestate = context.partition(" ")
    return traceparent, tracestate or None


HintKind = Literal["message", "free"]
"""`message`: messages arrived. `free`: something else made messages ready, such as an expired lease or a seek."""


class Hint(msgspec.Struct, frozen=True):
    """A notification that messages of a queue may be ready. A lost hint costs latency, never a message."""

    queue: str
    group: str | None = None
    """The group that it concerns; None: every group except those in `excluded`."""
    partitions: tuple[str, ...] | None = None
    """The partitions that it concerns; None: any partition of the queue."""
    kind: HintKind = "free"
    excluded: tuple[str, ...] = ()
    """Groups that it does not concern: they have separate hints, or cannot receive the messages."""
    ended: tuple[str, ...] = ()
    """Leases that ended."""
    counts: tuple[int, ...] = ()
    """For a shared group: approximate number of ready messages in each of `partitions`; (): one poll each.

    For an arrival for every group: number of new messages."""


class NewMessage(msgspec.Struct, gc=False):
    """A message to push. The HTTP layer checks it, and the engine assigns its offset."""

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
    """Retry schedule of the message; None: that of the queue."""
    ttl_ms: int | None = None
    undelivered_keys: tuple[Key, ...] = ()
    """Keys of the key-value store that receive the payload if it cannot be delivered (`keysIfUndelivered`)."""
    trace_context: str | None = None
    """The W3C trace context of the producer (see `http/responses.py`)."""
    labels: tuple[str, str] | None = None
    """Namespace and task of the queue if this push makes it; None: as the name of the queue says (rule 2)."""
    unique_key: str | None = None
    """At most one message of the queue holds this key. The broker sees to it; engines ignore it."""
    unique_until: UniqueUntil = "done"

    @property
    def has_options(self) -> bool:
        """Whether it has options in addition to the payload, the transaction id and the producer."""
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
    """The result of one pushed message."""

    status: Literal["queued", "duplicate", "failed"]
    transaction_id: str | None
    message_id: str | None = None
    partition_id: str | None = None
    code: str | None = None
    error: str | None = None


RESERVED = "transaction_id_reserved"
RESERVED_TEXT = "the transactionId is the id of a message that does not exist yet; choose another one"
"""A later message without a transaction id would get the same one."""


class Subscription(msgspec.Struct, frozen=True):
    """Where a new group starts."""

    mode: SubscriptionMode = "all"
    since: int | None = None
    """For `timestamp`: the group receives messages after this time."""


class PopRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a consumer for messages: of a `queue`, or of all queues with a `namespace` and/or a `task`."""

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
    """Length of the lease, unless the queue has a `lock_duration`; None: the `lease_time` of the queue."""
    patient: bool = False
    """The caller is notified of new messages. So a remote store may respond from its local state, even if that is
    slightly out of date."""
    consumer: str = ""
    """Name of the consumer for people, shown with the lease."""


class Delivery(msgspec.Struct, gc=False):
    """A delivered message."""

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
    """1 for the first delivery; failed deliveries and expired leases count."""
    trace_context: str | None = None
    """The W3C trace context of the producer."""


class StoredMessage(Delivery, gc=False):
    """A stored message with its options, read without receiving it."""

    deliver_at: int | None = None
    expires_at: int | None = None
    backoff_ms: tuple[int, ...] | None = None
    undelivered_keys: tuple[Key, ...] = ()
    unreadable: str | None = None
    """Why the payload, which is null then, cannot be read (rule 26): code and text."""


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
    """The result of a pop: messages under one lease, or the reason why there are none."""

    messages: Sequence[Delivery] = ()
    lease_id: str = ""
    partitions: int = 0
    reason: EmptyReason = ""
    look_again_at: int | None = None
    """When empty: the earliest known time at which a message may be ready."""
    expires_at: int | None = None
    """When the lease expires, unless it is renewed."""


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a queue browser for messages of one partition, starting at an offset."""

    queue: str
    partition: str
    offset: int
    limit: int = 100


class ReadResult(msgspec.Struct, gc=False):
    """Messages in the order of their offsets (`attempt` is 0), and the offset to continue from."""

    messages: Sequence[StoredMessage]
    next_offset: int
    more: bool
    """Whether there may be more messages after them now."""


class PartitionOffset(msgspec.Struct, frozen=True, gc=False):
    """The position of a queue browser in a partition."""

    partition: str
    offset: int
    """The next offset to read."""


BrowseFrom = Literal["head", "tail"] | int
"""Where a queue browser starts: at the oldest stored message, with new messages only, or after a time."""


class KeyEntry(msgspec.Struct, frozen=True):
    """A stored value. Its version changes with every write."""

    key: Key
    value: msgspec.Raw
    version: int
    expires_at: int | None = None
    sealed_by: str | None = None
    """The queue whose key encrypts the value: it is the payload of an undeliverable message."""
    unreadable: str | None = None
    """Why the value, which is null then, cannot be read (rule 26): code and text."""


class KeyRange(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the keys below a prefix (all keys for an empty prefix)."""

    prefix: Key = ()
    start: Key | None = None
    """The first key of the range, inclusive."""
    end: Key | None = None
    """The end of the range, exclusive."""
    after: Key | None = None
    """Continue after this key: with higher keys, or with lower keys if `reverse`."""
    limit: int = 100
    reverse: bool = False


class KeyCheck(msgspec.Struct, frozen=True):
    """A condition of a write: the key must have this version; None: the key must not exist."""

    key: Key
    version: int | None


class KeyMutation(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one key."""

    kind: Literal["set", "delete", "delete_tree", "sum", "min", "max", "append", "prepend"]
    """`delete_tree`: the key and all keys below it. `sum`, `min`, `max`: of the value and the stored number, exact for
    integers up to 2^53. `append`, `prepend`: the elements of an array. The last five set the value if the key does not
    exist, and remove its expiry."""
    key: Key
    value: bytes = NULL_PAYLOAD
    ttl_ms: int | None = None


class KeyWrite(msgspec.Struct, frozen=True):
    """Checks, changes and messages that are applied together or not at all."""

    checks: Sequence[KeyCheck] = ()
    mutations: Sequence[KeyMutation] = ()
    messages: Sequence[NewMessage] = ()


class KeyWritten(msgspec.Struct, frozen=True):
    """The new version of all written keys, or the first check that failed."""

    success: bool
    version: int | None = None
    failed_check: int | None = None
    deleted: int = 0
    """Number of deleted entries."""
    messages: Sequence[PushOutcome] = ()


class KeyNotification(msgspec.Struct, frozen=True):
    """A notification that keys changed. A lost notification costs latency, never a change."""

    keys: tuple[Key, ...] | None
    """The changed keys; None: any key."""


class KeyStats(msgspec.Struct, frozen=True):
    """The size of the key-value store."""

    entries: int
    bytes: int


TaskEndState = Literal["done", "failed", "cancelled"]


class StepRef(msgspec.Struct, frozen=True, gc=False):
    """The step of a flow that a message is. It is part of the payload of the message."""

    queue: str
    """The queue that the flow belongs to."""
    id: str
    path: str
    """The place of the step in the flow, such as `1` or `0.17`."""


class TaskEnd(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How the run of a task ended, which is stored with the settlement of its message."""

    transaction_id: str
    """The transaction id of the message; with its partition it names the task."""
    state: TaskEndState = "done"
    result: bytes = NULL_PAYLOAD
    ttl_ms: int
    """How long the result is kept."""
    flow: StepRef | None = None
    """The step of a flow that the task is. The result is given to the next step, and not stored for the task."""


class Settlement(msgspec.Struct, gc=False):
    """A settlement of one message. Without `lease_id` the message must be leased to a consumer of the group."""

    transaction_id: str
    """The transaction id of the message, or the message id."""
    partition_id: str = ""
    """Can be empty if `transaction_id` is a message id, which contains the partition."""
    status: Status = "completed"
    lease_id: str | None = None
    error: str | None = None
    delay_ms: int | None = None
    """Delay before the redelivery. With `failed` it replaces the delay of the retry schedule."""
    group: str = QUEUE_MODE
    damaged: bool = False
    """With `dlq`: the payload cannot be read. It becomes a dead letter even if the queue discards others."""
    task: TaskEnd | None = None
    """The broker stores it with the settlement; engines ignore it."""
    default_delay_ms: int | None = None
    """With `failed`: the delay if neither the message nor its queue has a retry schedule with a delay."""


class SettleOutcome(msgspec.Struct, gc=False):
    """The result of one settlement. A refused settlement has a code and a text, and changed nothing."""

    transaction_id: str
    success: bool
    code: str | None = None
    error: str | None = None
    queue: str | None = None
    partition: str | None = None
    lease_released: bool = False
    dead_lettered: bool = False
    lease_id: str | None = None
    """The lease of the message; None if the settlement changed nothing."""


CancelOutcome = Literal["cancelled", "not_found", "leased", "settled"]
"""The result of a cancellation."""


class Transaction(msgspec.Struct):
    """Pushes and settlements that are applied together or not at all, in this order."""

    operations: Sequence[NewMessage | Settlement]
    required_leases: Sequence[str] = ()
    """Leases that must not have expired; a settlement without a lease id must belong to one of them."""
    keys: KeyWrite | None = None
    """Checks and writes of the key-value store; its messages count as operations after the others."""
    once: bool = False
    """Refuse everything with the code `repeated` if a settlement repeats an earlier one, or a push a stored message."""


class TransactionOutcome(msgspec.Struct):
    """Whether a transaction was applied, with one result per operation (up to the failed operation)."""

    success: bool
    results: Sequence[PushOutcome | SettleOutcome]
    code: str | None = None
    error: str | None = None
    failed_index: int | None = None
    keys: KeyWritten | None = None
    """The result of the key-value part. If a check failed, the transaction has the code `check_failed`."""


class Renewal(msgspec.Struct, frozen=True):
    """A renewal of a lease until `seconds` from now, unless it already lasts longer."""

    lease_id: str
    seconds: int = 60


class RenewOutcome(msgspec.Struct, frozen=True):
    """The new expiry of the lease, or the reason of the failure."""

    success: bool
    expires_at: int | None = None
    code: str | None = None
    error: str | None = None
    cancelled: tuple[str, ...] = ()
    """The ids of its messages whose tasks are to be cancelled."""
