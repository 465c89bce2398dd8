"""Explanations of undelivered messages, and the list of leases."""

from __future__ import annotations

from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from hark.access.identity import Identity
from hark.http.answers.explain import ExplainedMessage, GroupReason, HeldLease, LeasePage
from hark.http.checks import format_time, format_time_ms
from hark.http.edge.identities import identity_of, shown_lease
from hark.http.edge.reaching import reached
from hark.http.params import NameParam, paging
from hark.http.routes.requests import NO_MESSAGE, broker_of, query_of, reply, text_in_path
from hark.http.routes.table import Reach, Table, read
from hark.model import Explanation, HeldPart, LeaseFilter

_GROUP = NameParam("consumerGroup", "Explain only for this consumer group. The default is all groups of the queue.")
_PAGE = paging()
_QUEUE = NameParam("queue", "Return only leases on messages of this queue.")
_PARTITION = NameParam("partition", "Return only leases on messages of partitions with this name.")
_HOLDER = NameParam("consumerGroup", "Return only leases of this consumer group.")


async def explain_message(request: Request) -> Response:
    """Explain the state of a message.

    Returns for each consumer group why the message has not been delivered or settled, as a sentence and as data.
    """
    broker = broker_of(request)
    message_id = await reached(identity_of(request), broker, text_in_path(request, "id"))
    explained = await broker.explain(message_id, _GROUP.of(query_of(request)))
    message = explained.message
    answer: ExplainedMessage = {
        "messageId": message.id,
        "queue": message.queue,
        "partition": message.partition,
        "partitionId": message.partition_id,
        "offset": message.offset,
        "transactionId": message.transaction_id,
        "createdAt": None if message.created_at is None else format_time(message.created_at),
        "explanations": [_reason(one) for one in explained.explanations],
    }
    return reply(answer)


def _reason(told: Explanation) -> GroupReason:
    said: dict[str, object] = {"consumerGroup": told.group, "reason": told.reason, "text": told.text}
    return cast(GroupReason, said | dict(told.data))


async def list_leases(request: Request) -> Response:
    """List leases. Returns the current leases, the oldest first. A lease has one entry for each of its partitions."""
    query = query_of(request)
    limit, offset = _PAGE.of(query)
    where = LeaseFilter(
        queue=_QUEUE.of(query), partition=_PARTITION.of(query), group=_HOLDER.of(query), limit=limit, offset=offset
    )
    page = await broker_of(request).engine.leases(where)
    identity = identity_of(request)
    answer: LeasePage = {
        "leases": [_lease(identity, one) for one in page.items],
        "total": page.total,
        "pagination": {"limit": limit, "offset": offset},
    }
    return reply(answer)


def _lease(identity: Identity, held: HeldPart) -> HeldLease:
    return {
        "leaseId": shown_lease(identity, held.lease_id),
        "queue": held.queue,
        "partition": held.partition,
        "partitionId": held.partition_id,
        "consumerGroup": held.group,
        "mode": held.mode,
        "consumer": held.consumer or None,
        "since": None if held.since is None else format_time_ms(held.since),
        "until": format_time_ms(held.until),
        "messages": held.messages,
        "firstMessageId": held.first_message_id,
    }


TABLE: Table = {
    "/api/v1/explain/{id}": {
        "GET": read(explain_message, Reach.ITEMS, query=(_GROUP,), answer=ExplainedMessage, errors=(NO_MESSAGE,))
    },
    "/api/v1/leases": {
        "GET": read(list_leases, Reach.QUERY, query=(*_PAGE, _QUEUE, _PARTITION, _HOLDER), answer=LeasePage)
    },
}
