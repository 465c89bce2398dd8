"""Parameters that routes of the key-value API share."""

from __future__ import annotations

import re

from hark.broker.work_queues import DEFAULT_QUEUE
from hark.errors import InvalidInput
from hark.http.checks import short
from hark.http.params import NameParam, Param, Query, Schema, paging

BASE = "/keyval/api"

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
_DIGITS = re.compile(r"[0-9]{1,4000}", re.ASCII)


class LimitParam(Param, frozen=True):
    """How long a list may be; who asks for more than there is at once gets that."""

    def schema(self) -> Schema:
        """What it may be, as JSON schema."""
        return {"type": "integer", "minimum": 1, "default": DEFAULT_LIMIT}

    def of(self, query: Query) -> int:
        """Its value."""
        text = query.get(self.name)
        if text is None:
            return DEFAULT_LIMIT
        if _DIGITS.fullmatch(text) and (limit := int(text)) > 0:
            return min(limit, MAX_LIMIT)
        raise InvalidInput(f"{self.name} must be a positive number, got {short(text)}")


QUEUE = NameParam("queue", f"The work queue; if it is not given, `{DEFAULT_QUEUE}`.")
LIMIT = LimitParam("limit", f"How many entries at most; never more than {MAX_LIMIT}.")
OFFSET = paging().offset


def queue_param(query: Query) -> str:
    """The queue that a request is about."""
    return QUEUE.of(query) or DEFAULT_QUEUE
