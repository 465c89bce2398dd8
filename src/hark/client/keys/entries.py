"""Entries of the key-value store."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from hark.client.administration.message_results import decode_value
from hark.errors import HarkError
from hark.model import Key

T = TypeVar("T")


class Entry(msgspec.Struct, frozen=True):
    """A key with its value and its version."""

    key: Key
    """The key, as a tuple."""
    raw: msgspec.Raw
    """The value as JSON bytes."""
    versionstamp: str
    """Changes with every write. Later versionstamps are greater."""

    @property
    def value(self) -> Any:
        """The value, decoded from JSON."""
        return msgspec.json.decode(self.raw)

    def decode(self, shape: type[T]) -> T:
        """Decode the value as a type. Raises `InvalidInput` with the code `unexpected_value` if it does not fit."""
        return decode_value(self.raw, shape, f"the value of {self.key}")


class Change(msgspec.Struct, frozen=True):
    """A change of a key. `entry` is None if the key was deleted or expired."""

    key: Key
    entry: Entry | None

    @property
    def value(self) -> Any:
        """The new value. None also if the key was deleted or expired."""
        return None if self.entry is None else self.entry.value


class WireEntry(msgspec.Struct):
    """A key with its value. A missing key has no versionstamp."""

    key: tuple[str | int | float | bool, ...]
    """Not `Key`, which would convert integers to floats."""
    value: msgspec.Raw
    versionstamp: str | None

    def entry(self) -> Entry | None:
        """The entry, or None if the key is missing."""
        return None if self.versionstamp is None else Entry(self.key, self.value, self.versionstamp)

    def present(self) -> Entry:
        """The entry of a key that must exist."""
        if self.versionstamp is None:
            raise HarkError(
                f"the server listed the key {self.key} without a versionstamp; check that it is a Hark server",
                code="not_hark",
            )
        return Entry(self.key, self.value, self.versionstamp)


class KeyPage(msgspec.Struct):
    """A page of entries, and the cursor of the next page."""

    entries: tuple[WireEntry, ...]
    cursor: str | None = None
