"""Administration of messages: list, get, cancel, delete, explain; leases; trace events about messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar, cast, get_args

import msgspec

from hark.api import operations, types
from hark.broker.tasks import Cancellation
from hark.clock import SECOND
from hark.errors import Conflict, InvalidInput, NotFound
from hark.http import routing
from hark.http.admission import reached, shown_lease
from hark.http.checks import check_name, check_text, exact_time_of, raw_parts, time_of
from hark.http.items import renew_all
from hark.http.responses import answer_of
from hark.http.routing import Call, bind, table
from hark.model import GroupView, LeaseFilter, MessageFilter, MessageView, NewTrace, QueueOptions, Trace
from hark.model.messages import NULL_PAYLOAD, QUEUE_MODE, MessageState

Event = TypeVar("Event", bound=types.messages.TraceEvent)

_RUNNING = routing.BoolParam(
    "running", "Also cancel a message that a consumer has: it is notified by its next renewal."
)
_GROUP = routing.NameParam(
    "consumerGroup", "Explain only for this consumer group. The default is all groups of the queue."
)
_LEASES_PAGE = routing.paging()
_LEASES_QUEUE = routing.NameParam("queue", "Return only leases on messages of this queue.")
_LEASES_PARTITION = routing.NameParam("partition", "Return only leases on messages of partitions with this name.")
_HOLDER = routing.NameParam("consumerGroup", "Return only leases of this consumer group.")


async def explain_message(call: Call) -> types.messages.ExplainedMessage:
    """Explain the state of a message.

    Returns for each consumer group why the message has not been delivered or settled, as a sentence and as data.
    """
    message_id = await reached(call.identity, call.broker, call.id("id"))
    explained = await call.broker.explain(message_id, _GROUP.of(call.query))
    message = explained.message
    # As the broker says it: a field of the data can be null, and absent fields stay absent.
    reasons = (
        {"consumerGroup": one.group, "reason": one.reason, "text": one.text, **one.data}
        for one in explained.explanations
    )
    return answer_of(
        types.messages.ExplainedMessage,
        message,
        message_id=message.id,
        created_at=None if message.created_at is None else exact_time_of(message.created_at),
        reasons=tuple(reasons),
    )


async def list_leases(call: Call) -> types.Page[types.messages.ActiveLease]:
    """List leases. Returns the current leases, the oldest first. A lease has one entry for each of its partitions."""
    query = call.query
    page = _LEASES_PAGE.of(query)
    where = LeaseFilter(
        queue=_LEASES_QUEUE.of(query),
        partition=_LEASES_PARTITION.of(query),
        group=_HOLDER.of(query),
        limit=page.limit,
        offset=page.offset,
    )
    found = await call.engine.leases(where)
    leases = (
        answer_of(
            types.messages.ActiveLease,
            leased,
            lease_id=shown_lease(call.identity, leased.lease_id),
            consumer_group=leased.group,
            consumer=leased.consumer or None,
        )
        for leased in found.items
    )
    return types.messages.LeasePage(items=tuple(leases), total=found.total, pagination=page)


async def extend_many(call: Call) -> types.Single[tuple[types.messages.RenewalAnswer, ...]]:
    """Renew several leases.

    Extends each lease until `seconds` from now, unless it already lasts longer. The results have the order of the
    leases.
    """
    body = await call.json(types.messages.ExtendManyBody, "extend")
    most = call.settings.limits.max_batch
    return types.messages.ExtendedLeases(await renew_all(call.broker, body.lease_ids, body.seconds, most))


# Messages --------------------------------------------------------------------------------------------------

_MINUTE = 60 * SECOND
_HOUR = 60 * _MINUTE

_PAGE = routing.paging(200, routing.MAX_LIST)
_QUEUE = routing.NameParam("queue", "Return only messages of this queue.")
_PARTITION = routing.NameParam("partition", "Return only messages of partitions with this name.")
_NS = routing.NameParam("ns", "Return only messages of queues in this namespace.")
_NAMESPACE = routing.NameParam("namespace", "Alias of `ns`.")
_TASK = routing.NameParam("task", "Return only messages of queues with this task.")
_STATUS = routing.ChoiceParam("status", "Return only messages in this state.", tuple(get_args(MessageState)))
_FROM = routing.TimeParam("from", "Return only messages created at or after this time. The default is one hour ago.")
_TO = routing.TimeParam(
    "to", "Return only messages created at or before this time. A time without seconds includes the whole minute."
)


async def list_messages(call: Call) -> types.messages.MessagePage:
    """List messages. Returns messages without payloads, the newest first; by default those of the last hour."""
    query = call.query
    page = _PAGE.of(query)
    queue, short, namespace = _QUEUE.of(query), _NS.of(query), _NAMESPACE.of(query)
    since, until = _FROM.of(query), _TO.of(query)
    if until is not None and until % _MINUTE == 0:
        until += _MINUTE - 1  # Include the whole minute.
    where = MessageFilter(
        queue=queue,
        partition=_PARTITION.of(query),
        namespace=short or namespace,
        task=_TASK.of(query),
        state=cast(MessageState | None, _STATUS.of(query)),
        since=call.now() - _HOUR if since is None else since,
        until=until,
        limit=page.limit,
        offset=page.offset,
    )
    views = await call.broker.messages(where)
    groups = await call.engine.group_names(queue)
    return types.messages.MessagePage(messages=tuple(map(_view, views)), mode=_mode(set(groups)))


async def show_message(call: Call) -> types.messages.ShownMessage:
    """Get a message. Returns the message with its payload and its state in each consumer group."""
    partition_id = await reached(call.identity, call.broker, call.id("partition_id"))
    view = await call.broker.message(partition_id, call.id("transaction_id"))
    if view is None:
        raise _not_found()
    infos = await call.engine.queue_infos([view.queue])
    main = _main_group(view.groups)
    done = [group.group for group in view.groups if group.state == "completed"]
    return answer_of(
        types.messages.ShownMessage,
        _view(view),
        payload=msgspec.Raw(NULL_PAYLOAD) if view.payload is None else view.payload,
        payload_error=view.unreadable,
        is_encrypted=view.sealed,
        error=next((group.error for group in view.groups if group.error), None),
        retry_count=0 if main is None else main.attempts - (main.state == "dead_letter"),
        queue_config=answer_of(types.messages.MessageQueue, infos[0].options if infos else QueueOptions()),
        mode=answer_of(
            types.messages.Mode,
            _mode({group.group for group in view.groups}),
            consumed_by_groups=tuple(name for name in done if name != QUEUE_MODE),
        ),
        groups=tuple(map(_group, view.groups)),
    )


async def delete_message(call: Call) -> types.messages.DeletedMessage:
    """Delete a message by partition and transaction id.

    Deletes the message for all consumer groups, leased or not. An unknown message returns 200 with `success` false.
    """
    partition_id, transaction_id = call.id("partition_id"), call.id("transaction_id")
    view = await call.engine.message(await reached(call.identity, call.broker, partition_id), transaction_id)
    removed = view is not None and (await call.engine.delete_messages([view.id]))[0]
    text = "Message deleted" if removed else "Message not found"
    return types.messages.DeletedMessage(removed, partition_id, transaction_id, text)


async def delete_message_by_id(call: Call) -> types.messages.RemovedMessage:
    """Delete a message. Deletes the message for all consumer groups, leased or not."""
    message_id = call.id("id")
    [removed] = await call.engine.delete_messages([await reached(call.identity, call.broker, message_id)])
    if not removed:
        raise _not_found()
    return types.messages.RemovedMessage(success=True, id=message_id)


async def cancel_message(call: Call) -> types.messages.RemovedMessage:
    """Cancel a message.

    Removes the message if no consumer has received it. Otherwise the request returns 409. With `running=true` a
    consumer that has the message is notified when it renews its lease, and the response has `cancelling`.
    """
    message_id = call.id("id")
    reachable = await reached(call.identity, call.broker, message_id)
    outcome: Cancellation
    if _RUNNING.of(call.query):
        outcome = await call.broker.tasks.cancel(reachable)
    else:
        [outcome] = await call.engine.cancel([reachable])
    match outcome:
        case "cancelling":
            return types.messages.RemovedMessage(success=True, id=message_id, cancelling=True)
        case "not_found":
            raise NotFound("Message not found; it was removed, or this is not its message id", code="message_not_found")
        case "leased":
            raise Conflict(
                "the message cannot be cancelled: a consumer has already received it; cancel it with running=true, or "
                "delete it",
                code="message_leased",
            )
        case "settled":
            raise Conflict(
                "the message cannot be cancelled: a consumer group has already settled it", code="message_settled"
            )
    return types.messages.RemovedMessage(success=True, id=message_id, cancelled=True)


def _not_found() -> NotFound:
    return NotFound("Message not found", code="message_not_found")


def _mode(groups: set[str]) -> types.messages.Mode:
    queue_mode, others = QUEUE_MODE in groups, len(groups - {QUEUE_MODE})
    kind: Literal["queue", "bus", "hybrid", "none"] = "none"
    if queue_mode:
        kind = "hybrid" if others else "queue"
    elif others:
        kind = "bus"
    return types.messages.Mode(has_queue_mode=queue_mode, bus_groups_count=others, type=kind)


def _main_group(groups: Sequence[GroupView]) -> GroupView | None:
    """Return the default group if the message has it, else the group with the most attempts."""
    for group in groups:
        if group.group == QUEUE_MODE:
            return group
    return max(groups, key=lambda group: group.attempts, default=None)


def _view(view: MessageView) -> types.messages.ListedMessage:
    default = next((group for group in view.groups if group.group == QUEUE_MODE), None)
    others = [group for group in view.groups if group.group != QUEUE_MODE]
    leases = [group.lease_expires_at for group in view.groups if group.lease_expires_at is not None]
    consumed = sum(1 for group in others if group.state == "completed")
    return answer_of(
        types.messages.ListedMessage,
        view,
        queue_path=f"{view.queue}/{view.partition}",
        status=view.state,
        queue_status=None if default is None else default.state,
        bus_status=types.messages.BusStatus(consumed_by=consumed, total_groups=len(others)),
        producer_sub=view.producer,
        created_at=exact_time_of(view.created_at),
        lease_expires_at=time_of(max(leases)) if leases else None,
    )


def _group(group: GroupView) -> types.messages.MessageGroup:
    consumed = group.state == "completed"
    return answer_of(types.messages.MessageGroup, group, name=group.group, consumed=consumed, status=group.state)


_FILTER = (*_PAGE, _QUEUE, _PARTITION, _NS, _NAMESPACE, _TASK, _STATUS, _FROM, _TO)
_TOO_LATE = (routing.Failure(409, "message_leased"), routing.Failure(409, "message_settled"))

# Trace events ----------------------------------------------------------------------------------------------

MAX_NAMES = 100
_OF_MESSAGE = routing.paging(1000)
_BY_NAME = routing.paging(100)
_NAMES = routing.paging(50)


async def record(call: Call) -> types.SuccessWith[str]:
    """Record a trace event. Stores an event about a message, with optional names to find it by."""
    body = await call.json(types.messages.TraceBody, "trace", payloads=raw_parts("data", what="trace"))
    if not body.transaction_id or not body.partition_id:
        raise InvalidInput("transactionId and partitionId are required")
    data = NULL_PAYLOAD if isinstance(body.data, msgspec.UnsetType) else bytes(body.data)
    if data == NULL_PAYLOAD:
        raise InvalidInput("data is required")
    partition_id = check_text(body.partition_id, "partitionId")
    trace = NewTrace(
        partition_id=await reached(call.identity, call.broker, partition_id),
        transaction_id=check_text(body.transaction_id, "transactionId"),
        data=data,
        group=check_name(body.consumer_group or QUEUE_MODE, "consumerGroup"),
        event=check_name(body.event_type or "info", "eventType"),
        names=_names(body.trace_names),
    )
    call.status = 201
    return types.messages.RecordedTrace(True, await call.broker.trace(trace))


async def list_of_message(call: Call) -> types.Single[tuple[types.messages.TraceEvent, ...]]:
    """List the trace events of a message. Returns a page of events, the oldest first."""
    page = _OF_MESSAGE.of(call.query)
    partition_id = await reached(call.identity, call.broker, call.id("partition_id"))
    traces, _ = await call.broker.traces(partition_id, call.id("transaction_id"), limit=page.limit, offset=page.offset)
    return types.messages.TracesOfMessage(tuple(_event(types.messages.TraceEvent, trace) for trace in traces))


async def list_by_name(call: Call) -> types.Page[types.messages.NamedTrace]:
    """List the trace events of a name. Returns a page of events of all messages, the newest first."""
    page = _BY_NAME.of(call.query)
    traces, total = await call.broker.traces(name=call.name("name"), limit=page.limit, offset=page.offset)
    events = (
        _event(
            types.messages.NamedTrace,
            trace,
            queue_name=trace.queue,
            partition_name=trace.partition,
            message_payload=msgspec.Raw(NULL_PAYLOAD) if trace.payload is None else trace.payload,
            payload_error=trace.unreadable,
        )
        for trace in traces
    )
    return types.messages.NamedTraces(items=tuple(events), total=total, pagination=page)


async def list_names(call: Call) -> types.Page[types.messages.TraceName]:
    """List trace names. Returns the names of recorded trace events, with counts."""
    page = _NAMES.of(call.query)
    names, total = await call.engine.trace_names(page.limit, page.offset)
    items = (
        answer_of(
            types.messages.TraceName,
            item,
            trace_name=item.name,
            trace_count=item.traces,
            message_count=item.messages,
        )
        for item in names
    )
    return types.messages.TraceNames(items=tuple(items), total=total, pagination=page)


def _names(given: str | list[str] | None) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given or []
    if len(names) > MAX_NAMES:
        raise InvalidInput(f"traceNames: at most {MAX_NAMES} names, got {len(names)}")
    checked = (check_name(name, f"traceNames[{index}]") for index, name in enumerate(names))
    return tuple(dict.fromkeys(checked))


def _event(shape: type[Event], trace: Trace, **others: object) -> Event:
    names = {"event_type": trace.event, "consumer_group": trace.group, "trace_names": trace.names}
    return answer_of(shape, trace, payload=trace.data, worker_id=None, **names, **others)


TABLE = table(
    bind(operations.EXPLAIN_MESSAGE, explain_message, query=(_GROUP,), errors=(routing.NO_MESSAGE,)),
    bind(operations.LIST_LEASES, list_leases, query=(*_LEASES_PAGE, _LEASES_QUEUE, _LEASES_PARTITION, _HOLDER)),
    bind(operations.EXTEND_MANY, extend_many, body=types.messages.ExtendManyBody, errors=(routing.TOO_MANY,)),
    bind(operations.LIST_MESSAGES, list_messages, query=_FILTER),
    bind(operations.DELETE_MESSAGE_BY_ID, delete_message_by_id, errors=(routing.NO_MESSAGE,)),
    bind(operations.CANCEL_MESSAGE, cancel_message, query=(_RUNNING,), errors=(routing.NO_MESSAGE, *_TOO_LATE)),
    bind(operations.SHOW_MESSAGE, show_message, errors=(routing.NO_MESSAGE,)),
    bind(operations.DELETE_MESSAGE, delete_message),
    bind(
        operations.RECORD,
        record,
        body=types.messages.TraceBody,
        body_bytes=routing.LARGE_BODY,
        answer={201: types.messages.RecordedTrace},
        errors=(routing.NO_MESSAGE,),
    ),
    bind(operations.LIST_NAMES, list_names, query=_NAMES),
    bind(operations.LIST_BY_NAME, list_by_name, query=_BY_NAME),
    bind(operations.LIST_OF_MESSAGE, list_of_message, query=_OF_MESSAGE),
)
