"""How settings are described: the words that every part of the tree is written in."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Milliseconds = Annotated[int, Meta(ge=0, le=86_400_000)]


def about(meaning: str, *aliases: str, expected: str = "", secret: bool = False, env: str = "") -> Meta:
    """Describe a setting; of several aliases that are set, the first counts.

    An alias is the name of a variable; with a dot it is a name in hark.toml. `env` is the variable of a setting
    whose place in the tree does not give its name.
    """
    extra = {"aliases": aliases, "expected": expected, "secret": secret, "env": env}
    return Meta(description=meaning, extra=extra)


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the tree's structs."""
