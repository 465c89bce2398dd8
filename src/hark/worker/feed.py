"""The side of a worker that faces the server: pops by free slots, keeps leases, settles.

All of it runs on the line's loop, in a thread of its own, so that a handler that blocks starves none of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from hark.client.calling import Caller
from hark.client.delivery.leases import LeaseKeeper
from hark.client.delivery.settling import Settled, Settler, Verdict
from hark.client.delivery.socket import SocketSource
from hark.client.delivery.sources import Delivered, PollSource, Source, Wish
from hark.errors import HarkError
from hark.polling.poller import Poller
from hark.worker.dues import Dues, seconds_until_again
from hark.worker.held import Ended, Held
from hark.worker.stats import UNKNOWN

LAST_ANSWER_SECONDS = 0.25
"""How long a poll that is under way may take when the worker stops: one that has an answer coming must not lose it."""
_LAST_LOOK_SECONDS = 0.02
"""After that: this loop may have been late itself, and what has come meanwhile is read first."""
_SETTLE_AGAIN_SECONDS = 0.5
_CLOSE_SECONDS = 0.5
"""To give back what came too late, however little time is left."""
_log = logging.getLogger("hark.worker")

Answered = tuple[Ended, Settled | None]
"""None: the lease was lost before."""


class Feed:
    """Feeds a worker with as much as it has room for, and brings back how it ended."""

    def __init__(
        self,
        caller: Caller,
        wish: Wish,
        poller: Poller,
        *,
        slots: int,
        lease_seconds: int,
        receive: Callable[[Held], None],
        lose: Callable[[Held], None],
        answered: Callable[[Sequence[Answered]], None],
        burst: bool = False,
        sockets: bool = False,
        headers: Mapping[str, str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._source, self._settler = _ways(caller, wish, sockets, headers)
        self._keeper = LeaseKeeper(caller, monotonic=monotonic)
        self._poller = poller
        self._waits_there = wish.wait
        self.rests = not wish.wait or poller.strategy.longest_interval() > wish.seconds
        """Whether there are times in which nobody waits for work; then it helps to know when there will be some."""
        self._dues = Dues()
        self._is_resting = False
        self._slots = self.free = slots
        self._lease_seconds = lease_seconds
        self._receive, self._lose, self._answered = receive, lose, answered
        self._burst = burst
        self._monotonic = monotonic
        self._sleep = sleep
        self._room = asyncio.Event()
        self._taking: asyncio.Task[list[Delivered]] | None = None
        self._held: set[Held] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._keeping: asyncio.Task[None] | None = None
        self.heard_at = monotonic()
        """When the server last answered a poll."""
        self.problem: str | None = None
        """Why it did not answer the last one."""

    def open(self) -> None:
        """Begin to keep leases."""
        self._keeping = asyncio.get_running_loop().create_task(self._keeper.run())

    async def pull(self) -> None:
        """Take messages whenever there is room, until stopped (or until there are none, in a burst)."""
        while not self._poller.stopped:
            if not self.free:
                self._room.clear()
                await self._room.wait()
                continue
            was_quiet = self._is_quiet
            self._poller.begin()
            began = self._monotonic()
            messages = await self._take()
            if messages is None:
                await self._poller.rest()
                continue
            self._take_in(messages)
            self._poller.saw(bool(messages))
            if self._burst and not messages and was_quiet:
                return
            self._is_resting = True
            await self._poller.rest(
                self._dues.next_after(began), self._monotonic() - began if self._waits_there else 0.0
            )
            self._is_resting = False

    def stop(self) -> None:
        """Take nothing more."""
        self._poller.stop()
        self._room.set()
        if self._taking is not None:
            loop = asyncio.get_running_loop()
            cancel = self._taking.cancel
            loop.call_later(LAST_ANSWER_SECONDS, lambda: loop.call_later(_LAST_LOOK_SECONDS, cancel))

    def expect(self, seconds: float) -> None:
        """There will be work after so many seconds: do not sleep past it."""
        if not self.rests:
            return
        if seconds <= 0:
            self._poller.wake()
            return
        self._dues.add(self._monotonic() + seconds)
        if self._is_resting and seconds < self._poller.interval:
            self._poller.wake()  # This rest may be too long.

    def finished(self, ended: Sequence[Ended], slots: int) -> None:
        """Some tasks ended, and so many slots are free again."""
        self.free += slots
        self._room.set()
        if ended:
            for one in ended:
                one.held.ended.add(one.message.id)
            task = asyncio.get_running_loop().create_task(self._settle(ended))
            self._settling.add(task)
            task.add_done_callback(self._settled)
        self._wake_if_quiet()

    async def close(self, seconds: float) -> None:
        """Settle what there is to settle, for so long at most, and keep no leases any more."""
        end = self._monotonic() + seconds
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                while self._settling:
                    await asyncio.wait(self._settling)
        except TimeoutError:
            _log.warning("%d groups of settlements got no answer in time; their tasks run again", len(self._settling))
        for task in list(self._settling):
            task.cancel()
        self._keeper.close()
        if self._keeping is not None:
            await self._keeping
        try:
            async with asyncio.timeout(max(end - self._monotonic(), _CLOSE_SECONDS)):
                await self._source.close()
        except TimeoutError:
            _log.warning("what came too late could not be given back in time; it comes again when its lease ends")

    async def give_back(self, seconds: float) -> None:
        """Give back all whose handlers have not ended, whatever they do, and close."""
        back = [_returned(held, one) for held in self._held for one in held.messages if one.id not in held.ended]
        self.finished(back, 0)
        await self.close(seconds)

    @property
    def is_full(self) -> bool:
        """Whether there is no room, so that nothing is asked for."""
        return not self.free

    @property
    def _is_quiet(self) -> bool:
        return self.free == self._slots and not self._settling

    def _wake_if_quiet(self) -> None:
        if self._burst and self._is_quiet:
            self._poller.wake()

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a settlement failed", exc_info=error)
        self._wake_if_quiet()

    async def _take(self) -> list[Delivered] | None:
        """What the server has; None when it did not answer, or the worker stops."""
        self._taking = asyncio.get_running_loop().create_task(self._source.take(self.free))
        try:
            messages = await self._taking
        except asyncio.CancelledError:
            if self._poller.stopped and not _is_cancelling():
                return None
            raise
        except HarkError as error:
            if self._burst or (error.status < 500 and not error.retryable):
                raise  # Asking again would not help, or nobody wants to wait.
            self._note(str(error))
            self._poller.failed(error.retry_after)
            return None
        finally:
            self._taking = None
        self.heard_at = self._monotonic()
        self._note(None)
        return messages

    def _note(self, problem: str | None) -> None:
        """Log when it begins to fail, and when that is over."""
        if problem is not None and self.problem is None:
            _log.warning("no work can be had: %s; trying again", problem)
        elif problem is None and self.problem is not None:
            _log.warning("work can be had again")
        self.problem = problem

    def _take_in(self, messages: list[Delivered]) -> None:
        by_lease: dict[str, list[Delivered]] = {}
        for message in messages:
            by_lease.setdefault(message.lease_id, []).append(message)
        for lease_id, together in by_lease.items():
            held = Held(lease_id, together)
            self._held.add(held)
            self.free -= len(together)
            self._keeper.hold(lease_id, self._lease_seconds, _Loss(self, held))
            if self._poller.stopped:
                back = [_returned(held, message) for message in together]
                self.finished(back, len(back))
            else:
                self._receive(held)

    def lost(self, held: Held) -> None:
        """The lease is gone: somebody else may have its messages by now."""
        held.is_lost = True
        self._held.discard(held)
        self._lose(held)

    async def _settle(self, ended: Sequence[Ended]) -> None:
        """Say how they ended until the server answers; only the loss of a lease makes that needless."""
        while True:
            told = [one for one in ended if one.verdict is not None and not one.held.is_lost]
            try:
                answers = await self._settler.settle_many([one.verdict for one in told if one.verdict is not None])
                break
            except HarkError as error:
                if not error.retryable:
                    answers = [Settled(False, error.code, str(error))] * len(told)
                    break
                _log.warning("%d tasks can't be settled: %s; trying again", len(told), error)
                await self._sleep(max(error.retry_after or 0.0, _SETTLE_AGAIN_SECONDS))
        by_ended = {id(one): answer for one, answer in zip(told, answers, strict=True)}
        for one in ended:
            one.held.left -= 1
            if not one.held.left:
                self._keeper.drop(one.held.lease_id)
                self._held.discard(one.held)
        if self.rests:
            self._expect_again(told, answers)
        self._answered([(one, by_ended.get(id(one))) for one in ended])

    def _expect_again(self, told: Sequence[Ended], answers: Sequence[Settled]) -> None:
        """What the worker put off itself comes when it said."""
        for one, answer in zip(told, answers, strict=True):
            again = None if one.verdict is None else seconds_until_again(one.verdict, answer)
            if again is not None:
                self.expect(again)


def _ways(caller: Caller, wish: Wish, sockets: bool, headers: Mapping[str, str] | None) -> tuple[Source, Settler]:
    """Where messages come from, and where they are settled: over the same socket, if there is one."""
    if sockets and wish.wait:
        source = SocketSource(caller, wish, headers=headers)
        return source, source.settler
    settler = Settler(caller)
    return PollSource(caller, wish, settler.give_back), settler


def _returned(held: Held, message: Delivered) -> Ended:
    return Ended(held, message, Verdict(message, "retry"), "handed_back", UNKNOWN)


class _Loss:
    """Tells the feed that a lease is lost."""

    __slots__ = ("_feed", "_held")

    def __init__(self, feed: Feed, held: Held) -> None:
        self._feed, self._held = feed, held

    def __call__(self) -> None:
        self._feed.lost(self._held)


def _is_cancelling() -> bool:
    """Whether the task that runs is itself being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
