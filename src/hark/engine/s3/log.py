"""The log in the bucket: append is the commit, and reads of other processes' records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from hark.engine.s3 import objects
from hark.engine.s3.bucket import Bucket, BucketError, Refused, Stored, Taken, Unclear
from hark.engine.s3.objects import BucketRetries, Tries, nonce_of
from hark.errors import EngineFailure

# Records that a snapshot covers are removed one `grace` after that snapshot became the newest. A process that was
# suspended meanwhile (SIGSTOP, a suspended machine) knows the log up to n and finds no record n + 1, because it was
# removed. It would create n + 1 again and take that for a commit, but no process would ever read the record.
#
# The log is *fresh* at a moment at which no snapshot beyond what this process has applied was the newest one. Records
# beyond are then not removed before that moment plus `grace`. Until then:
#
# - If record n + 1 does not exist, it has never existed: a create that succeeds is a commit.
# - If record n + 1 exists, it is the true one. It is not a record that another suspended process has put in the place
#   of a removed one.
#
# These show that the log was fresh when the request was *sent* (an answer can be late, but its content is not older):
#
# - The pointer was read, and its newest snapshot is not beyond what is applied. If it is beyond, the process starts
#   again from the snapshot.
# - While the log was fresh, n + 1 did not exist or this process created it. Then n + 1 was not in any snapshot.
#
# That record n + 1 exists shows nothing: n + 2 can be in a snapshot that has been the newest for long.
#
# The age is measured by two clocks, and the larger value counts. The clock of the machine includes the time for which
# the machine was suspended, but not the time for which a virtual machine was suspended or copied from outside. The
# dates in the answers of the store include that, also the date of the create itself; the process that removes records
# uses them too. A tenth of the grace is kept for differences between clocks.


_STALE_AFTER = 0.5
_VOID_AFTER = 0.9


def boot_seconds() -> float:
    """Return the seconds since the machine started, including suspended time."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Moment(NamedTuple):
    """A moment by both clocks, in seconds. A later moment is larger."""

    boot: float
    store: float
    """The latest date in the answers of the store until then; the true time can be later, never earlier."""


_NEVER = Moment(float("-inf"), float("-inf"))


class LogFreshness:
    """The last moment at which the log was known to be fresh. Before the first, everything is stale and void."""

    def __init__(
        self, grace_seconds: float, store_clock: Callable[[], float], boot_clock: Callable[[], float] = boot_seconds
    ) -> None:
        self._grace = grace_seconds
        self._store_clock = store_clock
        self._boot_clock = boot_clock
        self._at = _NEVER

    @property
    def at(self) -> Moment:
        """The last fresh moment. Keep it before a request, for `is_void` after it."""
        return self._at

    def now(self) -> Moment:
        """Return the current moment. Call it before a request is sent, for `seen` after the answer."""
        return Moment(self._boot_clock(), self._store_clock())

    def seconds_since(self, moment: Moment) -> float:
        """Return the seconds since a moment, by the clock with the larger value."""
        now = self.now()
        return max(now.boot - moment.boot, now.store - moment.store)

    def seen(self, sent: Moment) -> None:
        """Note that the log was fresh when a request was sent. An older moment than the last one changes nothing."""
        self._at = max(self._at, sent)

    @property
    def is_stale(self) -> bool:
        """Older than half the grace: the pointer must be read before an append, and before a record is trusted."""
        return self.seconds_since(self._at) > self._grace * _STALE_AFTER

    def is_void(self, since: Moment) -> bool:
        """Return whether an answer that has just arrived proves nothing, because `since` is too long ago.

        A create that was answered this late can have won a removed number: it must not be acknowledged, and the pointer
        and the log must be read again. A record that was read, or found missing, this late proves nothing either.
        """
        return self.seconds_since(since) > self._grace * _VOID_AFTER

    def lose(self) -> None:
        """Forget the last fresh moment."""
        self._at = _NEVER


# The hard case is a missing answer. Then the record may exist, may exist soon, or never. So the same bytes are sent
# again and the object is read: its nonce tells whose record it is. An attempt that seemed lost can arrive later and
# make the next one fail with 412; that 412 is a success. No caller gets an answer before the outcome is known.


_SHORTEST_RETRY_AFTER_SECONDS = 1.0


async def append(bucket: Bucket, retries: BucketRetries, seq: int, body: bytes, nonce: str) -> Stored | None:
    """Write a record to the log. Returns None if it is there, else the record that another process wrote first.

    Raises `EngineFailure` if it is not in the log and never will be. With the code `outcome_unknown` it may be or may
    still get there: the log must be read before the next append.
    """
    key, name, tries = objects.record(seq), bucket.name, Tries(retries)
    # Whether an attempt may have written the record, or may still do so.
    may_be_there = False
    # Whether the number was taken. It is never tried again: if it cannot be read now, it was removed, and a record with
    # a removed number would never be read.
    is_taken = False
    while True:
        found, failure = None, BucketError(f"record {seq} is taken")
        try:
            if not is_taken:
                await bucket.create(key, body)
                return None
        except BucketError as error:
            failure = error
            # Also on the first attempt a taken number can be our own: a proxy may have sent the request twice.
            is_taken = isinstance(error, Taken)
            may_be_there = may_be_there or is_taken or (isinstance(error, Unclear) and error.was_sent)
        if not isinstance(failure, Refused):
            try:
                found = await bucket.get(key)
            except BucketError as error:
                failure = error
        if found is not None:
            return None if nonce_of(found.body, seq, name) == nonce else found
        if isinstance(failure, Refused) or not await tries.rest(failure.slow_down):
            break
    retry_after = max(_SHORTEST_RETRY_AFTER_SECONDS, tries.rest_seconds)
    if may_be_there:
        raise EngineFailure(
            f"{name} did not confirm log record {seq} ({failure}); it is unknown whether the request took effect; "
            "check before you send it again",
            code="outcome_unknown",
            retry_after=retry_after,
        ) from failure
    text = f"{name} could not store log record {seq}: {failure}; the request had no effect; retry"
    if isinstance(failure, Refused):
        text = f"{name} rejects log record {seq}: {failure}; the request had no effect; check the bucket policy"
    raise EngineFailure(text, retry_after=retry_after) from failure


MOST_AT_ONCE = 32
"""Maximum number of records that are requested together."""


async def read_records(bucket: Bucket, retries: BucketRetries, seq: int, number: int) -> list[Stored]:
    """Return records from `seq` up to the first missing one. Reads are repeated until they are answered."""

    def failure(error: BucketError) -> EngineFailure:
        if isinstance(error, Refused):
            return EngineFailure(f"{bucket.name} rejects a read of the log: {error}")
        return EngineFailure(f"cannot read {bucket.name}: {error}; the request had no effect; retry", retry_after=1)

    keys = [objects.record(one) for one in range(seq, seq + number)]
    found = await asyncio.gather(*(retries.repeat(partial(bucket.get, key), failure) for key in keys))
    return [stored for stored in takewhile(lambda one: one is not None, found) if stored is not None]
