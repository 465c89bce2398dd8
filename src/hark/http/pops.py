"""Pops: their parameters and their answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast
from urllib.parse import parse_qsl

import msgspec

from hark.errors import InvalidInput, NotFound, Refused
from hark.http.checks import (
    bool_param,
    check_name,
    format_time,
    int_param,
    name_param,
    parse_time,
    path_segments,
    short,
)
from hark.http.renewals import MAX_SECONDS
from hark.model import QUEUE_MODE, GroupMode, PopRequest, PopResult, Subscription
from hark.settings import Settings

AUTOPILOT_BATCH = 200
MAX_PARTITIONS = 10_000
MAX_PRIORITY = 1000

Place = tuple[str | None, str | None]
"""A queue and a partition of it; None: any."""


class Pop(msgspec.Struct, frozen=True):
    """A pop and how long it may wait."""

    request: PopRequest
    wait_seconds: float
    priority: int = 0
    """Of those who wait, the ones with the highest are served first."""


class WireDelivery(msgspec.Struct, gc=False, rename="camel"):
    """A message in the answer to a pop."""

    id: str
    transaction_id: str
    trace_id: str | None
    data: msgspec.Raw
    producer_sub: str | None
    created_at: str
    partition_id: str
    partition: str
    lease_id: str
    consumer_group: str
    queue: str
    offset: int
    priority: int
    delivery_attempt: int


class PopReply(msgspec.Struct, gc=False, rename="camel"):
    """The answer to a pop that got something; the top-level partition is that of the first message."""

    success: bool
    queue: str
    partition: str
    partition_id: str
    lease_id: str
    consumer_group: str
    partitions_claimed: int
    messages: Sequence[WireDelivery]


def parse_pop(raw_path: bytes, query_string: bytes, settings: Settings) -> Pop:
    """The pop that a path and a query string ask for."""
    try:
        query = dict(reversed(parse_qsl(query_string.decode("ascii"), keep_blank_values=True, errors="strict")))
    except UnicodeDecodeError:
        raise InvalidInput("the query string is not valid UTF-8") from None
    place = place_in_path(raw_path, query)
    pop = settings.pop
    default_batch = AUTOPILOT_BATCH if bool_param(query, "autopilot") else pop.default_batch
    timeout = int_param(query, "timeout", pop.default_timeout_ms, 0, pop.max_timeout_ms)
    request = pop_request(query, place, default_batch, settings)
    return Pop(request, timeout / 1000 if bool_param(query, "wait") else 0, priority_param(query))


def pop_request(query: Mapping[str, str], place: Place, default_batch: int, settings: Settings) -> PopRequest:
    """What the parameters of a pop, or of anything else that takes messages, ask for."""
    queue, partition = place
    namespace = task = None
    if queue is None:
        namespace, task = name_param(query, "namespace"), name_param(query, "task")
        if namespace is None and task is None:
            raise InvalidInput("queue, namespace or task is required: say what to pop from")
    if query.get("conflation") not in (None, "", "false", "0"):
        raise Refused("conflation: this server does not have it (yet); leave it out")
    return PopRequest(
        queue=queue,
        partition=partition,
        namespace=namespace,
        task=task,
        group=name_param(query, "consumerGroup") or QUEUE_MODE,
        group_mode=_group_mode(query),
        batch=int_param(query, "batch", default_batch, 1, settings.limits.max_batch),
        partitions=int_param(query, "partitions", 1, 1, MAX_PARTITIONS),
        auto_ack=bool_param(query, "autoAck"),
        subscription=_subscription(query, settings.pop.default_subscription),
        lease_ms=1000 * int_param(query, "leaseTime", 0, 1, MAX_SECONDS) or None,
    )


def priority_param(query: Mapping[str, str]) -> int:
    """The priority of a consumer among those who wait."""
    return int_param(query, "consumerPriority", 0, -MAX_PRIORITY, MAX_PRIORITY)


def place_in_path(raw_path: bytes, query: Mapping[str, str]) -> Place:
    """/api/v1/{verb}, /api/v1/{verb}/queue/{queue}, /api/v1/{verb}/queue/{queue}/partition/{partition}"""
    _, _, verb, *segments = path_segments(raw_path)
    if not segments:
        return place_in_query(query)
    if len(segments) == 2 and segments[0] == "queue":
        return check_name(segments[1], "queue"), None
    if len(segments) == 4 and segments[0] == "queue" and segments[2] == "partition":
        return check_name(segments[1], "queue"), check_name(segments[3], "partition")
    raise NotFound(f"no such route; {verb} from /api/v1/{verb}/queue/{{queue}}", code="route_not_found")


def place_in_query(query: Mapping[str, str]) -> Place:
    """The place that parameters name."""
    queue = name_param(query, "queue")
    return queue, name_param(query, "partition") if queue is not None else None


def _group_mode(query: Mapping[str, str]) -> GroupMode | None:
    mode = query.get("groupMode")
    if mode in (None, ""):
        return None
    if mode not in ("ordered", "shared"):
        raise InvalidInput(f"groupMode: expected ordered or shared, got {short(mode)}")
    return cast("GroupMode", mode)


def _subscription(query: Mapping[str, str], default: str) -> Subscription:
    """Where a new group starts; the clients' words `new-only` and `from_beginning` mean what they say."""
    since = query.get("subscriptionFrom")
    if since and since != "now":
        return Subscription("timestamp", parse_time(since, "subscriptionFrom"))
    mode = query.get("subscriptionMode") or ("new" if since == "now" else default)
    if mode in ("new", "new-only"):
        return Subscription("new")
    if mode in ("all", "from_beginning", "timestamp"):
        return Subscription("new") if since == "now" else Subscription()
    raise InvalidInput(f"subscriptionMode: expected all or new, got {short(mode)}")


def pop_reply(request: PopRequest, result: PopResult) -> PopReply:
    """The answer to a pop that got something."""
    first = result.messages[0]
    return PopReply(
        True,
        first.queue,
        first.partition,
        first.partition_id,
        result.lease_id,
        request.group,
        result.partitions,
        wire_messages(request.group, result),
    )


def wire_messages(group: str, result: PopResult) -> list[WireDelivery]:
    """The messages that a consumer of a group got, as they go out."""
    lease_id = result.lease_id
    created_at, created_text = -1, ""
    messages = []
    for message in result.messages:
        if message.created_at != created_at:
            created_at = message.created_at
            created_text = format_time(created_at)
        messages.append(
            WireDelivery(
                message.id,
                message.transaction_id,
                message.trace_id,
                message.payload,
                message.producer,
                created_text,
                message.partition_id,
                message.partition,
                lease_id,
                group,
                message.queue,
                message.offset,
                message.priority,
                message.attempt,
            )
        )
    return messages
