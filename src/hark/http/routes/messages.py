"""Administration of messages: list, get, cancel, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from starlette.requests import Request
from starlette.responses import Response

from hark.clock import SECOND
from hark.errors import Conflict, NotFound
from hark.http.answers.messages import (
    CancelledMessage,
    DeletedMessage,
    DeletedMessageById,
    ListedMessage,
    MessageGroup,
    MessagePage,
    Mode,
    ShownMessage,
)
from hark.http.checks import format_time, format_time_ms
from hark.http.edge.identities import identity_of
from hark.http.edge.reaching import reached
from hark.http.params import ChoiceParam, NameParam, TimeParam, paging
from hark.http.routes.requests import NO_MESSAGE, broker_of, now, query_of, reply, text_in_path
from hark.http.routes.table import Failure, Reach, Table, read, write
from hark.model import QUEUE_MODE, GroupView, MessageFilter, MessageState, MessageView, QueueOptions

_MINUTE = 60 * SECOND
_HOUR = 60 * _MINUTE

_PAGE = paging(200)
_QUEUE = NameParam("queue", "Return only messages of this queue.")
_PARTITION = NameParam("partition", "Return only messages of partitions with this name.")
_NS = NameParam("ns", "Return only messages of queues in this namespace.")
_NAMESPACE = NameParam("namespace", "Alias of `ns`.")
_TASK = NameParam("task", "Return only messages of queues with this task.")
_STATUS = ChoiceParam(
    "status", "Return only messages in this state.", ("pending", "processing", "completed", "dead_letter")
)
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
        since=now() - _HOUR if since is None else since,
        until=until,
        limit=limit,
        offset=offset,
    )
    engine = broker_of(request).engine
    views = await engine.messages(where)
    groups = {stats.group for stats in await engine.group_stats(queue=queue)}
    answer: MessagePage = {"messages": [_view(view) for view in views], "mode": _mode(groups)}
    return reply(answer)


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
    answer: ShownMessage = {
        **_view(view),
        "payload": view.payload,
        "isEncrypted": view.sealed,
        "errorMessage": next((group.error for group in view.groups if group.error), None),
        "retryCount": 0 if main is None else main.attempts - (main.state == "dead_letter"),
        "queueConfig": {
            "leaseTime": options.lease_time,
            "retryLimit": options.retry_limit,
            "retryDelay": options.retry_delay,
            "ttl": options.ttl,
            "priority": options.priority,
        },
        "mode": {
            **_mode({group.group for group in view.groups}),
            "consumedByGroups": [name for name in done if name != QUEUE_MODE],
        },
        "consumerGroups": [_group(group) for group in view.groups],
    }
    return reply(answer)


async def delete_message(request: Request) -> Response:
    """Delete a message by partition and transaction id.

    Deletes the message for all consumer groups, leased or not. An unknown message returns 200 with `success` false.
    """
    partition_id = text_in_path(request, "partition_id")
    transaction_id = text_in_path(request, "transaction_id")
    engine = broker_of(request).engine
    view = await engine.message(await reached(identity_of(request), broker_of(request), partition_id), transaction_id)
    removed = view is not None and (await engine.delete_messages([view.id]))[0]
    answer: DeletedMessage = {
        "success": removed,
        "partitionId": partition_id,
        "transactionId": transaction_id,
        "message": "Message deleted" if removed else "Message not found",
    }
    return reply(answer)


async def delete_message_by_id(request: Request) -> Response:
    """Delete a message. Deletes the message for all consumer groups, leased or not."""
    message_id = text_in_path(request, "id")
    broker = broker_of(request)
    [removed] = await broker.engine.delete_messages([await reached(identity_of(request), broker, message_id)])
    if not removed:
        raise NotFound("Message not found", code="message_not_found")
    answer: DeletedMessageById = {"success": True, "id": message_id}
    return reply(answer)


async def cancel_message(request: Request) -> Response:
    """Cancel a message.

    Removes the message if no consumer has received it. Otherwise the request returns 409.
    """
    message_id = text_in_path(request, "id")
    broker = broker_of(request)
    [outcome] = await broker.engine.cancel([await reached(identity_of(request), broker, message_id)])
    match outcome:
        case "not_found":
            raise NotFound("Message not found", code="message_not_found")
        case "leased":
            raise Conflict(
                "the message cannot be cancelled: a consumer has already received it; delete it instead",
                code="message_leased",
            )
        case "settled":
            raise Conflict(
                "the message cannot be cancelled: a consumer group has already settled it", code="message_settled"
            )
    answer: CancelledMessage = {"success": True, "id": message_id, "cancelled": True}
    return reply(answer)


def _mode(groups: set[str]) -> Mode:
    queue_mode, others = QUEUE_MODE in groups, len(groups - {QUEUE_MODE})
    kind: Literal["queue", "bus", "hybrid", "none"] = "none"
    if queue_mode:
        kind = "hybrid" if others else "queue"
    elif others:
        kind = "bus"
    return {"hasQueueMode": queue_mode, "busGroupsCount": others, "type": kind}


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
    return {
        "id": view.id,
        "transactionId": view.transaction_id,
        "partitionId": view.partition_id,
        "queuePath": f"{view.queue}/{view.partition}",
        "queue": view.queue,
        "partition": view.partition,
        "namespace": view.namespace,
        "task": view.task,
        "offset": view.offset,
        "status": view.state,
        "queueStatus": None if default is None else default.state,
        "busStatus": {
            "consumedBy": sum(1 for group in others if group.state == "completed"),
            "totalGroups": len(others),
        },
        "traceId": view.trace_id,
        "producerSub": view.producer,
        "priority": view.priority,
        "queuePriority": view.queue_priority,
        "createdAt": format_time(view.created_at),
        "deliverAt": None if view.deliver_at is None else format_time_ms(view.deliver_at),
        "leaseExpiresAt": format_time_ms(max(leases)) if leases else None,
    }


def _group(group: GroupView) -> MessageGroup:
    expires = group.lease_expires_at
    return {
        "name": group.group,
        "consumed": group.state == "completed",
        "leaseExpiresAt": None if expires is None else format_time_ms(expires),
        "status": group.state,
        "attempts": group.attempts,
        "errorMessage": group.error,
    }


_FILTER = (*_PAGE, _QUEUE, _PARTITION, _NS, _NAMESPACE, _TASK, _STATUS, _FROM, _TO)
_TOO_LATE = (Failure(409, "message_leased"), Failure(409, "message_settled"))

TABLE: Table = {
    "/api/v1/messages": {"GET": read(list_messages, Reach.QUERY, query=_FILTER, answer=MessagePage)},
    "/api/v1/messages/{id}": {
        "DELETE": write(delete_message_by_id, Reach.ITEMS, answer=DeletedMessageById, errors=(NO_MESSAGE,))
    },
    "/api/v1/messages/{id}/cancel": {
        "POST": write(cancel_message, Reach.ITEMS, answer=CancelledMessage, errors=(NO_MESSAGE, *_TOO_LATE))
    },
    "/api/v1/messages/{partition_id}/{transaction_id}": {
        "GET": read(show_message, Reach.ITEMS, answer=ShownMessage, errors=(NO_MESSAGE,)),
        "DELETE": write(delete_message, Reach.ITEMS, answer=DeletedMessage),
    },
}
