"""The log in the bucket: append is the commit, and reads of other processes' records."""

from __future__ import annotations

import asyncio
import random as random_module
import time
from collections.abc import Callable
from typing import NamedTuple

from hark.engine.s3 import objects
from hark.engine.s3.bucket import Bucket, BucketError, Conflicting, Refused, Stored, Taken, Unclear
from hark.engine.s3.objects import BucketRetries, Pause, Tries, nonce_of
from hark.errors import EngineFailure

# Records that a snapshot covers are removed one `grace` after that snapshot became the newest. A process that slept
# through it (SIGSTOP, a suspended machine) knows the log up to n and finds no n + 1, because it was removed: it would
# create n + 1 anew, believe that it has committed, and nobody would ever read it.
#
# A *sight* is a moment at which no snapshot beyond what this process has applied was the newest one. Whatever lies
# beyond is then not removed before that moment plus grace, so until then
#
# - n + 1 that is not there has never been there: a create that succeeds is a commit, and
# - n + 1 that is there is the true one, not what another sleeper has put in the place of a removed record.
#
# What is a sight, at the moment at which the request was *sent* (an answer may be late, its contents are not older):
#
# - the pointer was read, and its newest snapshot is not beyond what is applied (after a start from that snapshot it is
# not); if it is beyond, start again from the snapshot;
# - under a sight that is not void: n + 1 was not there, or was created by us. Then n + 1 has not been in any snapshot.
#
# That n + 1 was there is none: n + 2 may be in a snapshot that has been the newest for long.
#
# The age of a sight is counted twice, and the larger counts. The clock of the machine counts the time for which it was
# suspended, but not that of a virtual machine that was suspended or copied from outside. The dates of the store's
# answers count that too, that of the create itself included; the process that removes goes by them as well. A tenth of
# the grace is kept for what clocks may differ.


_STALE_AFTER = 0.5
_VOID_AFTER = 0.9


def boot_seconds() -> float:
    """Seconds since the machine started, those asleep included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Moment(NamedTuple):
    """A moment by both clocks, in seconds. The later of two is the larger."""

    boot: float
    store: float
    """By the dates of the store's answers that had come by then: it may have been later, never earlier."""


_NEVER = Moment(float("-inf"), float("-inf"))


class LogFreshness:
    """The last sight of one process. Before the first there is none, and everything is stale and void."""

    def __init__(
        self, grace_seconds: float, store_clock: Callable[[], float], boot_clock: Callable[[], float] = boot_seconds
    ) -> None:
        self._grace = grace_seconds
        self._store_clock = store_clock
        self._boot_clock = boot_clock
        self._at = _NEVER

    @property
    def at(self) -> Moment:
        """The moment of the last sight; keep it before a request, for `is_void` after it."""
        return self._at

    def now(self) -> Moment:
        """This moment; ask before a request is sent, for `seen` when it was answered."""
        return Moment(self._boot_clock(), self._store_clock())

    def seconds_since(self, moment: Moment) -> float:
        """How long ago a moment was, by the clock that says more."""
        now = self.now()
        return max(now.boot - moment.boot, now.store - moment.store)

    def seen(self, sent: Moment) -> None:
        """Note a sight, at the moment at which its request was sent. An older one than the last changes nothing."""
        self._at = max(self._at, sent)

    @property
    def is_stale(self) -> bool:
        """Older than half the grace: read the pointer before you append or trust a record."""
        return self.seconds_since(self._at) > self._grace * _STALE_AFTER

    def is_void(self, since: Moment) -> bool:
        """Whether an answer that came just now is worth nothing, because the sight at `since` is too old for it.

        A create that was answered so late may have won a removed number: do not acknowledge it, read the pointer and
        the log again. A record that was read, or found missing, so late proves nothing either.
        """
        return self.seconds_since(since) > self._grace * _VOID_AFTER

    def lose(self) -> None:
        """Forget the sight: the state begins anew."""
        self._at = _NEVER


# What makes it hard is an answer that does not come. Then the record may be there, may be there soon, or never. So the
# same bytes are sent again and what is there is read: whose record it is, its nonce says. A try that seemed lost may
# land later and make the next one fail with 412; that 412 is a success. Nobody is told "no" before it is known, and
# nobody "yes".


_SHORTEST_RETRY_AFTER_SECONDS = 1.0


