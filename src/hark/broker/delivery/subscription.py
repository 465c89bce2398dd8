"""A subscription: its waiting consumers, their notification, and the pops that serve them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, get_args

from hark.broker.delivery.consumers import ConsumerManager, ReadyWork, State
from hark.broker.timers import Wakeup
from hark.clock import MILLISECOND, SECOND
from hark.errors import EngineFailure, HarkError, Overloaded
from hark.model import GroupMode, Hint, PopRequest, PopResult
from hark.prometheus import Histogram

if TYPE_CHECKING:
    from hark.broker.delivery.delivery import Delivery


class Key(NamedTuple):
    """A queue, or all queues with a namespace and/or a task; and a group."""

    queue: str | None
    namespace: str | None
    task: str | None
    group: str


class Consumer(Hashable, Protocol):
    """A waiting consumer. The pump calls these methods; they must not raise."""

    @property
    def priority(self) -> int:
        """Consumers with a higher priority are notified first."""

    @property
    def request(self) -> PopRequest:
        """The pop that it repeats; it takes the whole batch only with enough credit."""

    def next_pull(self) -> PopRequest | None:
        """The pop to submit now; None if the consumer does not want messages any more."""

    def deliver(self, result: PopResult) -> bool:
        """Receive messages. False: the consumer has left, and the messages are given back."""

    def came_up_empty(self) -> None:
        """Note an empty pop. The consumer keeps its turn."""

    def failed(self, failure: HarkError) -> None:
        """Note a temporary failure. Another pop follows later."""

    def refuse(self, error: HarkError) -> None:
        """End with an error."""


Source = Literal["push", "settle", "timer", "peer", "poll", "handover"]
"""The cause of a notification: new messages; released work, such as an expired lease; a due time; a hint from a peer; a
fallback poll; or a handover, because another consumer joined, left or was served."""

_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 5000)


class DeliveryMetrics:
    """Counters since the start."""

    def __init__(self) -> None:
        self.wakes: dict[Source, int] = dict.fromkeys(get_args(Source), 0)
        """Number of notified consumers."""
        self.empty: dict[Source, int] = dict.fromkeys(get_args(Source), 0)
        """Number of notified consumers that found nothing, because the hint was stale."""
        self.latency = Histogram([bound / 1000 for bound in _BOUNDS_MS])
        """Seconds from the notification of a consumer to its delivery."""

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
# in a shared batch, and passes each its result. A lane is the consumers that name the same partition, or none. It has
# one look (pop) in progress at a time, which serves the notified consumers in order. This keeps the turns fair.


log = logging.getLogger(__name__)

_SOON = MILLISECOND
"""Minimum wait for a due time that has just passed: otherwise a look could repeat itself in the same turn for ever."""

Pull = tuple[Consumer, "asyncio.Future[PopResult]"]


class Subscription:
    """All consumers on this server that wait for one (queue, group) or one (namespace, task, group)."""

    def __init__(self, key: Key, delivery: Delivery) -> None:
        self.key = key
        self.mode: GroupMode | None = None
        """The mode of the group, if a consumer named one and the store confirmed it. The pump notices a change."""
        self._delivery = delivery
        self._metrics = delivery.metrics
        self.manager: ConsumerManager[Consumer] = ConsumerManager(delivery.cap)
        """The consumers and their states."""
        self._ready = ReadyWork(delivery.cap)
        self._lanes: Counter[str | None] = Counter()
        """The number of consumers of each lane."""
        self._resolving: set[str | None] = set()
        """Lanes with a look in progress."""
        self._batches: Counter[int] = Counter()
        """The number of consumers of each batch size."""
        self._woken_by: dict[Consumer, tuple[Source, int]] = {}
        """The cause and time of the notification of each notified consumer."""
        self._wakeups: dict[str | None, Wakeup] = {}
        """The due time of the next look of each lane. An alarm outlives its lane: other lanes may receive the work."""
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

    # Consumers ---------------------------------------------------------------------------------------------

    def join(self, consumer: Consumer) -> None:
        """Add a consumer, not interested yet. From now on it misses no hint."""
        partition, batch = consumer.request.partition, consumer.request.batch
        if partition not in self._lanes and self._delivery.shared:
            self._delivery.fallback.watch((self.key, partition))
        self._lanes[partition] += 1
        self._batches[batch] += 1
        if self._batches[batch] == 1:
            self._ready.set_batch(min(self._batches))
        self.manager.add(consumer, priority=consumer.priority, partition=partition)

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer; the next consumer gets its work."""
        if consumer not in self.manager:
            return
        was_notified = self.is_notified(consumer)
        self.manager.remove(consumer)
        self._woken_by.pop(consumer, None)
        self._late.pop(consumer, None)
        partition, batch = consumer.request.partition, consumer.request.batch
        self._batches[batch] -= 1
        if not self._batches[batch]:
            del self._batches[batch]
            if self._batches:
                self._ready.set_batch(min(self._batches))
        self._lanes[partition] -= 1
        if not self._lanes[partition]:
            self._close(partition)
        if was_notified:
            self._rebalance("handover")

    def _close(self, partition: str | None) -> None:
        del self._lanes[partition]
        if partition is not None:
            self._ready.forget(partition)
        self._delivery.fallback.unwatch((self.key, partition))
        if partition in self._polled and partition not in self._resolving:
            self._report_poll(partition, found=False)
        if not self._lanes:
            if self._is_complete and not self._ready and self.key.queue is not None:
                self._delivery.keep(self)
            else:
                self.close()

    def close(self) -> None:
        """End a subscription without consumers. The next consumer looks for itself."""
        for wakeup in self._wakeups.values():
            wakeup.cancel()
        self._wakeups.clear()
        self._delivery.closed(self)

    def set_interest(self, consumer: Consumer, wanted: bool) -> None:
        """Set whether a consumer wants work now."""
        must_rebalance = bool(self._ready) if wanted else self.is_notified(consumer)
        if wanted:
            self.manager.set_interest(consumer, True)
        else:
            self.retire(consumer)
        if must_rebalance:
            self._rebalance("handover")

    def retire(self, consumer: Consumer) -> None:
        """End the interest of a consumer that is not notified or was served. No other consumer is affected."""
        self.manager.set_interest(consumer, False)
        self._woken_by.pop(consumer, None)
        self._late.pop(consumer, None)

    def welcome(self, consumer: Consumer) -> None:
        """Start a look for a new consumer that does not pop itself, if work may exist."""
        if not self.waits_before(consumer):
            self._ready.look(consumer.request.partition)
            self._rebalance("handover")

    def waits_before(self, consumer: Consumer) -> bool:
        """Whether a new consumer needs no look: no work is left to it.

        Either a consumer with precedence over it already waits, or the last one has left without work, and no hint
        has come since. A consumer that names a partition looks in any case: the timers of consumers for any partition
        end with them.
        """
        if consumer.request.partition is not None:
            return False
        was_kept = self._is_complete and len(self.manager) == 1
        return (was_kept and not self._ready) or self.manager.waits(None, consumer.priority)

    def is_notified(self, consumer: Consumer) -> bool:
        """Whether a consumer is notified."""
        return self.manager.state_of(consumer) is State.NOTIFIED

    def last_chance(self, consumer: Consumer, give_up: Callable[[], None]) -> None:
        """End the wait of a consumer after its time limit, as soon as no result is on its way to it."""
        if self._is_expecting(consumer):
            self._late[consumer] = give_up
        else:
            give_up()

    def _is_expecting(self, consumer: Consumer) -> bool:
        return consumer in self._pulled or (self.is_notified(consumer) and not self._delivery.suspended)

    # Hints -------------------------------------------------------------------------------------------------

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
        if not self._ready.add(keys, hint.kind, () if hint.group is None else hint.counts):
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
            self._ready.look(partition)
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
        if partition in self._lanes:
            self._ready.look(partition)
            self._rebalance("poll")
        if partition not in self._resolving and self.manager.next_notified(partition) is None:
            self._report_poll(partition, found=False)  # No consumer wants work now.

    def note_empty(self, partition: str | None, look_again_at: int | None) -> None:
        """Set an alarm after an empty look, for the time when work becomes available without a hint."""
        if not self._lanes:
            return
        self._is_complete |= partition is None
        self.looked_at = now = self._delivery.timers.now()
        if look_again_at is not None:
            if partition not in self._wakeups:
                self._wakeups[partition] = Wakeup(self._delivery.timers, partial(self._ring, partition))
            self._wakeups[partition].set(max(look_again_at, now + _SOON))

    def note_failure(self, partition: str | None) -> None:
        """Start fallback polls after a failed look, because the expected work may be wrong."""
        self._is_complete = False
        for lane in self._lanes if partition is None else (partition, None):
            if lane in self._lanes:
                self._delivery.fallback.watch((self.key, lane))

    def _ring(self, partition: str | None) -> None:
        self._wakeups.pop(partition, None)
        if not self._lanes:
            self.close()
            return
        lanes = {partition}
        if self.manager.is_empty(partition):
            # The consumer that set this alarm has left; other consumers that could receive the work may not know of it.
            lanes |= set(self.manager.named) if partition is None else {None}
        for lane in lanes:
            if lane in self._lanes:
                self._ready.look(lane)
        self._rebalance("timer")

    # The pump ----------------------------------------------------------------------------------------------

    def _rebalance(self, source: Source) -> None:
        manager = self.manager
        notified = manager.rebalance(self._ready.work(self.key.queue, manager.named))
        if notified:
            now = self._delivery.timers.now()
            for consumer in notified:
                self._woken_by[consumer] = source, now
            self._metrics.wakes[source] += len(notified)
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
        for partition in self.manager.notified_lanes():
            if partition not in self._resolving:
                self._look(partition)
        for partition in [one for one in self._polled if one not in self._resolving]:
            self._report_poll(partition, found=False)  # The notified consumer no longer wants work.

    def _look(self, partition: str | None) -> None:
        """Start a look for all notified consumers of a lane."""
        pulls: list[Pull] = []
        mark = self._ready.begin_look()
        unwilling: list[Consumer] = []
        for consumer in self.manager.notified(partition):
            request = consumer.next_pull()
            if request is None:
                unwilling.append(consumer)
            else:
                self._pulled.add(consumer)
                pulls.append((consumer, self._submit(request)))
        for consumer in unwilling:
            self.set_interest(consumer, False)
        if pulls:
            self._resolving.add(partition)
            self._delivery.when_done([answer for _, answer in pulls], partial(self._finish, partition, pulls, mark))

    def _submit(self, request: PopRequest) -> asyncio.Future[PopResult]:
        try:
            return self._delivery.pops.submit(request)
        except Overloaded as refusal:  # Too many calls wait for the store: handle it like an unavailable store.
            answer: asyncio.Future[PopResult] = asyncio.get_running_loop().create_future()
            answer.set_exception(refusal)
            return answer

    def _finish(self, partition: str | None, pulls: Sequence[Pull], mark: int) -> None:
        """Pass each consumer of a look its result, and notify the next consumers."""
        try:
            came = {self._hand_over(partition, consumer, answer, mark) for consumer, answer in pulls}
            if came & {"empty", "failed"}:
                self._ready.disprove(partition, self.key.queue, mark)
            elif "surprise" in came and partition is None:
                self._ready.expect_more()
            if "failed" in came:
                self.note_failure(partition)
            elif not self._delivery.shared and partition in self._lanes:
                self._delivery.fallback.unwatch((self.key, partition))  # The store responds again.
        finally:
            self._resolving.discard(partition)
            self.looked_at = self._delivery.timers.now()
        if partition in self._polled:
            self._report_poll(partition, found=bool(came & {"found", "surprise"}))
        self._rebalance("handover")
        if self.manager.next_notified(partition) is not None:
            self._pump_soon()

    def _report_poll(self, partition: str | None, *, found: bool) -> None:
        self._polled.discard(partition)
        self._delivery.fallback.polled((self.key, partition), found=found)

    def _hand_over(
        self, partition: str | None, consumer: Consumer, answer: asyncio.Future[PopResult], mark: int
    ) -> Literal["found", "surprise", "empty", "failed"]:
        """Pass a consumer its result. Messages from a partition without expected work are a surprise."""
        self._pulled.discard(consumer)
        source, since = self._woken_by.pop(consumer, ("handover", 0))
        try:
            result = answer.result()
        except (EngineFailure, Overloaded) as failure:
            if consumer.request.auto_ack and failure.code == "outcome_unknown":
                consumer.refuse(failure)  # Its messages are not redelivered, so the client must get the error.
            else:
                consumer.failed(failure)
            return "failed"
        except HarkError as error:
            consumer.refuse(error)
            return "found"  # This consumer has its answer: the next one can look.
        except Exception as error:
            log.exception("a pop failed because of a bug; please report it: %s", self.key)
            consumer.refuse(HarkError(f"internal error: {type(error).__name__}; see the server log"))
            return "found"
        if not result.messages:
            self._metrics.empty[source] += 1
            self.note_empty(partition, result.look_again_at)
            consumer.came_up_empty()
            return "empty"
        taken = Counter((message.queue, message.partition) for message in result.messages)
        leased = bool(result.lease_id)
        known = [self._ready.took(key, count, mark, leased=leased) for key, count in taken.items()]
        self.manager.served(consumer)
        if not consumer.deliver(result):
            self._delivery.pops.give_back(result)
        self._metrics.latency.add((self._delivery.timers.now() - since) / SECOND if since else 0)
        return "found" if all(known) else "surprise"
