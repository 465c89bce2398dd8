"""Administration of the server, of consumer groups and of dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Literal, TypedDict, Unpack

from hark.api import operations
from hark.api.types import Page
from hark.api.types.dead_letters import ListedDeadLetter, RequeuedDeadLetter
from hark.api.types.flows import FlowStatus
from hark.api.types.groups import (
    DeletedGroup,
    LaggingPosition,
    ListedGroup,
    Resubscribed,
    SeekBody,
    ShownPosition,
    SubscriptionBody,
    WaitingConsumer,
)
from hark.api.types.keys import KeyvalMetrics
from hark.api.types.messages import (
    ActiveLease,
    ExplainedMessage,
    ListedMessage,
    NamedTrace,
    ShownMessage,
    TraceBody,
    TraceEvent,
    TraceName,
)
from hark.api.types.queues import ListedQueue, Namespace, Overview, Task
from hark.api.types.server import Health, Maintenance, MaintenanceBody, SystemMetrics
from hark.client.arguments import Identified, Wrapped, a_moment, ids_of, json_value, optional_moment
from hark.client.calling import Caller
from hark.errors import Conflict, InvalidInput, NotFound, Unavailable
from hark.model import Limits, MessageState, SeekOutcome


class Traces:
    """Trace events about messages, `client.traces`. Give the message, or its partition id and transaction id."""

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
        body = TraceBody(
            partition_id=partition,
            transaction_id=transaction,
            data=json_value(data, "data"),
            consumer_group=group or getattr(delivered, "consumer_group", None),
            event_type=event,
            trace_names=[names] if isinstance(names, str) else list(names),
        )
        return (await self._caller.ask(operations.RECORD, body=body)).value

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
        return (await self._caller.ask(operations.LIST_OF_MESSAGE, partition, transaction, query=query)).value

    async def by_name(self, name: str, *, limit: int = 100, offset: int = 0) -> Page[NamedTrace]:
        """The trace events with a name, over all messages, newest first."""
        query = {"limit": limit, "offset": offset}
        return await self._caller.ask(operations.LIST_BY_NAME, name, query=query)

    async def names(self, *, limit: int = 50, offset: int = 0) -> Page[TraceName]:
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
        query = {"search": search, "namespace": namespace, "task": task, "sort": sort, "limit": limit, "offset": offset}
        return (await self._caller.ask(operations.LIST_QUEUES, query=query)).items

    async def namespaces(self, *, limit: int = 10_000, offset: int = 0) -> tuple[Namespace, ...]:
        """List the namespaces of queues."""
        query = {"limit": limit, "offset": offset}
        return (await self._caller.ask(operations.LIST_NAMESPACES, query=query)).value

    async def tasks(self, *, limit: int = 10_000, offset: int = 0) -> tuple[Task, ...]:
        """List the task labels of queues."""
        query = {"limit": limit, "offset": offset}
        return (await self._caller.ask(operations.LIST_TASKS, query=query)).value

    async def overview(self) -> Overview:
        """Totals over all queues, and the lag of the consumer groups."""
        return await self._caller.ask(operations.SHOW_OVERVIEW)

    async def consumers(self, *, queue: str | None = None, limit: int = 100, offset: int = 0) -> Page[WaitingConsumer]:
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
    ) -> Page[ActiveLease]:
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
        return await self._caller.find("message_not_found", operations.DELETE_MESSAGE_BY_ID, id) is not None

    async def cancel(self, id: str, *, running: bool = False) -> None:
        """Cancel a message that no consumer has received yet. With `running`, also a task that runs or is retried.

        The worker of a running task is notified when it renews its lease. Raises `NotFound` if there is no such
        message. Raises `Conflict` with the code `message_leased` or `message_settled` if it is too late; nothing is
        changed then.
        """
        query = {"running": "true"} if running else None
        await self._caller.send(operations.CANCEL_MESSAGE, id, query=query)

    async def flow(self, queue: str, id: str) -> FlowStatus:
        """The state of a flow and of its steps. Raises `NotFound` if it is not stored any more.

        `queue` is the queue of its first step.
        """
        return await self._caller.ask(operations.SHOW_FLOW, queue, id)

    async def cancel_flow(self, queue: str, id: str) -> bool:
        """Cancel a flow: no further step is pushed, and pending and running steps are cancelled. False if it ended."""
        return (await self._caller.ask(operations.CANCEL_FLOW, queue, id, safe=True)).success

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


class Groups:
    """Administration of consumer groups, `client.groups`. The name of the default group is `hark.model.QUEUE_MODE`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # Inspection --------------------------------------------------------------------------------------------

    async def list(self, queue: str | None = None, *, limit: int = 10_000, offset: int = 0) -> list[ListedGroup]:
        """List groups, one entry per group and queue."""
        query = {"queue": queue, "limit": limit, "offset": offset}
        return await self._caller.ask(operations.LIST_GROUPS, query=query)

    async def get(self, name: str, *, limit: int = 1000) -> dict[str, tuple[ShownPosition, ...]]:
        """The position of a group in each partition, by queue. Empty for an unknown group."""
        queues = await self._caller.ask(operations.SHOW_GROUP, name, query={"limit": limit})
        return {queue: partitions.partitions for queue, partitions in queues.items()}

    async def lagging(self, *, min_lag_seconds: int = 3600, limit: int = 1000) -> tuple[LaggingPosition, ...]:
        """Partitions in which a message has waited at least this many seconds for a group."""
        query = {"minLagSeconds": min_lag_seconds, "limit": limit}
        return tuple(await self._caller.ask(operations.LIST_LAGGING, query=query))

    # Positions ---------------------------------------------------------------------------------------------

    async def seek(
        self,
        name: str,
        queue: str,
        *,
        to_end: bool = False,
        timestamp: datetime | None = None,
        offset: int | None = None,
        partition: str | None = None,
    ) -> SeekOutcome:
        """Move the position of a group in a queue, or in one of its partitions. Its leases there become invalid.

        Give exactly one of `to_end=True` (skip all messages), `timestamp` (continue after this time) and `offset`
        (deliver this message next).
        """
        if sum((to_end, timestamp is not None, offset is not None)) != 1:
            raise InvalidInput("seek: expected exactly one of to_end, timestamp, offset")
        body = SeekBody(to_end=to_end or None, timestamp=optional_moment(timestamp, "timestamp"), offset=offset)
        if partition is None:
            whole = await self._caller.ask(operations.SEEK_QUEUE, name, queue, body=body, safe=True)
            return SeekOutcome(whole.partitions_updated)
        moved = await self._caller.ask(operations.SEEK_PARTITION, name, queue, partition, body=body, safe=True)
        return SeekOutcome(int(moved.updated), moved.next_offset)

    async def set_subscription(self, name: str, timestamp: datetime) -> Resubscribed:
        """Set where the group starts in partitions that it has not consumed from yet."""
        return await self._caller.ask(
            operations.RESUBSCRIBE, name, body=SubscriptionBody(a_moment(timestamp, "timestamp")), safe=True
        )

    async def delete(self, name: str, queue: str | None = None, *, delete_metadata: bool = True) -> DeletedGroup:
        """Delete the positions of a group and invalidate its leases, in one queue or in all queues.

        `delete_metadata=False` keeps where the group started.
        """
        query = {"deleteMetadata": delete_metadata}
        if queue is None:
            return await self._caller.ask(operations.DELETE_GROUP, name, query=query)
        return await self._caller.ask(operations.DELETE_GROUP_OF_QUEUE, name, queue, query=query)

    async def pause(self, name: str, queue: str) -> None:
        """Stop deliveries from the queue to this group."""
        await self._caller.send(operations.PAUSE_GROUP, queue, name, safe=True)

    async def resume(self, name: str, queue: str) -> None:
        """Start deliveries from the queue to this group again."""
        await self._caller.send(operations.RESUME_GROUP, queue, name, safe=True)

    async def purge(self, name: str, queue: str) -> int:
        """Settle all open messages of the group in this queue. Returns their number. Other groups keep the messages."""
        return (await self._caller.ask(operations.PURGE_GROUP, queue, name, safe=True)).value

    async def limits(self, name: str, queue: str) -> Limits:
        """The limits of the group in this queue. 0 means no limit."""
        return (await self._caller.ask(operations.SHOW_LIMITS, name, queue)).limits

    async def set_limits(
        self,
        name: str,
        queue: str,
        *,
        max_in_flight: int | None = None,
        rate_limit: float | None = None,
        rate_burst: int | None = None,
    ) -> Limits:
        """Replace all three limits. A limit that you do not give is removed."""
        body = {"maxInFlight": max_in_flight, "rateLimit": rate_limit, "rateBurst": rate_burst}
        return (await self._caller.ask(operations.LIMIT_GROUP, name, queue, body=body)).limits


