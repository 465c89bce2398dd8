"""Payloads that need not be fetched: those that were written or read here lately."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict

from hark.engine.s3.payloads.place import Place

_MOST_OF_ALL = 4
"""What is larger than this part of the cache is not kept: it would drive out too much that is asked for more often."""


class PayloadCache:
    """Pieces of records, the least recently used forgotten first. For use by any number of threads.

    No piece of a record lies within another one. So, in the order in which they begin, they also end, and the last one
    that begins at or before a place is the only one that has to be looked at.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        """Bytes at most; 0: nothing is kept."""
        self._pieces: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        """By record and first offset."""
        self._firsts: dict[int, list[int]] = {}
        """By record, where its pieces begin, in order."""
        self._bytes = 0
        self._hits = self._misses = 0
        self._lock = threading.Lock()

    def put_record(self, seq: int, first_offset: int, data: bytes) -> None:
        """Keep the payloads of a record, or a part of them that begins at an offset in its object."""
        if not data or len(data) > self.capacity // _MOST_OF_ALL:
            return
        with self._lock:
            if self._covering(seq, first_offset, first_offset + len(data)) is not None:
                return
            for first in self._within(seq, first_offset, first_offset + len(data)):
                self._forget(seq, first)
            self._pieces[seq, first_offset] = data
            firsts = self._firsts.setdefault(seq, [])
            firsts.insert(bisect_left(firsts, first_offset), first_offset)
            self._bytes += len(data)
            while self._bytes > self.capacity:
                self._forget(*next(iter(self._pieces)))

    def get(self, place: Place) -> bytes | None:
        """The bytes at a place; None: they are not here."""
        with self._lock:
            first = self._covering(place.seq, place.offset, place.end)
            if first is None:
                self._misses += 1
                return None
            self._hits += 1
            self._pieces.move_to_end((place.seq, first))
            piece = self._pieces[place.seq, first]
        return piece[place.offset - first : place.end - first]

    def as_metrics(self) -> dict[str, float]:
        """What is kept, and how often that helped."""
        with self._lock:
            return {
                "s3_cache_bytes": self._bytes,
                "s3_cache_pieces": len(self._pieces),
                "s3_cache_hits": self._hits,
                "s3_cache_misses": self._misses,
            }

    def _covering(self, seq: int, start: int, end: int) -> int | None:
        """Where the piece begins that has all of these bytes."""
        firsts = self._firsts.get(seq)
        if firsts is None:
            return None
        index = bisect_right(firsts, start) - 1
        if index < 0:
            return None
        first = firsts[index]
        return first if first + len(self._pieces[seq, first]) >= end else None

    def _within(self, seq: int, start: int, end: int) -> list[int]:
        """Where those pieces begin that have nothing but these bytes."""
        firsts = self._firsts.get(seq, [])
        inside = firsts[bisect_left(firsts, start) : bisect_left(firsts, end)]
        return [first for first in inside if first + len(self._pieces[seq, first]) <= end]

    def _forget(self, seq: int, first: int) -> None:
        self._bytes -= len(self._pieces.pop((seq, first)))
        firsts = self._firsts[seq]
        del firsts[bisect_left(firsts, first)]
        if not firsts:
            del self._firsts[seq]
