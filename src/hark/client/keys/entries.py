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
    raw: msgspec.Raw
    """The value, byte for byte."""
    versionstamp: str
    """Changes with every write; later ones are greater."""

    @property
    def value(self) -> Any:
        """The value."""
        return msgspec.json.decode(self.raw)

    def decode(self, shape: type[T]) -> T:
        """The value as a type of yours."""
        return decode_value(self.raw, shape, f"the value of {self.key}")


class Change(msgspec.Struct, frozen=True):
    """A key whose entry is another one now; None: there is none any more."""

    key: Key
    entry: Entry | None

    @property
    def value(self) -> Any:
        """The new value; None also when there is none any more."""
        return None if self.entry is None else self.entry.value


class WireEntry(msgspec.Struct):
    """A key with its value; one that is not there has no versionstamp."""

    key: tuple[str | int | float | bool, ...]
    """`Key` would make a float of an integer."""
    value: msgspec.Raw
    versionstamp: str | None

    def entry(self) -> Entry | None:
        """What is there."""
        return None if self.versionstamp is None else Entry(self.key, self.value, self.versionstamp)

    def present(self) -> Entry:
        """What is there for certain."""
        if self.versionstamp is None:
            raise HarkError(f"the server listed the key {self.key} without a version", code="not_hark")
        return Entry(self.key, self.value, self.versionstamp)


class KeyPage(msgspec.Struct):
    """Some entries, and where the next ones are."""

    entries: tuple[WireEntry, ...]
    cursor: str | None = None
