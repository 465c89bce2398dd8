"""The parts of responses about waiting consumers, leases, explanations, traces and the audit log."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from hark.cli.answers import NULL


class Subscription(msgspec.Struct, rename="camel", kw_only=True):
    """The queue, partition or labels that a consumer waits for."""

    id: str
    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    consumer_group: str = ""
    batch: int | None = None
    consumer: str | None = None
    state: str | None = None


class WaitingPop(Subscription, rename="camel", tag_field="kind", tag="pop", kw_only=True):
    """A waiting pop."""

    waiting_since: str
    deadline: str


class WaitingStream(msgspec.Struct, rename="camel", tag_field="kind", tag="stream", kw_only=True):
    """A consumer on server-sent events or WebSocket."""

    id: str
    waiting_since: str
    credit: int
    unsettled: int
    paused: bool
    draining: bool
    subscriptions: list[Subscription]


class WaitingBrowser(msgspec.Struct, tag_field="kind", tag="browser", kw_only=True):
    """A queue browser, which reads messages without receiving them."""

    queue: str
    partition: str | None = None


class Consumers(msgspec.Struct):
    """A page of waiting consumers."""

    consumers: list[WaitingPop | WaitingStream | WaitingBrowser]
    total: int


class GroupReason(msgspec.Struct, rename="camel"):
    """The state of a message for one group, with the reason."""

    consumer_group: str | None
    reason: str
    text: str


class Explained(msgspec.Struct, rename="camel"):
    """A message with an explanation for each group."""

    message_id: str
    queue: str
    partition: str
    offset: int
    transaction_id: str | None
    created_at: str | None
    explanations: list[GroupReason]


class Placed(msgspec.Struct, rename="camel"):
    """The partition of a message."""

    message_id: str
    partition_id: str


class Lease(msgspec.Struct, rename="camel"):
    """The messages of one partition that a lease holds."""

    queue: str
    partition: str
    consumer_group: str
    consumer: str | None
    since: str | None
    until: str
    messages: int
    first_message_id: str


class Leases(msgspec.Struct, rename="camel"):
    """A page of leases."""

    leases: list[Lease]
    total: int


class LaggingTrack(msgspec.Struct):
    """A group and a partition with an old message (snake_case on the wire)."""

    consumer_group: str
    queue_name: str
    partition_name: str
    offset_lag: int | None = None
    time_lag_seconds: float | None = None
    oldest_unconsumed_at: str | None = None
    last_consumed_at: str | None = None


class TraceName(msgspec.Struct):
    """A name that events were recorded under (snake_case on the wire, like all of traces)."""

    trace_name: str
    trace_count: int
    message_count: int
    last_seen: str


class TraceNames(msgspec.Struct):
    """A page of names."""

    trace_names: list[TraceName]
    total: int


class TraceEvent(msgspec.Struct):
    """An event, with its message if known."""

    event_type: str
    created_at: str
    consumer_group: str = ""
    trace_names: list[str] = []
    data: Raw = NULL
    queue_name: str | None = None
    partition_name: str | None = None
    transaction_id: str | None = None


class Traces(msgspec.Struct):
    """A page of events."""

    traces: list[TraceEvent]
    total: int = 0


class AuditRecord(msgspec.Struct, rename="camel"):
    """One administrative action, with its subject, target and result."""

    at: str
    action: str
    subject: str
    role: str
    target: dict[str, Any]
    result: str
    request_id: str
    client: str


class AuditRecords(msgspec.Struct):
    """The last records of the audit log."""

    records: list[AuditRecord]


class Maintenance(msgspec.Struct, rename="camel"):
    """Whether pushes and pops are stopped."""

    maintenance_mode: bool
    pop_maintenance_mode: bool


class PushMaintenance(msgspec.Struct, rename="camel"):
    """Whether pushes are stopped."""

    maintenance_mode: bool


class PopMaintenance(msgspec.Struct, rename="camel"):
    """Whether pops are stopped."""

    pop_maintenance_mode: bool
