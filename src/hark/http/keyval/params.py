"""Parameters that routes of the key-value API share."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hark.broker.work_queues import DEFAULT_QUEUE
from hark.errors import InvalidInput
from hark.http.checks import MAX_NUMBER, int_param, name_param, short

BASE = "/keyval/api"

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
_DIGITS = re.compile(r"[0-9]{1,4000}", re.ASCII)


def queue_param(query: Mapping[str, str]) -> str:
    """The queue that a request is about."""
    return name_param(query, "queue") or DEFAULT_QUEUE


def limit_param(query: Mapping[str, str]) -> int:
    """How long a list may be; who asks for more than there is at once gets that."""
    text = query.get("limit")
    if text is None:
        return DEFAULT_LIMIT
    if _DIGITS.fullmatch(text) and (limit := int(text)) > 0:
        return min(limit, MAX_LIMIT)
    raise InvalidInput(f"limit must be a positive number, got {short(text)}")


def offset_param(query: Mapping[str, str]) -> int:
    """How many entries of a list to leave out."""
    return int_param(query, "offset", 0, 0, MAX_NUMBER)
