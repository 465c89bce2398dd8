"""The server as an administrator sees it: queues, messages, those who wait, numbers, maintenance."""

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
"""Who asks for the health of a server does not want these to be waited out."""


class Admin:
    """The verbs about the server and about single messages."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # Everything there is -----------------------------------------------------------------------------------

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
        """Queues with their counts; `search` is a part of their names. `backlog`: most waiting messages first."""
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
        """The namespaces that queues are labelled with."""
        query = {"limit": limit, "offset": offset}
        return (await self._caller.read(_Namespaces, "GET", path("resources", "namespaces"), query=query)).namespaces

    async def tasks(self, *, limit: int = 10_000, offset: int = 0) -> tuple[TaskSummary, ...]:
        """The tasks that queues are labelled with."""
        query = {"limit": limit, "offset": offset}
        return (await self._caller.read(_Tasks, "GET", path("resources", "tasks"), query=query)).tasks

    async def overview(self) -> Overview:
        """Totals over all queues, and how far behind the groups are."""
        return await self._caller.read(Overview, "GET", path("resources", "overview"))

    async def consumers(self, *, queue: str | None = None, limit: int = 100, offset: int = 0) -> WaitingPage:
        """Who waits on the server process that answers."""
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
        """Who holds what: live leases, one entry for each partition that they hold messages of, oldest first."""
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
        """Messages of the last hour, or of the time that is asked for, newest first and without payloads."""
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
        """One message, by its transaction id or its id, with its payload and what each group did with it."""
        return await self._caller.read(MessageDetails, "GET", path("messages", partition_id, transaction_id))

    async def explain(self, id: str, group: str | None = None) -> ExplainedMessage:
        """Why a message has not been delivered or settled: for one group, or for each that the queue has."""
        return await self._caller.read(ExplainedMessage, "GET", path("explain", id), query={"consumerGroup": group})

    async def delete_message(self, id: str, partition_id: str | None = None) -> bool:
        """Remove a message by its id, or by its transaction id in a partition, held or not; whether it was there.

        (After a lost reply it may be gone by our own doing.)
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
        """Take back a message that no group has got yet.

        Raises `NotFound` if there is none, and `Conflict` with the code `message_leased` or `message_settled` when it
        is too late; then nothing was changed.
        """
        await self._caller.call("POST", path("messages", id, "cancel"))

    # The server itself -------------------------------------------------------------------------------------

    async def health(self) -> Health:
        """Whether the server can reach its store; asked once. Raises `ConnectionFailed` when there is no answer."""
        try:
            return await self._caller.read(Health, "GET", "/health", final=_AS_IT_IS)
        except Unavailable as error:
            if error.code != "unhealthy":
                raise
            return Health(status="unhealthy", error=error.text)

    async def metrics(self) -> ServerMetrics:
        """Numbers about the store, about those who wait, and about what shared a call."""
        return await self._caller.read(ServerMetrics, "GET", path("system", "metrics"))

    async def key_metrics(self, queue: str | None = None) -> KeyMetrics:
        """Numbers about the key-value API and one of its queues."""
        return await self._caller.read(KeyMetrics, "GET", "/keyval/api/metrics", query={"queue": queue})

    async def prometheus(self, queue: str | None = None) -> str:
        """The numbers of the key-value API as Prometheus reads them."""
        answer = await self._caller.call("GET", "/keyval/api/metrics/prometheus", query={"queue": queue})
        return answer.body.decode()

    async def maintenance(self) -> Maintenance:
        """Whether pushes and pops are stopped on purpose."""
        return await self._caller.read(Maintenance, "GET", path("system", "maintenance"))

    async def set_push_maintenance(self, enabled: bool) -> None:
        """Refuse all pushes, or accept them again; over restarts too."""
        await self._caller.call("POST", path("system", "maintenance"), body={"enabled": enabled}, safe=True)

    async def set_pop_maintenance(self, enabled: bool) -> None:
        """Answer all pops empty, or serve them again; over restarts too."""
        await self._caller.call("POST", path("system", "maintenance", "pop"), body={"enabled": enabled}, safe=True)


class _Queues(msgspec.Struct):
    queues: tuple[QueueSummary, ...]


class _Namespaces(msgspec.Struct):
    namespaces: tuple[NamespaceSummary, ...]


class _Tasks(msgspec.Struct):
    tasks: tuple[TaskSummary, ...]


class _Removed(msgspec.Struct):
    success: bool
