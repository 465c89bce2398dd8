"""Intentions: pops that wait, each with a deadline, answered once."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator

from hark.broker.delivery.subscription import Subscription
from hark.broker.timers import Timer, Timers
from hark.errors import HarkError, Overloaded
from hark.model import PopRequest, PopResult

_SLACK = 64


class Intention:
    """One pop that waits: interested until it is answered, at the latest at its deadline."""

    __slots__ = (
        "answer",
        "created_at",
        "deadline",
        "failure",
        "number",
        "parked",
        "priority",
        "reason",
        "request",
        "subscription",
    )

    def __init__(
        self,
        number: int,
        request: PopRequest,
        priority: int,
        created_at: int,
        deadline: int,
        subscription: Subscription,
    ) -> None:
        self.number = number
        self.request = request
        self.priority = priority
        self.created_at = created_at
        self.deadline = deadline
        self.subscription = subscription
        self.answer: asyncio.Future[PopResult] = asyncio.get_running_loop().create_future()
        self.failure: HarkError | None = None
        """Why the last look failed; None: it did not."""
        self.reason: PopResult | None = None
        """The answer if the look that is under way comes to nothing: time is up. None: it is not."""
        self.parked = False
        """It waits for its deadline in the heap."""

    @property
    def partition(self) -> str | None:
        """The partition that it wants, if not any."""
        return self.request.partition

    @property
    def batch(self) -> int:
        """How many messages it takes at once."""
        return self.request.batch

    def next_pull(self) -> PopRequest | None:
        """One intention is one pop with its own batch and its own lease."""
        return None if self.answer.done() else self.request

    def deliver(self, result: PopResult) -> bool:
        """Answer the pop, if its client is still there."""
        if self.answer.done():
            return False
        self.subscription.retire(self)
        self.answer.set_result(result)
        return True

    def came_up_empty(self) -> None:
        """Wait on, keeping the turn; a look that ended after the deadline was the last."""
        self.failure = None
        self._end_if_late()

    def failed(self, failure: HarkError) -> None:
        """Wait on: the store may be back in time."""
        outcome_is_lost = self.request.auto_ack and failure.code == "outcome_unknown"
        if outcome_is_lost:  # What was settled at once does not come again: the client should hear of it.
            self.refuse(failure)
            return
        self.failure = failure
        self._end_if_late()

    def refuse(self, error: HarkError) -> None:
        """Answer with an error."""
        if not self.answer.done():
            self.subscription.retire(self)
            self.answer.set_exception(error)

    def expire(self, reason: PopResult) -> None:
        """Time is up, unless something is on its way: then what comes of that is the answer."""
        if not self.answer.done():
            self.reason = reason
            self.subscription.last_chance(self, lambda: self.end(reason))

    def end(self, result: PopResult) -> None:
        """Answer without messages."""
        if self.answer.done():
            return
        self.subscription.retire(self)
        if self.failure is not None:
            self.answer.set_exception(self.failure)
        else:
            self.answer.set_result(result)

    def _end_if_late(self) -> None:
        if self.reason is not None:
            self.end(self.reason)


class Intentions:
    """All intentions of this server, by number, and their deadlines in a heap with one timer."""

    def __init__(self, most: int, timers: Timers) -> None:
        self._most = most
        self._timers = timers
        self._all: dict[int, Intention] = {}
        self._next = 0
        self._heap: list[tuple[int, int]] = []
        self._timer: Timer | None = None
        self._rings_at = 0

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Intention]:
        return iter(list(self._all.values()))

    def admit(self) -> None:
        """Refuse one more when there are too many."""
        if len(self._all) >= self._most:
            raise Overloaded(
                f"{len(self._all)} pops are already waiting; retry later or raise limits.max_waiting",
                code="too_many_waiting",
            )

    def register(
        self, request: PopRequest, priority: int, created_at: int, deadline: int, subscription: Subscription
    ) -> Intention:
        """Add one."""
        self._next += 1
        intention = Intention(self._next, request, priority, created_at, deadline, subscription)
        self._all[intention.number] = intention
        return intention

    def park(self, intention: Intention) -> None:
        """From now on its deadline counts."""
        intention.parked = True
        heapq.heappush(self._heap, (intention.deadline, intention.number))
        self._arm()

    def remove(self, intention: Intention) -> None:
        """It has been answered, or its client is gone."""
        del self._all[intention.number]
        if not self._all:
            self._heap.clear()
            self.close()
        elif len(self._heap) > 2 * len(self._all) + _SLACK:
            # Most of it is of those who were answered long before their deadlines.
            self._heap = [entry for entry in self._heap if entry[1] in self._all]
            heapq.heapify(self._heap)

    def _arm(self) -> None:
        due = self._heap[0][0]
        if self._timer is not None:
            if self._rings_at <= due:
                return
            self._timer.cancel()
        self._rings_at = due
        self._timer = self._timers.at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._timers.now()
        while self._heap and self._heap[0][0] <= now:
            intention = self._all.get(heapq.heappop(self._heap)[1])
            if intention is not None:
                intention.expire(PopResult(reason="nothing_ready"))
        if self._heap:
            self._arm()

    def close(self) -> None:
        """No deadline counts any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
