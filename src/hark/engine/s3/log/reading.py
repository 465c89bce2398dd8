"""Reading the log on: record by record, and several at once for those who are far behind."""

from __future__ import annotations

import asyncio

from hark.engine.s3.bucket.api import Bucket, Conflicting, Refused, Stored, Unclear
from hark.engine.s3.log import places
from hark.engine.s3.log.patience import Patience
from hark.errors import EngineFailure

_MOST_AT_ONCE = 32


class LogReader:
    """Reads records; what does not answer is asked again, as reading changes nothing."""

    def __init__(self, bucket: Bucket, patience: Patience) -> None:
        self._bucket = bucket
        self._patience = patience

    async def read(self, seq: int) -> Stored | None:
        """One record; None: there is none (yet). Raises `EngineFailure` when the store can't be asked."""
        tries = self._patience.begin()
        while True:
            try:
                return await self._bucket.get(places.record(seq))
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
