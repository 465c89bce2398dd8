"""The result of one check of `hark doctor`."""

from __future__ import annotations

from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True):
    """One check, with advice if there is something to do."""

    name: str
    result: Literal["ok", "warn", "fail"]
    detail: str
    advice: str = ""
