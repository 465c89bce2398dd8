"""Administration of the server, of consumer groups and of dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

from hark.api import operations, types
from hark.client import arguments
from hark.client.arguments import Identified, Wrapped, a_moment, a_name, ids_of, json_value, optional_moment
from hark.client.calling import Caller
from hark.errors import InvalidInput, Unavailable
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
        body = types.messages.TraceBody(
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
    ) -> tuple[types.messages.TraceEvent, ...]:
        """The trace events of a message, oldest first."""
        partition, transaction = ids_of(message, partition_id, transaction_id)
        query = {"limit": limit, "offset": offset}
        return (await self._caller.ask(operations.LIST_OF_MESSAGE, partition, transaction, query=query)).value

    async def by_name(self, name: str, *, limit: int = 100, offset: int = 0) -> types.Page[types.messages.NamedTrace]:
        """The trace events with a name, over all messages, newest first."""
        return await self._caller.ask(operations.LIST_BY_NAME, name, query={"limit": limit, "offset": offset})

    async def names(self, *, limit: int = 50, offset: int = 0) -> types.Page[types.messages.TraceName]:
        """The names of recorded trace events."""
        return await self._caller.ask(operations.LIST_NAMES, query={"limit": limit, "offset": offset})


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
    ) -> tuple[types.queues.ListedQueue, ...]:
        """List queues with their message counts.

        `search` matches a part of the name. `sort` is `newest` (newest queue first), `name`, or `backlog` (largest
        backlog first).
        """
        query = {"search": search, "namespace": namespace, "task": task, "sort": sort, "limit": limit, "offset": offset}
        return (await self._caller.ask(operations.LIST_QUEUES, query=query)).items

    async def namespaces(self, *, limit: int = 10_000, offset: int = 0) -> tuple[types.queues.Namespace, ...]:
        """List the namespaces of queues."""
        return (await self._caller.ask(operations.LIST_NAMESPACES, query={"limit": limit, "offset": offset})).value

    async def tasks(self, *, limit: int = 10_000, offset: int = 0) -> tuple[types.queues.Task, ...]:
        """List the task labels of queues."""
        return (await self._caller.ask(operations.LIST_TASKS, query={"limit": limit, "offset": offset})).value

    async def overview(self) -> types.queues.Overview:
        """Totals over all queues, and the lag of the consumer groups."""
        return await self._caller.ask(operations.SHOW_OVERVIEW)

    async def consumers(
        self, *, queue: str | None = None, limit: int = 100, offset: int = 0
    ) -> types.Page[types.groups.WaitingConsumer]:
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
    ) -> types.Page[types.messages.ActiveLease]:
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
    ) -> tuple[types.messages.ListedMessage, ...]:
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

    async def message(self, partition_id: str, transaction_id: str) -> types.messages.ShownMessage:
        """One message with its payload and its state in each group.

        `transaction_id` is the idempotency key or the message id. Raises `NotFound` if there is no such message.
        """
        return await self._caller.ask(operations.SHOW_MESSAGE, partition_id, transaction_id)

    async def explain(self, id: str, group: str | None = None) -> types.messages.ExplainedMessage:
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

    async def flow(self, queue: str, id: str) -> types.tasks.FlowStatus:
        """The state of a flow and of its steps. Raises `NotFound` if it is not stored any more.

        `queue` is the queue of its first step.
        """
        return await self._caller.ask(operations.SHOW_FLOW, queue, id)

    async def cancel_flow(self, queue: str, id: str) -> bool:
        """Cancel a flow: no further step is pushed, and pending and running steps are cancelled. False if it ended."""
        return (await self._caller.ask(operations.CANCEL_FLOW, queue, id, safe=True)).success

    # The server itself -------------------------------------------------------------------------------------

    async def health(self) -> types.server.Health:
        """Whether the server can reach its store. Not retried: raises `ConnectionFailed` if no server answers."""
        try:
            return await self._caller.ask(operations.HEALTH, final=_AS_IT_IS)
        except Unavailable as error:
            if error.code != "unhealthy":
                raise
            return types.server.Health(
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

    async def metrics(self) -> types.server.SystemMetrics:
        """Metrics of the store, of waiting consumers and of batched calls."""
        return await self._caller.ask(operations.METRICS)

    async def key_metrics(self, queue: str | None = None) -> types.keys.KeyvalMetrics:
        """Metrics of the key-value API and of one of its queues."""
        return await self._caller.ask(operations.KEYVAL_METRICS, query={"queue": queue})

    async def prometheus(self, queue: str | None = None) -> str:
        """The metrics of the key-value API in the text format of Prometheus."""
        answer = await self._caller.send(operations.KEYVAL_PROMETHEUS, query={"queue": queue})
        return answer.body.decode()

    async def maintenance(self) -> types.server.Maintenance:
        """Whether pushes or pops are in maintenance mode."""
        return await self._caller.ask(operations.SHOW_MAINTENANCE)

    async def set_push_maintenance(self, enabled: bool) -> None:
        """Turn push maintenance on or off: all pushes are rejected. The state survives restarts."""
        await self._caller.send(operations.SET_MAINTENANCE, body=types.server.MaintenanceBody(enabled), safe=True)

    async def set_pop_maintenance(self, enabled: bool) -> None:
        """Turn pop maintenance on or off: all pops return nothing. The state survives restarts."""
        await self._caller.send(operations.SET_POP_MAINTENANCE, body=types.server.MaintenanceBody(enabled), safe=True)


class Groups:
    """Administration of consumer groups, `client.groups`. The name of the default group is `hark.model.QUEUE_MODE`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # Inspection --------------------------------------------------------------------------------------------

    async def list(
        self, queue: str | None = None, *, limit: int = 10_000, offset: int = 0
    ) -> list[types.groups.ListedGroup]:
        """List groups, one entry per group and queue."""
        return await self._caller.ask(operations.LIST_GROUPS, query={"queue": queue, "limit": limit, "offset": offset})

    async def get(self, name: str, *, limit: int = 1000) -> dict[str, tuple[types.groups.ShownPosition, ...]]:
        """The position of a group in each partition, by queue. Empty for an unknown group."""
        queues = await self._caller.ask(operations.SHOW_GROUP, name, query={"limit": limit})
        return {queue: partitions.partitions for queue, partitions in queues.items()}

    async def lagging(
        self, *, min_lag_seconds: int = 3600, limit: int = 1000
    ) -> tuple[types.groups.LaggingPosition, ...]:
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
        body = types.groups.SeekBody(
            to_end=to_end or None, timestamp=optional_moment(timestamp, "timestamp"), offset=offset
        )
        if partition is None:
            whole = await self._caller.ask(operations.SEEK_QUEUE, name, queue, body=body, safe=True)
            return SeekOutcome(whole.partitions_updated)
        moved = await self._caller.ask(operations.SEEK_PARTITION, name, queue, partition, body=body, safe=True)
        return SeekOutcome(int(moved.updated), moved.next_offset)

    async def set_subscription(self, name: str, timestamp: datetime) -> types.groups.Resubscribed:
        """Set where the group starts in partitions that it has not consumed from yet."""
        return await self._caller.ask(
            operations.RESUBSCRIBE,
            name,
            body=types.groups.SubscriptionBody(a_moment(timestamp, "timestamp")),
            safe=True,
        )

    async def delete(
        self, name: str, queue: str | None = None, *, delete_metadata: bool = True
    ) -> types.groups.DeletedGroup:
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
        max_in_flight_per_partition: int | None = None,
        rate_limit_per_partition: float | None = None,
        rate_burst_per_partition: int | None = None,
    ) -> Limits:
        """Replace all limits. A limit that you do not give is removed."""
        body = {
            "maxInFlight": max_in_flight,
            "rateLimit": rate_limit,
            "rateBurst": rate_burst,
            "maxInFlightPerPartition": max_in_flight_per_partition,
            "rateLimitPerPartition": rate_limit_per_partition,
            "rateBurstPerPartition": rate_burst_per_partition,
        }
        given = {limit: value for limit, value in body.items() if value is not None}
        return (await self._caller.ask(operations.LIMIT_GROUP, name, queue, body=given)).limits


