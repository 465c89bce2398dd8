"""Administration of messages: list, get, cancel, delete, explain; leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.access.identity import Identity
from hark.api import operations
from hark.api.types.base import Pagination, extended
from hark.api.types.leases import ActiveLease, ExplainedMessage, ExtendedLeases, ExtendManyBody, GroupReason, LeasePage
from hark.api.types.messages import (
    BusStatus,
    DeletedMessage,
    ListedMessage,
    MessageGroup,
    MessagePage,
    MessageQueue,
    Mode,
    RemovedMessage,
    ShownMessage,
)
from hark.clock import SECOND
from hark.errors import Conflict, NotFound
from hark.http.admission import identity_of, reached, shown_lease
from hark.http.checks import exact_time_of, time_of
from hark.http.items import renew_all
from hark.http.routes.requests import (
    NO_MESSAGE,
    TOO_MANY,
    broker_of,
    now,
    query_of,
    read_json,
    reply,
    settings_of,
    text_in_path,
)
from hark.http.routes.table import MAX_LIST, ChoiceParam, Failure, NameParam, Table, TimeParam, bind, paging, table
from hark.model import (
    NULL_PAYLOAD,
    QUEUE_MODE,
    Explanation,
    GroupView,
    LeaseFilter,
    LeasePart,
    MessageFilter,
    MessageState,
    MessageView,
    QueueOptions,
)

_GROUP = NameParam("consumerGroup", "Explain only for this consumer group. The default is all groups of the queue.")
_LEASES_PAGE = paging()
_LEASES_QUEUE = NameParam("queue", "Return only leases on messages of this queue.")
_LEASES_PARTITION = NameParam("partition", "Return only leases on messages of partitions with this name.")
_HOLDER = NameParam("consumerGroup", "Return only leases of this consumer group.")


async def explain_message(request: Request) -> Response:
    """Explain the state of a message.

    Returns for each consumer group why the message has not been delivered or settled, as a sentence and as data.
    """
    broker = broker_of(request)
    message_id = await reached(identity_of(request), broker, text_in_path(request, "id"))
    explained = await broker.explain(message_id, _GROUP.of(query_of(request)))
    message = explained.message
    return reply(
        ExplainedMessage(
            message_id=message.id,
            queue=message.queue,
            partition=message.partition,
            partition_id=message.partition_id,
            offset=message.offset,
            transaction_id=message.transaction_id,
            created_at=None if message.created_at is None else exact_time_of(message.created_at),
            reasons=tuple(_reason(one) for one in explained.explanations),
        )
    )


def _reason(explanation: Explanation) -> GroupReason:
    # As the broker says it: a field of the data can be null, and absent fields stay absent.
    return cast(
        GroupReason,
        {
            "consumerGroup": explanation.group,
            "reason": explanation.reason,
            "text": explanation.text,
            **explanation.data,
        },
    )


async def list_leases(request: Request) -> Response:
    """List leases. Returns the current leases, the oldest first. A lease has one entry for each of its partitions."""
    query = query_of(request)
    limit, offset = _LEASES_PAGE.of(query)
    where = LeaseFilter(
        queue=_LEASES_QUEUE.of(query),
        partition=_LEASES_PARTITION.of(query),
        group=_HOLDER.of(query),
        limit=limit,
        offset=offset,
    )
    page = await broker_of(request).engine.leases(where)
    identity = identity_of(request)
    return reply(
        LeasePage(
            items=tuple(_lease(identity, one) for one in page.items),
            total=page.total,
            pagination=Pagination(limit=limit, offset=offset),
        )
    )


def _lease(identity: Identity, leased: LeasePart) -> ActiveLease:
    return ActiveLease(
        lease_id=shown_lease(identity, leased.lease_id),
        queue=leased.queue,
        partition=leased.partition,
        partition_id=leased.partition_id,
        consumer_group=leased.group,
        mode=leased.mode,
        consumer=leased.consumer or None,
        since=time_of(leased.since),
        until=time_of(leased.until),
        messages=leased.messages,
        first_message_id=leased.first_message_id,
    )


# Renewals ----------------------------------------------------------------------------------------------------


async def extend_many(request: Request) -> Response:
    """Renew several leases.

    Extends each lease until `seconds` from now, unless it already lasts longer. The results have the order of the
    leases.
    """
    body = await read_json(request, ExtendManyBody, "extend")
    most = settings_of(request).limits.max_batch
    return reply(ExtendedLeases(results=await renew_all(broker_of(request), body.lease_ids, body.seconds, most)))


LEASES_TABLE: Table = table(
    bind(operations.EXPLAIN_MESSAGE, explain_message, query=(_GROUP,), errors=(NO_MESSAGE,)),
    bind(operations.LIST_LEASES, list_leases, query=(*_LEASES_PAGE, _LEASES_QUEUE, _LEASES_PARTITION, _HOLDER)),
    bind(operations.EXTEND_MANY, extend_many, body=ExtendManyBody, errors=(TOO_MANY,)),
)


_NULL = msgspec.Raw(NULL_PAYLOAD)
_MINUTE = 60 * SECOND
_HOUR = 60 * _MINUTE

_PAGE = paging(200, MAX_LIST)
_QUEUE = NameParam("queue", "Return only messages of this queue.")
_PARTITION = NameParam("partition", "Return only messages of partitions with this name.")
_NS = NameParam("ns", "Return only messages of queues in this namespace.")
_NAMESPACE = NameParam("namespace", "Alias of `ns`.")
_TASK = NameParam("task", "Return only messages of queues with this task.")
_STATUS = ChoiceParam("status", "Return only messages in this state.", tuple(get_args(MessageState)))
_FROM = TimeParam("from", "Return only messages created at or after this time. The default is one hour ago.")
_TO = TimeParam(
    "to", "Return only messages created at or before this time. A time without seconds includes the whole minute."
)


async def list_messages(request: Request) -> Response:
    """List messages. Returns messages without payloads, the newest first; by default those of the last hour."""
    query = query_of(request)
    limit, offset = _PAGE.of(query)
    queue = _QUEUE.of(query)
    since, until = _FROM.of(query), _TO.of(query)
    if until is not None and until % _MINUTE == 0:
        until += _MINUTE - 1  # Include the whole minute.
    where = MessageFilter(
        queue=queue,
        partition=_PARTITION.of(query),
        namespace=_NS.of(query) or _NAMESPACE.of(query),
        task=_TASK.of(query),
        state=cast(MessageState | None, _STATUS.of(query)),
        since=now(request) - _HOUR if since is None else since,
        until=until,
        limit=limit,
        offset=offset,
    )
    engine = broker_of(request).engine
    views = await broker_of(request).messages(where)
    groups = await engine.group_names(queue)
    return reply(MessagePage(messages=tuple(_view(view) for view in views), mode=_mode(set(groups))))


async def show_message(request: Request) -> Response:
    """Get a message. Returns the message with its payload and its state in each consumer group."""
    broker = broker_of(request)
    partition_id = await reached(identity_of(request), broker, text_in_path(request, "partition_id"))
    view = await broker.message(partition_id, text_in_path(request, "transaction_id"))
    if view is None:
        raise NotFound("Message not found", code="message_not_found")
    infos = await broker.engine.queue_infos([view.queue])
    options = infos[0].options if infos else QueueOptions()
    main = _main_group(view.groups)
    done = [group.group for group in view.groups if group.state == "completed"]
    return reply(
        extended(
            ShownMessage,
            _view(view),
            payload=_NULL if view.payload is None else view.payload,
            payload_error=view.unreadable,
            is_encrypted=view.sealed,
            error=next((group.error for group in view.groups if group.error), None),
            retry_count=0 if main is None else main.attempts - (main.state == "dead_letter"),
            queue_config=MessageQueue(
                lease_time=options.lease_time,
                retry_limit=options.retry_limit,
                retry_delay=options.retry_delay,
                ttl=options.ttl,
                priority=options.priority,
            ),
            mode=extended(
                Mode,
                _mode({group.group for group in view.groups}),
                consumed_by_groups=tuple(name for name in done if name != QUEUE_MODE),
            ),
            groups=tuple(_group(group) for group in view.groups),
        )
    )


async def delete_message(request: Request) -> Response:
    """Delete a message by partition and transaction id.

    Deletes the message for all consumer groups, leased or not. An unknown message returns 200 with `success` false.
    """
    partition_id = text_in_path(request, "partition_id")
    transaction_id = text_in_path(request, "transaction_id")
    engine = broker_of(request).engine
    view = await engine.message(await reached(identity_of(request), broker_of(request), partition_id), transaction_id)
    removed = view is not None and (await engine.delete_messages([view.id]))[0]
    return reply(
        DeletedMessage(
            success=removed,
            partition_id=partition_id,
            transaction_id=transaction_id,
            message="Message deleted" if removed else "Message not found",
        )
    )


async def delete_message_by_id(request: Request) -> Response:
    """Delete a message. Deletes the message for all consumer groups, leased or not."""
    message_id = text_in_path(request, "id")
    broker = broker_of(request)
    [removed] = await broker.engine.delete_messages([await reached(identity_of(request), broker, message_id)])
    if not removed:
        raise NotFound("Message not found", code="message_not_found")
    return reply(RemovedMessage(success=True, id=message_id))


async def cancel_message(request: Request) -> Response:
    """Cancel a message.

    Removes the message if no consumer has received it. Otherwise the request returns 409.
    """
    message_id = text_in_path(request, "id")
    broker = broker_of(request)
    [outcome] = await broker.engine.cancel([await reached(identity_of(request), broker, message_id)])
    match outcome:
        case "not_found":
            raise NotFound("Message not found; it was removed, or this is not its message id", code="message_not_found")
        case "leased":
            raise Conflict(
                "the message cannot be cancelled: a consumer has already received it; delete it instead",
                code="message_leased",
            )
        case "settled":
            raise Conflict(
                "the message cannot be cancelled: a consumer group has already settled it", code="message_settled"
            )
    return reply(RemovedMessage(success=True, id=message_id, cancelled=True))


def _mode(groups: set[str]) -> Mode:
    queue_mode, others = QUEUE_MODE in groups, len(groups - {QUEUE_MODE})
    kind: Literal["queue", "bus", "hybrid", "none"] = "none"
    if queue_mode:
        kind = "hybrid" if others else "queue"
    elif others:
        kind = "bus"
    return Mode(has_queue_mode=queue_mode, bus_groups_count=others, type=kind)


def _main_group(groups: Sequence[GroupView]) -> GroupView | None:
    """Return the default group if the message has it, else the group with the most attempts."""
    for group in groups:
        if group.group == QUEUE_MODE:
            return group
    return max(groups, key=lambda group: group.attempts, default=None)


def _view(view: MessageView) -> ListedMessage:
    default = next((group for group in view.groups if group.group == QUEUE_MODE), None)
    others = [group for group in view.groups if group.group != QUEUE_MODE]
    leases = [group.lease_expires_at for group in view.groups if group.lease_expires_at is not None]
    return ListedMessage(
        id=view.id,
        transaction_id=view.transaction_id,
        partition_id=view.partition_id,
        queue_path=f"{view.queue}/{view.partition}",
        queue=view.queue,
        partition=view.partition,
        namespace=view.namespace,
        task=view.task,
        offset=view.offset,
        status=view.state,
        queue_status=None if default is None else default.state,
        bus_status=BusStatus(
            consumed_by=sum(1 for group in others if group.state == "completed"), total_groups=len(others)
        ),
        trace_id=view.trace_id,
        producer_sub=view.producer,
        priority=view.priority,
        queue_priority=view.queue_priority,
        created_at=exact_time_of(view.created_at),
        deliver_at=time_of(view.deliver_at),
        reason=view.reason,
        due_at=time_of(view.due_at),
        lease_expires_at=time_of(max(leases)) if leases else None,
    )


def _group(group: GroupView) -> MessageGroup:
    expires = group.lease_expires_at
    return MessageGroup(
        name=group.group,
        consumed=group.state == "completed",
        lease_expires_at=time_of(expires),
        status=group.state,
        reason=group.reason,
        due_at=time_of(group.due_at),
        attempts=group.attempts,
        error=group.error,
    )


_FILTER = (*_PAGE, _QUEUE, _PARTITION, _NS, _NAMESPACE, _TASK, _STATUS, _FROM, _TO)
_TOO_LATE = (Failure(409, "message_leased"), Failure(409, "message_settled"))

TABLE: Table = table(
    bind(operations.LIST_MESSAGES, list_messages, query=_FILTER),
    bind(operations.DELETE_MESSAGE_BY_ID, delete_message_by_id, errors=(NO_MESSAGE,)),
    bind(operations.CANCEL_MESSAGE, cancel_message, errors=(NO_MESSAGE, *_TOO_LATE)),
    bind(operations.SHOW_MESSAGE, show_message, errors=(NO_MESSAGE,)),
    bind(operations.DELETE_MESSAGE, delete_message),
)
