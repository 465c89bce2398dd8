"""Delivery: every subscription of this server, and the routing of hints to them."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from hark.batching import Answer
from hark.broker.delivery.browsers import Browsers
from hark.broker.delivery.fallback import FallbackPolls
from hark.broker.delivery.stream import Stream
from hark.broker.delivery.streams import Streams
from hark.broker.delivery.subscription import DeliveryMetrics, Key, Source, Subscription
from hark.broker.timers import Timer, Timers
from hark.clock import MILLISECOND, SECOND
from hark.engine.api import Engine
from hark.errors import EngineFailure, HarkError, Overloaded
from hark.model import Hint, MessageFacts, PopRequest, PopResult, StoredMessage
from hark.settings import Settings

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
        self.answer: Answer[PopResult] = Answer()
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


log = logging.getLogger(__name__)

_TRUSTED = 30 * SECOND
"""How long cached labels are valid on a shared store: another server can change them without a notification."""

_AGAIN = SECOND
"""Pause before an unavailable store is asked again."""


class Labels:
    """A cache of labels. A hint for a queue that is not in it waits until the store has answered."""

    def __init__(self, engine: Engine, timers: Timers, again: Callable[[Hint, Source], None]) -> None:
        self._engine = engine
        self._timers = timers
        self._again = again
        self._known: dict[str, tuple[str, str, int]] = {}
        self._awaiting_info: dict[str, list[tuple[Hint, Source]]] = {}
        self._changes = 0
        """Number of removals from the cache: a request from before a removal can be out of date."""
        self._task: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        """Rings when the store is asked again that was away."""

    def of(self, queue: str, hint: Hint, source: Source) -> tuple[str, str] | None:
        """The namespace and the task; None: they are asked for, and the hint is repeated when they are known."""
        known = self._known.get(queue)
        if known is not None and (not self._engine.shared or self._timers.now() < known[2]):
            return known[0], known[1]
        self._awaiting_info.setdefault(queue, []).append((hint, source))
        if self._task is None and self._timer is None:
            self._begin()
        return None

    def forget(self, queue: str) -> None:
        """They may have changed."""
        self._known.pop(queue, None)
        self._changes += 1

    async def close(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._ask())

    async def _ask(self) -> None:
        while self._awaiting_info:
            awaiting, changes = dict(self._awaiting_info), self._changes
            try:
                infos = await self._engine.queue_infos(list(awaiting))
            except HarkError as error:
                # Keep the hints: no other hint would notify the waiting consumers.
                log.warning(
                    "cannot read namespace and task of %d queues; retrying every second: %s", len(awaiting), error
                )
                self._timer = self._timers.at(self._timers.now() + _AGAIN, self._begin)
                break
            if changes != self._changes:
                continue
            for queue in awaiting:
                del self._awaiting_info[queue]
            until = self._timers.now() + _TRUSTED
            for info in infos:
                self._known[info.name] = info.namespace, info.task, until
                for hint, source in awaiting[info.name]:
                    self._again(hint, source)
        self._task = None


GroupingKey = tuple[Key, str | None]
"""What is polled for all who wait for it: a subscription and a partition of it, or any."""
Gone = Callable[[], Coroutine[Any, Any, None]]
"""Returns when a client has disconnected."""
_MOST_KEPT = 1000
_KEEP_TIME = 60 * SECOND
"""The store must learn now and then that a group has consumers: an idle group does not hold up retention."""
_CLOSED = PopResult(reason="nothing_ready")
_PAUSED = PopResult(reason="paused")


class Pops(Protocol):
    """How pops get to the store and back."""

    def submit(self, request: PopRequest) -> asyncio.Future[PopResult]:
        """Pop once, together with others."""

    def give_back(self, result: PopResult) -> object:
        """Release popped messages that no consumer received, without using an attempt."""

    def unseal(self, result: PopResult) -> None:
        """Make payloads readable; raises, and gives all of it back, where there is no key."""

    def show(self, messages: Sequence[StoredMessage]) -> None:
        """Make the payloads of browsed messages readable, or say why that is impossible."""


class Delivery:
    """Routes ready-work notifications to waiting consumers."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        timers: Timers,
        random: Callable[[], float],
        pops: Pops,
    ) -> None:
        self.timers = timers
        self.pops = pops
        self.shared = engine.shared
        self.cap = settings.batching.max_items
        self.suspended = False
        """Nothing is delivered for now."""
        self.metrics = DeliveryMetrics()
        self.fallback: FallbackPolls[GroupingKey] = FallbackPolls(settings.fallback, timers, self._poll, random)
        self.intentions = Intentions(settings.limits.max_waiting, timers)
        self.streams = Streams(self, engine, settings, random)
        self.browsers = Browsers(engine, settings, timers, random, pops.show)
        self._loop = asyncio.get_running_loop()
        self._labels = Labels(engine, timers, self._hint_labels)
        self._subscriptions: dict[Key, Subscription] = {}
        self._by_queue: dict[str, dict[str, Subscription]] = {}
        self._by_label: dict[str, list[Subscription]] = {}
        self._kept: OrderedDict[Key, Subscription] = OrderedDict()
        """Subscriptions without consumers, the oldest first. A consumer that comes back soon needs no look."""
        self._keep_time = settings.fallback.initial_ms * MILLISECOND if engine.shared else _KEEP_TIME
        """How long they are used after a look: in a shared store, hints can be lost while no consumer polls."""
        self._looks: set[asyncio.Future[PopResult]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # Those who wait ----------------------------------------------------------------------------------------

    def wait(self, request: PopRequest, seconds: float, priority: int) -> asyncio.Future[PopResult]:
        """Return the result of a pop that waits for its first message. Cancel the future if the client disconnects."""
        self.intentions.admit()
        now = self.timers.now()
        subscription = self.subscription(request)
        intention = self.intentions.register(request, priority, now, now + round(seconds * SECOND), subscription)
        subscription.join(intention)
        answer = intention.answer
        answer.add_done_callback(partial(self._answered, intention))
        if self._must_look(intention):
            try:
                look = self.pops.submit(request)
            except HarkError as error:
                answer.set_exception(error)
            else:
                look.add_done_callback(partial(self._looked, intention))
        else:
            self._park(intention)
        return answer

    def _answered(self, intention: Intention, _answer: asyncio.Future[PopResult]) -> None:
        self.intentions.remove(intention)
        intention.subscription.leave(intention)

    def _looked(self, intention: Intention, look: asyncio.Future[PopResult]) -> None:
        """Answer a pop with the result of its first look, or let it wait."""
        answer, subscription = intention.answer, intention.subscription
        if answer.done():
            if look.exception() is None:  # The client disconnected during the look.
                self.pops.give_back(look.result())
            return
        try:
            result = look.result()
        except EngineFailure as failure:
            # An unavailable store does not end the wait: it can be available again in time. With an unknown outcome,
            # messages may be leased without a consumer: they are redelivered when that lease expires. Messages with
            # auto-ack are not, so the client must get the error.
            if intention.request.auto_ack and failure.code == "outcome_unknown":
                answer.set_exception(failure)
                return
            intention.failure = failure
            subscription.note_failure(intention.partition)
        except Exception as error:
            answer.set_exception(error)
            return
        else:
            subscription.mode = intention.request.group_mode or subscription.mode
            if result.messages:
                answer.set_result(result)
                return
            subscription.note_empty(intention.partition, result.look_again_at)
        self._park(intention)

    def _park(self, intention: Intention) -> None:
        if self._closed or self.suspended:
            intention.end(_PAUSED if self.suspended else _CLOSED)
        else:
            self.intentions.park(intention)
            intention.subscription.set_interest(intention, True)

    def _must_look(self, intention: Intention) -> bool:
        """Whether a new consumer pops once before it waits.

        If another consumer already waits for the same messages, no work is known, and new work would go to that
        consumer first. (The store must check an explicit mode, once for all consumers that name it.)
        """
        subscription, mode = intention.subscription, intention.request.group_mode
        return mode not in (None, subscription.mode) or not subscription.waits_before(intention)

    def open_stream(self, credit: int, *, mute: bool = False) -> Stream:
        """A client that gets messages as they come; `mute`: it can't send anything on its connection."""
        return self.streams.open(credit, mute=mute)

    def subscription(self, request: PopRequest) -> Subscription:
        """The subscription that a request is about, made if there is none."""
        key = Key(request.queue, request.namespace, request.task, request.group)
        found = self._subscriptions.get(key)
        if found is not None and self._kept.pop(key, None) is not None and self._is_old(found):
            found.close()
            found = None
        if found is None:
            found = self._subscriptions[key] = Subscription(key, self)
            if key.queue is None:
                self._by_label.setdefault(key.group, []).append(found)
            else:
                self._by_queue.setdefault(key.queue, {})[key.group] = found
        return found

    def keep(self, subscription: Subscription) -> None:
        """Keep a subscription without consumers, and without work, until it gets a hint."""
        self._kept[subscription.key] = subscription
        if len(self._kept) > _MOST_KEPT:
            next(iter(self._kept.values())).close()

    def _is_old(self, subscription: Subscription) -> bool:
        return self.timers.now() > subscription.looked_at + self._keep_time

    def closed(self, subscription: Subscription) -> None:
        """Remove a subscription without consumers."""
        key = subscription.key
        self._kept.pop(key, None)
        if self._subscriptions.get(key) is not subscription:
            return
        del self._subscriptions[key]
        if key.queue is None:
            self._by_label[key.group].remove(subscription)
            if not self._by_label[key.group]:
                del self._by_label[key.group]
        else:
            groups = self._by_queue[key.queue]
            del groups[key.group]
            if not groups:
                del self._by_queue[key.queue]

    # Hints -------------------------------------------------------------------------------------------------

    def hint(self, hints: Sequence[Hint], source: Source | None = None) -> None:
        """Tell those whom the hints concern; `source` is what they came by, if not from this server's own calls."""
        for hint in hints:
            if hint.ended:
                self.streams.ended(hint.ended)
            if hint.partitions is not None and not hint.partitions:
                continue
            by: Source = source or ("push" if hint.kind == "message" else "settle")
            if self._by_queue:
                for subscription in self._concerned(self._by_queue.get(hint.queue), hint):
                    subscription.on_hint(hint, by)
            if hint.group is None:
                if hint.kind == "message":
                    if self.browsers.by_queue:
                        self.browsers.hint(hint.queue, hint.partitions)
                elif hint.partitions is None:
                    self._labels.forget(hint.queue)  # Its options were changed, or it is gone.
            if self._by_label:
                self._hint_labels(hint, by)

    def _concerned(self, groups: dict[str, Subscription] | None, hint: Hint) -> list[Subscription]:
        if not groups:
            return []
        if hint.group is not None:
            return [groups[hint.group]] if hint.group in groups else []
        return [subscription for name, subscription in groups.items() if name not in hint.excluded]

    def _hint_labels(self, hint: Hint, source: Source) -> None:
        if hint.group is not None and hint.group not in self._by_label:
            return
        labels = self._labels.of(hint.queue, hint, source)
        if labels is None:
            return  # They are asked for; the hint comes again when they are known.
        for group, subscriptions in list(self._by_label.items()):
            if (hint.group is None and group not in hint.excluded) or hint.group == group:
                for subscription in list(subscriptions):
                    _, namespace, task, _ = subscription.key
                    if namespace in (None, labels[0]) and task in (None, labels[1]):
                        subscription.on_hint(hint, source)

    def _poll(self, key: GroupingKey) -> None:
        subscription = self._subscriptions.get(key[0])
        if subscription is None:
            self.fallback.polled(key, found=False)
        else:
            subscription.poll(key[1])

    # Stopping ----------------------------------------------------------------------------------------------

    def suspend(self) -> None:
        """Stop deliveries: pops that wait are answered, streams stay and get nothing."""
        self.suspended = True
        self._answer_all(_PAUSED)

    def resume(self) -> None:
        """Deliver again."""
        self.suspended = False
        for subscription in list(self._subscriptions.values()):
            subscription.resume()

    def close(self) -> None:
        """End all waits. No consumer can wait from now on."""
        self._closed = True
        self._answer_all(_CLOSED)
        for subscription in list(self._kept.values()):
            subscription.close()
        self.streams.close()
        self.browsers.close()

    def _answer_all(self, result: PopResult) -> None:
        for intention in self.intentions:
            if intention.parked:  # The others are on their first look, and are answered after it.
                intention.expire(result)

    async def drain(self) -> None:
        """Wait for the looks that are under way, and stop all timers."""
        self.intentions.close()
        self.fallback.close()
        under_way: tuple[asyncio.Future[Any], ...]
        while under_way := (*self._tasks, *self._looks):
            await asyncio.wait(under_way)
        await self._labels.close()

    # What subscriptions need -------------------------------------------------------------------------------

    def soon(self, callback: Callable[[], None]) -> None:
        """Run a function at the end of this turn of the event loop, so that its notifications share a call."""
        self._loop.call_soon(callback)

    def when_done(self, looks: Sequence[asyncio.Future[PopResult]], finish: Callable[[], None]) -> None:
        """Run a function when all these looks are done."""
        left = len(looks)
        self._looks.update(looks)

        def done(look: asyncio.Future[PopResult]) -> None:
            nonlocal left
            self._looks.discard(look)
            left -= 1
            if not left:
                finish()

        for look in looks:
            look.add_done_callback(done)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something to its end."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Looking -----------------------------------------------------------------------------------------------

    @property
    def subscriptions(self) -> int:
        """The number of queues or labels, with a group, that have waiting consumers."""
        return len(self._subscriptions) - len(self._kept)

    def count_waiting(self, message: MessageFacts, group: str) -> int:
        """How many consumers of a group wait here who could get a message."""
        found = [self._by_queue.get(message.queue, {}).get(group)]
        for subscription in self._by_label.get(group, ()):
            key = subscription.key
            if key.namespace in (None, message.namespace) and key.task in (None, message.task):
                found.append(subscription)
        return sum(one.manager.count_waiting(message.partition) for one in found if one is not None)

    def snapshot(self) -> dict[str, object]:
        """Numbers about those who wait."""
        return {
            "waiting": len(self.intentions),
            "subscriptions": self.subscriptions,
            "streams": len(self.streams),
            "browsers": len(self.browsers),
            "fallback": self.fallback.metrics(),
            **self.metrics.snapshot(),
        }
