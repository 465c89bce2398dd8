"""Request ids: sent by the client or generated, returned in responses and written to log lines of the request."""

from __future__ import annotations

import itertools
import logging
import os
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hark.http.responses import Scope

HEADER = b"x-request-id"
REQUEST_ID = "hark.request_id"
"""Key of the request id in the scope of a request, set when it is first needed."""

_GIVEN = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_numbers = itertools.count(1)
_process = os.urandom(6).hex()
"""Prefix of the ids of this process, so that ids of several servers differ."""

current_scope: ContextVar[Scope | None] = ContextVar("hark_request", default=None)
"""The scope of the current request. (The id is generated only when it is needed.)"""


def request_id_of(scope: Scope) -> str:
    """Return the id of a request: that of the client if it is 1 to 128 of `A-Z a-z 0-9 . _ -`, else a new one."""
    known: str | None = scope.get(REQUEST_ID)
    if known is None:
        known = scope[REQUEST_ID] = _given(scope) or _new()
    return known


def current_request_id() -> str | None:
    """Return the id of the current request, or None."""
    scope = current_scope.get()
    return None if scope is None else request_id_of(scope)


def _given(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == HEADER:
            return value.decode() if _GIVEN.fullmatch(value) else None
    return None


def _new() -> str:
    # Hark does not use os.fork, so each process has its own prefix.
    return f"{_process}-{next(_numbers):x}"


class RequestIds(logging.Filter):
    """Adds the id of the current request to each log record as `request_id`; empty if there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Accept every record."""
        record.request_id = current_request_id() or ""
        return True
