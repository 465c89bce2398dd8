"""Bodies and answers of the HTTP API, by topic. A field with another name on the wire says so.

`from hark.api import types` loads no topic before it is used, so that a command loads only what it shows.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hark.api.types import (
        base,
        dead_letters,
        delivery,
        frames,
        groups,
        keys,
        leases,
        messages,
        queues,
        server,
        status,
    )

__all__ = [
    "base",
    "dead_letters",
    "delivery",
    "frames",
    "groups",
    "keys",
    "leases",
    "messages",
    "queues",
    "server",
    "status",
]


def __getattr__(name: str) -> ModuleType:
    """Import a topic on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'hark.api.types' has no attribute {name!r}")
    return import_module(f"hark.api.types.{name}")
