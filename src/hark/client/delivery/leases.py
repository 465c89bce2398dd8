"""Leases of received messages, renewed in batches until their messages are settled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime

import msgspec

from hark.api import operations
from hark.api.types.messages import ExtendedLease, RenewalAnswer
from hark.client.builder import RENEWED_LEASE_SECONDS
from hark.client.calling import Caller, CallPolicy, Transport, client_closed
from hark.client.io_thread import IoThread
from hark.errors import HarkError, InvalidInput, LeaseLost
from hark.polling import Pause, pause

Lost = Callable[[], None]
Cancelled = Callable[[Sequence[str]], None]
"""Receives the ids of messages whose tasks are to be cancelled."""
Renewal = RenewalAnswer | ExtendedLease

_LEASES_OF_A_REQUEST = 1000
_RENEW_AFTER = 1 / 3
"""Part of the lease time after which a lease is renewed. Leases that are due soon (half as much later) are renewed
along with those that are due."""
FIRST_AFTER = 1.0
"""Seconds before the first renewal, at most. Until then the lease may be shorter than requested, if the queue has
its own `lockDuration`. Messages that are settled sooner cost no renewal."""
_SOONEST = 0.02
_LATEST = 5.0
"""Minimum and maximum delay in seconds before a failed attempt is repeated. A server that has noticed a broken stream
redelivers its messages after 30 s (`delivery.disconnect_grace_ms`)."""
_log = logging.getLogger(__name__)


class _Lease(msgspec.Struct, eq=False):
    """One lease and its holders."""

    id: str
    seconds: float
    every: float
    """Seconds between renewals."""
    end: float
    due: float
    """When the next renewal is due."""
    holders: int = 0
    lost: list[Lost] = []
    cancelled: Cancelled | None = None
    renewing: bool = False
    """A renewal is in flight."""

    def renewed(self, at: float) -> None:
        """The lease was renewed at this moment."""
        self.end = at + self.seconds
        self.due = at + self.every


class LeaseKeeper:
    """Renews leases until they are dropped.

    `run` belongs to one event loop; `hold` and `drop` can be called from any thread. If a renewal gets no answer, the
    state of the lease is unknown: the renewal is repeated at shrinking intervals until the lease time is over.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Pause = pause,
        first_after: float = FIRST_AFTER,
    ) -> None:
        # One attempt per call: the keeper decides by the remaining time what to do next.
        self._caller = Caller(caller.transport, CallPolicy(attempts=1))
        self._monotonic = monotonic
        self._wait = wait
        self._first_after = first_after
        self._leases: dict[str, _Lease] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._wake_at = 0.0
        """When `run` wakes up next. 0 before its first round; infinite while there are no leases."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._one_by_one = False
        """The server is an older version that renews leases one by one."""

    def hold(
        self,
        lease_id: str,
        seconds: float,
        lost: Lost | None = None,
        every: float | None = None,
        cancelled: Cancelled | None = None,
    ) -> None:
        """Keep a lease that lasts this many seconds from now. Each `hold` needs a `drop`.

        `lost` is called at most once, on the loop of `run`, when the server reports that the lease is gone, or when its
        time is over without an answer. `every` is the time between renewals, instead of a third of the lease time. The
        first renewal comes after one second at the latest. `cancelled` is called on the loop of `run`, after each
        renewal that reports messages whose tasks are to be cancelled.
        """
        if not lease_id:
            raise InvalidInput("lease_id: expected the id of a lease; a message received with auto_ack has none")
        if not seconds > 0:
            raise InvalidInput(f"seconds: expected a lease time above 0 seconds, got {seconds!r}")
        with self._lock:
            lease = self._leases.get(lease_id)
            if lease is None:
                now, every = self._monotonic(), every or seconds * _RENEW_AFTER
                due = now + min(every, self._first_after)
                lease = self._leases[lease_id] = _Lease(lease_id, seconds, every, end=now + seconds, due=due)
            lease.holders += 1
            if lost is not None:
                lease.lost.append(lost)
            lease.cancelled = cancelled or lease.cancelled
            earlier = lease.due < self._wake_at
            if earlier:
                self._wake_at = lease.due
        if earlier:
            self._wake()

    def drop(self, lease_id: str, lost: Lost | None = None) -> None:
        """Stop keeping a lease, and stop notifying `lost` (the callback that was given to `hold`)."""
        with self._lock:
            lease = self._leases.get(lease_id)
            if lease is None:
                return  # It was lost.
            if lost is not None and lost in lease.lost:
                lease.lost.remove(lost)
            lease.holders -= 1
            if lease.holders <= 0:
                del self._leases[lease_id]

    def hurry(self) -> None:
        """Renew all leases now: the stream that delivered them was disconnected, and that shortens them."""
        with self._lock:
            self._wake_at = now = self._monotonic()
            for lease in self._leases.values():
                lease.due = now
        self._wake()

    @property
    def kept(self) -> int:
        """Number of leases that are kept."""
        return len(self._leases)

    async def run(self) -> None:
        """Renew due leases until closed."""
        self._loop = asyncio.get_running_loop()
        try:
            while not self._closed:
                self._changed.clear()
                wait = self._look()
                if wait > 0:
                    await self._wait(self._changed, wait)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Stop renewing. All leases expire."""
        self._closed = True
        self._wake()

    # The loop of `run` -------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed.set)

    def _look(self) -> float:
        """Renew due leases and drop expired ones. Returns the seconds until the next round."""
        now = self._monotonic()
        with self._lock:
            over = [lease for lease in self._leases.values() if lease.end <= now]
            for lease in over:
                del self._leases[lease.id]
            if any(lease.due <= now and not lease.renewing for lease in self._leases.values()):
                self._ask_for_due(now)
            moments = [lease.end if lease.renewing else min(lease.due, lease.end) for lease in self._leases.values()]
            self._wake_at = min(moments, default=math.inf)
        for lease in over:
            _log.warning("lease %s expired before it could be renewed; its messages are redelivered", lease.id)
            _notify(lease)
        return max(0.0, self._wake_at - now)

    def _ask_for_due(self, now: float) -> None:
        by_seconds: dict[float, list[_Lease]] = {}
        for lease in self._leases.values():
            soon = lease.every / 2
            if not lease.renewing and lease.due <= now + soon:
                by_seconds.setdefault(lease.seconds, []).append(lease)
        for seconds, leases in by_seconds.items():
            for start in range(0, len(leases), _LEASES_OF_A_REQUEST):
                part = leases[start : start + _LEASES_OF_A_REQUEST]
                for lease in part:
                    lease.renewing = True
                task = asyncio.get_running_loop().create_task(self._renew(part, seconds, now))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _renew(self, leases: Sequence[_Lease], seconds: float, now: float) -> None:
        """Send one request. A lease lasts from before the request on, whenever the server processed it."""
        answers: Mapping[str, Renewal] = {}
        left = min(lease.end for lease in leases) - now
        try:
            # Half of the remaining time, so that there is time for another attempt.
            answers = await self._ask([lease.id for lease in leases], seconds, max(left / 2, _SOONEST))
        except HarkError as error:
            _log.info("renewal of %d leases failed: %s; trying again", len(leases), error)
        finally:
            gone = self._learn(leases, answers, now)
        for lease in gone:
            _notify(lease)
        for lease in leases:
            answer = answers.get(lease.id)
            if answer is not None and answer.cancelled and lease.cancelled is not None:
                lease.cancelled(answer.cancelled)

    def _learn(self, leases: Sequence[_Lease], answers: Mapping[str, Renewal], requested_at: float) -> list[_Lease]:
        """Record the answers. Returns the leases that are gone."""
        now = self._monotonic()
        gone = []
        with self._lock:
            for lease in leases:
                lease.renewing = False
                answer = answers.get(lease.id)
                if answer is None or (not answer.success and answer.code != "lease_not_found"):
                    lease.due = now + min(_LATEST, max(_SOONEST, (lease.end - now) / 8))  # Unknown.
                elif answer.success:
                    lease.renewed(requested_at)
                elif self._leases.get(lease.id) is lease:
                    del self._leases[lease.id]
                    gone.append(lease)
            self._wake_at = 0.0
        self._changed.set()
        return gone

    async def _ask(self, lease_ids: Sequence[str], seconds: float, within: float) -> Mapping[str, Renewal]:
        # The API takes whole seconds. A longer lease does no harm.
        whole = max(1, math.ceil(seconds))
        if not self._one_by_one:
            body = {"leaseIds": lease_ids, "seconds": whole}
            try:
                answer = await self._caller.ask(operations.EXTEND_MANY, body=body, seconds=within)
                return {result.lease_id: result for result in answer.value}
            except HarkError as error:
                if error.status not in (404, 405):
                    raise
                self._one_by_one = True
        body = {"seconds": whole}
        renewing = [self._caller.ask(operations.EXTEND, one, body=body, seconds=within) for one in lease_ids]
        answers = await asyncio.gather(*renewing, return_exceptions=True)
        for failure in answers:
            if isinstance(failure, BaseException) and not isinstance(failure, HarkError):
                raise failure
        return {answer.lease_id: answer for answer in answers if isinstance(answer, ExtendedLease)}


