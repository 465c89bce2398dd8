"""Pops: parameters, the name of a consumer for people, and the response."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast
from urllib.parse import parse_qsl

import msgspec
from msgspec.structs import replace

from hark.api.types.delivery import Delivered, PopReply
from hark.broker import Broker
from hark.clock import format_time
from hark.errors import InvalidInput, Refused
from hark.http.checks import MAX_NAME_BYTES, check_name, parse_time
from hark.http.exchange import Exchange
from hark.http.items import MAX_SECONDS
from hark.http.routing import BoolParam, ChoiceParam, IntParam, NameParam, Param, PathParams, Query
from hark.model import QUEUE_MODE, GroupMode, PopRequest, PopResult, StoredMessage, Subscription
from hark.model.messages import parted
from hark.settings import Settings

CONSUMER = NameParam(
    "consumer",
    "Name of the consumer, shown with its leases. The default is the name of its token and its address.",
)


def named(request: PopRequest, exchange: Exchange) -> PopRequest:
    """Return the request with a consumer name: its own, or that of the caller."""
    return request if request.consumer else replace(request, consumer=caller(exchange))


def caller(exchange: Exchange) -> str:
    """Return the subject of the token and the client address, as far as they are known."""
    subject, client = exchange.identity.subject, exchange.client
    if client is None or not client[0]:
        return subject[:MAX_NAME_BYTES]
    host, port = client
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{subject[: MAX_NAME_BYTES - len(address) - 1]}@{address}" if subject else address


AUTOPILOT_BATCH = 200
MAX_PARTITIONS = 10_000
MAX_CONSUMER_PRIORITY = 1000
GROUP_MODES: tuple[GroupMode, ...] = ("ordered", "shared")

_QUEUE = NameParam("queue", "Receive messages of this queue. Give `queue`, `namespace` or `task`.")
PARTITION = NameParam(
    "partition", "Receive messages of this partition only. Requires a queue. The default is any partition."
)
_NAMESPACE = NameParam("namespace", "Receive messages of any queue in this namespace. Ignored if a queue is given.")
_TASK = NameParam("task", "Receive messages of any queue with this task. Ignored if a queue is given.")
_GROUP = NameParam(
    "consumerGroup", f"Consumer group that receives the messages. The default is the default group, `{QUEUE_MODE}`."
)
_GROUP_MODE = ChoiceParam(
    "groupMode",
    "Mode of a new consumer group. `ordered`: one consumer at a time receives a partition, in order. `shared`: the "
    "consumers of the group share the messages of a partition. The default is `ordered`. An existing group keeps its "
    "mode; another value returns 409.",
    GROUP_MODES,
)
_PARTITIONS = IntParam("partitions", "Maximum number of partitions to receive from.", 1, 1, MAX_PARTITIONS)
_AUTO_ACK = BoolParam(
    "autoAck", "Acknowledge the messages at delivery, without a lease. Each message is delivered at most once."
)
_SUBSCRIPTION_MODE = ChoiceParam(
    "subscriptionMode",
    "Where a new consumer group starts. `all` or `from_beginning`: at the oldest stored message. `new` or `new-only`: "
    "with messages pushed from now on. `timestamp`: at the time in `subscriptionFrom`. The default is the setting "
    "`pop.default_subscription`.",
    ("all", "new", "new-only", "from_beginning", "timestamp"),
)
_SUBSCRIPTION_FROM = Param(
    "subscriptionFrom",
    "Where a new consumer group starts: `now`, or a time. The group receives messages created after this time.",
)
_LEASE_TIME = IntParam(
    "leaseTime", "Length of the lease, in seconds. The default is the queue option `leaseTime`.", 0, 1, MAX_SECONDS
)
_LEASE_SECONDS = IntParam("leaseSeconds", "Alias of `leaseTime`.", 0, 1, MAX_SECONDS)
PRIORITY = IntParam(
    "consumerPriority",
    "Priority among waiting consumers. Consumers with a higher number receive messages first.",
    0,
    -MAX_CONSUMER_PRIORITY,
    MAX_CONSUMER_PRIORITY,
)
WAIT = BoolParam("wait", "Wait until a message is available, for at most `timeout` milliseconds.")
_AUTOPILOT = BoolParam("autopilot", f"Use a `batch` of {AUTOPILOT_BATCH}, unless `batch` is given.")
_CONFLATION = ChoiceParam("conflation", "Not supported. Other values than `false` return 501.", ("false", "0"))

_TARGET = (_QUEUE, PARTITION, _NAMESPACE, _TASK)

QueuePath = tuple[str | None, str | None]
"""A queue and one of its partitions. None means any."""


class Pop(msgspec.Struct, frozen=True):
    """A pop request and how long it waits."""

    request: PopRequest
    wait_seconds: float
    priority: int = 0
    """Waiting consumers with a higher number receive messages first."""


def taking_params(settings: Settings, default_batch: int, *, with_queue: bool) -> tuple[Param, ...]:
    """Return the parameters of all routes that receive messages. `with_queue`: including queue and partition."""
    return (
        *(_TARGET if with_queue else ()),
        _GROUP,
        _GROUP_MODE,
        batch_param(settings, default_batch),
        _PARTITIONS,
        _AUTO_ACK,
        _SUBSCRIPTION_MODE,
        _SUBSCRIPTION_FROM,
        _LEASE_TIME,
        _LEASE_SECONDS,
        PRIORITY,
        CONSUMER,
        _CONFLATION,
    )


def pop_params(settings: Settings, *, with_queue: bool) -> tuple[Param, ...]:
    """Return the parameters of a pop."""
    return (
        *taking_params(settings, settings.pop.default_batch, with_queue=with_queue),
        WAIT,
        timeout_param(settings),
        _AUTOPILOT,
    )


def batch_param(settings: Settings, default: int) -> IntParam:
    """Return the parameter for the number of messages."""
    return IntParam("batch", "Maximum number of messages to receive at a time.", default, 1, settings.limits.max_batch)


def prefetch_param(default: int, most: int) -> IntParam:
    """Return the parameter for the number of messages that a stream holds."""
    return IntParam("prefetch", "Maximum number of unacknowledged messages that the client holds.", default, 1, most)


def timeout_param(settings: Settings) -> IntParam:
    """Return the parameter for the longest wait."""
    pop = settings.pop
    meaning = "Maximum time to wait, in milliseconds. Used only with `wait=true`."
    return IntParam("timeout", meaning, pop.default_timeout_ms, 0, pop.max_timeout_ms)


def wait_seconds(query: Query, wait: BoolParam, timeout: IntParam) -> float:
    """Return how long a request waits. Its timeout is checked even if it does not wait."""
    milliseconds = timeout.of(query)
    return milliseconds / 1000 if wait.of(query) else 0


def parse_pop(target: QueuePath, query_string: bytes, settings: Settings) -> Pop:
    """Return the pop of a path, which may name a queue, and a query string."""
    try:
        query = dict(reversed(parse_qsl(query_string.decode("ascii"), keep_blank_values=True, errors="strict")))
    except UnicodeDecodeError:
        raise InvalidInput("the query string is not valid UTF-8; percent-encode the parameters as UTF-8") from None
    target = queue_of(target, query)
    default_batch = AUTOPILOT_BATCH if _AUTOPILOT.of(query) else settings.pop.default_batch
    timeout = timeout_param(settings).of(query)
    request = pop_request(query, target, default_batch, settings)
    return Pop(request, timeout / 1000 if WAIT.of(query) else 0, PRIORITY.of(query))


def pop_request(query: Query, target: QueuePath, default_batch: int, settings: Settings) -> PopRequest:
    """Return the request of a pop, or of another route that receives messages."""
    queue, partition = target
    namespace, task = _NAMESPACE.of(query), _TASK.of(query)
    if queue is not None:
        namespace = task = None
    elif namespace is None and task is None:
        raise InvalidInput("queue, namespace or task is required: name the queues to receive messages from")
    lease, alias = _LEASE_TIME.of(query), _LEASE_SECONDS.of(query)
    if (_CONFLATION.text(query) or "false") not in _CONFLATION.choices:
        raise Refused("conflation: this server does not support it; leave the parameter out")
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
        lease_ms=1000 * (lease or alias) or None,
        consumer=CONSUMER.of(query) or "",
    )


def queue_in_path(params: PathParams) -> QueuePath:
    """Return the queue and partition in the path, unchecked."""
    return cast(QueuePath, (params.get("queue"), params.get("partition")))


def queue_of(named: QueuePath, query: Query) -> QueuePath:
    """Return the queue and partition in the path, checked, or else those in the parameters."""
    queue, partition = named
    if queue is None:
        queue, partition = _QUEUE.of(query), PARTITION.of(query)
        return queue, partition if queue is not None else None
    return check_name(queue, "queue"), None if partition is None else check_name(partition, "partition")


def _subscription(query: Query, default: str) -> Subscription:
    """Return where a new group starts. Clients also send `new-only` for `new` and `from_beginning` for `all`."""
    since, mode = _SUBSCRIPTION_FROM.text(query), _SUBSCRIPTION_MODE.of(query)
    if since and since != "now":
        return Subscription("timestamp", parse_time(since, _SUBSCRIPTION_FROM.name))
    if (mode or default) in ("new", "new-only"):
        return Subscription("new")
    return Subscription("new") if since == "now" else Subscription()


def pop_reply(request: PopRequest, result: PopResult) -> PopReply:
    """Return the response to a pop that received messages."""
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


def wire_messages(group: str, result: PopResult) -> list[Delivered]:
    """Return delivered messages in the form of the HTTP API."""
    lease_id = result.lease_id
    created_at, created_text = -1, ""
    messages = []
    for message in result.messages:
        if message.created_at != created_at:
            created_at = message.created_at
            created_text = format_time(created_at)
        wire = Delivered(
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
            wire.tracestate = tracestate
        messages.append(wire)
    return messages


def browsed_messages(messages: Sequence[StoredMessage]) -> list[Delivered]:
    """Return browsed messages in the form of the HTTP API."""
    shown = wire_messages("", PopResult(messages))
    for wire, message in zip(shown, messages, strict=True):
        wire.payload_error = message.unreadable
    return shown


def received(broker: Broker, exchange: Exchange, future: asyncio.Future[PopResult]) -> PopResult:
    """Return the result of a pop with readable payloads; it is empty if the client has disconnected."""
    result = future.result()
    if exchange.gone:  # It disconnected in the turn of the event loop in which the result arrived.
        broker.give_back(result)
        return PopResult()
    exchange.on_left = None
    broker.unseal(result)
    return result
