"""Looking for records of others: one GET of the next number, now and then.

How often is the polling strategy's business. An append of our own says as much as a look, so a process that writes
does not look; and each while the pointer is read instead, in case that the log was collected up to here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hark.engine.s3.bucket.api import Bucket, BucketError, Stored, Unclear
from hark.engine.s3.log import places
from hark.engine.s3.log.sight import Sight
from hark.polling import Poller, PollingStrategy

log = logging.getLogger(__name__)


class Tail:
    """Belongs to the event loop of the requests; `head` and `poke` are for it too."""

    def __init__(
        self,
        bucket: Bucket,
        poller: Poller,
        sight: Sight,
        *,
        found: Callable[[int, Stored], None],
        check: Callable[[], None],
        check_seconds: float,
        has_interest: Callable[[], bool],
    ) -> None:
        self._bucket = bucket
        self._poller = poller
        self._sight = sight
        self._found = found
        self._check = check
        self._check_seconds = check_seconds
        self._has_interest = has_interest
        self._checked = sight.now()
        self._seq = 0
        self._moved = asyncio.Event()
        self._written = False
        """Something was appended here since the last look."""
        self._poked = False
        """Somebody said that there is something new since the last look was begun."""

    def head(self, seq: int, own: bool) -> None:
        """The state has come to a record; whether we wrote it."""
        self._seq = seq
        self._moved.set()
        self._written = self._written or own

    def missed(self) -> None:
        """The state could not take over what was found: it has to be found again."""
        self._moved.set()

    def poke(self) -> None:
        """Somebody says that there is something new."""
        self._poked = True
        self._poller.wake()

    def follow(self, strategy: PollingStrategy) -> None:
        """Rest as another strategy says from now on."""
        self._poller.follow(strategy)

    def stop(self) -> None:
        """End `run`, also where it waits for the state."""
        self._poller.stop()
        self._moved.set()

    async def run(self) -> None:
        """Look until `stop`."""
        while not self._poller.stopped:
            if self._written and not self._poked:
                self._written = False  # Who wrote has seen the head.
                self._poller.skip()
            else:
                await self._poll()
            await self._poller.rest()

    async def _poll(self) -> None:
        self._poller.begin()
        self._poked = False
        try:
            found = await self._look()
        except BucketError as error:
            fields = {"store": "away", "bucket": self._bucket.name}
            text = "%s: cannot read the log; retrying, check the bucket and the network: %s"
            log.warning(text, self._bucket.name, error, extra={"fields": fields})
            self._poller.failed(1.0 if isinstance(error, Unclear) and error.slow_down else None)
            return
        except Exception:
            # Polling must continue after any error, or this process would miss the records of all others.
            log.exception("%s: cannot read the log because of a bug; retrying, please report it", self._bucket.name)
            self._poller.failed()
            return
        # Who waits for nothing is in no hurry for more of it.
        self._poller.saw(found and self._has_interest())
        if found and not self._poked:
            self._poller.skip()  # It has read up to the end: there is nothing more to be had at once.

    async def _look(self) -> bool:
        """Read to the end of the log; whether there was a record that the state does not have."""
        found = False
        while not self._poller.stopped:
            sent = self._sight.now()
            if self._sight.is_stale or sent - self._checked > self._check_seconds:
                self._checked = sent
                self._check()
                break
            seq, since = self._seq + 1, self._sight.at
            self._moved.clear()
            stored = await self._bucket.get(places.record(seq))
            if stored is None:
                if not self._sight.is_void(since) and self._seq + 1 == seq:
                    self._sight.seen(sent)
                break
            found = True
            self._found(seq, stored)
            if self._seq < seq:
                await self._moved.wait()
            if self._seq < seq:
                break
        return found
