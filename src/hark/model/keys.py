"""The key-value store: keys, entries, and writes that happen together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from hark.model.messages import NewMessage, PushOutcome
from hark.model.words import NULL_PAYLOAD, Key


class KeyEntry(msgspec.Struct, frozen=True):
    """A stored value; its version changes with every write."""

    key: Key
    value: msgspec.Raw
    version: int
    expires_at: int | None = None
    sealed_by: str | None = None
    """The queue whose key the value is encrypted with: it is the payload of a message that could not be delivered."""


class KeyRange(msgspec.Struct, frozen=True, kw_only=True):
    """Strict descendants of a prefix (all keys for an empty one), a page of them."""

    prefix: Key = ()
    start: Key | None = None
    """The first key that may be among them."""
    end: Key | None = None
    """The first key behind them that may not."""
    after: Key | None = None
    """Go on behind this key: towards higher ones, or with `reverse` towards lower ones."""
    limit: int = 100
    reverse: bool = False


class KeyCheck(msgspec.Struct, frozen=True):
    """A version that a key must have for a write to happen; None: it must be absent."""

    key: Key
    version: int | None


class KeyMutation(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one key."""

    kind: Literal["set", "delete", "delete_tree", "sum", "min", "max", "append", "prepend"]
    """`delete_tree`: the key and all its descendants. `sum`, `min`, `max`: of a number and what is stored, exact for
    integers up to 2^53. `append`, `prepend`: the elements of an array. These five start with the value where there is
    none, and clear an expiry."""
    key: Key
    value: bytes = NULL_PAYLOAD
    ttl_ms: int | None = None


class KeyWrite(msgspec.Struct, frozen=True):
    """Checks, changes and messages that happen together or not at all."""

    checks: Sequence[KeyCheck] = ()
    mutations: Sequence[KeyMutation] = ()
    messages: Sequence[NewMessage] = ()


class KeyWritten(msgspec.Struct, frozen=True):
    """The version of all that was written, or the first check that failed."""

    success: bool
    version: int | None = None
    failed_check: int | None = None
    deleted: int = 0
    """How many entries its deletions removed."""
    messages: Sequence[PushOutcome] = ()


class KeyNews(msgspec.Struct, frozen=True):
    """News that keys were written or removed. Losing one costs latency, never a change."""

    keys: tuple[Key, ...] | None
    """Which; None: any."""


class KeyStats(msgspec.Struct, frozen=True):
    """How much there is in the key-value store."""

    entries: int
    bytes: int
