"""The frames of a WebSocket, each a JSON object that says by `type` what it is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from hark.errors import HarkError
from hark.http.acks import AckAnswer, AckBody
from hark.http.checks import decode_json
from hark.http.pops import WireDelivery
from hark.http.renewals import RenewalAnswer

NO_REF = msgspec.Raw(b"null")


class _Frame(msgspec.Struct, rename="camel", tag_field="type", tag=str.lower):
    """Base of all frames; `ref` is whatever the client likes, and comes back in the answer."""


# From the client -------------------------------------------------------------------------------------------


class Subscribe(_Frame, kw_only=True):
    """Take or browse messages as well; the fields are those of a pop."""

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
    """Take no more of a subscription; what the client holds of it stays its own."""

    id: str


class Credit(_Frame):
    """The client may hold so many unsettled messages, all in all."""

    n: int


class Ack(_Frame):
    """Messages are done."""

    items: list[AckBody]
    ref: msgspec.Raw = NO_REF
    consumer_group: str | None = None


class Nack(_Frame):
    """Messages failed, should come again later, or are dead letters."""

    items: list[AckBody]
    ref: msgspec.Raw = NO_REF
    consumer_group: str | None = None


class Renew(_Frame):
    """Hold leases longer."""

    lease_ids: list[str]
    ref: msgspec.Raw = NO_REF
    seconds: int | None = None


class Pause(_Frame):
    """Give me nothing for now."""


class Resume(_Frame):
    """Go on, after a pause or a drain."""


class Drain(_Frame):
    """Give me nothing more, and say when all that was on its way has come."""

    ref: msgspec.Raw = NO_REF


class Ping(_Frame):
    """Are you there?"""


class Pong(_Frame):
    """I am."""


ClientFrame = Subscribe | Unsubscribe | Credit | Ack | Nack | Renew | Pause | Resume | Drain | Ping | Pong

_TEXTS = {
    "type": "type: expected subscribe, unsubscribe, credit, ack, nack, renew, pause, resume, drain, ping or pong",
}


# From the server -------------------------------------------------------------------------------------------


class Subscribed(_Frame):
    """Messages of the subscription may come from now on."""

    id: str


class Unsubscribed(_Frame):
    """No messages of the subscription come any more."""

    id: str


class Messages(_Frame):
    """Messages under one lease; none where they were settled at delivery, or are only shown."""

    id: str
    lease_id: str
    messages: Sequence[WireDelivery]


class Settled(_Frame):
    """What became of an ack or a nack, item by item."""

    ref: msgspec.Raw
    results: Sequence[AckAnswer]


class Renewed(_Frame):
    """What became of leases, in the order in which they were named."""

    ref: msgspec.Raw
    results: Sequence[RenewalAnswer]


class Drained(_Frame):
    """Nothing more comes until the client resumes."""

    ref: msgspec.Raw
    unsettled: int


class Error(_Frame, kw_only=True):
    """A frame was refused (with its `ref` or `id`), or a subscription ended (with its `id`)."""

    ref: msgspec.Raw | UnsetType = UNSET
    id: msgspec.Raw | UnsetType = UNSET
    error: str
    code: str


ServerFrame = Subscribed | Unsubscribed | Messages | Settled | Renewed | Drained | Error | Ping | Pong


class _Labels(msgspec.Struct):
    """By what a client knows its frame again."""

    ref: msgspec.Raw | UnsetType = UNSET
    id: msgspec.Raw | UnsetType = UNSET


def decode_frame(text: str) -> ClientFrame:
    """A frame of a client; what is wrong with it is said by field."""
    # (A union is no type to mypy, though it is one to msgspec.)
    frame: ClientFrame = decode_json(text.encode(), ClientFrame, "frame", _TEXTS)  # type: ignore[arg-type]
    return frame


def refused(text: str | None, error: HarkError) -> Error:
    """The answer to a frame that was refused, with its labels if it can be read that far."""
    try:
        labels = msgspec.json.decode(text or "", type=_Labels)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        labels = _Labels()
    return Error(ref=labels.ref, id=labels.id, error=error.text, code=error.code)