def _notify(lease: _Lease) -> None:
    """Notify all holders that a lease is gone. A failing callback does not stop the others."""
    for lost in lease.lost:
        try:
            lost()
        except Exception:
            _log.exception("callback for a lost lease raised; the other callbacks are still called")


Extend = Callable[[str, int], Awaitable[datetime]]
"""Renews a lease for a number of seconds from now. Returns when it expires."""


class Holds:
    """The lease keeper of a client, in a separate thread. Both are created with the first lease."""

    def __init__(self, transport: Transport, retry: CallPolicy | None = None) -> None:
        self._transport = transport
        self._retry = retry
        self._io_thread: IoThread | None = None
        self._keeper: LeaseKeeper | None = None
        self._running: asyncio.Future[None] | None = None
        self._closed = False

    def keeper(self) -> LeaseKeeper:
        """The running lease keeper."""
        if self._closed:
            # A handler that outlives the client would start it again, and nothing would close it.
            raise client_closed()
        if self._keeper is None:
            io_thread = IoThread(self._transport, self._retry)
            io_thread.start()
            self._io_thread, self._keeper = io_thread, LeaseKeeper(io_thread.caller)
            self._running = io_thread.spawn(self._keeper.run())
        return self._keeper

    def io_thread(self) -> IoThread | None:
        """The thread of the running lease keeper. None if the server can only be reached from this event loop."""
        self.keeper()
        assert self._io_thread is not None
        return None if self._io_thread.is_inline else self._io_thread

    def hurry(self) -> None:
        """Renew all leases now."""
        if self._keeper is not None:
            self._keeper.hurry()

    async def close(self) -> None:
        """Stop renewing leases, and end the thread."""
        self._closed = True
        if self._keeper is not None and self._io_thread is not None and self._running is not None:
            self._keeper.close()
            try:
                await self._running
            finally:
                await self._io_thread.close()
                self._keeper = self._running = self._io_thread = None


