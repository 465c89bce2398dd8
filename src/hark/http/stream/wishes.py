"""Requests of streaming clients: the parameters of a pop, and those of a queue browser."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hark.errors import InvalidInput
from hark.http.checks import parse_time, query_params, short
from hark.http.params import BoolParam, IntParam, Param
from hark.http.pops import PARTITION, Place, place_in_query, place_of, pop_request, priority_param, taking_params
from hark.model import BrowseFrom, PopRequest
from hark.settings import Settings

DEFAULT_PREFETCH = 10


class Taking(msgspec.Struct, frozen=True):
    """A request to receive messages."""

    request: PopRequest
    priority: int
    prefetch: int = 0
    """Maximum number of unacknowledged messages; 0 if the client sets it separately."""


class Browsing(msgspec.Struct, frozen=True):
    """A request to browse messages without receiving them."""

    queue: str
    partition: str | None
    start: BrowseFrom


Wish = Taking | Browsing

_BROWSE = BoolParam("browse", "Show messages without receiving them. Requires a queue.")
_FROM = Param(
    "from",
    "Where browsing starts: `head` (oldest stored message), `tail` (new messages only), or a time. Allowed only with "
    "`browse=true`. The default is `tail`.",
)


def listening_params(settings: Settings, *, place: bool) -> tuple[Param, ...]:
    """Return the parameters of a stream. `place`: including the queue."""
    partition = () if place else (PARTITION,)
    taking = taking_params(settings, DEFAULT_PREFETCH, place=place)
    return (*taking, *partition, prefetch_param(settings), _BROWSE, _FROM)


def prefetch_param(settings: Settings) -> IntParam:
    """Return the parameter for the number of messages that a client may hold."""
    most = settings.limits.max_batch
    meaning = "Maximum number of unacknowledged messages that the client holds."
    return IntParam("prefetch", meaning, DEFAULT_PREFETCH, 1, most)


def listening(place: Place, query_string: bytes, settings: Settings) -> Wish:
    """Return the request of a path, which may name a queue, and of a query string."""
    query = query_params(query_string)
    queue, partition = place_of(place, query)
    if queue is not None and partition is None:
        partition = PARTITION.of(query)
    prefetch = prefetch_param(settings).of(query)
    return _wish(query, (queue, partition), prefetch, settings)


def subscribing(fields: Mapping[str, object], settings: Settings) -> Wish:
    """Return the request of a frame, whose fields have the names of the parameters."""
    query = {name: _text(value) for name, value in fields.items() if value is not None}
    wish = _wish(query, place_in_query(query), DEFAULT_PREFETCH, settings)
    return wish if isinstance(wish, Browsing) else msgspec.structs.replace(wish, prefetch=0)


def _wish(query: Mapping[str, str], place: Place, prefetch: int, settings: Settings) -> Wish:
    start = _FROM.text(query)
    if not _BROWSE.of(query):
        if start:
            raise InvalidInput(
                "from: allowed only with browse=true; use subscriptionFrom to choose where a consumer group starts"
            )
        return Taking(pop_request(query, place, prefetch, settings), priority_param(query), prefetch)
    queue, partition = place
    if queue is None:
        raise InvalidInput("queue is required: name the queue to browse")
    return Browsing(queue, partition, _start(start or "tail"))


def _start(text: str) -> BrowseFrom:
    if text == "head":
        return "head"
    if text == "tail":
        return "tail"
    try:
        return parse_time(text, "from")
    except InvalidInput:
        raise InvalidInput(
            f"from: expected head, tail, a time such as 2026-01-02T03:04:05Z, or milliseconds since 1970, "
            f"got {short(text)}"
        ) from None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