Interval = float | str | timedelta
"""Seconds, a `timedelta`, or a text such as `"90s"` or `"1h30m"`."""


def seconds_or_text(value: Interval | None) -> float | str | None:
    """An interval as the API takes it. The server checks it."""
    return value.total_seconds() if isinstance(value, timedelta) else value


class Schedules:
    """Schedules of the server, `client.schedules`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def put(
        self,
        name: str,
        queue: str,
        data: object = None,
        *,
        cron: str | None = None,
        every: Interval | None = None,
        timezone: str | None = None,
        start_at: datetime | None = None,
        jitter: Interval | None = None,
        overlap: types.tasks.Overlap = "allow",
        catch_up: types.tasks.CatchUp = "latest",
        partition: str | None = None,
        priority: int | None = None,
        ttl: float | timedelta | None = None,
        retry_delays: Sequence[float | timedelta] | None = None,
    ) -> types.tasks.ShownSchedule:
        """Create a schedule, or replace its settings: at its due times the server pushes `data` to the queue.

        Give exactly one of `cron` (such as `"30 8 * * MON-FRI"`, in `timezone`) and `every` (seconds, a `timedelta`, or
        a text such as `"90s"`). An equal schedule is not changed, so a program can call this at every start.

        - `start_at`: no due time is before this time, and intervals count from it.
        - `jitter`: delay each due time by a part of this time.
        - `overlap`: `skip` skips a due time while the message of the run before is not settled.
        - `catch_up`: what happens with due times at which no server ran: `none` of them is pushed, the `latest`
          (default), or `all`.
        - `partition`, `priority`, `ttl`, `retry_delays`: of the messages, as for `push`.

        Raises `InvalidInput` if an argument is invalid.
        """
        if (cron is None) == (every is None):
            raise InvalidInput("cron, every: expected exactly one of them, such as every='5m'")
        body = types.tasks.ScheduleBody(
            queue=a_name(queue, "queue"),
            partition=None if partition is None else a_name(partition, "partition"),
            payload=json_value(data, "data"),
            cron=cron,
            every=seconds_or_text(every),
            timezone=timezone,
            start_at=optional_moment(start_at, "start_at"),
            jitter=seconds_or_text(jitter),
            overlap=overlap,
            catch_up=catch_up,
            priority=None
            if priority is None
            else arguments.an_integer(priority, "priority", 0, arguments.MAX_PRIORITY),
            ttl=arguments.time_to_live(ttl, "ttl"),
            backoff_schedule=None if retry_delays is None else arguments.retry_schedule(retry_delays),
        )
        return await self._caller.ask(operations.PUT_SCHEDULE, name, body=body)

    async def list(
        self, queue: str | None = None, *, search: str | None = None, limit: int = 10_000, offset: int = 0
    ) -> tuple[types.tasks.ListedSchedule, ...]:
        """List schedules by name. `search` matches a part of the name."""
        query = {"queue": queue, "search": search, "limit": limit, "offset": offset}
        return (await self._caller.ask(operations.LIST_SCHEDULES, query=query)).items

    async def get(self, name: str) -> types.tasks.ShownSchedule:
        """A schedule with its next and last runs. Raises `NotFound` if it does not exist."""
        return await self._caller.ask(operations.SHOW_SCHEDULE, name)

    async def pause(self, name: str) -> types.tasks.ShownSchedule:
        """Pause a schedule. Due times until it is resumed are not caught up."""
        return await self._caller.ask(operations.PAUSE_SCHEDULE, name, safe=True)

    async def resume(self, name: str) -> types.tasks.ShownSchedule:
        """Resume a schedule. Its next due time is the first one after now."""
        return await self._caller.ask(operations.RESUME_SCHEDULE, name, safe=True)

    async def run(self, name: str) -> types.tasks.ScheduleRun:
        """Push one message of a schedule now. Its due times do not change."""
        return await self._caller.ask(operations.RUN_SCHEDULE, name)

    async def delete(self, name: str) -> bool:
        """Delete a schedule. Returns whether it existed. Messages that it pushed stay."""
        return await self._caller.find("schedule_not_found", operations.DELETE_SCHEDULE, name) is not None
