"""Stored messages and their states; leases; explanations of messages; transactions; trace events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from hark.api.types import (
    Answer,
    Body,
    OptionalRaw,
    Page,
    Single,
    SingleBody,
    Success,
    SuccessWith,
    WithPayload,
    renamed,
)
from hark.api.types.delivery import AckBody, PushItem
from hark.model import GroupMode, MessageState, Reason, ScheduledReason


class BusStatus(Answer):
    """How many consumer groups, other than the default group, have settled a message."""

    consumed_by: int
    total_groups: int


class ListedMessage(Answer):
    """A message without its payload."""

    id: str
    transaction_id: str
    partition_id: str
    queue_path: str
    queue: str
    partition: str
    namespace: str
    task: str
    offset: int
    status: MessageState
    """The most urgent state over all groups."""
    queue_status: MessageState | None
    """The state in the default group."""
    bus_status: BusStatus
    trace_id: str | None
    producer_sub: str | None
    priority: int
    queue_priority: int
    created_at: datetime
    deliver_at: datetime | None
    reason: ScheduledReason | None
    due_at: datetime | None
    lease_expires_at: datetime | None


class Mode(Answer, omit_defaults=True):
    """The kinds of consumer groups: only the default group (queue), only others (bus), both (hybrid), or none."""

    has_queue_mode: bool
    bus_groups_count: int
    type: Literal["queue", "bus", "hybrid", "none"]
    consumed_by_groups: tuple[str, ...] | None = None
    """Of one message: the groups that have settled it."""


class MessagePage(Answer):
    """Messages, the newest first."""

    messages: tuple[ListedMessage, ...]
    mode: Mode


class MessageGroup(Answer):
    """The state of a message in a consumer group."""

    name: str
    consumed: bool
    lease_expires_at: datetime | None
    status: MessageState
    reason: ScheduledReason | None
    due_at: datetime | None
    attempts: int
    error: str | None = msgspec.field(name="errorMessage")


class MessageQueue(Answer):
    """Some options of the queue of a message."""

    lease_time: int
    retry_limit: int
    retry_delay: int
    ttl: int
    priority: int


class ShownMessage(WithPayload, ListedMessage):
    """A message with its payload and its state in each consumer group."""

    payload: msgspec.Raw
    payload_error: str | None
    """Error code and text if the server cannot read the payload, which is null then."""
    is_encrypted: bool
    error: str | None = msgspec.field(name="errorMessage")
    retry_count: int
    queue_config: MessageQueue
    mode: Mode
    groups: tuple[MessageGroup, ...] = msgspec.field(name="consumerGroups")


class DeletedMessage(Success):
    """Whether the message was deleted."""

    partition_id: str
    transaction_id: str
    message: str


class RemovedMessage(Success, omit_defaults=True):
    """The message was deleted or cancelled."""

    id: str
    cancelled: bool | None = None
    cancelling: bool | None = None
    """A consumer has the message, and is notified when it renews its lease."""


# Leases ---------------------------------------------------------------------------------------------------


class ActiveLease(Answer):
    """The messages that an active lease holds in one partition."""

    lease_id: str | None
    """None if your token only has permission to read."""
    queue: str
    partition: str
    partition_id: str
    consumer_group: str
    mode: GroupMode
    consumer: str | None
    """The holder: the name of the consumer, or the subject of its token and its address."""
    since: datetime | None
    until: datetime
    messages: int
    first_message_id: str


LeasePage = renamed(Page[ActiveLease], "LeasePage", "A page of leases, the oldest first.", items="leases")


ExtendBody = renamed(
    SingleBody[int], "ExtendBody", "The length of the renewal. The body can be empty.", value="seconds"
)


class ExtendManyBody(Body):
    """The leases to renew, and the length of the renewal."""

    lease_ids: list[str]
    seconds: int | None = None


class RenewalAnswer(Answer, omit_defaults=True):
    """The result of one lease renewal."""

    lease_id: str
    success: bool
    expires_at: datetime | None
    error: str | None = None
    code: str | None = None
    cancelled: tuple[str, ...] = ()
    """The ids of its messages whose tasks are to be cancelled."""


ExtendedLeases = renamed(
    Single[tuple[RenewalAnswer, ...]],
    "ExtendedLeases",
    "The results of lease renewals, in the order of the leases.",
    value="results",
)


class ExtendedLease(Answer, omit_defaults=True):
    """The result of a lease renewal. The time has three names, because clients read different ones."""

    index: int
    lease_id: str
    success: bool
    renewed: int
    error: str | None
    expires_at: datetime | None
    new_expires_at: datetime | None
    lease_expires_at: datetime | None = msgspec.field(name="lease_expires_at")
    code: str | None = None
    cancelled: tuple[str, ...] = ()
    """The ids of its messages whose tasks are to be cancelled."""


# Explanations ----------------------------------------------------------------------------------------------


class AheadMessage(Answer, omit_defaults=True):
    """An earlier message that blocks this message in an ordered group, and the reason."""

    message_id: str
    offset: int
    reason: Literal["leased", "retry", "delayed"]
    consumer: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    attempts: int | None = None
    due: datetime | None = None
    error: str | None = None
    deliver_at: datetime | None = None


class GroupReason(Answer, omit_defaults=True):
    """Why a message was not delivered to a consumer group or settled by it. The reason determines the other fields."""

    consumer_group: str | None
    """None: no group has ever requested messages of the queue."""
    reason: Reason
    text: str
    consumer: str | None = None
    """The consumer that holds the message, between `since` and `until`."""
    since: datetime | None = None
    until: datetime | None = None
    """When the obstacle ends: a lease, a window buffer or a rate limit."""
    attempt: int | None = None
    attempts: int | None = None
    retries_allowed: int | None = None
    due: datetime | None = None
    error: str | None = None
    failed_at: datetime | None = None
    dead_letter_id: str | None = None
    deliver_at: datetime | None = None
    delayed_processing: int | None = None
    window_buffer: int | None = None
    expired_at: datetime | None = None
    starts_after: datetime | None = None
    owner: str | None = None
    settled_at_latest: datetime | None = None
    certain: bool | None = None
    moved: bool | None = None
    ahead: AheadMessage | None = None
    ahead_messages: int | None = None
    scope: Literal["queue", "group", "partition"] | None = None
    limit: float | None = None
    in_flight: int | None = None
    waiting: int | None = None
    """Number of consumers that wait for it on the server that answered."""
    asked_at: datetime | None = None
    """When a consumer of the group last requested messages."""
    asked_here_only: bool | None = None


class ExplainedMessage(Answer):
    """A message, and an explanation of its state for each consumer group."""

    message_id: str
    queue: str
    partition: str
    partition_id: str
    offset: int
    transaction_id: str | None
    """None, like `created_at`, if the message is not stored any more."""
    created_at: datetime | None
    reasons: tuple[GroupReason, ...] = msgspec.field(name="explanations")
    """Sorted by the names of the groups."""


# Transactions ----------------------------------------------------------------------------------------------


class PushOperation(PushItem, tag_field="type", tag="push", kw_only=True):
    """A push: either several messages in `items`, or the fields of one message."""

    queue: str = ""
    items: list[PushItem] | None = None


class AckOperation(AckBody, tag_field="type", tag="ack"):
    """An acknowledgement."""


class TransactionBody(Body):
    """The operations of a transaction, in order, and the leases that they require."""

    operations: list[PushOperation | AckOperation]
    required_leases: list[str] | None = None
    kv: OptionalRaw = UNSET
    timers: list[msgspec.Raw] | None = None


class OperationResult(Answer):
    """The result of one push or acknowledgement of a transaction. The server leaves out what is not of its type."""

    index: int
    type: Literal["push", "ack"]
    success: bool
    transaction_id: str | None
    status: str | UnsetType | None = None
    """For a push: `queued` or `duplicate`."""
    message_id: str | UnsetType | None = None
    partition_id: str | UnsetType | None = None
    queue: str | UnsetType | None = msgspec.field(name="queueName", default=None)
    error: str | UnsetType | None = None
    dead_lettered: bool | UnsetType = msgspec.field(name="dlq", default=False)
    """For an acknowledgement: whether the message was dead-lettered."""
    code: str | UnsetType | None = None


class WrittenKeys(Answer, omit_defaults=True):
    """The result of the key-value part of a transaction."""

    ok: bool
    versionstamp: str | None = None


class TransactionAnswer(Answer, omit_defaults=True):
    """The result of a transaction. `success` false means that it was refused and nothing was applied."""

    transaction_id: str
    success: bool
    results: tuple[OperationResult, ...]
    error: str | None = None
    code: str | None = None
    kv: WrittenKeys | None = None

    @property
    def versionstamp(self) -> str | None:
        """Versionstamp of the keys that it wrote. None if it wrote none."""
        return None if self.kv is None else self.kv.versionstamp


# Traces ----------------------------------------------------------------------------------------------------


class TraceBody(Body):
    """A trace event to record. Null means absent."""

    partition_id: str | None = None
    transaction_id: str | None = None
    data: OptionalRaw = UNSET
    consumer_group: str | None = None
    event_type: str | None = None
    trace_names: str | list[str] | None = None


RecordedTrace = renamed(SuccessWith[str], "RecordedTrace", "The trace event was recorded.", value="traceId")


class TraceEvent(WithPayload, Answer, rename=None):
    """A trace event that a consumer recorded about a message."""

    _source = "trace {0.id}"
    id: str
    event_type: str
    payload: msgspec.Raw = msgspec.field(name="data")
    consumer_group: str
    worker_id: None
    created_at: datetime
    trace_names: Sequence[str]


TracesOfMessage = renamed(
    Single[tuple[TraceEvent, ...]],
    "TracesOfMessage",
    "Trace events about one message, the oldest first.",
    value="traces",
)


class NamedTrace(TraceEvent, rename=None):
    """A trace event with its message."""

    transaction_id: str
    partition_id: str
    queue_name: str
    partition_name: str
    message_payload: msgspec.Raw
    payload_error: str | None = msgspec.field(name="payloadError", default=None)

    @property
    def message_data(self) -> Any:
        """The payload of the message. None if the message was removed."""
        return msgspec.json.decode(self.message_payload)


NamedTraces = renamed(
    Page[NamedTrace], "NamedTraces", "A page of trace events of one name, the newest first.", items="traces"
)


class TraceName(Answer, rename=None):
    """A trace name with counts."""

    trace_name: str
    trace_count: int
    message_count: int
    last_seen: datetime


TraceNames = renamed(Page[TraceName], "TraceNames", "A page of trace names.", items="trace_names")
