"""Parameters that several routes of the key-value API share."""

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
    """The length of a list. A higher value than the maximum counts as the maximum."""

    def schema(self) -> Schema:
        """Return the JSON schema of the parameter."""
        return {"type": "integer", "minimum": 1, "default": DEFAULT_LIMIT}

    def described(self) -> str:
        """Return the description for the OpenAPI document, with the default."""
        return f"{self.meaning} The default is {DEFAULT_LIMIT}."

    def of(self, query: Query) -> int:
        """Return the value."""
        text = query.get(self.name)
        if text is None:
            return DEFAULT_LIMIT
        if _DIGITS.fullmatch(text) and (limit := int(text)) > 0:
            return min(limit, MAX_LIMIT)
        raise InvalidInput(f"{self.name} must be a positive number, got {short(text)}")


QUEUE = NameParam("queue", f"Name of the work queue. The default is `{DEFAULT_QUEUE}`.")
LIMIT = LimitParam("limit", f"Maximum number of entries to return. Values over {MAX_LIMIT} count as {MAX_LIMIT}.")
OFFSET = paging().offset


def queue_param(query: Query) -> str:
    """Return the work queue of a request."""
    return QUEUE.of(query) or DEFAULT_QUEUE
