"""Pops: their parameters and their answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, UnsetType

from hark.errors import InvalidInput, Refused
from hark.http.callers import CONSUMER
from hark.http.checks import check_name, format_time, parse_time
from hark.http.params import BoolParam, ChoiceParam, IntParam, NameParam, Param
from hark.http.renewals import MAX_SECONDS
from hark.http.responses import Scope
from hark.model import QUEUE_MODE, GroupMode, PopRequest, PopResult, Subscription
from hark.model.trace_context import parted
from hark.settings import Settings

AUTOPILOT_BATCH = 200
MAX_PARTITIONS = 10_000
MAX_PRIORITY = 1000
GROUP_MODES: tuple[GroupMode, ...] = ("ordered", "shared")

_QUEUE = NameParam("queue", "The queue, where it is not in the path; `namespace` or `task` will do as well.")
_PARTITION = NameParam("partition", "Only this partition of the queue.")
_NAMESPACE = NameParam("namespace", "Any queue of this namespace.")
_TASK = NameParam("task", "Any queue of this task.")
_GROUP = NameParam("consumerGroup", "The group to take messages for; if it is not given, the default one.")
_GROUP_MODE = ChoiceParam(
    "groupMode", "How a group that is new takes messages: in order, or shared by all its consumers.", GROUP_MODES
)
_PARTITIONS = IntParam("partitions", "From how many partitions at most.", 1, 1, MAX_PARTITIONS)
_AUTO_ACK = BoolParam("autoAck", "Whether messages are done when they are delivered.")
_SUBSCRIPTION_MODE = ChoiceParam(
    "subscriptionMode",
    "Where a new group starts: at the first message that is there, or with those that come from now on.",
    ("all", "new", "new-only", "from_beginning", "timestamp"),
)
_SUBSCRIPTION_FROM = Param("subscriptionFrom", "Where a new group starts: `now`, or a time.")
_LEASE_TIME = IntParam(
    "leaseTime", "Seconds to hold the messages; if it is not given, as the queue says.", 0, 1, MAX_SECONDS
)
_PRIORITY = IntParam(
    "consumerPriority",
    "Of those who wait, the ones with the highest are served first.",
    0,
    -MAX_PRIORITY,
    MAX_PRIORITY,
)
_WAIT = BoolParam("wait", "Whether to wait for a message if there is none.")
_AUTOPILOT = BoolParam("autopilot", f"The same as `batch={AUTOPILOT_BATCH}`, if that is not given.")
_CONFLATION = ChoiceParam("conflation", "This server does not have it; only `false` is taken.", ("false", "0"))

_PLACE = (_QUEUE, _PARTITION, _NAMESPACE, _TASK)

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
    traceparent: str | UnsetType = UNSET
    tracestate: str | UnsetType = UNSET


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


def taking_params(settings: Settings, default_batch: int, *, place: bool) -> tuple[Param, ...]:
    """The parameters of everything that takes messages; those of the place where it is not in the path."""
    return (
        *(_PLACE if place else ()),
        _GROUP,
        _GROUP_MODE,
        batch_param(settings, default_batch),
        _PARTITIONS,
        _AUTO_ACK,
        _SUBSCRIPTION_MODE,
        _SUBSCRIPTION_FROM,
        _LEASE_TIME,
        _PRIORITY,
        CONSUMER,
        _CONFLATION,
    )


def pop_params(settings: Settings, *, place: bool) -> tuple[Param, ...]:
    """The parameters of a pop."""
    taking = taking_params(settings, settings.pop.default_batch, place=place)
    return (*taking, _WAIT, timeout_param(settings), _AUTOPILOT)


def batch_param(settings: Settings, default: int) -> IntParam:
    """How many messages at once."""
    return IntParam("batch", "How many messages at most.", default, 1, settings.limits.max_batch)


def timeout_param(settings: Settings) -> IntParam:
    """How long to wait."""
    pop = settings.pop
    return IntParam("timeout", "Milliseconds to wait at most.", pop.default_timeout_ms, 0, pop.max_timeout_ms)


def parse_pop(place: Place, query_string: bytes, settings: Settings) -> Pop:
    """The pop that a path, which may name a place, and a query string ask for."""
    try:
        query = dict(reversed(parse_qsl(query_string.decode("ascii"), keep_blank_values=True, errors="strict")))
    except UnicodeDecodeError:
        raise InvalidInput("the query string is not valid UTF-8") from None
    place = place_of(place, query)
    default_batch = AUTOPILOT_BATCH if _AUTOPILOT.of(query) else settings.pop.default_batch
    timeout = timeout_param(settings).of(query)
    request = pop_request(query, place, default_batch, settings)
    return Pop(request, timeout / 1000 if _WAIT.of(query) else 0, priority_param(query))


def pop_request(query: Mapping[str, str], place: Place, default_batch: int, settings: Settings) -> PopRequest:
    """What the parameters of a pop, or of anything else that takes messages, ask for."""
    queue, partition = place
    namespace = task = None
    if queue is None:
        namespace, task = _NAMESPACE.of(query), _TASK.of(query)
        if namespace is None and task is None:
            raise InvalidInput("queue, namespace or task is required: say what to pop from")
    if (_CONFLATION.text(query) or "false") not in _CONFLATION.choices:
        raise Refused("conflation: this server does not have it (yet); leave it out")
    return PopRequest(
        queue=queue,
        partition=partition,
        namespace=namespace,
        task=task,
        group=_GROUP.of(query) or QUEUE_MODE,
        group_mode=cast("GroupMode | None", _GROUP_MODE.of(query)),
        batch=batch_param(settings, default_batch).of(query),
        partitions=_PARTITIONS.of(query),
        auto_ack=_AUTO_ACK.of(query),
        subscription=_subscription(query, settings.pop.default_subscription),
        lease_ms=1000 * _LEASE_TIME.of(query) or None,
        consumer=CONSUMER.of(query) or "",
    )


def priority_param(query: Mapping[str, str]) -> int:
    """The priority of a consumer among those who wait."""
    return _PRIORITY.of(query)


def place_in_path(scope: Scope) -> Place:
    """The place that the path names, as it is written there."""
    params = scope["path_params"]
    return params.get("queue"), params.get("partition")


def place_of(named: Place, query: Mapping[str, str]) -> Place:
    """The place that a path names, checked, or else the one that parameters name."""
    queue, partition = named
    if queue is None:
        return place_in_query(query)
    return check_name(queue, "queue"), None if partition is None else check_name(partition, "partition")


def place_in_query(query: Mapping[str, str]) -> Place:
    """The place that parameters name."""
    queue = _QUEUE.of(query)
    return queue, _PARTITION.of(query) if queue is not None else None


def _subscription(query: Mapping[str, str], default: str) -> Subscription:
    """Where a new group starts; the clients' words `new-only` and `from_beginning` mean what they say."""
    since = _SUBSCRIPTION_FROM.text(query)
    if since and since != "now":
        return Subscription("timestamp", parse_time(since, _SUBSCRIPTION_FROM.name))
    mode = _SUBSCRIPTION_MODE.of(query) or ("new" if since == "now" else default)
    if mode in ("new", "new-only"):
        return Subscription("new")
    return Subscription("new") if since == "now" else Subscription()


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
        wire = WireDelivery(
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
        if message.trace_context is not None:
            wire.traceparent, tracestate = parted(message.trace_context)
            wire.tracestate = tracestate or UNSET
        messages.append(wire)
    return messages
