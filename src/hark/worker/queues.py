"""Several queues of one worker: they share its slots by weight, its leases and its settlements.

A poll of one queue must not hold slots that another queue needs. So a queue that has work is polled without waiting,
for the slots that are allotted to it. A queue without work waits at the server for a single message, and holds no slot:
if one arrives while all slots are busy, it is released, and the queue gets one of the next slots.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from heapq import heappop
from typing import Any

import msgspec

from hark.api.types.delivery import Delivered
from hark.client.arguments import an_integer
from hark.client.builder import PopParams
from hark.client.calling import Caller
from hark.client.delivery.leases import LeaseKeeper
from hark.client.delivery.prefetcher import PollSource
from hark.errors import InvalidInput
from hark.polling import Poller
from hark.worker.fetcher import Fetcher
from hark.worker.retrying import Ended

MAX_WEIGHT = 1000


def weights_of(queue: str | None, queues: Mapping[str, int] | Sequence[str] | None) -> dict[str, int]:
    """The queues of a worker with their weights, from its arguments. Raises `InvalidInput`."""
    if queue is not None and queues is not None:
        raise InvalidInput("queue: expected either a queue or queues, got both; put all of them into queues")
    if queues is None:
        if not queue:
            raise InvalidInput("queue: must not be empty; name the queue of this worker's tasks")
        return {queue: 1}
    if isinstance(queues, str):
        raise InvalidInput(f"queues: expected a list or a dict with weights, got {queues!r}; or use queue={queues!r}")
    weights = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues, 1)
    if not weights:
        raise InvalidInput("queues: must not be empty; name the queues of this worker's tasks")
    for name, weight in weights.items():
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"queues: expected names of queues, got {name!r}")
        an_integer(weight, f"queues[{name!r}]", 1, MAX_WEIGHT)
    return weights


class Share(msgspec.Struct, eq=False):
    """What one queue has of the slots."""

    name: str
    weight: int
    used: int = 0
    """Slots that its tasks use, and those that are allotted to a poll."""
    polling: int = 0
    """Slots that are allotted to a poll."""
    turn: float = 0.0
    """Sum of 1/weight over all allotted slots: of two queues without a slot, the lower one is next."""
    allotted: asyncio.Future[int] | None = None
    """Set while the queue waits for slots: receives how many it may poll for."""


class Shares:
    """Divides free slots between queues that want some.

    A slot goes to the queue that uses the fewest slots for its weight; of several, to the one that had the fewest so
    far. So a queue with work is never left out, and gets its part when all have work. A queue without work wants
    nothing, and leaves its part to the others.
    """

    def __init__(self, shares: Sequence[Share], slots: int) -> None:
        self.all = shares
        self._slots = self._free = slots
        self._now = 0.0
        """The last turn. A queue that comes back starts here: it has saved nothing up."""
        self._stopped = False
        self._dividing = False

    @property
    def idle(self) -> int:
        """Number of slots that no task uses."""
        return self._free + sum(share.polling for share in self.all)

    @property
    def is_idle(self) -> bool:
        """Whether no task uses a slot."""
        return self.idle == self._slots

    async def want(self, share: Share) -> int:
        """Wait for slots to poll for. 0: the worker stops."""
        if self._stopped:
            return 0
        share.turn = max(share.turn, self._now)
        share.allotted = asyncio.get_running_loop().create_future()
        self._divide_soon()
        try:
            return await share.allotted
        finally:
            share.allotted = None

    def polled(self, share: Share, allotted: int, received: int) -> None:
        """A poll for allotted slots received this many messages."""
        share.polling -= allotted
        share.used -= allotted - received
        self.release(allotted - received)

    def seize(self, share: Share) -> bool:
        """Take a free slot for a message that arrived. Returns False if there is none."""
        if self._free < 1 or self._stopped:
            return False
        self._give(share)
        return True

    def release(self, slots: int) -> None:
        """Slots are free again."""
        self._free += slots
        if slots:
            self._divide_soon()

    def stop(self) -> None:
        """No queue gets slots any more."""
        self._stopped = True
        for share in self.all:
            if share.allotted is not None and not share.allotted.done():
                share.allotted.set_result(0)

    def _give(self, share: Share) -> None:
        self._free -= 1
        share.used += 1
        self._now = max(self._now, share.turn)
        share.turn += 1 / share.weight

    def _divide_soon(self) -> None:
        """Divide after all that happens now: slots that become free together are divided together."""
        if not self._dividing and self._free > 0:
            self._dividing = True
            asyncio.get_running_loop().call_soon(self._divide)

    def _divide(self) -> None:
        self._dividing = False
        wanting = [share for share in self.all if share.allotted is not None and not share.allotted.done()]
        if not wanting:
            return
        while self._free > 0:
            share = min(wanting, key=lambda one: (one.used / one.weight, one.turn))
            self._give(share)
            share.polling += 1
        for share in wanting:
            if share.polling and share.allotted is not None:
                share.allotted.set_result(share.polling)


class QueueFetcher(Fetcher):
    """Receives the messages of one of several queues, for the slots that are allotted to it."""

    def __init__(self, together: Fetchers, caller: Caller, params: PopParams, share: Share, **rest: Any) -> None:
        replace = msgspec.structs.replace
        waiting = replace(params, queue=share.name, batch=1, partitions=1)
        super().__init__(caller, waiting, keeper=together.keeper, **rest)
        self._carries_acks = False
        at_once = replace(params, queue=share.name, wait=False)
        self._at_once = PollSource(caller, at_once, self._settler.give_back)
        self._together = together
        self.share = share

    async def pull(self) -> None:
        """Receive messages while the queue is allotted slots, until stopped."""
        together, shares = self._together, self._together.shares
        while slots := await shares.want(self.share):
            was_quiet = together.is_quiet
            self._poller.begin()
            began = self.answered_at = self._monotonic()
            messages = await self._take(self._at_once, slots)
            shares.polled(self.share, slots, 0 if messages is None else len(messages))
            if messages is None:
                await self._poller.rest()
                continue
            self._take_in(messages)
            if self._burst and together.is_over(self.share, messages, was_quiet):
                return
            if messages or not self._waits_there:
                self._poller.saw(bool(messages))
            if self._waits_there and len(messages) < slots and not self._poller.stopped:
                await self._wait()
                continue
            while self._due_times and self._due_times[0] <= began:
                heappop(self._due_times)
            self._is_resting = True
            await self._poller.rest(self._due_times[0] if self._due_times else None)
            self._is_resting = False

    async def close(self, seconds: float) -> None:
        """Settle what is left, for at most this many seconds."""
        await super().close(seconds)
        await self._at_once.close()

    async def _wait(self) -> None:
        """Wait at the server, without a slot, until the queue has work."""
        self._poller.begin()
        began = self._monotonic()
        messages = await self._take(self._source, 1)
        if messages is None:
            await self._poller.rest()
            return
        self._poller.saw(bool(messages))
        if messages and not self._together.shares.seize(self.share):
            await self._settler.give_back(messages)
        else:
            self._take_in(messages)
        self._is_resting = True
        await self._poller.rest(None, self._monotonic() - began)
        self._is_resting = False

    @property
    def _is_quiet(self) -> bool:
        return self._together.is_quiet

    def _wake_if_quiet(self) -> None:
        self._together.wake_if_quiet()


class Fetchers:
    """Receives the messages of several queues for the slots of one worker, with one lease keeper."""

    def __init__(
        self,
        caller: Caller,
        params: PopParams,
        make_poller: Callable[[], Poller],
        *,
        weights: Mapping[str, int],
        slots: int,
        burst: bool,
        monotonic: Callable[[], float] = time.monotonic,
        **rest: Any,
    ) -> None:
        self.keeper = LeaseKeeper(caller, monotonic=monotonic)
        self.shares = Shares([Share(name, weight) for name, weight in weights.items()], slots)
        self._burst = burst
        self._monotonic = monotonic
        self._fetchers = {
            share.name: QueueFetcher(
                self,
                caller,
                params,
                share,
                poller=make_poller(),
                slots=slots,
                burst=burst,
                monotonic=monotonic,
                **rest,
            )
            for share in self.shares.all
        }
        self._empty: set[str] = set()
        """In a burst: queues that were found empty while nothing ran, since the last message."""
        self._keeping = asyncio.get_running_loop().create_task(self.keeper.run())

    async def pull(self) -> None:
        """Receive messages of all queues until stopped. In a burst, until there are none."""
        pulls = [asyncio.ensure_future(fetcher.pull()) for fetcher in self._fetchers.values()]
        try:
            await asyncio.gather(*pulls)
        finally:
            for pull in pulls:
                pull.cancel()
            await asyncio.gather(*pulls, return_exceptions=True)

    def stop(self) -> None:
        """Stop receiving."""
        self.shares.stop()
        for fetcher in self._fetchers.values():
            fetcher.stop()

    def of(self, queue: str) -> Fetcher:
        """The fetcher of a queue."""
        return self._fetchers[queue]

    def finished(self, ended: Sequence[Ended], slots: int) -> None:
        """Tasks ended, and this many slots are free again."""
        by_queue: dict[str, list[Ended]] = {}
        for one in ended:
            by_queue.setdefault(one.message.queue, []).append(one)
        for name, those in by_queue.items():
            fetcher = self._fetchers[name]
            fetcher.share.used -= len(those)
            fetcher.finished(those, 0)
        self.shares.release(slots)
        self.wake_if_quiet()

    async def close(self, seconds: float) -> None:
        """Settle what is left, for at most this many seconds, and stop renewing leases."""
        await self._end([fetcher.close(seconds) for fetcher in self._fetchers.values()])

    async def give_back(self, seconds: float) -> None:
        """Release all messages whose handlers have not ended, and close."""
        await self._end([fetcher.give_back(seconds) for fetcher in self._fetchers.values()])

    async def _end(self, closing: Sequence[Coroutine[Any, Any, None]]) -> None:
        await asyncio.gather(*closing)
        self.keeper.close()
        await self._keeping

    @property
    def free(self) -> int:
        """Number of slots that no task uses."""
        return self.shares.idle

    @property
    def rests(self) -> bool:
        """Whether there are times without a waiting request."""
        return any(fetcher.rests for fetcher in self._fetchers.values())

    @property
    def answered_at(self) -> float:
        """When the server last answered the queue that waits longest for an answer."""
        polled = [fetcher.answered_at for fetcher in self._fetchers.values() if fetcher.share.allotted is None]
        return min(polled, default=self._monotonic())

    @property
    def problem(self) -> str | None:
        """The errors of the last polls, or None."""
        problems = (f"{name}: {one.problem}" for name, one in self._fetchers.items() if one.problem is not None)
        return "; ".join(problems) or None

    @property
    def running(self) -> dict[str, int]:
        """Number of running tasks by queue."""
        return {share.name: share.used - share.polling for share in self.shares.all}

    @property
    def is_quiet(self) -> bool:
        """Whether no task runs, and all are settled."""
        return self.shares.is_idle and not any(fetcher.is_settling for fetcher in self._fetchers.values())

    def wake_if_quiet(self) -> None:
        """In a burst, look again when nothing runs any more."""
        if self._burst and self.is_quiet:
            for fetcher in self._fetchers.values():
                fetcher.wake()

    def is_over(self, share: Share, messages: Sequence[Delivered], was_quiet: bool) -> bool:
        """In a burst, after a poll: whether nothing ran and nothing came while all queues were found empty."""
        if messages or not was_quiet or not self.is_quiet:
            self._empty.clear()
        else:
            self._empty.add(share.name)
        if len(self._empty) < len(self._fetchers):
            return False
        self.stop()
        return True
