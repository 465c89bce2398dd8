"""Calls that only a store in a bucket has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hark.engine.s3.bucket.api import Stored
from hark.engine.sqlite.calls import Call, Write
from hark.model import Renewal


class Renew(Call):
    """The verb renew: every process has to know, so it takes a record."""

    def __init__(self, future: asyncio.Future[Any] | None, requests: Sequence[Renewal]) -> None:
        super().__init__(future)
        self.requests = list(requests)


class Chore(Write):
    """A write that will be tried again: that there is nothing to do need not be the last word."""


class Confirm(Call):
    """Answered when all that was in the log at the time of the call has been applied."""


class Found(Call):
    """The tail has read a record."""

    def __init__(self, seq: int, stored: Stored) -> None:
        super().__init__(None)
        self.seq = seq
        self.stored = stored


class Wake(Call):
    """The tail has seen that it may have fallen behind what is kept: look at the pointer."""

    def __init__(self) -> None:
        super().__init__(None)
