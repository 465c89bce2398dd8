"""Delivery: every subscription of this server, and the way of hints to those whom they concern."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from hark.broker.delivery.browsers import Browsers
from hark.broker.delivery.fallback import FallbackPolls
from hark.broker.delivery.intentions import Intention, Intentions
from hark.broker.delivery.labels import Labels
from hark.broker.delivery.lanes import Key
from hark.broker.delivery.metrics import DeliveryMetrics, Source
from hark.broker.delivery.stream import Stream
from hark.broker.delivery.streams import Streams
from hark.broker.delivery.subscription import Subscription
from hark.broker.timers import Timers
from hark.clock import SECOND
from hark.engine.api import Engine
from hark.errors import EngineFailure, HarkError
from hark.model import Hint, MessageFacts, PopRequest, PopResult
from hark.settings import Settings

GroupingKey = tuple[Key, str | None]
"""What is polled for all who wait for it: a subscription and a partition of it, or any."""
Gone = Callable[[], Coroutine[Any, Any, None]]
"""Returns when a client has disconnected."""
_CLOSED = PopResult(reason="nothing_ready")
_PAUSED = PopResult(reason="paused")


class Pops(Protocol):
    """How pops get to the store and back."""

    def submit(self, request: PopRequest) -> asyncio.Future[PopResult]:
        """Pop once, together with others."""

    def give_back(self, result: PopResult) -> None:
        """Release popped messages that no consumer received, without using an attempt."""

    def unseal(self, result: PopResult) -> None:
        """Make payloads readable; raises, and gives all of it back, where there is no key."""


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
        self.browsers = Browsers(engine, settings, timers, random, pops.unseal)
        self._loop = asyncio.get_running_loop()
        self._labels = Labels(engine, timers, self._hint_labels)
        self._subscriptions: dict[Key, Subscription] = {}
        self._by_queue: dict[str, dict[str, Subscription]] = {}
        self._by_label: dict[str, list[Subscription]] = {}
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

    def open_stream(self, credit: int) -> Stream:
        """A client that gets messages as they come."""
        return self.streams.open(credit)

    def subscription(self, request: PopRequest) -> Subscription:
        """The subscription that a request is about, made if there is none."""
        key = Key(request.queue, request.namespace, request.task, request.group)
        found = self._subscriptions.get(key)
        if found is None:
            found = self._subscriptions[key] = Subscription(key, self)
            if key.queue is None:
                self._by_label.setdefault(key.group, []).append(found)
            else:
                self._by_queue.setdefault(key.queue, {})[key.group] = found
        return found

    def closed(self, subscription: Subscription) -> None:
        """Remove a subscription without consumers."""
        key = subscription.key
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
            by: Source = source or ("push" if hint.news == "message" else "settle")
            if self._by_queue:
                for subscription in self._concerned(self._by_queue.get(hint.queue), hint):
                    subscription.hear(hint, by)
            if hint.group is None:
                if hint.news == "message":
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
        return [subscription for name, subscription in groups.items() if name not in hint.told]

    def _hint_labels(self, hint: Hint, source: Source) -> None:
        if hint.group is not None and hint.group not in self._by_label:
            return
        labels = self._labels.of(hint.queue, hint, source)
        if labels is None:
            return  # They are asked for; the hint comes again when they are known.
        for group, subscriptions in list(self._by_label.items()):
            if (hint.group is None and group not in hint.told) or hint.group == group:
                for subscription in list(subscriptions):
                    _, namespace, task, _ = subscription.key
                    if namespace in (None, labels[0]) and task in (None, labels[1]):
                        subscription.hear(hint, source)

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
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._labels.close()

    # What subscriptions need -------------------------------------------------------------------------------

    def soon(self, callback: Callable[[], None]) -> None:
        """Run a function at the end of this turn of the event loop, so that its notifications share a call."""
        self._loop.call_soon(callback)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something to its end."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Looking -----------------------------------------------------------------------------------------------

    @property
    def subscriptions(self) -> int:
        """The number of queues or labels, with a group, that have waiting consumers."""
        return len(self._subscriptions)

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
            "subscriptions": len(self._subscriptions),
            "streams": len(self.streams),
            "browsers": len(self.browsers),
            "fallback": self.fallback.metrics(),
            **self.metrics.snapshot(),
        }
