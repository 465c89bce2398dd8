"""The frames of a WebSocket as a consumer sees them. Each is a JSON object with a `type`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hark.client.delivery.settling import AckAnswer, AckItem
from hark.client.delivery.sources import Delivered
from hark.errors import HarkError, error_of


class _Frame(msgspec.Struct, rename="camel", tag_field="type", tag=str.lower):
    """Base of all frames."""


# From here -------------------------------------------------------------------------------------------------


class Credit(_Frame):
    """Credit: the total number of unsettled messages that the consumer may hold."""

    n: int


class Ack(_Frame):
    """Acknowledge messages."""

    ref: int
    consumer_group: str
    items: Sequence[AckItem]


class Nack(_Frame):
    """Reject, release or dead-letter messages."""

    ref: int
    consumer_group: str
    items: Sequence[AckItem]


class Drain(_Frame):
    """Deliver nothing more, and report when everything in flight has arrived."""

    ref: int


class Pause(_Frame):
    """Pause deliveries."""


class Resume(_Frame):
    """Resume deliveries."""


class Pong(_Frame):
    """The answer to a ping."""


ClientFrame = Credit | Ack | Nack | Drain | Pause | Resume | Pong


# From the server -------------------------------------------------------------------------------------------


class Subscribed(_Frame):
    """The subscription is active: messages can arrive from now on."""


class Messages(_Frame):
    """Messages under one lease."""

    messages: list[Delivered]


class Settled(_Frame):
    """The results of an ack or a nack, item by item."""

    ref: int
    results: list[AckAnswer]


class Drained(_Frame):
    """Nothing more arrives until it is requested. `unsettled` is the number of unsettled messages."""

    ref: int
    unsettled: int


class Error(_Frame):
    """A frame was rejected, or the subscription has ended."""

    error: str
    code: str
    ref: int | None = None


class Ping(_Frame):
    """A check whether the client is alive."""


ServerFrame = Subscribed | Messages | Settled | Drained | Error | Ping

_STATUS_OF_CODE = {
    "invalid_input": 400,
    "invalid_json": 400,
    "batch_too_large": 400,
    "group_mode_conflict": 409,
    "overloaded": 429,
    "not_supported": 501,
    "internal": 500,
}
_KNOWN = frozenset({"subscribed", "messages", "settled", "drained", "error", "ping"})
_decode = msgspec.json.Decoder(ServerFrame).decode
encode = msgspec.json.Encoder().encode


class _Kind(msgspec.Struct):
    type: str


def decode_frame(text: str) -> ServerFrame | None:
    """Decode a frame of the server. None for an unknown type of a newer server."""
    try:
        try:
            frame: ServerFrame = _decode(text)
            return frame
        except msgspec.ValidationError:
            if msgspec.json.decode(text, type=_Kind).type in _KNOWN:
                raise
            return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HarkError(
            f"a WebSocket frame does not come from a Hark server: {error}; check the URL", code="not_hark"
        ) from error


def error_in(frame: Error) -> HarkError:
    """The error of an error frame. Unknown codes come from the store and are retryable."""
    return error_of(_STATUS_OF_CODE.get(frame.code, 503), frame.code, frame.error)
