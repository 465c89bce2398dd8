"""Administration of the server: queues, messages, leases, waiting consumers, metrics and maintenance mode."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from hark.client.administration.explain_results import ExplainedMessage, LeasePage
from hark.client.administration.message_results import MessageDetails, MessageList, MessageStatus, MessageSummary
from hark.client.administration.results import (
    Health,
    KeyMetrics,
    Maintenance,
    NamespaceSummary,
    Overview,
    QueueSummary,
    ServerMetrics,
    TaskSummary,
    WaitingPage,
)
from hark.client.calling import Caller, path
from hark.client.parameters import optional_moment
from hark.errors import NotFound, Unavailable

_AS_IT_IS = frozenset({"unhealthy", "connection_failed"})
"""Codes that a health check does not retry."""


class Admin:
    """Administration of the server and of single messages, `client.admin`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # Lists -------------------------------------------------------------------------------------------------

    async def queues(
        self,
        *,
        search: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        sort: Literal["newest", "name", "backlog"] = "newest",
        limit: int = 10_000,
        offset: int = 0,
    ) -> tuple[QueueSummary, ...]:
        """List queues with their message counts.

        `search` matches a part of the name. `sort` is `newest` (newest queue first), `name`, or `backlog` (largest
        backlog first).
        """
        query = {
            "search": search,
            "namespace": namespace,
            "task": task,
            "sort": sort,
            "limit": limit,
            "offset": offset,
        }
        return (await self._caller.read(_Queues, "GET", path("resources", "queues"), query=query)).queues

    async def namespaces(self, *, limit: int = 10_000, offset: int = 0) -> tuple[NamespaceSummary, ...]:
        """List the namespaces of queues."""
        query = {"limit": limit, "offset": offset}
        return (await self._caller.read(_Namespaces, "GET", path("resources", "namespaces"), query=query)).namespaces

    async def tasks(self, *, limit: int = 10_000, offset: int = 0) -> tuple[TaskSummary, ...]:
        """List the task labels of queues."""
        query = {"limit": limit, "offset": offset}
        return (await self._caller.read(_Tasks, "GET", path("resources", "tasks"), query=query)).tasks

    async def overview(self) -> Overview:
        """Totals over all queues, and the lag of the consumer groups."""
        return await self._caller.read(Overview, "GET", path("resources", "overview"))

    async def consumers(self, *, queue: str | None = None, limit: int = 100, offset: int = 0) -> WaitingPage:
        """List waiting consumers of the server process that answers. `queue` selects consumers that name that queue."""
        query = {"queue": queue, "limit": limit, "offset": offset}
        return await self._caller.read(WaitingPage, "GET", path("consumers"), query=query)

    async def leases(
        self,
        *,
        queue: str | None = None,
        partition: str | None = None,
        group: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> LeasePage:
        """List active leases: one entry for each lease and partition, oldest first."""
        query = {"queue": queue, "partition": partition, "consumerGroup": group, "limit": limit, "offset": offset}
        return await self._caller.read(LeasePage, "GET", path("leases"), query=query)

    # Messages ----------------------------------------------------------------------------------------------

    async def messages(
        self,
        *,
        queue: str | None = None,
        partition: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        status: MessageStatus | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 200,
        offset: int = 0,
    ) -> tuple[MessageSummary, ...]:
        """List messages, newest first and without payloads.

        The default time range is the last hour. `since` and `until` are datetimes with a time zone.
        """
        query = {
            "queue": queue,
            "partition": partition,
            "namespace": namespace,
            "task": task,
            "status": status,
            "from": optional_moment(since, "since"),
            "to": optional_moment(until, "until"),
            "limit": limit,
            "offset": offset,
        }
        return (await self._caller.read(MessageList, "GET", path("messages"), query=query)).messages

    async def message(self, partition_id: str, transaction_id: str) -> MessageDetails:
        """One message with its payload and its state in each group.

        `transaction_id` is the idempotency key or the message id. Raises `NotFound` if there is no such message.
        """
        return await self._caller.read(MessageDetails, "GET", path("messages", partition_id, transaction_id))

    async def explain(self, id: str, group: str | None = None) -> ExplainedMessage:
        """Explain why a message has not been delivered or settled: for one group, or for each group of the queue.

        `id` is the message id. Raises `NotFound` if there never was such a message.
        """
        return await self._caller.read(ExplainedMessage, "GET", path("explain", id), query={"consumerGroup": group})

    async def delete_message(self, id: str, partition_id: str | None = None) -> bool:
        """Delete a message, also if it is in flight. Returns whether it existed.

        `id` is the message id, or with `partition_id` the idempotency key. If the request is repeated after a lost
        reply, the result may be False although the message was deleted.
        """
        if partition_id is not None:
            return (await self._caller.read(_Removed, "DELETE", path("messages", partition_id, id))).success
        try:
            await self._caller.call("DELETE", path("messages", id))
        except NotFound as error:
            if error.code != "message_not_found":
                raise
            return False
        return True

    async def cancel(self, id: str) -> None:
        """Cancel a message that no consumer has received yet.

        Raises `NotFound` if there is no such message. Raises `Conflict` with the code `message_leased` or
        `message_settled` if it is too late; nothing is changed then.
        """
        await self._caller.call("POST", path("messages", id, "cancel"))

    # The server itself -------------------------------------------------------------------------------------

    async def health(self) -> Health:
        """Whether the server can reach its store. Not retried: raises `ConnectionFailed` if no server answers."""
        try:
            return await self._caller.read(Health, "GET", "/health", final=_AS_IT_IS)
        except Unavailable as error:
            if error.code != "unhealthy":
                raise
            return Health(status="unhealthy", error=error.text)

    async def metrics(self) -> ServerMetrics:
        """Metrics of the store, of waiting consumers and of batched calls."""
        return await self._caller.read(ServerMetrics, "GET", path("system", "metrics"))

    async def key_metrics(self, queue: str | None = None) -> KeyMetrics:
        """Metrics of the key-value API and of one of its queues."""
        return await self._caller.read(KeyMetrics, "GET", "/keyval/api/metrics", query={"queue": queue})

    async def prometheus(self, queue: str | None = None) -> str:
        """The metrics of the key-value API in the text format of Prometheus."""
        answer = await self._caller.call("GET", "/keyval/api/metrics/prometheus", query={"queue": queue})
        return answer.body.decode()

    async def maintenance(self) -> Maintenance:
        """Whether pushes or pops are in maintenance mode."""
        return await self._caller.read(Maintenance, "GET", path("system", "maintenance"))

    async def set_push_maintenance(self, enabled: bool) -> None:
        """Turn push maintenance on or off: all pushes are rejected. The state survives restarts."""
        await self._caller.call("POST", path("system", "maintenance"), body={"enabled": enabled}, safe=True)

    async def set_pop_maintenance(self, enabled: bool) -> None:
        """Turn pop maintenance on or off: all pops return nothing. The state survives restarts."""
        await self._caller.call("POST", path("system", "maintenance", "pop"), body={"enabled": enabled}, safe=True)


class _Queues(msgspec.Struct):
    queues: tuple[QueueSummary, ...]


class _Namespaces(msgspec.Struct):
    namespaces: tuple[NamespaceSummary, ...]


class _Tasks(msgspec.Struct):
    tasks: tuple[TaskSummary, ...]


class _Removed(msgspec.Struct):
    success: bool
