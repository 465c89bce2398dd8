"""Message and partition ids: the text of a UUID (version 8) that encodes partition and offset.

Layout of the 122 free bits, from the left: partition (44), offset (48), tag of the store (30). The ids of a partition
sort in offset order, an id is enough to find its message, and an id of another store is detected. The id of a partition
is the id of its offset 0, which no message has.
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
"""Index of the last group of digits."""
_OFFSET_BITS = (0xF << 80) | (0xFFF << 64) | (0xFFFF_FFFF << TAG_BITS)
"""The 48 bits of the offset within the 128 bits of an id."""
_SHAPE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)


class Address(NamedTuple):
    """The partition and the offset of a message; offset 0 means the partition itself."""

    partition: int
    offset: int


def has_location(text: str) -> bool:
    """Whether a text has the form of a message id, of any store."""
    return _SHAPE.fullmatch(text) is not None


def partition_id_of(text: str) -> str | None:
    """Return the partition id of a message id or a partition id; None if the text is neither."""
    if _SHAPE.fullmatch(text) is None:
        return None
    digits = f"{int(text.replace('-', ''), 16) & ~_OFFSET_BITS:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def position_of(text: str) -> int:
    """Return the partition and the offset of an id as one number. It stays the same when a store is restored."""
    return int(text.replace("-", ""), 16) >> TAG_BITS


def is_before(one: str, other: str) -> bool:
    """Whether two ids are of messages, the first one pushed earlier, if both are of one partition.

    The tags do not count: a restored store has another one.
    """
    if not (has_location(one) and has_location(other)):
        return False
    first, second = (int(text.replace("-", ""), 16) >> TAG_BITS for text in (one, other))
    return first < second


class IdCodec:
    """Encodes the partitions and offsets of one store as ids, and decodes them."""

    def __init__(self, tag: int) -> None:
        self._tag = tag & ((1 << TAG_BITS) - 1)
        self._low_base = (0b10 << 62) | self._tag

    def prefix(self, partition: int) -> str:
        """Return the common prefix of the ids of a partition, except for huge offsets."""
        high = f"{partition << 4:012x}"
        return f"{high[:8]}-{high[8:]}-8000-"

    def with_prefix(self, prefix: str, offset: int) -> str:
        """Return the id of an offset in the partition with this prefix."""
        # Formatting is a large part of the cost of a push or a pop, so the common case does as little as possible.
        if offset < _SMALL_OFFSET:
            return f"{prefix}8000-{offset << TAG_BITS | self._tag:012x}"
        return self.encode(int(prefix[:8] + prefix[9:12], 16), offset)

    def encode(self, partition: int, offset: int) -> str:
        """Return the id of any partition and offset."""
        top = offset >> _LOW_OFFSET_BITS
        high = f"{partition << 4 | top >> 12:012x}"
        low = f"{self._low_base | (offset & 0xFFFF_FFFF) << TAG_BITS:016x}"
        return f"{high[:8]}-{high[8:]}-8{top & 0xFFF:03x}-{low[:4]}-{low[4:]}"

    def decode(self, text: str) -> Address | None:
        """Return the partition and the offset of an id; None if it is not an id of this store."""
        # The fifteenth character is the version: it excludes nearly all other UUIDs before the expensive match.
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
        """Return the offset of an id in the partition with this prefix; None if the id belongs to another partition."""
        # This is most of the cost of a batch of settlements by id, so the common case does not use the match.
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
    """Makes ids for leases, queues, dead letters and traces (UUID version 7, ordered by time)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._random: Iterator[int] = iter(())

    def new(self) -> str:
        """Return a new unique id."""
        with self._lock:
            random = next(self._random, None)
            if random is None:
                # Many at once, because each system call releases the interpreter lock.
                pool = os.urandom(_ID_BYTES * _IDS_AT_ONCE)
                self._random = iter(
                    [int.from_bytes(pool[at : at + _ID_BYTES], "big") for at in range(0, len(pool), _ID_BYTES)]
                )
                random = next(self._random)
        millis = self._clock.now() // 1000 & 0xFFFF_FFFF_FFFF
        number = millis << 80 | 0x7 << 76 | (random >> 66 & 0xFFF) << 64 | 0b10 << 62 | random & ((1 << 62) - 1)
        text = f"{number:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
