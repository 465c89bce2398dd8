"""The parts of a subscription: what it is about, who in it wants the same, and what a look for them came to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from hark.broker.delivery.consumers import Consumer, ConsumerManager, State
from hark.broker.delivery.ready import PartitionKey, ReadyWork
from hark.broker.timers import Wakeups
from hark.clock import SECOND
from hark.errors import EngineFailure, HarkError, Overloaded
from hark.model import GroupMode, Hint, PopRequest, PopResult
from hark.prometheus import Histogram

if TYPE_CHECKING:
    from hark.broker.delivery.delivery import Delivery


class Key(NamedTuple):
    """What a subscription is about: a queue, or all queues with a namespace and/or a task; and for which group."""

    queue: str | None
    namespace: str | None
    task: str | None
    group: str


class Lane:
    """Consumers of a subscription that want the same partition, or any."""

    __slots__ = ("consumers", "polling")

    def __init__(self) -> None:
        self.consumers = 0
        self.polling = False
        """A look for some of them is under way."""


class LookResult:
    """What a look for several consumers came to."""

    __slots__ = ("empty", "failed", "found", "surprised")

    def __init__(self) -> None:
        self.found = False
        """A consumer received messages."""
        self.surprised = False
        """A message came from a place without expected work."""
        self.empty = False
        """A consumer received nothing."""
        self.failed = False


class Batches:
    """How many messages consumers take at once."""

    def __init__(self) -> None:
        self._consumers: dict[int, int] = {}
        """The number of consumers of each batch size."""
        self.smallest = 1
        """The smallest batch size."""

    def add(self, batch: int) -> bool:
        """A consumer came; whether another batch is the smallest now."""
        known = self._consumers.get(batch, 0)
        self._consumers[batch] = known + 1
        return not known and self._changed()

    def remove(self, batch: int) -> bool:
        """A consumer went; whether another batch is the smallest now."""
        self._consumers[batch] -= 1
        if self._consumers[batch]:
            return False
        del self._consumers[batch]
        return bool(self._consumers) and self._changed()

    def _changed(self) -> bool:
        before, self.smallest = self.smallest, min(self._consumers)
        return self.smallest != before


Source = Literal["push", "settle", "timer", "peer", "poll", "handover"]
"""The cause of a notification: new messages; released work, such as an expired lease; a due time; a hint from a peer; a
fallback poll; or a handover, because another consumer joined, left or was served."""

_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 5000)


class DeliveryMetrics:
    """Counters since the start."""

    def __init__(self) -> None:
        self.wakes: dict[Source, int] = dict.fromkeys(get_args(Source), 0)
        self.empty: dict[Source, int] = dict.fromkeys(get_args(Source), 0)
        self.latency = Histogram([bound / 1000 for bound in _BOUNDS_MS])
        """Seconds from the notification of a consumer to its delivery."""

    def woke(self, source: Source, consumers: int) -> None:
        """Count notified consumers."""
        self.wakes[source] += consumers

    def came_up_empty(self, source: Source) -> None:
        """Count a notified consumer that found nothing, because the hint was stale."""
        self.empty[source] += 1

    def delivered(self, microseconds: int) -> None:
        """Record the time from a notification to its delivery."""
        self.latency.add(microseconds / SECOND)

    def snapshot(self) -> dict[str, object]:
        """All metrics. The buckets are cumulative: each counts deliveries up to its number of milliseconds."""
        counts = [number for _, number in self.latency.cumulative()]
        return {
            "wakes": dict(self.wakes),
            "empty_wakes": dict(self.empty),
            "deliveries": self.latency.count,
            "pop_latency": {
                "count": self.latency.count,
                "sum_ms": self.latency.sum * 1000,
                "buckets_ms": dict(zip((*map(str, _BOUNDS_MS), "inf"), counts, strict=True)),
            },
        }


# A notified consumer is served in the same turn of the event loop: the pump submits one pop for each notified consumer
# in
# a shared batch, and passes each its result. A lane has one look (pop) in progress at a time, which serves the
# notified
# consumers in order. This keeps the turns fair.


log = logging.getLogger(__name__)


class Subscription:
    """All consumers on this server that wait for one (queue, group) or one (namespace, task, group)."""

    def __init__(self, key: Key, delivery: Delivery) -> None:
        self.key = key
        self.mode: GroupMode | None = None
        """The mode of the group, if a consumer named one and the store confirmed it. The pump notices a change."""
        self._delivery = delivery
        self._metrics = delivery.metrics
        self._manager: ConsumerManager[Consumer] = ConsumerManager(delivery.cap)
        self._ready_work = ReadyWork(delivery.cap)
        self._lanes: dict[str | None, Lane] = {}
        self._batches = Batches()
        self._woken_by: dict[Consumer, tuple[Source, int]] = {}
        """The cause and time of the notification of each notified consumer."""
        self._wakeups = Wakeups(delivery.timers, self._ring)
        self._pulled: set[Consumer] = set()
        """Consumers with a pop in progress, notified or not."""
        self._late: dict[Consumer, Callable[[], None]] = {}
        """Consumers whose time limit has passed while they are notified or have a pop in progress, with their end."""
        self._polled: set[str | None] = set()
        """Lanes with a fallback poll that waits for the result of a look."""
        self._pumping = False
        self._is_complete = False
        """Whether all work is expected work: a look for any partition was empty, and hints announced the rest."""
        self.looked_at = 0
        """When the last look ended."""

    @property
    def manager(self) -> ConsumerManager[Consumer]:
        """The consumers and their states, for reading."""
        return self._manager

    # Consumers ---------------------------------------------------------------------------------------------

    def join(self, consumer: Consumer) -> None:
        """Add a consumer, not interested yet. From now on it misses no hint."""
        lane = self._lanes.get(consumer.partition)
        if lane is None:
            lane = self._lanes[consumer.partition] = Lane()
            if self._delivery.shared:
                self._delivery.fallback.watch((self.key, consumer.partition))
        lane.consumers += 1
        if self._batches.add(consumer.batch):
            self._ready_work.set_batch(self._batches.smallest)
        self._manager.add(consumer, priority=consumer.priority, partition=consumer.partition)

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer; the next consumer gets its work."""
        if consumer not in self._manager:
            return
        was_notified = self.is_notified(consumer)
        self._manager.remove(consumer)
        self._woken_by.pop(consumer, None)
        self._late.pop(consumer, None)
        lane = self._lanes[consumer.partition]
        lane.consumers -= 1
        if self._batches.remove(consumer.batch):
            self._ready_work.set_batch(self._batches.smallest)
        if not lane.consumers:
            self._close(consumer.partition, lane)
        if was_notified:
            self._rebalance("handover")

    def _close(self, partition: str | None, lane: Lane) -> None:
        del self._lanes[partition]
        if partition is not None:
            self._ready_work.forget(partition)
        self._delivery.fallback.unwatch((self.key, partition))
        if partition in self._polled and not lane.polling:
            self._report_poll(partition, found=False)
        if not self._lanes:
            if self._is_complete and not self._ready_work and self.key.queue is not None:
                self._delivery.keep(self)
            else:
                self.close()

    def close(self) -> None:
        """End a subscription without consumers. The next consumer looks for itself."""
        self._wakeups.clear()
        self._delivery.closed(self)

    def set_interest(self, consumer: Consumer, wanted: bool) -> None:
        """Set whether a consumer wants work now."""
        if not wanted:
            was_notified = self.is_notified(consumer)
            self.retire(consumer)
            if was_notified:
                self._rebalance("handover")
            return
        self._manager.set_interest(consumer, True)
        if self._ready_work:
            self._rebalance("handover")

    def retire(self, consumer: Consumer) -> None:
        """End the interest of a consumer that is not notified or was served. No other consumer is affected."""
        self._manager.set_interest(consumer, False)
        self._woken_by.pop(consumer, None)
        self._late.pop(consumer, None)

    def welcome(self, consumer: Consumer) -> None:
        """Start a look for a new consumer that does not pop itself, if work may exist."""
        if not self.waits_before(consumer):
            self._ready_work.look(consumer.partition)
            self._rebalance("handover")

    def waits_before(self, consumer: Consumer) -> bool:
        """Whether a new consumer needs no look: no work is left to it.

        Either a consumer with precedence over it already waits, or the last one has left without work, and no hint
        has come since. A consumer that names a partition looks in any case: the timers of consumers for any partition
        end with them.
        """
        if consumer.partition is not None:
            return False
        was_kept = self._is_complete and len(self._manager) == 1
        return (was_kept and not self._ready_work) or self._manager.waits(None, consumer.priority)

    def is_notified(self, consumer: Consumer) -> bool:
        """Whether a consumer is notified."""
        return self._manager.state_of(consumer) is State.NOTIFIED

    def last_chance(self, consumer: Consumer, give_up: Callable[[], None]) -> None:
        """End the wait of a consumer after its time limit, as soon as no result is on its way to it."""
        if self._is_expecting(consumer):
            self._late[consumer] = give_up
        else:
            give_up()

    def _is_expecting(self, consumer: Consumer) -> bool:
        return consumer in self._pulled or (self.is_notified(consumer) and not self._delivery.suspended)

    # HintKind --------------------------------------------------------------------------------------------------

    def on_hint(self, hint: Hint, source: Source) -> None:
        """Partitions of a queue may be ready."""
        if not self._lanes:
            self.close()
            return
        if hint.partitions is None:
            self.look_everywhere(source)
            return
        keys = [(hint.queue, partition) for partition in hint.partitions]
        # A hint for every group has counts for shared groups; the mode of this group may be ordered or unknown.
        if hint.counts and hint.group is not None:
            is_remembered = self._ready_work.add_counts(zip(keys, hint.counts, strict=True))
        else:
            is_remembered = self._ready_work.add(keys, hint.kind)
        if not is_remembered:
            self.look_everywhere(source)
            return
        if self._delivery.shared:
            self._reset_backoff(hint.partitions)
        self._rebalance(source)

    def look_everywhere(self, source: Source) -> None:
        """Start a look in each lane, because the place of the work is unknown."""
        if not self._lanes:
            self.close()
            return
        for partition in self._lanes:
            self._ready_work.look(partition)
        self._reset_backoff(self._lanes)
        self._rebalance(source)

    def _reset_backoff(self, partitions: Iterable[str | None]) -> None:
        fallback = self._delivery.fallback
        if None in self._lanes:
            fallback.reset((self.key, None))
        if len(self._lanes) > 1 or None not in self._lanes:
            for partition in partitions:
                if partition in self._lanes:
                    fallback.reset((self.key, partition))

    def poll(self, partition: str | None) -> None:
        """Run a fallback poll, because a hint can be lost."""
        self._polled.add(partition)
        lane = self._lanes.get(partition)
        if lane is not None:
            self._ready_work.look(partition)
            self._rebalance("poll")
        if lane is None or (not lane.polling and self._manager.next_notified(partition) is None):
            self._report_poll(partition, found=False)  # No consumer wants work now.

    def note_empty(self, partition: str | None, look_again_at: int | None) -> None:
        """Set an alarm after an empty look, for the time when work becomes available without a hint."""
        if not self._lanes:
            return
        self._is_complete |= partition is None
        self.looked_at = self._delivery.timers.now()
        if look_again_at is not None:
            self._wakeups.note(partition, look_again_at)

    def note_failure(self, partition: str | None) -> None:
        """Start fallback polls after a failed look, because the expected work may be wrong."""
        self._is_complete = False
        for lane in self._lanes if partition is None else (partition, None):
            if lane in self._lanes:
                self._delivery.fallback.watch((self.key, lane))

    def note_success(self, partition: str | None) -> None:
        """Stop fallback polls of a store that is not shared, because it responds again."""
        if not self._delivery.shared and partition in self._lanes:
            self._delivery.fallback.unwatch((self.key, partition))

    def _ring(self, partition: str | None) -> None:
        if not self._lanes:
            self.close()
            return
        lanes = {partition}
        if self._manager.is_empty(partition):
            # The consumer that set this alarm has left; other consumers that could receive the work may not know of it.
            lanes |= self._manager.named if partition is None else {None}
        for lane in lanes:
            if lane in self._lanes:
                self._ready_work.look(lane)
        self._rebalance("timer")

    # The pump ----------------------------------------------------------------------------------------------

    def _rebalance(self, source: Source) -> None:
        manager = self._manager
        notified = manager.rebalance(self._ready_work.work(self.key.queue, manager.named))
        if notified:
            now = self._delivery.timers.now()
            for consumer in notified:
                self._woken_by[consumer] = source, now
            self._metrics.woke(source, len(notified))
            self._pump_soon()
        for consumer in [one for one in self._late if not self._is_expecting(one)]:
            self._late.pop(consumer)()  # Another consumer was served first, or the work no longer exists.

    def _pump_soon(self) -> None:
        if not self._pumping and not self._delivery.suspended:
            self._pumping = True
            self._delivery.soon(self._pump)

    def resume(self) -> None:
        """Resume deliveries after maintenance."""
        self.look_everywhere("handover")
        self._pump_soon()

    def _pump(self) -> None:
        self._pumping = False
        if self._delivery.suspended:
            return
        # Consumers for any partition come last in the call, so that they do not receive the work of named partitions.
        for partition in self._manager.notified_lanes():
            lane = self._lanes[partition]
            if not lane.polling:
                self._look(partition, lane)
        for partition in list(self._polled):
            if partition not in self._lanes or not self._lanes[partition].polling:
                self._report_poll(partition, found=False)  # The notified consumer no longer wants work.

    def _look(self, partition: str | None, lane: Lane) -> None:
        """Start a look for all notified consumers of a lane."""
        pulls: list[tuple[Consumer, asyncio.Future[PopResult]]] = []
        mark = self._ready_work.begin_look()
        unwilling: list[Consumer] = []
        for consumer in self._manager.notified(partition):
            request = consumer.next_pull()
            if request is None:
                unwilling.append(consumer)
            else:
                self._pulled.add(consumer)
                pulls.append((consumer, self._submit(request)))
        for consumer in unwilling:
            self.set_interest(consumer, False)
        if pulls:
            lane.polling = True
            finish = partial(self._finish, partition, lane, pulls, mark)
            self._delivery.when_done([answer for _, answer in pulls], finish)

    def _submit(self, request: PopRequest) -> asyncio.Future[PopResult]:
        try:
            return self._delivery.pops.submit(request)
        except Overloaded as refusal:  # Too many calls wait for the store: handle it like an unavailable store.
            answer: asyncio.Future[PopResult] = asyncio.get_running_loop().create_future()
            answer.set_exception(refusal)
            return answer

    def _finish(
        self,
        partition: str | None,
        lane: Lane,
        pulls: Sequence[tuple[Consumer, asyncio.Future[PopResult]]],
        mark: int,
    ) -> None:
        try:
            came = self._hand_over(partition, pulls, mark)
            if came.empty or came.failed:
                self._ready_work.disprove(partition, self.key.queue, mark)
            elif came.surprised and partition is None:
                self._ready_work.expect_more()
            if came.failed:
                self.note_failure(partition)
            else:
                self.note_success(partition)
        finally:
            lane.polling = False
            self.looked_at = self._delivery.timers.now()
        if partition in self._polled:
            self._report_poll(partition, found=came.found)
        self._rebalance("handover")
        if self._manager.next_notified(partition) is not None:
            self._pump_soon()

    def _report_poll(self, partition: str | None, *, found: bool) -> None:
        self._polled.discard(partition)
        self._delivery.fallback.polled((self.key, partition), found=found)

    def _hand_over(
        self, partition: str | None, pulls: Sequence[tuple[Consumer, asyncio.Future[PopResult]]], mark: int
    ) -> LookResult:
        """Pass each consumer its result."""
        came = LookResult()
        for consumer, answer in pulls:
            self._pulled.discard(consumer)
            source, since = self._woken_by.pop(consumer, ("handover", 0))
            try:
                result = answer.result()
            except (EngineFailure, Overloaded) as failure:
                came.failed = True
                consumer.failed(failure)
            except HarkError as error:
                came.found = True  # This consumer has its answer: the next one can look.
                consumer.refuse(error)
            except Exception as error:
                came.found = True
                log.exception("a pop failed because of a bug; please report it: %s", self.key)
                consumer.refuse(HarkError(f"internal error: {type(error).__name__}; see the server log"))
            else:
                if result.messages:
                    came.found = True
                    came.surprised |= self._deliver(consumer, result, mark)
                    self._metrics.delivered(self._delivery.timers.now() - since if since else 0)
                else:
                    came.empty = True
                    self._metrics.came_up_empty(source)
                    self.note_empty(partition, result.look_again_at)
                    consumer.came_up_empty()
        return came

    def _deliver(self, consumer: Consumer, result: PopResult, mark: int) -> bool:
        """Deliver messages. Returns whether some of them are from a place without expected work."""
        taken: dict[PartitionKey, int] = {}
        for message in result.messages:
            key = message.queue, message.partition
            taken[key] = taken.get(key, 0) + 1
        leased = bool(result.lease_id)
        known = [self._ready_work.took(key, count, mark, leased=leased) for key, count in taken.items()]
        self._manager.served(consumer)
        if not consumer.deliver(result):
            self._delivery.pops.give_back(result)
        return not all(known)
