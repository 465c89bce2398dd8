"""Types and helpers for the definitions of settings."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Milliseconds = Annotated[int, Meta(ge=0, le=86_400_000)]


def about(meaning: str, *aliases: str, expected: str = "", secret: bool = False, env: str = "") -> Meta:
    """Describe a setting. If several aliases are set, the first one wins.

    An alias is an environment variable, or a name in hark.toml if it contains a dot. `env` replaces the variable name
    that would be derived from the position in the tree.
    """
    extra = {"aliases": aliases, "expected": expected, "secret": secret, "env": env}
    return Meta(description=meaning, extra=extra)


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class of all groups of settings."""