class Appender:
    """Puts records into the log of one bucket."""

    def __init__(
        self,
        bucket: Bucket,
        retry_seconds: float,
        *,
        pause: Pause = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
        monotonic: Callable[[], float] = time.monotonic,
        on_silence: Callable[[], None] = lambda: None,
    ) -> None:
        self._bucket = bucket
        self._retries = BucketRetries(
            retry_seconds, pause=pause, random=random, monotonic=monotonic, on_silence=on_silence
        )

    async def append(self, seq: int, body: bytes, nonce: str) -> Stored | None:
        """Put a record at `seq`. None: it is in the log. Else what somebody else put there first.

        Raises `EngineFailure`: it is not in the log and will not get there. With the code `outcome_unknown` it may be,
        or may still get there: read the log before the next append.
        """
        return await _Append(self._bucket, self._retries.begin(), seq, body, nonce).run()


class _Append:
    """One append and what is known about it."""

    def __init__(self, bucket: Bucket, tries: Tries, seq: int, body: bytes, nonce: str) -> None:
        self._bucket = bucket
        self._tries = tries
        self._seq = seq
        self._body = body
        self._nonce = nonce
        self._may_be_there = False
        """A try may have done it, or may yet."""
        self._is_taken = False
        """The number was taken. It is never tried again: if nothing is there to be read now, it was removed, and to win
        a removed number would be to commit where nobody reads any more."""

    async def run(self) -> Stored | None:
        while True:
            failure = await self._create()
            if failure is None:
                return None
            found, failure = await self._look(failure)
            if found is not None:
                return None if nonce_of(found.body, self._seq, self._bucket.name) == self._nonce else found
            if not await self._tries.rest(isinstance(failure, Unclear) and failure.slow_down):
                raise self._gave_up(failure)

    async def _create(self) -> BucketError | None:
        """Try once; None: it was created."""
        if self._is_taken:
            return Taken(f"record {self._seq} is taken")
        try:
            await self._bucket.create(objects.record(self._seq), self._body)
        except Taken as error:
            # Also on the first try it can be our own: something on the way may have sent the request twice.
            self._is_taken = self._may_be_there = True
            return error
        except Unclear as error:
            self._may_be_there = self._may_be_there or error.was_sent
            return error
        except Conflicting as error:
            return error
        except Refused as error:
            raise self._gave_up(error) from error
        return None

    async def _look(self, failure: BucketError) -> tuple[Stored | None, BucketError]:
        """What is there now, and why it is not known if it is not."""
        try:
            return await self._bucket.get(objects.record(self._seq)), failure
        except Refused as error:
            raise self._gave_up(error) from error
        except BucketError as error:
            return None, error

    def _gave_up(self, cause: BucketError) -> EngineFailure:
        retry_after = max(_SHORTEST_RETRY_AFTER_SECONDS, self._tries.rest_seconds)
        name = self._bucket.name
        if self._may_be_there:
            return EngineFailure(
                f"{name} did not confirm log record {self._seq} ({cause}); it is unknown whether the request took "
                "effect; check before you send it again",
                code="outcome_unknown",
                retry_after=retry_after,
            )
        if isinstance(cause, Refused):
            text = f"{name} rejects log record {self._seq}: {cause}; the request had no effect; check the bucket policy"
        else:
            text = f"{name} could not store log record {self._seq}: {cause}; the request had no effect; retry"
        return EngineFailure(text, retry_after=retry_after)


_MOST_AT_ONCE = 32


class LogReader:
    """Reads records; what does not answer is asked again, as reading changes nothing."""

    def __init__(self, bucket: Bucket, retries: BucketRetries) -> None:
        self._bucket = bucket
        self._retries = retries

    async def read(self, seq: int) -> Stored | None:
        """One record; None: there is none (yet). Raises `EngineFailure` when the store can't be asked."""
        tries = self._retries.begin()
        while True:
            try:
                return await self._bucket.get(objects.record(seq))
            except Refused as error:
                raise EngineFailure(f"{self._bucket.name} rejects the read of log record {seq}: {error}") from error
            except (Unclear, Conflicting) as error:
                if not await tries.rest(isinstance(error, Unclear) and error.slow_down):
                    raise EngineFailure(
                        f"cannot read {self._bucket.name}: {error}; the request had no effect; retry", retry_after=1
                    ) from error

    async def read_many(self, seq: int, number: int) -> list[Stored]:
        """Records from `seq` on, up to the first that is missing, at most so many."""
        found = await asyncio.gather(*(self.read(one) for one in range(seq, seq + min(number, _MOST_AT_ONCE))))
        records: list[Stored] = []
        for stored in found:
            if stored is None:
                break
            records.append(stored)
        return records


def more_at_once(number: int) -> int:
    """How many to ask for where all of so many were there."""
    return min(number * 2, _MOST_AT_ONCE)
