"""The engines that the suite runs on. A new engine adds one entry to `ENGINES`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hark.clock import Clock
from hark.engine.api import Engine
from hark.engine.sqlite import SqliteEngine


class EngineKind(NamedTuple):
    """How to open an engine of one kind, and whether what it keeps outlives it."""

    name: str
    durable: bool
    exclusive: bool
    """Whether one engine at a time may have the store."""
    open: Callable[[Path, Clock], Engine]
    """Makes an engine, not yet started, whose store (if any) is in that directory."""


ENGINES = [
    EngineKind("sqlite", True, True, lambda place, clock: SqliteEngine(str(place / "hark.db"), clock=clock)),
    EngineKind("memory", False, False, lambda _place, clock: SqliteEngine(":memory:", clock=clock)),
]
DURABLE_ENGINES = [kind for kind in ENGINES if kind.durable]
EXCLUSIVE_ENGINES = [kind for kind in ENGINES if kind.exclusive]