_AT_ONCE = 100
_NOT_FOUND = "dead_letter_not_found"
_GRAIN = timedelta(milliseconds=1)
"""Resolution of failure times."""


class DeadLetterFilter(TypedDict, total=False):
    """Which dead letters of a queue and group. All conditions must match."""

    since: datetime | None
    """Failures from this time on, which must have a time zone."""
    until: datetime | None
    """Failures before this time, which must have a time zone."""
    partition: str | None
    """The name of the partition."""
    search: str | None
    """A part of the error text. ASCII letters match in any case."""


class DeadLetters:
    """The dead letters of all queues, of one queue, or of one group: `client.dlq()` or `queue.dlq()`.

    `async for letter in dead_letters` iterates over all of them, newest failure first. You can requeue or delete
    letters during the iteration. The filters of the methods are those of `DeadLetterFilter`.
    """

    def __init__(self, caller: Caller, queue: str | None = None, group: str | None = None) -> None:
        self._caller = caller
        self.queue = queue
        self.group = group

    def __aiter__(self) -> AsyncIterator[ListedDeadLetter]:
        return self.all()

    async def list(
        self, *, limit: int = 100, offset: int = 0, **filters: Unpack[DeadLetterFilter]
    ) -> Page[ListedDeadLetter]:
        """A page of dead letters, newest failure first, with the number of all matches."""
        query = self._query(**filters) | {"limit": limit, "offset": offset}
        return await self._caller.ask(operations.LIST_DEAD_LETTERS, query=query)

    async def all(
        self, *, page_size: int = 100, **filters: Unpack[DeadLetterFilter]
    ) -> AsyncIterator[ListedDeadLetter]:
        """Iterate over all matching dead letters, page by page. The filters are those of `list`."""
        offset = 0
        seen: set[str] = set()
        while True:
            page = await self.list(limit=page_size, offset=offset, **filters)
            fresh = [letter for letter in page.items if letter.dead_letter_id not in seen]
            for letter in fresh:
                yield letter
            if len(page.items) < page_size:
                return
            # By time, not by offset: offsets move if letters are removed during the iteration. Letters that failed in
            # the same millisecond are read again, and skipped by offset if a page has nothing else.
            ids = {letter.dead_letter_id for letter in page.items}
            end, until = page.items[-1].failed_at + _GRAIN, filters.get("until")
            if until is None or end < until:
                seen, offset, filters["until"] = ids, 0, end
            elif fresh:
                seen |= ids
            else:
                offset += page_size

    async def get(self, id: str, *, group: str | None = None) -> ListedDeadLetter:
        """One dead letter, by its own id or by the message id.

        Raises `NotFound` if there is none, and `Conflict` if the message is a dead letter in several groups.
        """
        query = {"id": id, "queue": self.queue, "consumerGroup": group or self.group, "limit": 2}
        found = (await self._caller.ask(operations.LIST_DEAD_LETTERS, query=query)).items
        if not found:
            raise NotFound(f"dead letter {id} not found", code=_NOT_FOUND)
        if len(found) > 1:
            text = f"message {id} is a dead letter in several groups; give the group, or use the dead_letter_id"
            raise Conflict(text, code="ambiguous")
        return found[0]

    async def requeue(self, id: str, *, group: str | None = None) -> RequeuedDeadLetter:
        """Requeue one dead letter: it goes to the front of its partition, for its group only.

        Raises the same errors as `get`.
        """
        query = {"consumerGroup": group or self.group}
        return await self._caller.ask(operations.REQUEUE, id, query=query)

    async def requeue_all(self, **filters: Unpack[DeadLetterFilter]) -> int:
        """Requeue all matching dead letters, with the earliest failure in front. Returns their number.

        Letters that fail again meanwhile are not requeued a second time.
        """
        # All ids are read before the first letter is requeued, so that a letter that fails again is not requeued twice.
        letters = self.all(page_size=_AT_ONCE, **filters)
        ids = [*reversed(dict.fromkeys([letter.dead_letter_id async for letter in letters]))]
        requeued = 0
        for start in range(0, len(ids), _AT_ONCE):
            body = {"ids": ids[start : start + _AT_ONCE]}
            # Letters that another client requeued meanwhile do not count.
            requeued += (await self._caller.ask(operations.REQUEUE_MANY, body=body, safe=True)).requeued
        return requeued

    async def delete(self, id: str, *, group: str | None = None) -> bool:
        """Delete one dead letter, by its own id or by the message id. Returns whether it existed."""
        query = {"consumerGroup": group or self.group}
        return await self._caller.find(_NOT_FOUND, operations.DELETE_DEAD_LETTER, id, query=query) is not None

    async def purge(self, **filters: Unpack[DeadLetterFilter]) -> int:
        """Delete all matching dead letters of the queue. Returns their number. The filters are those of `list`."""
        if self.queue is None:
            raise InvalidInput('queue: is required to purge dead letters; use client.dlq("orders").purge()')
        return (await self._caller.ask(operations.PURGE_DEAD_LETTERS, query=self._query(**filters))).deleted

    def _query(
        self,
        since: datetime | None = None,
        until: datetime | None = None,
        partition: str | None = None,
        search: str | None = None,
    ) -> dict[str, str | int | None]:
        return {
            "queue": self.queue,
            "consumerGroup": self.group,
            "partition": partition,
            "from": optional_moment(since, "since"),
            "to": optional_moment(until, "until"),
            "search": search,
        }
