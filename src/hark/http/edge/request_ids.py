"""Request ids: taken over from the client or made, in answers and in every line of the log about the request."""

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
"""Under this name the scope of a request has its id, once somebody needed it."""

_GIVEN = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_numbers = itertools.count(1)
_process = os.urandom(6).hex()
"""Ids of this process begin with it, so that those of several servers differ."""

current_scope: ContextVar[Scope | None] = ContextVar("hark_request", default=None)
"""The request that is being served. (Only the scope: on the hot routes nobody needs the id, so it is not made.)"""


def request_id_of(scope: Scope) -> str:
    """The id of a request: the client's if it is 1 to 128 of `A-Z a-z 0-9 . _ -`, else a new one."""
    known: str | None = scope.get(REQUEST_ID)
    if known is None:
        known = scope[REQUEST_ID] = _given(scope) or _new()
    return known


def current_request_id() -> str | None:
    """The id of the request that is being served, if one is."""
    scope = current_scope.get()
    return None if scope is None else request_id_of(scope)


def _given(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == HEADER:
            return value.decode() if _GIVEN.fullmatch(value) else None
    return None


def _new() -> str:
    # os.fork is not used by Hark: each process draws its own beginning.
    return f"{_process}-{next(_numbers):x}"


class RequestIds(logging.Filter):
    """Gives every record of the log the id of the request that it is about, as `request_id`; empty without one."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let everything through."""
        record.request_id = current_request_id() or ""
        return True
