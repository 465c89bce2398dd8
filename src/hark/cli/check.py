"""What `hark doctor` finds."""

from __future__ import annotations

from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    result: Literal["ok", "warn", "fail"]
    detail: str
    advice: str = ""
