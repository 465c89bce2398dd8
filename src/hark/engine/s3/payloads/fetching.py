"""Payloads by range requests: as few as possible, and none for what is cached or on its way."""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from hark.engine.s3.bucket.api import Bucket, BucketError, Conflicting, Unclear
from hark.engine.s3.log import places
from hark.engine.s3.payloads.cache import PayloadCache
from hark.engine.s3.payloads.place import Place
from hark.errors import EngineFailure

GAP_BYTES = 64 * 1024
"""Two places that are no further apart share a request: so many bytes cost less than a second one."""
_MOST_AT_ONCE = 16
_TRIES = 7
_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 5.0
_SLOWER = 10.0
"""What the first wait is multiplied by when the store asks for fewer requests."""


class Payloads:
    """Gives payloads by their places. Belongs to the event loop that talks to the store."""

    def __init__(
        self,
        bucket: Bucket,
        cache: PayloadCache,
        *,
        gap: int = GAP_BYTES,
        most_at_once: int = _MOST_AT_ONCE,
        tries: int = _TRIES,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._bucket = bucket
        self._cache = cache
        self._gap = gap
        self._tries = tries
        self._pause = pause
        self._random = random
        self._turns = asyncio.Semaphore(most_at_once)
        self._flights: dict[int, list[_Flight]] = {}
        """By record, the requests that are under way."""

    async def fetch(self, wanted: Sequence[Place]) -> list[bytes]:
        """The bytes at these places, in their order. Raises `EngineFailure` when one of them can't be had."""
        found: dict[Place, bytes] = {}
        coming: dict[Place, _Flight] = {}
        missing: list[Place] = []
        for place in dict.fromkeys(wanted):
            cached = self._cache.get(place) if place.length else b""
            if cached is not None:
                found[place] = cached
            elif (flight := self._under_way(place)) is not None:
                coming[place] = flight
            else:
                missing.append(place)
        for together in _near(missing, self._gap):
            coming |= dict.fromkeys(together, self._start(_span(together)))
        for place, flight in coming.items():
            found[place] = await flight.bytes_at(place)
        return [found[place] for place in wanted]

    def _under_way(self, place: Place) -> _Flight | None:
        return next((flight for flight in self._flights.get(place.seq, ()) if flight.has(place)), None)

    def _start(self, span: Place) -> _Flight:
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
            flight.task.exception()  # Those who waited may all have been cancelled: then nobody else looks at it.

    async def _read(self, span: Place) -> bytes:
        """Ask until there is an answer: reading again changes nothing."""
        for attempt in range(1, self._tries + 1):
            try:
                async with self._turns:
                    data = await self._bucket.get_range(places.record(span.seq), span.offset, span.length)
            except (Unclear, Conflicting) as error:
                if attempt == self._tries:
                    raise self._failure(span, f"cannot be fetched now: {error}; retry", "engine_failure") from error
                await self._pause(self._seconds(attempt, error))
                continue
            except BucketError as error:
                raise self._failure(span, f"cannot be read: {error}", "payload_unreadable") from error
            if data is None:
                raise self._failure(
                    span,
                    "does not exist any more; restore the object, and remove lifecycle rules for this prefix: Hark "
                    "deletes unneeded objects itself",
                    "payload_missing",
                )
            self._cache.put_record(span.seq, span.offset, data)
            return data
        raise AssertionError("the last try answers or raises")

    def _failure(self, span: Place, what: str, code: str) -> EngineFailure:
        return EngineFailure(f"a payload in {places.record(span.seq)} of {self._bucket.name} {what}", code=code)

    def _seconds(self, attempt: int, error: Unclear | Conflicting) -> float:
        """How long to wait: from half of it to all of it, so that those who failed together do not return together."""
        first = _FIRST_SECONDS * (_SLOWER if isinstance(error, Unclear) and error.slow_down else 1.0)
        return float(min(first * 2 ** (attempt - 1), _LONGEST_SECONDS) * (0.5 + self._random() / 2))


class _Flight:
    """A request that is under way, for all who want something of its span."""

    __slots__ = ("span", "task")

    def __init__(self, span: Place, task: asyncio.Task[bytes]) -> None:
        self.span = span
        self.task = task

    def has(self, place: Place) -> bool:
        """Whether it brings all of a place."""
        return place.seq == self.span.seq and self.span.offset <= place.offset and place.end <= self.span.end

    async def bytes_at(self, place: Place) -> bytes:
        """Wait for it, and take a place out of what it brought."""
        try:
            # Others may wait too: who is cancelled does not take it along.
            data = await asyncio.shield(self.task)
        except EngineFailure as failure:
            raise failure.again() from failure.__cause__
        return data[place.offset - self.span.offset : place.end - self.span.offset]


def _near(wanted: Iterable[Place], gap: int) -> Iterator[list[Place]]:
    """Put those places of one record together that are near each other."""
    together: list[Place] = []
    end = 0
    for place in sorted(wanted):
        if together and (place.seq != together[0].seq or place.offset > end + gap):
            yield together
            together, end = [], 0
        together.append(place)
        end = max(end, place.end)
    if together:
        yield together


def _span(together: Sequence[Place]) -> Place:
    """From the first byte of them to the last."""
    first = together[0]
    return first._replace(length=max(place.end for place in together) - first.offset)
