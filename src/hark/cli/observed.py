"""The parts of answers about what goes on that commands show: who waits, who holds what and why, what was done."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from hark.cli.answers import NULL


class Subscription(msgspec.Struct, rename="camel", kw_only=True):
    """What somebody waits for."""

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
    """A pop that waits."""

    waiting_since: str
    deadline: str


class WaitingStream(msgspec.Struct, rename="camel", tag_field="kind", tag="stream", kw_only=True):
    """A consumer by server-sent events or by WebSocket."""

    id: str
    waiting_since: str
    credit: int
    unsettled: int
    paused: bool
    draining: bool
    subscriptions: list[Subscription]


class WaitingBrowser(msgspec.Struct, tag_field="kind", tag="browser", kw_only=True):
    """Somebody who sees messages and takes none."""

    queue: str
    partition: str | None = None


class Consumers(msgspec.Struct):
    """A page of those who wait."""

    consumers: list[WaitingPop | WaitingStream | WaitingBrowser]
    total: int


class GroupReason(msgspec.Struct, rename="camel"):
    """Why a message is where it is, for one group."""

    consumer_group: str | None
    reason: str
    text: str


class Explained(msgspec.Struct, rename="camel"):
    """A message, and why it is where it is."""

    message_id: str
    queue: str
    partition: str
    offset: int
    transaction_id: str | None
    created_at: str | None
    explanations: list[GroupReason]


class Placed(msgspec.Struct, rename="camel"):
    """Where a message is."""

    message_id: str
    partition_id: str


class Lease(msgspec.Struct, rename="camel"):
    """What a lease holds of one partition."""

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
    """Where a message of a group has waited long (snake_case on the wire)."""

    consumer_group: str
    queue_name: str
    partition_name: str
    offset_lag: int | None = None
    time_lag_seconds: float | None = None
    oldest_unconsumed_at: str | None = None
    last_consumed_at: str | None = None


class TraceName(msgspec.Struct):
    """A name that events were recorded under (snake_case on the wire, as all of traces)."""

    trace_name: str
    trace_count: int
    message_count: int
    last_seen: str


class TraceNames(msgspec.Struct):
    """A page of names."""

    trace_names: list[TraceName]
    total: int


class TraceEvent(msgspec.Struct):
    """An event, maybe with the message that it is about."""

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
    """Who did what to what, and how it ended."""

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
