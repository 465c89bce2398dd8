"""The server: health, metrics, maintenance, sessions, settings, audit records and live samples."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from hark.api.types.base import Answer, Body


class Health(Answer, rename=None, omit_defaults=True):
    """The health of the server."""

    status: Literal["healthy", "unhealthy"]
    database: Literal["connected", "disconnected"]
    server: str
    worker_id: int
    version: str
    shared_state: dict[str, bool]
    queen: dict[str, int | str]
    error: str | None = None
    code: str | None = None
    warnings: tuple[str, ...] | None = None

    @property
    def healthy(self) -> bool:
        """Whether the status is `healthy`."""
        return self.status == "healthy"


class Ready(Answer, omit_defaults=True):
    """Whether the process responds, or whether the server is ready for requests."""

    status: Literal["live", "ready", "not ready"]
    error: str | None = None
    code: str | None = None


class BatchSizes(Answer):
    """How many requests shared calls of the store."""

    calls: int
    requests: int
    largest: int


class SystemMetrics(Answer, omit_defaults=True):
    """Internal numbers of this server process."""

    store: dict[str, Any]
    delivery: dict[str, Any]
    watching: dict[str, Any]
    batching: dict[str, BatchSizes]
    peers: dict[str, Any] = msgspec.field(default_factory=dict)


# Maintenance -----------------------------------------------------------------------------------------------


class MaintenanceBody(Body):
    """Whether maintenance is on."""

    enabled: bool


class Maintenance(Answer):
    """The maintenance mode of pushes and pops. The buffer exists for compatibility with the Queen API."""

    push: bool = msgspec.field(name="maintenanceMode")
    pop: bool = msgspec.field(name="popMaintenanceMode")
    buffered_messages: int
    buffer_healthy: bool
    buffer_stats: dict[str, Any]


class PushMaintenance(Answer):
    """The maintenance mode of pushes."""

    maintenance_mode: bool
    buffered_messages: int
    buffer_healthy: bool
    message: str


class PopMaintenance(Answer):
    """The maintenance mode of pops."""

    pop_maintenance_mode: bool
    message: str


# Sessions, settings and audit records ----------------------------------------------------------------------


class SessionBody(Body):
    """The token to log in with."""

    token: str


class Session(Answer):
    """The current login, and whether a token is required."""

    required: bool
    authenticated: bool
    subject: str = ""
    role: str | None = None
    queues: tuple[str, ...] = ()


class ShownSetting(Answer):
    """A setting. Secrets are hidden."""

    name: str
    value: Any
    meaning: str


class ShownSettings(Answer):
    """Version, store and settings of the server."""

    version: str
    engine: str
    settings: tuple[ShownSetting, ...]


class AuditRecord(Answer):
    """A record of the audit log: an action, its target, its subject and its result."""

    at: datetime
    action: str
    """For example `delete_queue`, `login` or `refused`."""
    subject: str
    """Empty when authentication is off or the token is unknown."""
    role: str
    """Empty when the token is unknown."""
    target: dict[str, Any]
    status: int
    """HTTP status of the response."""
    result: str
    """`done`, `failed`, or the error code of a refusal."""
    request_id: str
    client: str
    """Address of the client."""
    suppressed: int = 0
    """Number of refusals before this one that were not recorded, because there were too many."""


class AuditRecords(Answer):
    """The latest audit records of this server process, the newest first."""

    records: tuple[AuditRecord, ...]


# Samples ---------------------------------------------------------------------------------------------------


class LatencyMs(Answer):
    """Age of messages at their first delivery, in milliseconds. Null: no message was delivered."""

    p50: float | None = None
    p99: float | None = None


class HistorySample(Answer):
    """Throughput of this server process in an interval, and depths of the store at its end. Null: not known."""

    at: datetime
    pushed_per_second: float | None = None
    delivered_per_second: float | None = None
    settled_per_second: float | None = None
    failed_per_second: float | None = None
    dead_lettered_per_second: float | None = None
    backlog: int | None = None
    scheduled: int | None = None
    in_flight: int | None = None
    oldest_waiting_seconds: float | None = None
    latency_ms: LatencyMs = LatencyMs()


class History(Answer):
    """Samples of the last hour, the oldest first."""

    interval_seconds: int
    samples: tuple[HistorySample, ...]


class Waiting(Answer):
    """Number of waiting consumers of this server process."""

    pops: int
    streams: int
    browsers: int


class Stopped(Answer):
    """Whether pushes or pops are stopped for maintenance."""

    push: bool = False
    pop: bool = False


class BusyQueue(Answer):
    """Throughput of a queue."""

    queue: str
    pushed_per_second: float
    delivered_per_second: float
    settled_per_second: float


class LiveSample(HistorySample):
    """A sample of the last second, as an event."""

    queues: int | None = None
    partitions: int | None = None
    dead_letters: int | None = None
    waiting: Waiting | None = None
    maintenance: Stopped = Stopped()
    busiest: tuple[BusyQueue, ...] = ()
    changed: tuple[str, ...] = ()
    more: bool = False
