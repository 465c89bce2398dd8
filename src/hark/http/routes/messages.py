"""Messages as an administrator sees them: list, show, cancel, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from hark.clock import SECOND
from hark.errors import Conflict, InvalidInput, NotFound
from hark.http.checks import format_time, format_time_ms, name_param, short, time_param
from hark.http.routes.requests import broker_of, now, page_params, query_of, reply, text_in_path
from hark.http.routes.table import Table
from hark.model import QUEUE_MODE, GroupView, MessageFilter, MessageState, MessageView, QueueOptions

_MINUTE = 60 * SECOND
_HOUR = 60 * _MINUTE
_STATES = ("pending", "processing", "completed", "dead_letter")


async def list_messages(request: Request) -> Response:
    """Messages of the last hour, or of the time that is asked for, newest first."""
    query = query_of(request)
    limit, offset = page_params(query, 200)
    queue = name_param(query, "queue")
    since, until = time_param(query, "from"), time_param(query, "to")
    if until is not None and until % _MINUTE == 0:
        until += _MINUTE - 1  # A whole minute means all of it.
    where = MessageFilter(
        queue=queue,
        partition=name_param(query, "partition"),
        namespace=name_param(query, "ns") or name_param(query, "namespace"),
        task=name_param(query, "task"),
        state=_state(query),
        since=now() - _HOUR if since is None else since,
        until=until,
        limit=limit,
        offset=offset,
    )
    engine = broker_of(request).engine
    views = await engine.messages(where)
    groups = {stats.group for stats in await engine.group_stats(queue=queue)}
    return reply({"messages": [_view(view) for view in views], "mode": _mode(groups)})


async def show_message(request: Request) -> Response:
    """One message with its payload and what each group did with it."""
    broker = broker_of(request)
    view = await broker.message(text_in_path(request, "partition_id"), text_in_path(request, "transaction_id"))
    if view is None:
        raise NotFound("Message not found", code="message_not_found")
    infos = await broker.engine.queue_infos([view.queue])
    options = infos[0].options if infos else QueueOptions()
    main = _main_group(view.groups)
    done = [group.group for group in view.groups if group.state == "completed"]
    return reply(
        _view(view)
        | {
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
            "mode": _mode({group.group for group in view.groups})
            | {"consumedByGroups": [name for name in done if name != QUEUE_MODE]},
            "consumerGroups": [_group(group) for group in view.groups],
        }
    )


async def delete_message(request: Request) -> Response:
    """Remove one message; one that is not there is an answer, as in the original."""
    partition_id = text_in_path(request, "partition_id")
    transaction_id = text_in_path(request, "transaction_id")
    engine = broker_of(request).engine
    view = await engine.message(partition_id, transaction_id)
    removed = view is not None and (await engine.delete_messages([view.id]))[0]
    return reply(
        {
            "success": removed,
            "partitionId": partition_id,
            "transactionId": transaction_id,
            "message": "Message deleted" if removed else "Message not found",
        }
    )


async def delete_message_by_id(request: Request) -> Response:
    """Remove one message by its id alone."""
    message_id = text_in_path(request, "id")
    [removed] = await broker_of(request).engine.delete_messages([message_id])
    if not removed:
        raise NotFound("Message not found", code="message_not_found")
    return reply({"success": True, "id": message_id})


async def cancel_message(request: Request) -> Response:
    """Take a message back, delayed or not, unless somebody has got it."""
    message_id = text_in_path(request, "id")
    [outcome] = await broker_of(request).engine.cancel([message_id])
    match outcome:
        case "not_found":
            raise NotFound("Message not found", code="message_not_found")
        case "leased":
            raise Conflict("too late to cancel: a group holds the message or has tried it", code="message_leased")
        case "settled":
            raise Conflict("too late to cancel: a group is done with the message", code="message_settled")
    return reply({"success": True, "id": message_id, "cancelled": True})


def _state(query: Mapping[str, str]) -> MessageState | None:
    text = query.get("status")
    if not text:
        return None
    if text not in _STATES:
        raise InvalidInput(f"status: expected one of {', '.join(_STATES)}, got {short(text)}")
    return cast(MessageState, text)


def _mode(groups: set[str]) -> dict[str, object]:
    queue_mode, others = QUEUE_MODE in groups, len(groups - {QUEUE_MODE})
    kind = ("hybrid" if others else "queue") if queue_mode else ("bus" if others else "none")
    return {"hasQueueMode": queue_mode, "busGroupsCount": others, "type": kind}


def _main_group(groups: Sequence[GroupView]) -> GroupView | None:
    """The default group if the message has it, else the one that tried most often."""
    for group in groups:
        if group.group == QUEUE_MODE:
            return group
    return max(groups, key=lambda group: group.attempts, default=None)


def _view(view: MessageView) -> dict[str, object]:
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


def _group(group: GroupView) -> dict[str, object]:
    expires = group.lease_expires_at
    return {
        "name": group.group,
        "consumed": group.state == "completed",
        "leaseExpiresAt": None if expires is None else format_time_ms(expires),
        "status": group.state,
        "attempts": group.attempts,
        "errorMessage": group.error,
    }


TABLE: Table = {
    "/api/v1/messages": {"GET": list_messages},
    "/api/v1/messages/{id}": {"DELETE": delete_message_by_id},
    "/api/v1/messages/{id}/cancel": {"POST": cancel_message},
    "/api/v1/messages/{partition_id}/{transaction_id}": {"GET": show_message, "DELETE": delete_message},
}
