"""What a streaming client asks for: the parameters of a pop, and those of a browser."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hark.errors import InvalidInput
from hark.http.checks import bool_param, int_param, name_param, parse_time, query_params, short
from hark.http.pops import Place, place_in_path, place_in_query, pop_request, priority_param
from hark.model import BrowseFrom, PopRequest
from hark.settings import Settings

DEFAULT_PREFETCH = 10


class Taking(msgspec.Struct, frozen=True):
    """To take messages as they come."""

    request: PopRequest
    priority: int
    prefetch: int = 0
    """How many it may hold unsettled, where that is said together with the wish."""


class Browsing(msgspec.Struct, frozen=True):
    """To see messages as they come, and to take none."""

    queue: str
    partition: str | None
    start: BrowseFrom


Wish = Taking | Browsing


def listening(raw_path: bytes, query_string: bytes, settings: Settings) -> Wish:
    """The wish of a path and a query string: /api/v1/listen..., with places as those of a pop."""
    query = query_params(query_string)
    queue, partition = place_in_path(raw_path, query)
    if queue is not None and partition is None:
        partition = name_param(query, "partition")
    prefetch = int_param(query, "prefetch", DEFAULT_PREFETCH, 1, settings.limits.max_batch)
    return _wish(query, (queue, partition), prefetch, settings)


def subscribing(fields: Mapping[str, object], settings: Settings) -> Wish:
    """The wish of a frame, whose fields have the names of the parameters."""
    query = {name: _text(value) for name, value in fields.items() if value is not None}
    wish = _wish(query, place_in_query(query), DEFAULT_PREFETCH, settings)
    return wish if isinstance(wish, Browsing) else msgspec.structs.replace(wish, prefetch=0)


def _wish(query: Mapping[str, str], place: Place, prefetch: int, settings: Settings) -> Wish:
    start = query.get("from")
    if not bool_param(query, "browse"):
        if start:
            raise InvalidInput("from: only with browse; say with subscriptionFrom where a group starts")
        return Taking(pop_request(query, place, prefetch, settings), priority_param(query), prefetch)
    queue, partition = place
    if queue is None:
        raise InvalidInput("queue is required: say which one to browse")
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
