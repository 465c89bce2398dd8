"""Administration of the server: queues, messages, leases, waiting consumers, traces and maintenance mode."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from hark.api import operations
from hark.api.types.groups import Consumers
from hark.api.types.keys import KeyvalMetrics
from hark.api.types.leases import ExplainedMessage, LeasePage
from hark.api.types.messages import ListedMessage, NamedTraces, ShownMessage, TraceEvent, TraceNames
from hark.api.types.queues import ListedQueue, Namespace, Overview, Task
from hark.api.types.server import Health, Maintenance, MaintenanceBody, SystemMetrics
from hark.client.arguments import Identified, Wrapped, ids_of, json_value, optional_moment
from hark.client.calling import Caller
from hark.errors import NotFound, Unavailable
from hark.model import MessageState


class Traces:
    """TraceEvent events about messages, `client.traces`. Give the message, or its partition id and transaction id."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def add(
        self,
        message: Identified | Wrapped | None = None,
        data: object = None,
        *,
        event: str = "info",
        names: str | Sequence[str] = (),
        group: str | None = None,
        partition_id: str | None = None,
        transaction_id: str | None = None,
    ) -> str:
        """Record a trace event about a message. Returns the id of the event.

        `data` is any JSON value, `event` the type of the event. `by_name` finds the event by each of the `names`.
        `group` is the consumer group; the default is the group of the delivery.
        """
        partition, transaction = ids_of(message, partition_id, transaction_id)
        delivered = getattr(message, "delivered", message)
        body = {
            "partitionId": partition,
            "transactionId": transaction,
            "data": json_value(data, "data"),
            "consumerGroup": group or getattr(delivered, "consumer_group", None),
            "eventType": event,
            "traceNames": [names] if isinstance(names, str) else list(names),
        }
        return (await self._caller.ask(operations.RECORD, body=body)).trace_id

    async def of(
        self,
        message: Identified | Wrapped | None = None,
        *,
        partition_id: str | None = None,
        transaction_id: str | None = None,
        limit: int = 1000,
        offset: int = 0,
    ) -> tuple[TraceEvent, ...]:
        """The trace events of a message, oldest first."""
        partition, transaction = ids_of(message, partition_id, transaction_id)
        query = {"limit": limit, "offset": offset}
        return (await self._caller.ask(operations.LIST_OF_MESSAGE, partition, transaction, query=query)).traces

    async def by_name(self, name: str, *, limit: int = 100, offset: int = 0) -> NamedTraces:
        """The trace events with a name, over all messages, newest first."""
        query = {"limit": limit, "offset": offset}
        return await self._caller.ask(operations.LIST_BY_NAME, name, query=query)

    async def names(self, *, limit: int = 50, offset: int = 0) -> TraceNames:
        """The names of recorded trace events."""
        query = {"limit": limit, "offset": offset}
        return await self._caller.ask(operations.LIST_NAMES, query=query)


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
    ) -> tuple[ListedQueue, ...]:
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
        return (await self._caller.ask(operations.LIST_QUEUES, query=query)).queues

    async def namespaces(self, *, limit: int = 10_000, offset: int = 0) -> tuple[Namespace, ...]:
        """List the namespaces of queues."""
        query = {"limit": limit, "offset": offset}
        return (await self._caller.ask(operations.LIST_NAMESPACES, query=query)).namespaces

    async def tasks(self, *, limit: int = 10_000, offset: int = 0) -> tuple[Task, ...]:
        """List the task labels of queues."""
        query = {"limit": limit, "offset": offset}
        return (await self._caller.ask(operations.LIST_TASKS, query=query)).tasks

    async def overview(self) -> Overview:
        """Totals over all queues, and the lag of the consumer groups."""
        return await self._caller.ask(operations.SHOW_OVERVIEW)

    async def consumers(self, *, queue: str | None = None, limit: int = 100, offset: int = 0) -> Consumers:
        """List waiting consumers of the server process that answers. `queue` selects consumers that name that queue."""
        query = {"queue": queue, "limit": limit, "offset": offset}
        return await self._caller.ask(operations.LIST_CONSUMERS, query=query)

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
        return await self._caller.ask(operations.LIST_LEASES, query=query)

    # Messages ----------------------------------------------------------------------------------------------

    async def messages(
        self,
        *,
        queue: str | None = None,
        partition: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        status: MessageState | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 200,
        offset: int = 0,
    ) -> tuple[ListedMessage, ...]:
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
        return (await self._caller.ask(operations.LIST_MESSAGES, query=query)).messages

    async def message(self, partition_id: str, transaction_id: str) -> ShownMessage:
        """One message with its payload and its state in each group.

        `transaction_id` is the idempotency key or the message id. Raises `NotFound` if there is no such message.
        """
        return await self._caller.ask(operations.SHOW_MESSAGE, partition_id, transaction_id)

    async def explain(self, id: str, group: str | None = None) -> ExplainedMessage:
        """Explain why a message has not been delivered or settled: for one group, or for each group of the queue.

        `id` is the message id. Raises `NotFound` if there never was such a message.
        """
        return await self._caller.ask(operations.EXPLAIN_MESSAGE, id, query={"consumerGroup": group})

    async def delete_message(self, id: str, partition_id: str | None = None) -> bool:
        """Delete a message, also if it is in flight. Returns whether it existed.

        `id` is the message id, or with `partition_id` the idempotency key. If the request is repeated after a lost
        reply, the result may be False although the message was deleted.
        """
        if partition_id is not None:
            return (await self._caller.ask(operations.DELETE_MESSAGE, partition_id, id)).success
        try:
            await self._caller.send(operations.DELETE_MESSAGE_BY_ID, id)
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
        await self._caller.send(operations.CANCEL_MESSAGE, id)

    # The server itself -------------------------------------------------------------------------------------

    async def health(self) -> Health:
        """Whether the server can reach its store. Not retried: raises `ConnectionFailed` if no server answers."""
        try:
            return await self._caller.ask(operations.HEALTH, final=_AS_IT_IS)
        except Unavailable as error:
            if error.code != "unhealthy":
                raise
            return Health(
                status="unhealthy",
                database="disconnected",
                server="",
                worker_id=0,
                version="",
                shared_state={},
                queen={},
                error=error.text,
                code=error.code,
            )

    async def metrics(self) -> SystemMetrics:
        """Metrics of the store, of waiting consumers and of batched calls."""
        return await self._caller.ask(operations.METRICS)

    async def key_metrics(self, queue: str | None = None) -> KeyvalMetrics:
        """Metrics of the key-value API and of one of its queues."""
        return await self._caller.ask(operations.KEYVAL_METRICS, query={"queue": queue})

    async def prometheus(self, queue: str | None = None) -> str:
        """The metrics of the key-value API in the text format of Prometheus."""
        answer = await self._caller.send(operations.KEYVAL_PROMETHEUS, query={"queue": queue})
        return answer.body.decode()

    async def maintenance(self) -> Maintenance:
        """Whether pushes or pops are in maintenance mode."""
        return await self._caller.ask(operations.SHOW_MAINTENANCE)

    async def set_push_maintenance(self, enabled: bool) -> None:
        """Turn push maintenance on or off: all pushes are rejected. The state survives restarts."""
        await self._caller.send(operations.SET_MAINTENANCE, body=MaintenanceBody(enabled), safe=True)

    async def set_pop_maintenance(self, enabled: bool) -> None:
        """Turn pop maintenance on or off: all pops return nothing. The state survives restarts."""
        await self._caller.send(operations.SET_POP_MAINTENANCE, body=MaintenanceBody(enabled), safe=True)
