"""Delivery: waiting pops, every subscription of this server, and the routing of hints to them."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from hark.batching import Answer
from hark.broker.delivery.browsers import Browsers
from hark.broker.delivery.streams import Streams
from hark.broker.delivery.subscription import DeliveryMetrics, Key, Source, Subscription
from hark.broker.tallies import Tallies
from hark.broker.timers import FallbackPolls, Timer, Timers, Wakeup
from hark.clock import MILLISECOND, SECOND
from hark.engine.api import Engine
from hark.errors import EngineFailure, HarkError, Overloaded
from hark.model import Hint, MessageFacts, PopRequest, PopResult, StoredMessage
from hark.settings import Settings

log = logging.getLogger(__name__)

_CLOSED = PopResult(reason="nothing_ready")
_PAUSED = PopResult(reason="paused")


class Intention(msgspec.Struct, eq=False):
    """A waiting pop. It is a consumer until it is answered, at the latest at its deadline."""

    number: int
    request: PopRequest
    priority: int
    created_at: int
    deadline: int
    subscription: Subscription
    answer: Answer[PopResult] = msgspec.field(default_factory=Answer)
    failure: HarkError | None = None
    """The failure of the last look."""
    reason: PopResult | None = None
    """After the deadline: the answer if the look in progress finds nothing."""
    timer: Timer | None = None
    """The timer of the deadline; None during the first look."""

    def next_pull(self) -> PopRequest | None:
        return None if self.answer.done() else self.request

    def deliver(self, result: PopResult) -> bool:
        if self.answer.done():
            return False
        self.subscription.retire(self)
        self.answer.set_result(result)
        return True

    def came_up_empty(self) -> None:
        self.failure = None
        if self.reason is not None:
            self.end(self.reason)

    def failed(self, failure: HarkError) -> None:
        self.failure = failure  # The store may respond again before the deadline.
        if self.reason is not None:
            self.end(self.reason)

    def refuse(self, error: HarkError) -> None:
        if not self.answer.done():
            self.subscription.retire(self)
            self.answer.set_exception(error)

    def expire(self, reason: PopResult) -> None:
        """End the wait, after the look in progress if there is one."""
        if not self.answer.done():
            self.reason = reason
            self.subscription.last_chance(self, lambda: self.end(reason))

    def end(self, result: PopResult) -> None:
        """Answer without messages."""
        if self.failure is not None:
            self.refuse(self.failure)
        else:
            self.deliver(result)


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
        self._wakeup = Wakeup(timers, self._begin)
        """The next request to a store that was unavailable."""

    def of(self, queue: str, hint: Hint, source: Source) -> tuple[str, str] | None:
        """The namespace and the task. None: they are requested, and the hint is repeated when they are known."""
        known = self._known.get(queue)
        if known is not None and (not self._engine.shared or self._timers.now() < known[2]):
            return known[0], known[1]
        self._awaiting_info.setdefault(queue, []).append((hint, source))
        if self._task is None and not self._wakeup:
            self._begin()
        return None

    def forget(self, queue: str) -> None:
        """Remove labels that may have changed."""
        self._known.pop(queue, None)
        self._changes += 1

    async def close(self) -> None:
        """Stop the requests."""
        self._wakeup.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self) -> None:
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
                self._wakeup.set(self._timers.now() + _AGAIN)
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
"""The unit of fallback polls: a subscription and a named partition, or any."""
Gone = Callable[[], Coroutine[Any, Any, None]]
"""Returns when a client has disconnected."""
_MOST_KEPT = 1000
_KEEP_TIME = 60 * SECOND
"""The store must see from time to time that a group has consumers: an idle group does not hold up retention."""


class Pops(Protocol):
    """Pops of the store; the broker implements it."""

    def submit(self, request: PopRequest) -> asyncio.Future[PopResult]:
        """Pop once, in a shared batch."""

    def give_back(self, result: PopResult) -> object:
        """Release popped messages that no consumer received, without using an attempt."""

    def unseal(self, result: PopResult) -> None:
        """Decrypt payloads. If a key is missing, release all messages and raise."""

    def show(self, messages: Sequence[StoredMessage]) -> None:
        """Decrypt the payloads of browsed messages. One that cannot be read is null, with the reason."""


class Delivery:
    """Routes ready-work notifications to waiting consumers."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        timers: Timers,
        random: Callable[[], float],
        pops: Pops,
        tallies: Tallies,
    ) -> None:
        self.timers = timers
        self.pops = pops
        self.shared = engine.shared
        self.cap = settings.batching.max_items
        self.suspended = False
        """Deliveries are stopped for maintenance."""
        self.metrics = DeliveryMetrics()
        self.fallback: FallbackPolls[GroupingKey] = FallbackPolls(settings.fallback, timers, self._poll, random)
        self.intentions: dict[Intention, None] = {}
        """The waiting pops, in the order of their requests."""
        self._max_waiting = settings.limits.max_waiting
        self._next_number = 0
        self._loop = asyncio.get_running_loop()
        self.soon = self._loop.call_soon
        """Runs a function at the end of this turn of the event loop, so that its notifications share a call."""
        self.streams = Streams(self, engine, settings, random)
        self.browsers = Browsers(engine, settings, timers, random, pops.show)
        self._tallies = tallies
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

    # Consumers ---------------------------------------------------------------------------------------------

    def wait(self, request: PopRequest, seconds: float, priority: int) -> asyncio.Future[PopResult]:
        """Return the result of a pop that waits for its first message. Cancel the future if the client disconnects."""
        if len(self.intentions) >= self._max_waiting:
            text = f"{len(self.intentions)} pops are already waiting; retry later or raise limits.max_waiting"
            raise Overloaded(text, code="too_many_waiting")
        now = self.timers.now()
        subscription = self.subscription(request)
        self._next_number += 1
        intention = Intention(self._next_number, request, priority, now, now + round(seconds * SECOND), subscription)
        self.intentions[intention] = None
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
        del self.intentions[intention]
        if intention.timer is not None:
            intention.timer.cancel()
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
            subscription.note_failure(intention.request.partition)
        except Exception as error:
            answer.set_exception(error)
            return
        else:
            subscription.mode = intention.request.group_mode or subscription.mode
            if result.messages:
                answer.set_result(result)
                return
            subscription.note_empty(intention.request.partition, result.look_again_at)
        self._park(intention)

    def _park(self, intention: Intention) -> None:
        if self._closed or self.suspended:
            intention.end(_PAUSED if self.suspended else _CLOSED)
        else:
            intention.timer = self.timers.at(
                intention.deadline, partial(intention.expire, PopResult(reason="nothing_ready"))
            )
            intention.subscription.set_interest(intention, True)

    def _must_look(self, intention: Intention) -> bool:
        """Whether a new consumer pops once before it waits.

        If another consumer already waits for the same messages, no work is known, and new work would go to that
        consumer first. (The store must check an explicit mode, once for all consumers that name it.)
        """
        subscription, mode = intention.subscription, intention.request.group_mode
        return mode not in (None, subscription.mode) or not subscription.waits_before(intention)

    def subscription(self, request: PopRequest) -> Subscription:
        """The subscription of a request. Creates it if there is none."""
        key = Key(request.queue, request.namespace, request.task, request.group)
        found = self._subscriptions.get(key)
        was_kept = self._kept.pop(key, None) is not None
        if found is not None and was_kept and self.timers.now() > found.looked_at + self._keep_time:
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
        """Note the changed queues, and notify the consumers that hints concern.

        `source` is given if the hints are not from calls of this server.
        """
        changed = self._tallies.changed_queues
        for hint in hints:
            changed.add(hint.queue)
            if hint.ended and self.streams.by_number:
                self.streams.ended(hint.ended)
            if hint.partitions is not None and not hint.partitions:
                continue
            by: Source = source or ("push" if hint.kind == "message" else "settle")
            if self._by_queue:
                groups = self._by_queue.get(hint.queue, {})
                names = [name for name in groups if name not in hint.excluded] if hint.group is None else [hint.group]
                for subscription in [groups[name] for name in names if name in groups]:
                    subscription.on_hint(hint, by)
            if hint.group is None:
                if hint.kind == "message":
                    if self.browsers.by_queue:
                        self.browsers.hint(hint.queue, hint.partitions)
                elif hint.partitions is None:
                    self._labels.forget(hint.queue)  # Its options were changed, or it was deleted.
            if self._by_label:
                self._hint_labels(hint, by)

    def _hint_labels(self, hint: Hint, source: Source) -> None:
        if hint.group is not None and hint.group not in self._by_label:
            return
        labels = self._labels.of(hint.queue, hint, source)
        if labels is None:
            return  # They are requested; the hint is repeated when they are known.
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
        """Stop deliveries. Waiting pops are answered; streams stay open."""
        self.suspended = True
        self._answer_all(_PAUSED)

    def resume(self) -> None:
        """Start deliveries again."""
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
        for intention in list(self.intentions):
            if intention.timer is not None:  # The others are on their first look, and are answered after it.
                intention.expire(result)

    async def drain(self) -> None:
        """Wait for the looks in progress, and stop the fallback polls."""
        self.fallback.close()
        under_way: tuple[asyncio.Future[Any], ...]
        while under_way := (*self._tasks, *self._looks):
            await asyncio.wait(under_way)
        await self._labels.close()

    # What subscriptions need -------------------------------------------------------------------------------

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
        """Run a coroutine as a task that `drain` waits for."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Metrics -----------------------------------------------------------------------------------------------

    @property
    def subscriptions(self) -> int:
        """The number of queues or labels, with a group, that have waiting consumers."""
        return len(self._subscriptions) - len(self._kept)

    def count_waiting(self, message: MessageFacts, group: str) -> int:
        """The number of waiting consumers of a group that could receive a message."""
        found = [self._by_queue.get(message.queue, {}).get(group)]
        for subscription in self._by_label.get(group, ()):
            key = subscription.key
            if key.namespace in (None, message.namespace) and key.task in (None, message.task):
                found.append(subscription)
        return sum(one.manager.count_waiting(message.partition) for one in found if one is not None)

    def snapshot(self) -> dict[str, object]:
        """Metrics of waiting consumers."""
        return {
            "waiting": len(self.intentions),
            "subscriptions": self.subscriptions,
            "streams": len(self.streams),
            "browsers": len(self.browsers),
            "fallback": self.fallback.metrics(),
            **self.metrics.snapshot(),
        }
