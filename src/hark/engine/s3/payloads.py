"""Payloads stay in the log records in which they arrived, and are fetched by range requests."""

from __future__ import annotations

import asyncio
import math
import random as random_module
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

import msgspec

from hark.engine.core.store import PayloadLocation
from hark.engine.s3 import objects
from hark.engine.s3.bucket import Bucket, BucketError, Refused
from hark.engine.s3.objects import BucketRetries, Pause
from hark.errors import EngineFailure, HarkError

_MOST_OF_ALL = 4
"""Data larger than this part (1/n) of the cache is not kept, because it would evict too much."""


class PayloadCache:
    """Ranges of records; the least recently used are evicted first. Any thread can use it.

    No range lies within another one of the same record. So they are ordered by start and end alike, and only the last
    one that starts at or before an offset can contain it.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        """Maximum number of bytes; 0: no cache."""
        self._entries: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        """By record and first offset."""
        self._firsts: dict[int, list[int]] = {}
        """Sorted start offsets by record."""
        self._bytes = 0
        self._hits = self._misses = 0
        self._lock = threading.Lock()

    def put_record(self, seq: int, first_offset: int, data: bytes) -> None:
        """Keep payloads of a record, from an offset in its object."""
        if not data or len(data) > self.capacity // _MOST_OF_ALL:
            return
        with self._lock:
            if self._covering(seq, first_offset, first_offset + len(data)) is not None:
                return
            for first in self._within(seq, first_offset, first_offset + len(data)):
                self._forget(seq, first)
            self._entries[seq, first_offset] = data
            firsts = self._firsts.setdefault(seq, [])
            firsts.insert(bisect_left(firsts, first_offset), first_offset)
            self._bytes += len(data)
            while self._bytes > self.capacity:
                self._forget(*next(iter(self._entries)))

    def get(self, location: PayloadLocation) -> bytes | None:
        """Return bytes, or None if they are not cached."""
        with self._lock:
            first = self._covering(location.seq, location.offset, location.end)
            if first is None:
                self._misses += 1
                return None
            self._hits += 1
            self._entries.move_to_end((location.seq, first))
            cached_bytes = self._entries[location.seq, first]
        return cached_bytes[location.offset - first : location.end - first]

    def as_metrics(self) -> dict[str, float]:
        """Return the size, hits and misses."""
        with self._lock:
            return {
                "s3_cache_bytes": self._bytes,
                "s3_cache_entries": len(self._entries),
                "s3_cache_hits": self._hits,
                "s3_cache_misses": self._misses,
            }

    def _covering(self, seq: int, start: int, end: int) -> int | None:
        """Return the start of the cached range that contains all of these bytes."""
        firsts = self._firsts.get(seq)
        if firsts is None:
            return None
        index = bisect_right(firsts, start) - 1
        if index < 0:
            return None
        first = firsts[index]
        return first if first + len(self._entries[seq, first]) >= end else None

    def _within(self, seq: int, start: int, end: int) -> list[int]:
        """Return the starts of the cached ranges within these bytes."""
        firsts = self._firsts.get(seq, [])
        inside = firsts[bisect_left(firsts, start) : bisect_left(firsts, end)]
        return [first for first in inside if first + len(self._entries[seq, first]) <= end]

    def _forget(self, seq: int, first: int) -> None:
        self._bytes -= len(self._entries.pop((seq, first)))
        firsts = self._firsts[seq]
        del firsts[bisect_left(firsts, first)]
        if not firsts:
            del self._firsts[seq]


GAP_BYTES = 64 * 1024
"""Ranges at most this far apart share a request, because these bytes cost less than a second request."""
_MOST_AT_ONCE = 16
_TRIES = 7


class Payloads:
    """Fetches payloads, in the event loop of the bucket requests."""

    def __init__(
        self,
        bucket: Bucket,
        cache: PayloadCache,
        *,
        gap: int = GAP_BYTES,
        most_at_once: int = _MOST_AT_ONCE,
        tries: int = _TRIES,
        pause: Pause = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._bucket = bucket
        self._cache = cache
        self._gap = gap
        self._retries = BucketRetries(
            seconds=math.inf,
            attempts=tries,
            first_rest=0.1,
            longest_rest=5.0,
            longest_slow_rest=5.0,
            pause=pause,
            random=random,
        )
        self._turns = asyncio.Semaphore(most_at_once)
        self._flights: dict[int, list[_Flight]] = {}
        """Requests in flight by record."""

    async def fetch(self, wanted: Sequence[PayloadLocation]) -> list[bytes]:
        """Return the bytes of these ranges, in order. Raises `EngineFailure` if one cannot be fetched."""
        found: dict[PayloadLocation, bytes] = {}
        coming: dict[PayloadLocation, _Flight] = {}
        missing: list[PayloadLocation] = []
        for location in dict.fromkeys(wanted):
            cached = self._cache.get(location) if location.length else b""
            if cached is not None:
                found[location] = cached
            elif (flight := self._under_way(location)) is not None:
                coming[location] = flight
            else:
                missing.append(location)
        for together in _near(missing, self._gap):
            coming |= dict.fromkeys(together, self._start(_span(together)))
        for location, flight in coming.items():
            found[location] = await flight.bytes_at(location)
        return [found[location] for location in wanted]

    def _under_way(self, location: PayloadLocation) -> _Flight | None:
        return next((flight for flight in self._flights.get(location.seq, ()) if flight.has(location)), None)

    def _start(self, span: PayloadLocation) -> _Flight:
        flight = _Flight(span, asyncio.get_running_loop().create_task(self._read(span)))
        self._flights.setdefault(span.seq, []).append(flight)
        flight.task.add_done_callback(lambda _: self._landed(flight))
        return flight

    def _landed(self, flight: _Flight) -> None:
        flights = self._flights[flight.span.seq]
        flights.remove(flight)
        if not flights:
            del self._flights[flight.span.seq]
        if not flight.task.cancelled():
            flight.task.exception()  # If all callers were cancelled, it was never retrieved.

    async def _read(self, span: PayloadLocation) -> bytes:
        async def attempt() -> bytes | None:
            async with self._turns:
                return await self._bucket.get_range(objects.record(span.seq), span.offset, span.length)

        def failure(error: BucketError) -> EngineFailure:
            if isinstance(error, Refused):
                return self._failure(span, f"cannot be read: {error}", "payload_unreadable")
            return self._failure(span, f"cannot be fetched now: {error}; retry", "engine_failure")

        data = await self._retries.repeat(attempt, failure)
        if data is None:
            raise self._failure(
                span,
                "does not exist any more; restore the object, and remove lifecycle rules for this prefix: Hark "
                "deletes unneeded objects itself",
                "payload_missing",
            )
        self._cache.put_record(span.seq, span.offset, data)
        return data

    def _failure(self, span: PayloadLocation, what: str, code: str) -> EngineFailure:
        return EngineFailure(f"a payload in {objects.record(span.seq)} of {self._bucket.name} {what}", code=code)


class _Flight:
    """A request in flight, shared by all callers that need a part of its range."""

    __slots__ = ("span", "task")

    def __init__(self, span: PayloadLocation, task: asyncio.Task[bytes]) -> None:
        self.span = span
        self.task = task

    def has(self, location: PayloadLocation) -> bool:
        """Return whether it fetches all of a range."""
        return location.seq == self.span.seq and self.span.offset <= location.offset and location.end <= self.span.end

    async def bytes_at(self, location: PayloadLocation) -> bytes:
        """Wait for the request and return a part of its bytes."""
        try:
            # Other callers may wait too, so a cancelled one does not cancel the request.
            data = await asyncio.shield(self.task)
        except EngineFailure as failure:
            raise failure.again() from failure.__cause__
        return data[location.offset - self.span.offset : location.end - self.span.offset]


def _near(wanted: Iterable[PayloadLocation], gap: int) -> Iterator[list[PayloadLocation]]:
    """Group ranges of one record that are close together."""
    together: list[PayloadLocation] = []
    end = 0
    for location in sorted(wanted):
        if together and (location.seq != together[0].seq or location.offset > end + gap):
            yield together
            together, end = [], 0
        together.append(location)
        end = max(end, location.end)
    if together:
        yield together


def _span(together: Sequence[PayloadLocation]) -> PayloadLocation:
    first = together[0]
    return first._replace(length=max(location.end for location in together) - first.offset)


Fetch = Callable[[Sequence[PayloadLocation]], Awaitable[list[bytes]]]


class Filler:
    """Fills payloads in, from the cache if possible, because that needs no other thread."""

    def __init__(self, cache: PayloadCache, fetch: Fetch) -> None:
        self._cache = cache
        self._fetch = fetch

    async def fill(self, items: Sequence[msgspec.Struct]) -> None:
        """Fill in the payloads of items. Raises `EngineFailure` if one cannot be fetched."""
        missing: list[tuple[msgspec.Struct, PayloadLocation]] = []
        for item in items:
            location = getattr(item, "payload", None)
            if isinstance(location, PayloadLocation):
                cached = self._cache.get(location)
                if cached is None:
                    missing.append((item, location))
                else:
                    _set(item, cached)
        if missing:
            found = await self._fetch([location for _, location in missing])
            for (item, _), payload in zip(missing, found, strict=True):
                _set(item, payload)

    async def fill_found(self, items: Sequence[msgspec.Struct]) -> None:
        """Fill in the payloads of items; missing ones become empty."""
        if (failure := await _try(self.fill(items))) is None:
            return
        if len(items) > 1:
            await asyncio.gather(*(self.fill_found([item]) for item in items))
        elif failure.code == "payload_missing":
            _set(items[0], b"")
        else:
            raise failure

    async def fill_each(self, groups: Sequence[Sequence[msgspec.Struct]]) -> list[HarkError | None]:
        """Fill in the payloads of several answers; a failure concerns only its answer. Missing ones become empty."""
        # All together first, so that nearby payloads of different answers share a request.
        failure = await _try(self.fill([item for group in groups for item in group]))
        if failure is None:
            return [None] * len(groups)
        return await asyncio.gather(*(_try(self.fill_found(group)) for group in groups))


async def _try(filling: Awaitable[None]) -> HarkError | None:
    try:
        await filling
    except HarkError as error:
        return error
    return None


def _set(item: msgspec.Struct, payload: bytes) -> None:
    # Some structs are frozen, but no caller has seen them yet.
    msgspec.structs.force_setattr(item, "payload", msgspec.Raw(payload))
