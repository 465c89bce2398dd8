"""Where a payload is."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """Some bytes of the object `log/{seq}`; a payload stays in the record that brought it."""

    seq: int
    offset: int
    """From the first byte of the object."""
    length: int

    @property
    def end(self) -> int:
        """The offset behind the last byte."""
        return self.offset + self.length
