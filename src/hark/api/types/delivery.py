"""Pushed and received messages, acknowledgements, and their results: the types that every message passes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from hark.api.types import OptionalRaw
from hark.model.messages import DEFAULT_PARTITION


class PushItem(msgspec.Struct, gc=False, rename="camel"):
    """A message to push."""

    queue: str
    partition: str = DEFAULT_PARTITION
    payload: OptionalRaw = UNSET
    transaction_id: str = ""
    trace_id: str = ""
    priority: int | None = None
    delay: int | None = None
    deliver_at: str | int | None = None
    backoff_schedule: Sequence[int] | None = None
    ttl: int | None = None
    keys_if_undelivered: OptionalRaw = UNSET
    traceparent: str | None = None
    tracestate: str | None = None
    message_id: str | None = None
    namespace: str | None = None
    task: str | None = None
    unique_key: str | None = None
    unique_until: str | None = None


NO_RESULT = msgspec.Raw(b"null")


class PushAnswer(msgspec.Struct, gc=False, omit_defaults=True):
    """The result of one pushed message."""

    index: int
    transaction_id: str | None
    status: str
    message_id: str | None
    partition_id: str | None
    trace_id: str | None
    queue: str = msgspec.field(name="queueName")
    code: str | None = None
    error: str | None = None


class Delivered(msgspec.Struct, gc=False, rename="camel", omit_defaults=True):
    """A delivered message, with its payload not decoded."""

    id: str
    transaction_id: str
    trace_id: str | None
    data: msgspec.Raw
    producer_sub: str | None
    created_at: str
    partition_id: str
    partition: str
    lease_id: str
    """Empty if the server acknowledged the message on delivery."""
    consumer_group: str
    queue: str
    offset: int
    priority: int
    delivery_attempt: int
    traceparent: str | None = None
    """The W3C trace context of the producer."""
    tracestate: str | None = None
    payload_error: str | None = None
    """Why a browsed payload, which is null then, cannot be read: code and text."""


class PopReply(msgspec.Struct, gc=False, rename="camel"):
    """The messages that a pop received. The partition at the top level is that of the first message."""

    success: bool
    queue: str
    partition: str
    partition_id: str
    lease_id: str
    consumer_group: str
    partitions_claimed: int
    messages: Sequence[Delivered]


class StepRefBody(msgspec.Struct, frozen=True, gc=False):
    """The step of a flow that a message is, as the payload of the message says."""

    queue: str
    id: str
    path: str


class TaskEndBody(msgspec.Struct, gc=False, rename="camel", omit_defaults=True):
    """How the run of a task ended. Its result is stored in one transaction with the acknowledgement."""

    transaction_id: str
    """The transaction id of the message. Consumers find the result by it and the partition."""
    state: str = "done"
    """`done` or `cancelled`; with the status `failed` or `dlq`: `failed`."""
    result: msgspec.Raw = msgspec.field(default_factory=lambda: NO_RESULT)
    """Any JSON value."""
    result_ttl: int = 3600
    """How many seconds the result is kept."""
    flow: StepRefBody | None = None


class AckBody(msgspec.Struct, gc=False, rename="camel", omit_defaults=True):
    """An acknowledgement, rejection, retry or dead-lettering of one message."""

    transaction_id: str | None = None
    partition_id: str | None = None
    status: str | None = None
    consumer_group: str | None = None
    lease_id: str | None = None
    error: str | None = None
    delay: int | None = None
    task: TaskEndBody | None = None
    default_delay: int | None = None


class AckBatchBody(msgspec.Struct, gc=False, rename="camel", omit_defaults=True):
    """Acknowledgements of several messages of one consumer group."""

    acknowledgments: list[AckBody]
    consumer_group: str | None = None


class AckAnswer(msgspec.Struct, gc=False, omit_defaults=True, rename="camel"):
    """The result of one acknowledgement."""

    index: int
    transaction_id: str
    success: bool
    error: str | None
    queue_name: str | None
    partition_name: str | None
    lease_released: bool
    dlq: bool
    code: str | None = None