class _Fate:
    """Whether a lease was lost. Separate from the lease, so that the keeper does not keep the lease object alive."""

    lost = False

    def lose(self) -> None:
        """Mark the lease as lost. The keeper calls this on its own thread."""
        self.lost = True


class Lease:
    """The lease that some messages share. It is renewed while one of them is unsettled and referenced.

    If a message is dropped without settlement, the lease is not renewed any more and expires.
    """

    __slots__ = ("_every", "_fate", "_holds", "_keeper", "_loop", "_open", "_seconds", "id", "released")

    def __init__(
        self, lease_id: str, messages: int, holds: Holds | None, seconds: int | None, every: float | None = None
    ) -> None:
        self.id = lease_id
        self._open = messages
        self._holds = holds
        """None: the lease is not renewed."""
        self._seconds = seconds
        """Lease time in seconds. None if only the server knows it."""
        self._every = every
        """Seconds between renewals, if not a third of the lease time."""
        self._keeper: LeaseKeeper | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fate = _Fate()
        self.released: set[str] = set()
        """Ids of partitions with a message that was not completed. In an ordered group all later messages are
        redelivered."""

    @property
    def lost(self) -> bool:
        """Whether the lease is known to have expired."""
        return self._fate.lost

    async def begin(self, extend: Extend, age: float = 0.0) -> None:
        """Renew the lease from now on. It may be `age` seconds old: one that may end soon is renewed before."""
        if self._holds is None or self._keeper is not None:
            return
        keeper = self._holds.keeper()
        if self._seconds is None or age >= self._seconds - min(self._seconds / 3, FIRST_AFTER):
            seconds = self._seconds or RENEWED_LEASE_SECONDS
            try:
                await extend(self.id, seconds)
            except LeaseLost:
                if self._seconds is None:
                    raise
                self._fate.lose()
                return
            self._seconds = seconds
        if self._keeper is None and self._open:
            self._loop = asyncio.get_running_loop()
            self._keeper = keeper
            keeper.hold(self.id, self._seconds, self._fate.lose, self._every)

    def stop_renewing(self) -> None:
        """One message less needs the lease."""
        self._open -= 1
        if not self._open and self._keeper is not None:
            keeper, self._keeper = self._keeper, None
            keeper.drop(self.id, self._fate.lose)

    def __del__(self) -> None:
        keeper, loop = self._keeper, self._loop
        if keeper is not None and loop is not None:
            # Not here: garbage collection can run anywhere, also while the keeper's lock is held.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(keeper.drop, self.id, self._fate.lose)
