"""Request ids: sent by the client or generated, returned in responses and written to log lines of the request."""

from __future__ import annotations

import itertools
import logging
import os
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hark.http.exchange import Exchange

HEADER = b"x-request-id"

_GIVEN = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_numbers = itertools.count(1)
_process = os.urandom(6).hex()
"""Prefix of the ids of this process, so that ids of several servers differ."""

current_exchange: ContextVar[Exchange | None] = ContextVar("hark_request", default=None)
"""The current request. (Its id is generated only when it is needed.)"""


def request_id_of(exchange: Exchange) -> str:
    """Return the id of a request: that of the client if it is 1 to 128 of `A-Z a-z 0-9 . _ -`, else a new one."""
    if exchange.given_id is None:
        given = exchange.headers.get(HEADER, b"")
        exchange.given_id = given.decode() if _GIVEN.fullmatch(given) else _new()
    return exchange.given_id


def current_request_id() -> str | None:
    """Return the id of the current request, or None."""
    exchange = current_exchange.get()
    return None if exchange is None else request_id_of(exchange)


def _new() -> str:
    # Hark does not use os.fork, so each process has its own prefix.
    return f"{_process}-{next(_numbers):x}"


class RequestIds(logging.Filter):
    """Adds the id of the current request to each log record as `request_id`; empty if there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Accept every record."""
        record.request_id = current_request_id() or ""
        return True
