"""Message and partition ids: UUID text (version 8) that encodes where the thing is.

Layout of the 122 free bits, from the left: partition (44), offset (48), tag of the store (30). So ids of one
partition sort in offset order, an id alone finds its message, and an id of another store is recognised as
foreign. A partition's own id is that of its offset 0, which no message has.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from typing import NamedTuple

from hark.clock import Clock

MAX_PARTITION = (1 << 44) - 1
MAX_OFFSET = (1 << 48) - 1
TAG_BITS = 30
_LOW_OFFSET_BITS = 32
_ID_BYTES = 10
_IDS_AT_ONCE = 256
_SMALL_OFFSET = 1 << 48 - TAG_BITS
_LENGTH = 36
_LOW = 24
"""Where the last group of digits begins."""
_OFFSET_BITS = (0xF << 80) | (0xFFF << 64) | (0xFFFF_FFFF << TAG_BITS)
"""Where the 48 bits of the offset are in the 128 of an id."""
_SHAPE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)


class Address(NamedTuple):
    """Where a message is: its partition and its offset there (0: the partition itself)."""

    partition: int
    offset: int


def has_location(text: str) -> bool:
    """Whether a text has the form of an id that says where its message is, in whatever store."""
    return _SHAPE.fullmatch(text) is not None


def partition_id_of(text: str) -> str | None:
    """The id of the partition that a message, or the partition itself, is named by; None: it is no such id."""
    if _SHAPE.fullmatch(text) is None:
        return None
    digits = f"{int(text.replace('-', ''), 16) & ~_OFFSET_BITS:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class IdCodec:
    """Turns places of one store into ids and back."""

    def __init__(self, tag: int) -> None:
        self._tag = tag & ((1 << TAG_BITS) - 1)
        self._low_base = (0b10 << 62) | self._tag

    def prefix(self, partition: int) -> str:
        """The part that the ids of a partition share, for all but huge offsets."""
        high = f"{partition << 4:012x}"
        return f"{high[:8]}-{high[8:]}-8000-"

    def with_prefix(self, prefix: str, offset: int) -> str:
        """The id of an offset of the partition that `prefix` belongs to."""
        # Formatting is a good part of what a push or a pop costs: the common case does as little as it can.
        if offset < _SMALL_OFFSET:
            return f"{prefix}8000-{offset << TAG_BITS | self._tag:012x}"
        return self.encode(int(prefix[:8] + prefix[9:12], 16), offset)

    def encode(self, partition: int, offset: int) -> str:
        """The id of any place."""
        top = offset >> _LOW_OFFSET_BITS
        high = f"{partition << 4 | top >> 12:012x}"
        low = f"{self._low_base | (offset & 0xFFFF_FFFF) << TAG_BITS:016x}"
        return f"{high[:8]}-{high[8:]}-8{top & 0xFFF:03x}-{low[:4]}-{low[4:]}"

    def decode(self, text: str) -> Address | None:
        """The place an id stands for, or None when it is not an id of this store."""
        # The fifteenth character is the version: it sorts out nearly all foreign UUIDs before the costly match.
        if len(text) != 36 or text[14] != "8" or _SHAPE.fullmatch(text) is None:
            return None
        number = int(text.replace("-", ""), 16)
        if number & ((1 << TAG_BITS) - 1) != self._tag:
            return None
        high = number >> 80
        top = (high & 0xF) << 12 | (number >> 64) & 0xFFF
        low = number >> TAG_BITS & 0xFFFF_FFFF
        return Address(high >> 4, top << _LOW_OFFSET_BITS | low)

    def offset_in(self, prefix: str, partition: int, text: str) -> int | None:
        """The offset that an id stands for in the partition that `prefix` belongs to; None: it is of another place."""
        # Settling a batch by ids is mostly this: the common case does without the match.
        if text.startswith(prefix) and len(text) == _LENGTH and text[_LOW:].isalnum():
            try:
                offset = int(text[_LOW:], 16) >> TAG_BITS
            except ValueError:
                return None
            if self.with_prefix(prefix, offset) == text:
                return offset
        address = self.decode(text)
        return None if address is None or address.partition != partition else address.offset


class IdSource:
    """Fresh ids for what has no place: leases, queues, dead letters, traces (UUID version 7, time-ordered)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._random: Iterator[int] = iter(())

    def new(self) -> str:
        """A new unique id."""
        with self._lock:
            random = next(self._random, None)
            if random is None:
                # Many at once: each call of the system gives up the interpreter lock.
                pool = os.urandom(_ID_BYTES * _IDS_AT_ONCE)
                self._random = iter(
                    [int.from_bytes(pool[at : at + _ID_BYTES], "big") for at in range(0, len(pool), _ID_BYTES)]
                )
                random = next(self._random)
        millis = self._clock.now() // 1000 & 0xFFFF_FFFF_FFFF
        number = millis << 80 | 0x7 << 76 | (random >> 66 & 0xFFF) << 64 | 0b10 << 62 | random & ((1 << 62) - 1)
        text = f"{number:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
