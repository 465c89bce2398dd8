"""Responses about the server and its waiting consumers."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from hark.http.answers.common import Pagination


class SharedState(TypedDict):
    """Exists for compatibility with the Queen API."""

    enabled: bool


class Worker(TypedDict):
    """Exists for compatibility with the Queen API."""

    worker_id: int
    status: str


class Health(TypedDict):
    """The health of the server."""

    status: Literal["healthy", "unhealthy"]
    database: Literal["connected", "disconnected"]
    server: str
    worker_id: int
    version: str
    shared_state: SharedState
    queen: Worker
    error: NotRequired[str]
    code: NotRequired[str]


class Live(TypedDict):
    """The process responds."""

    status: Literal["live"]


class Ready(TypedDict):
    """Whether the server is ready for requests."""

    status: Literal["ready", "not ready"]
    error: NotRequired[str]
    code: NotRequired[str]


class BatchSizes(TypedDict):
    """How many requests shared calls of the store."""

    calls: int
    requests: int
    largest: int


class SystemMetrics(TypedDict):
    """Internal numbers of this server process."""

    store: dict[str, Any]
    delivery: dict[str, Any]
    watching: dict[str, Any]
    batching: dict[str, BatchSizes]
    peers: NotRequired[Any]


class FailedFiles(TypedDict):
    """Exists for compatibility with the Queen API. All values are 0."""

    count: int
    totalBytes: int
    totalMB: int
    failoverCount: int
    qos0Count: int


class BufferStats(TypedDict):
    """Exists for compatibility with the Queen API. Hark has no write buffer, so the counts are 0."""

    pendingCount: int
    failedCount: int
    dbHealthy: bool
    failedFiles: FailedFiles


class Buffer(TypedDict):
    """Exists for compatibility with the Queen API."""

    bufferedMessages: int
    bufferHealthy: bool


class Maintenance(Buffer):
    """The maintenance mode of pushes and pops."""

    maintenanceMode: bool
    popMaintenanceMode: bool
    bufferStats: BufferStats


class PushMaintenance(Buffer):
    """The maintenance mode of pushes."""

    maintenanceMode: bool
    message: str


class PopMaintenance(TypedDict):
    """The maintenance mode of pops."""

    popMaintenanceMode: bool
    message: str


# Waiting consumers -----------------------------------------------------------------------------------------


class WaitingPop(msgspec.Struct, rename="camel", tag_field="kind", tag="pop", kw_only=True):
    """A waiting pop."""

    id: str
    queue: str | None
    partition: str | None
    namespace: str | None
    task: str | None
    consumer_group: str
    batch: int
    priority: int
    consumer: str | None
    waiting_since: str
    deadline: str
    state: str


class StreamSubscription(msgspec.Struct, rename="camel", kw_only=True):
    """A subscription of a stream."""

    id: str
    queue: str | None
    partition: str | None
    namespace: str | None
    task: str | None
    consumer_group: str
    batch: int
    priority: int
    consumer: str | None
    state: str


class WaitingStream(msgspec.Struct, rename="camel", tag_field="kind", tag="stream", kw_only=True):
    """A streaming consumer: server-sent events or WebSocket."""

    id: str
    waiting_since: str
    credit: int
    unsettled: int
    paused: bool
    draining: bool
    subscriptions: list[StreamSubscription]


class WaitingBrowser(msgspec.Struct, rename={"start": "from"}, tag_field="kind", tag="browser", kw_only=True):
    """A queue browser: it reads messages without receiving them."""

    queue: str
    partition: str | None
    start: str


class Consumers(TypedDict):
    """A page of the waiting consumers of this server process."""

    consumers: list[WaitingPop | WaitingStream | WaitingBrowser]
    total: int
    pagination: Pagination
