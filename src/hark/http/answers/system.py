"""Answers about the server itself, and about those who wait on it."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from hark.http.answers.common import Pagination


class SharedState(TypedDict):
    """Of the original: whether servers share a cache."""

    enabled: bool


class Worker(TypedDict):
    """Of the original: which of its workers answered."""

    worker_id: int
    status: str


class Health(TypedDict):
    """Whether the server can reach its store."""

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
    """The process answers."""

    status: Literal["live"]


class Ready(TypedDict):
    """Whether requests should be sent here."""

    status: Literal["ready", "not ready"]
    error: NotRequired[str]
    code: NotRequired[str]


class BatchSizes(TypedDict):
    """How many requests shared calls to the store."""

    calls: int
    requests: int
    largest: int


class SystemMetrics(TypedDict):
    """Numbers about the store, about those who wait or watch, and about what shared a call."""

    store: dict[str, Any]
    delivery: dict[str, Any]
    watching: dict[str, Any]
    batching: dict[str, BatchSizes]
    peers: NotRequired[Any]


class FailedFiles(TypedDict):
    """Of the original: files of messages that could not be stored."""

    count: int
    totalBytes: int
    totalMB: int
    failoverCount: int
    qos0Count: int


class BufferStats(TypedDict):
    """Of the original: messages that were answered before they were stored; here there are none."""

    pendingCount: int
    failedCount: int
    dbHealthy: bool
    failedFiles: FailedFiles


class Buffer(TypedDict):
    """Of the original, in short."""

    bufferedMessages: int
    bufferHealthy: bool


class Maintenance(Buffer):
    """Whether pushes and pops are stopped."""

    maintenanceMode: bool
    popMaintenanceMode: bool
    bufferStats: BufferStats


class PushMaintenance(Buffer):
    """Whether pushes are stopped."""

    maintenanceMode: bool
    message: str


class PopMaintenance(TypedDict):
    """Whether pops are stopped."""

    popMaintenanceMode: bool
    message: str


# Those who wait --------------------------------------------------------------------------------------------


class WaitingPop(msgspec.Struct, rename="camel", tag_field="kind", tag="pop", kw_only=True):
    """A pop that waits."""

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
    """What a stream is to get."""

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
    """A consumer by server-sent events or by WebSocket."""

    id: str
    waiting_since: str
    credit: int
    unsettled: int
    paused: bool
    draining: bool
    subscriptions: list[StreamSubscription]


class WaitingBrowser(msgspec.Struct, rename={"start": "from"}, tag_field="kind", tag="browser", kw_only=True):
    """Somebody who sees messages as they come and takes none."""

    queue: str
    partition: str | None
    start: str


class Consumers(TypedDict):
    """Those who wait on this server."""

    consumers: list[WaitingPop | WaitingStream | WaitingBrowser]
    total: int
    pagination: Pagination
