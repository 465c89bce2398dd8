"""Receives messages for the free slots of a worker, and settles those that have ended.

It runs on the event loop of the network thread, so that a blocking handler does not stop it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from heapq import heappop, heappush

from hark.api import operations
from hark.api.types.delivery import Delivered
from hark.api.types.tasks import ProgressBody
from hark.client.builder import PopParams
from hark.client.calling import Caller
from hark.client.delivery.leases import LeaseKeeper
from hark.client.delivery.prefetcher import PollSource
from hark.client.delivery.settling import MOST_WITH_POP, PiggybackedAcks, Settled, SettleDecision
from hark.client.delivery.socket import SocketSource, source_of
from hark.client.io_thread import is_cancelling
from hark.client.pushing import NewMessage
from hark.errors import HarkError
from hark.polling import Poller
from hark.worker.retrying import Ended, InFlight
from hark.worker.stats import UNKNOWN

MOST = 1000
"""Maximum number of remembered due times. Later messages are found by polling."""
LAST_ANSWER_SECONDS = 0.25
"""Seconds that a poll in flight may still take when the worker stops, so that an answer in flight is not lost."""
_LAST_LOOK_SECONDS = 0.02
"""Seconds after that, because this loop may have been late itself: answers that arrived are read first."""
_SETTLE_AGAIN_SECONDS = 0.5
_REPORT_SECONDS = 0.2
"""Minimum time in seconds between two reports of the progress of a task."""
_CLOSE_SECONDS = 0.5
"""Minimum time in seconds for releasing messages that arrived too late."""
_log = logging.getLogger("hark.worker")

Answered = tuple[Ended, Settled | None]
"""None: the lease was lost before."""


def seconds_until_again(decision: SettleDecision | None, settled: Settled) -> float | None:
    """Seconds until a settled message is redelivered. None: never, or only the server knows."""
    if decision is None or not settled.success or settled.dead_lettered or decision.status not in ("failed", "retry"):
        return None
    if decision.delay_ms is not None:
        return decision.delay_ms / 1000
    return 0.0 if decision.status == "retry" else None


def seconds_until_due(message: NewMessage) -> float:
    """Seconds until a message that is pushed now can be delivered."""
    if message.deliver_at is None:
        return (message.delay or 0) / 1000
    return max(0.0, (datetime.fromisoformat(message.deliver_at) - datetime.now(UTC)).total_seconds())


class Fetcher:
    """Receives as many messages as a worker has slots, and settles them when they have ended."""

    def __init__(
        self,
        caller: Caller,
        params: PopParams,
        poller: Poller,
        *,
        slots: int,
        lease_seconds: int,
        receive: Callable[[InFlight], None],
        lose: Callable[[InFlight], None],
        cancel: Callable[[InFlight, Sequence[str]], None],
        answered: Callable[[Sequence[Answered]], None],
        keeper: LeaseKeeper | None = None,
        burst: bool = False,
        sockets: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._caller = caller
        self._reports: dict[str, tuple[Delivered, ProgressBody]] = {}
        """The progress of tasks that is not sent yet, by message id."""
        self._reporting: set[asyncio.Task[None]] = set()
        self._keeper = keeper or LeaseKeeper(caller, monotonic=monotonic)
        self._source, self._settler = source_of(caller, params, sockets, self._keeper.hurry)
        self._carries_acks = params.waits and isinstance(self._source, PollSource)
        self._acks: PiggybackedAcks | None = None
        """Settlements for the next poll to carry."""
        self._queue = params.queue
        self._poller = poller
        self._waits_there = params.waits
        self.rests = not params.waits or poller.strategy.longest_interval() > params.seconds
        """Whether there are times without a waiting request. Then known due times of messages are useful."""
        self._due_times: list[float] = []
        """A heap of times at which messages are due, so that a polling worker does not sleep past them."""
        self._is_resting = False
        self._slots = self.free = slots
        self._lease_seconds = lease_seconds
        self._receive, self._lose, self._cancel, self._answered = receive, lose, cancel, answered
        self._burst = burst
        self._monotonic = monotonic
        self._sleep = sleep
        self._room = asyncio.Event()
        self._waits_for_room = False
        self._taking: asyncio.Task[list[Delivered]] | None = None
        self._in_flight: set[InFlight] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self.answered_at = monotonic()
        """When the server last answered a poll."""
        self.problem: str | None = None
        """The error of the last poll, or None."""
        # A keeper that was given belongs to its giver.
        self._keeping = None if keeper else asyncio.get_running_loop().create_task(self._keeper.run())

    async def pull(self) -> None:
        """Receive messages while there are free slots, until stopped. In a burst, until there are none."""
        while not self._poller.stopped:
            if not self.free:
                self._room.clear()
                self._waits_for_room = True
                await self._room.wait()
                self._waits_for_room = False
                continue
            was_quiet = self._is_quiet
            self._poller.begin()
            began = self._monotonic()
            messages = await self._take(self._source, self.free)
            if messages is None:
                await self._poller.rest()
                continue
            self._take_in(messages)
            self._poller.saw(bool(messages))
            if self._burst and not messages and was_quiet:
                return
            while self._due_times and self._due_times[0] <= began:
                heappop(self._due_times)
            next_due = self._due_times[0] if self._due_times else None
            self._is_resting = True
            await self._poller.rest(next_due, self._monotonic() - began if self._waits_there else 0.0)
            self._is_resting = False

    def stop(self) -> None:
        """Stop receiving."""
        self._poller.stop()
        self._room.set()
        acks, self._acks = self._acks, None
        if acks is not None:
            acks.not_sent()
        if self._taking is not None:
            loop = asyncio.get_running_loop()
            cancel = self._taking.cancel
            loop.call_later(LAST_ANSWER_SECONDS, lambda: loop.call_later(_LAST_LOOK_SECONDS, cancel))

    def of(self, queue: str) -> Fetcher:  # noqa: ARG002  # As `Fetchers` has it.
        """The fetcher of a queue."""
        return self

    def wake(self) -> None:
        """End the current pause."""
        self._poller.wake()

    @property
    def is_settling(self) -> bool:
        """Whether settlements are on their way."""
        return bool(self._settling)

    def expect(self, seconds: float) -> None:
        """There will be work after this many seconds: do not sleep past it."""
        if not self.rests:
            return
        if seconds <= 0:
            self._poller.wake()
            return
        if len(self._due_times) < MOST:
            heappush(self._due_times, self._monotonic() + seconds)
        if self._is_resting and seconds < self._poller.interval:
            self._poller.wake()  # This rest may be too long.

    def finished(self, ended: Sequence[Ended], slots: int) -> None:
        """Tasks ended, and this many slots are free again."""
        self.free += slots
        self._room.set()
        if ended:
            for one in ended:
                one.in_flight.ended.add(one.message.id)
            to_settle = [one for one in ended if one.decision is not None and not one.in_flight.is_lost]
            task = asyncio.get_running_loop().create_task(self._settle(ended, to_settle, self._piggyback(to_settle)))
            self._settling.add(task)
            task.add_done_callback(self._settled)
        self._wake_if_quiet()

    def _piggyback(self, to_settle: Sequence[Ended]) -> PiggybackedAcks | None:
        """The settlements, for the poll that follows at once because it waited for free slots; None: send them."""
        polls_now = self._waits_for_room and self.free and not self._poller.stopped
        if not self._carries_acks or not polls_now or self._acks is not None:
            return None
        decisions = _decisions(to_settle)
        if 0 < len(decisions) <= MOST_WITH_POP and not any(one.is_large for one in decisions):
            self._acks = PiggybackedAcks(decisions)
        return self._acks

    def report(self, message: Delivered, progress: float | None, note: str | None) -> None:
        """Send the progress of a task soon, unless a later one replaces it."""
        is_first = message.id not in self._reports
        self._reports[message.id] = message, ProgressBody(message.lease_id, progress, note)
        if is_first:
            task = asyncio.get_running_loop().create_task(self._send_report(message.id))
            self._reporting.add(task)
            task.add_done_callback(self._reporting.discard)

    async def _send_report(self, message_id: str) -> None:
        await self._sleep(_REPORT_SECONDS)
        message, body = self._reports.pop(message_id)
        names = (message.partition_id, message.transaction_id)
        try:
            await self._caller.send(operations.REPORT_PROGRESS, *names, body=body, safe=True)
        except HarkError as error:
            _log.info("the progress of message %s was not stored: %s", message_id, error)

    async def close(self, seconds: float) -> None:
        """Settle what is left, for at most this many seconds, and stop renewing leases."""
        end = self._monotonic() + seconds
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                while self._settling:
                    await asyncio.wait(self._settling)
        except TimeoutError:
            text = "%d settlement requests got no answer within the grace period; their tasks may run again"
            _log.warning(text, len(self._settling))
        for task in (*self._settling, *self._reporting):
            task.cancel()
        if self._keeping is not None:
            self._keeper.close()
            await self._keeping
        try:
            async with asyncio.timeout(max(end - self._monotonic(), _CLOSE_SECONDS)):
                await self._source.close()
        except TimeoutError:
            _log.warning(
                "messages received during shutdown were not released; they are redelivered when their lease expires"
            )

    async def give_back(self, seconds: float) -> None:
        """Release all messages whose handlers have not ended, and close."""
        back = [
            _returned(in_flight, one)
            for in_flight in self._in_flight
            for one in in_flight.messages
            if one.id not in in_flight.ended
        ]
        self.finished(back, 0)
        await self.close(seconds)

    @property
    def _is_quiet(self) -> bool:
        return self.free == self._slots and not self._settling

    def _wake_if_quiet(self) -> None:
        if self._burst and self._is_quiet:
            self._poller.wake()

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(
                "settlement raised an unexpected error; its tasks run again when their leases expire", exc_info=error
            )
        self._wake_if_quiet()

    async def _take(self, source: PollSource | SocketSource, slots: int) -> list[Delivered] | None:
        """Receive from the server. None if it did not answer, or if the worker stops."""
        acks, self._acks = self._acks, None
        self._taking = asyncio.get_running_loop().create_task(source.take(slots, acks))
        try:
            messages = await self._taking
        except asyncio.CancelledError:
            if self._poller.stopped and not is_cancelling():
                return None
            raise
        except HarkError as error:
            if self._burst or (error.status < 500 and not error.retryable):
                raise  # A retry would not help, or the burst must end.
            self._note(str(error))
            self._poller.failed(error.retry_after)
            return None
        finally:
            self._taking = None
            if acks is not None:
                acks.not_sent()  # It has no effect on those that were sent.
        self.answered_at = self._monotonic()
        self._note(None)
        return messages

    def _note(self, problem: str | None) -> None:
        """Log the start and the end of an outage."""
        if problem is not None and self.problem is None:
            _log.warning("worker cannot receive tasks of queue %s: %s; trying again", self._queue, problem)
        elif problem is None and self.problem is not None:
            _log.warning("worker receives tasks of queue %s again", self._queue)
        self.problem = problem

    def _take_in(self, messages: list[Delivered]) -> None:
        by_lease: dict[str, list[Delivered]] = {}
        for message in messages:
            by_lease.setdefault(message.lease_id, []).append(message)
        for lease_id, together in by_lease.items():
            in_flight = InFlight(lease_id, together)
            self._in_flight.add(in_flight)
            self.free -= len(together)
            self._keeper.hold(
                lease_id, self._lease_seconds, partial(self.lost, in_flight), cancelled=partial(self._cancel, in_flight)
            )
            if self._poller.stopped:
                back = [_returned(in_flight, message) for message in together]
                self.finished(back, len(back))
            else:
                self._receive(in_flight)

    def lost(self, in_flight: InFlight) -> None:
        """The lease is lost: another consumer may have received its messages."""
        in_flight.is_lost = True
        self._in_flight.discard(in_flight)
        self._lose(in_flight)

    async def _settle(self, ended: Sequence[Ended], to_settle: Sequence[Ended], acks: PiggybackedAcks | None) -> None:
        """Settle until the server answers. Only a lost lease makes that unnecessary."""
        while True:
            try:
                answers = await self._settler.settle_many(_decisions(to_settle), acks)
                break
            except HarkError as error:
                if not error.retryable:
                    answers = [Settled(False, error.code, str(error))] * len(to_settle)
                    break
                _log.warning(
                    "%d tasks of queue %s cannot be settled: %s; trying again", len(to_settle), self._queue, error
                )
                await self._sleep(max(error.retry_after or 0.0, _SETTLE_AGAIN_SECONDS))
                acks = None
                to_settle = [one for one in to_settle if not one.in_flight.is_lost]
        by_ended = {id(one): answer for one, answer in zip(to_settle, answers, strict=True)}
        for one in ended:
            one.in_flight.left -= 1
            if not one.in_flight.left:
                self._keeper.drop(one.in_flight.lease_id)
                self._in_flight.discard(one.in_flight)
        if self.rests:
            for one, answer in zip(to_settle, answers, strict=True):
                if (again := seconds_until_again(one.decision, answer)) is not None:
                    self.expect(again)  # The retried message is due.
        self._answered([(one, by_ended.get(id(one))) for one in ended])


def _decisions(ended: Sequence[Ended]) -> list[SettleDecision]:
    return [one.decision for one in ended if one.decision is not None]


def _returned(in_flight: InFlight, message: Delivered) -> Ended:
    return Ended(in_flight, message, SettleDecision(message, "retry"), "handed_back", UNKNOWN)
