"""Append is the commit: one object created where there is none.

What makes it hard is an answer that does not come. Then the record may be there, may be there soon, or never. So the
same bytes are sent again and what is there is read: whose record it is, its nonce says. A try that seemed lost may
land later and make the next one fail with 412; that 412 is a success. Nobody is told "no" before it is known, and
nobody "yes".
"""

from __future__ import annotations

import asyncio
import random as random_module
import time
from collections.abc import Callable

from hark.engine.s3.bucket.api import Bucket, BucketError, Conflicting, Refused, Stored, Taken, Unclear
from hark.engine.s3.log import places
from hark.engine.s3.log.patience import Patience, Pause, Tries
from hark.engine.s3.log.record import nonce_of
from hark.errors import EngineFailure

_SHORTEST_RETRY_AFTER_SECONDS = 1.0


class Appender:
    """Puts records into the log of one bucket."""

    def __init__(
        self,
        bucket: Bucket,
        patience_seconds: float,
        *,
        pause: Pause = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bucket = bucket
        self._patience = Patience(patience_seconds, pause=pause, random=random, monotonic=monotonic)

    async def append(self, seq: int, body: bytes, nonce: str) -> Stored | None:
        """Put a record at `seq`. None: it is in the log. Else what somebody else put there first.

        Raises `EngineFailure`: it is not in the log and will not get there. With the code `outcome_unknown` it may be,
        or may still get there: read the log before the next append.
        """
        return await _Append(self._bucket, self._patience.begin(), seq, body, nonce).run()


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
            await self._bucket.create(places.record(self._seq), self._body)
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
            return await self._bucket.get(places.record(self._seq)), failure
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
