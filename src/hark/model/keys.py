"""The key-value store: keys, entries, and atomic writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from hark.model.messages import NewMessage, PushOutcome
from hark.model.words import NULL_PAYLOAD, Key


class KeyEntry(msgspec.Struct, frozen=True):
    """A stored value. Its version changes with every write."""

    key: Key
    value: msgspec.Raw
    version: int
    expires_at: int | None = None
    sealed_by: str | None = None
    """The queue whose key encrypts the value: it is the payload of an undeliverable message."""


class KeyRange(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the keys below a prefix (all keys for an empty prefix)."""

    prefix: Key = ()
    start: Key | None = None
    """The first key of the range, inclusive."""
    end: Key | None = None
    """The end of the range, exclusive."""
    after: Key | None = None
    """Continue after this key: with higher keys, or with lower keys if `reverse`."""
    limit: int = 100
    reverse: bool = False


class KeyCheck(msgspec.Struct, frozen=True):
    """A condition of a write: the key must have this version; None: the key must not exist."""

    key: Key
    version: int | None


class KeyMutation(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one key."""

    kind: Literal["set", "delete", "delete_tree", "sum", "min", "max", "append", "prepend"]
    """`delete_tree`: the key and all keys below it. `sum`, `min`, `max`: of the value and the stored number, exact for
    integers up to 2^53. `append`, `prepend`: the elements of an array. The last five set the value if the key does not
    exist, and remove its expiry."""
    key: Key
    value: bytes = NULL_PAYLOAD
    ttl_ms: int | None = None


class KeyWrite(msgspec.Struct, frozen=True):
    """Checks, changes and messages that are applied together or not at all."""

    checks: Sequence[KeyCheck] = ()
    mutations: Sequence[KeyMutation] = ()
    messages: Sequence[NewMessage] = ()


class KeyWritten(msgspec.Struct, frozen=True):
    """The new version of all written keys, or the first check that failed."""

    success: bool
    version: int | None = None
    failed_check: int | None = None
    deleted: int = 0
    """Number of deleted entries."""
    messages: Sequence[PushOutcome] = ()


class KeyNews(msgspec.Struct, frozen=True):
    """A notification that keys changed. A lost notification costs latency, never a change."""

    keys: tuple[Key, ...] | None
    """The changed keys; None: any key."""


class KeyStats(msgspec.Struct, frozen=True):
    """The size of the key-value store."""

    entries: int
    bytes: int
