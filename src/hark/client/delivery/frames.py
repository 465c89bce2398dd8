"""The frames of a WebSocket as a consumer sees them, each a JSON object that says by `type` what it is."""

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
    """The consumer may hold so many unsettled messages, all in all."""

    n: int


class Ack(_Frame):
    """Messages are done."""

    ref: int
    consumer_group: str
    items: Sequence[AckItem]


class Nack(_Frame):
    """Messages failed, should come again later, or are dead letters."""

    ref: int
    consumer_group: str
    items: Sequence[AckItem]


class Drain(_Frame):
    """Give me nothing more, and say when all that was on its way has come."""

    ref: int


class Pause(_Frame):
    """Give me nothing for now."""


class Resume(_Frame):
    """Go on."""


class Pong(_Frame):
    """I am here."""


ClientFrame = Credit | Ack | Nack | Drain | Pause | Resume | Pong


# From the server -------------------------------------------------------------------------------------------


class Subscribed(_Frame):
    """Messages may come from now on."""


class Messages(_Frame):
    """Messages under one lease."""

    messages: list[Delivered]


class Settled(_Frame):
    """What became of an ack or a nack, item by item."""

    ref: int
    results: list[AckAnswer]


class Drained(_Frame):
    """Nothing more comes until it is asked for; so many messages are unsettled."""

    ref: int
    unsettled: int


class Error(_Frame):
    """A frame was refused, or the subscription has ended."""

    error: str
    code: str
    ref: int | None = None


class Ping(_Frame):
    """Are you there?"""


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
    """A frame of the server; None for one of a kind that later servers may have."""
    try:
        try:
            frame: ServerFrame = _decode(text)
            return frame
        except msgspec.ValidationError:
            if msgspec.json.decode(text, type=_Kind).type in _KNOWN:
                raise
            return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HarkError(f"a frame of the server is not Hark's: {error}; check the URL", code="not_hark") from error


def error_in(frame: Error) -> HarkError:
    """The error that a frame means; those that say nothing of the request are of the store, and pass."""
    return error_of(_STATUS_OF_CODE.get(frame.code, 503), frame.code, frame.error)
