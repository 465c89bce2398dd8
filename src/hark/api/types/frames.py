"""The frames of a WebSocket: JSON objects with a field `type`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from hark.api.types.delivery import AckAnswer, AckBody, Delivered
from hark.api.types.messages import RenewalAnswer

NO_REF = msgspec.Raw(b"null")


class _Frame(msgspec.Struct, rename="camel", tag_field="type", tag=str.lower):
    """Base class of all frames. `ref` is any JSON value of the client; the response repeats it."""


# From the client -------------------------------------------------------------------------------------------


class Subscribe(_Frame, kw_only=True):
    """Subscribe to messages, or browse them. The fields are the parameters of a pop."""

    id: str
    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    consumer_group: str | None = None
    group_mode: str | None = None
    batch: int | None = None
    partitions: int | None = None
    auto_ack: bool | None = None
    consumer_priority: int | None = None
    consumer: str | None = None
    lease_time: int | None = None
    subscription_mode: str | None = None
    subscription_from: str | int | None = None
    browse: bool | None = None
    start: str | int | None = msgspec.field(default=None, name="from")


class Unsubscribe(_Frame):
    """End a subscription. The client keeps its leases."""

    id: str


class Credit(_Frame):
    """Set the number of unacknowledged messages that the client may hold in total."""

    n: int


class Ack(_Frame):
    """Acknowledge messages."""

    items: list[AckBody]
    ref: msgspec.Raw = NO_REF
    consumer_group: str | None = None


class Nack(Ack):
    """Reject, retry or dead-letter messages."""


class Renew(_Frame):
    """Renew leases."""

    lease_ids: list[str]
    ref: msgspec.Raw = NO_REF
    seconds: int | None = None


class Pause(_Frame):
    """Stop deliveries to this client until it resumes."""


class Resume(_Frame):
    """Continue deliveries after a pause or a drain."""


class Drain(_Frame):
    """Stop deliveries, and confirm when the last message has been sent."""

    ref: msgspec.Raw = NO_REF


class Ping(_Frame):
    """Check the connection."""


class Pong(_Frame):
    """Response to a ping."""


ClientFrame = Subscribe | Unsubscribe | Credit | Ack | Nack | Renew | Pause | Resume | Drain | Ping | Pong


# From the server -------------------------------------------------------------------------------------------


class Subscribed(_Frame):
    """Confirms a subscription."""

    id: str


class Unsubscribed(_Frame):
    """Confirms the end of a subscription."""

    id: str


class Messages(_Frame):
    """Messages under one lease. The lease id is empty for auto-acknowledged and browsed messages."""

    id: str
    lease_id: str
    messages: Sequence[Delivered]


class Settled(_Frame):
    """Results of an ack or a nack, in the order of its items."""

    ref: msgspec.Raw
    results: Sequence[AckAnswer]


class Renewed(_Frame):
    """Results of a renewal, in the order of its leases."""

    ref: msgspec.Raw
    results: Sequence[RenewalAnswer]


class Drained(_Frame):
    """Confirms that no messages follow until the client resumes."""

    ref: msgspec.Raw
    unsettled: int


class Error(_Frame, kw_only=True):
    """A frame was rejected (with its `ref` or `id`), or a subscription ended (with its `id`)."""

    ref: msgspec.Raw | UnsetType = UNSET
    id: msgspec.Raw | UnsetType = UNSET
    error: str
    code: str


ServerFrame = Subscribed | Unsubscribed | Messages | Settled | Renewed | Drained | Error | Ping | Pong
