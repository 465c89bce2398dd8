"""A stream: one client with its subscriptions, its credit and its unsettled messages."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hark.broker.delivery.subscription import Subscription
from hark.broker.timers import Timer, Wakeup
from hark.clock import MILLISECOND, SECOND
from hark.errors import Conflict, HarkError
from hark.model import PopRequest, PopResult, Settlement, SettleOutcome

if TYPE_CHECKING:
    from hark.broker.delivery.streams import Streams


class LeasedMessages:
    """The unsettled messages of one lease, by partition."""

    __slots__ = ("addresses", "expires_at", "parts")

    def __init__(self, result: PopResult) -> None:
        self.expires_at = result.expires_at
        self.parts: dict[str, dict[str, str]] = {}
        """The ids of messages by transaction id, which is unique in its partition only."""
        self.addresses: dict[str, tuple[str, str]] = {}
        """The partition and the transaction id of each message, by its id."""
        for message in result.messages:
            self.parts.setdefault(message.partition_id, {})[message.transaction_id] = message.id
            self.addresses[message.id] = message.partition_id, message.transaction_id

    def find(self, item: Settlement) -> tuple[str, str] | None:
        """The partition and transaction id of the message that a settlement names, by either of its ids."""
        if item.transaction_id in self.parts.get(item.partition_id, ()):
            return item.partition_id, item.transaction_id
        return self.addresses.get(item.transaction_id)

    def remove(self, address: tuple[str, str]) -> None:
        """Remove a message."""
        partition, transaction_id = address
        part = self.parts[partition]
        del self.addresses[part.pop(transaction_id)]
        if not part:
            del self.parts[partition]

    def remove_part(self, partition: str) -> None:
        """Remove all messages of a partition, if there are any."""
        for message_id in self.parts.pop(partition, {}).values():
            del self.addresses[message_id]


# A stream has one credit and any number of subscriptions. It is interested while it has credit left, is not paused, and
# all its messages have been passed to its socket. So a client that does not read holds at most one batch.


_AFTER_THE_END = 10 * MILLISECOND
"""Delay of the check of a lease after its end: the store has expired it by then."""
_CLOCKS_DIFFER = 100 * MILLISECOND
"""Maximum difference of clocks: a lease in a shared store that ended this early may have expired."""


class Arrival(NamedTuple):
    """Messages for a stream, or an error that ended one of its subscriptions."""

    consumer: StreamConsumer
    result: PopResult
    error: HarkError | None = None


class StreamConsumer(msgspec.Struct, eq=False):
    """A stream as a consumer of one subscription."""

    name: str
    stream: Stream
    request: PopRequest
    priority: int
    subscription: Subscription

    def next_pull(self) -> PopRequest | None:
        batch = self.stream.begin_pull(self)
        if batch == self.request.batch:
            return self.request
        return msgspec.structs.replace(self.request, batch=batch) if batch else None

    def deliver(self, result: PopResult) -> bool:
        return self.stream.arrived(Arrival(self, result))

    def came_up_empty(self) -> None:
        self.stream.end_pull()

    def failed(self, _failure: HarkError) -> None:
        self.stream.end_pull()

    def refuse(self, error: HarkError) -> None:
        self.stream.refused(self, error)


class Stream:
    """One client, its credit and its unsettled messages."""

    def __init__(self, streams: Streams, number: int, credit: int, created_at: int, *, mute: bool) -> None:
        self.number = number
        self.mute = mute
        """The client cannot send on its connection."""
        self.created_at = created_at
        self.credit = credit
        self.paused = False
        self.draining = False
        self.closed = False
        self._ended_here = False
        """The server closed the stream, not its client."""
        self.silent = False
        """A lease expired, and the client has sent nothing since: it may not read its messages."""
        self._hang_up: Timer | None = None
        self.consumers: dict[str, StreamConsumer] = {}
        self._streams = streams
        self._leases: dict[str, LeasedMessages] = {}
        """The unsettled messages of each lease."""
        self.unsettled = 0
        """The number of unsettled messages."""
        self._pulling: StreamConsumer | None = None
        self._writing: Arrival | None = None
        """The result of `next` that has not been passed to the socket yet."""
        self._outbox: deque[Arrival] = deque()
        self._declined: OrderedDict[StreamConsumer, None] = OrderedDict()
        """Subscriptions without interest until the stream has room again, in order of turns. While the stream is busy
        for a short time the others stay interested, and decline when they are notified."""
        self._withdrawn = False
        """No subscription is interested, because the stream has no room."""
        self._turn: StreamConsumer | None = None
        """The subscription that was just notified, and may pop before the others."""
        self._changed = asyncio.Event()
        self._check = Wakeup(streams.timers, self._check_leases)
        self._first_end: int | None = None
        """A lower bound of the ends of its leases."""

    @property
    def interested(self) -> bool:
        """Whether it can receive messages now."""
        return not self._is_quiet and not self._is_busy

    @property
    def _is_quiet(self) -> bool:
        """Whether it can receive nothing until its client sends or settles something."""
        return self.paused or self.draining or self.closed or self.silent or self.unsettled >= self.credit

    @property
    def _is_busy(self) -> bool:
        return self._pulling is not None or self._writing is not None or bool(self._outbox)

    # The client's side -------------------------------------------------------------------------------------

    def subscribe(self, name: str, request: PopRequest, priority: int = 0) -> StreamConsumer:
        """Add a subscription."""
        if name in self.consumers:
            raise Conflict(
                f"this connection already has a subscription {name!r}; use another name", code="subscription_exists"
            )
        subscription = self._streams.subscription(request)
        consumer = self.consumers[name] = StreamConsumer(name, self, request, priority, subscription)
        subscription.join(consumer)
        subscription.welcome(consumer)
        self._declined[consumer] = None
        self._update()
        return consumer

    def unsubscribe(self, name: str) -> bool:
        """Remove a subscription. Its unsettled messages stay. False for an unknown name."""
        consumer = self.consumers.pop(name, None)
        if consumer is None:
            return False
        self._declined.pop(consumer, None)
        consumer.subscription.leave(consumer)
        return True

    def grant(self, credit: int) -> None:
        """Set the credit: the maximum number of unsettled messages of the whole stream."""
        self.credit = credit
        self._update()

    def pause(self) -> None:
        """Stop deliveries until `resume`."""
        self.paused = True
        self._update()

    def resume(self) -> None:
        """Start deliveries again, after a pause or a drain."""
        self.paused = self.draining = False
        self._update()

    def drain(self) -> None:
        """Stop deliveries. `next` reports when the last messages have been passed on."""
        self.draining = True
        self._update()
        self._changed.set()

    def spoke(self) -> None:
        """Note that the client is alive: it sent a frame, or settled or renewed one of its messages."""
        if self.silent:
            self._end_silence()
            self._update()

    def _begin_silence(self, leased: LeasedMessages, lease_id: str) -> None:
        self._streams.note_expired(self, lease_id, leased)
        if not self.silent:
            self.silent = True
            if self.mute:
                # It may have settled at another server. A client that is alive connects again.
                timers = self._streams.timers
                self._hang_up = timers.at(timers.now() + self._streams.grace, self.end)

    def _end_silence(self) -> None:
        self.silent = False
        self._streams.forget_expired(self)
        if self._hang_up is not None:
            self._hang_up.cancel()
            self._hang_up = None

    @property
    def drained(self) -> bool:
        """Whether nothing more is delivered until `resume`."""
        return self.draining and not self._is_busy

    async def next(self) -> Arrival | None:
        """Wait for messages to write; None when the stream is drained or closed."""
        while not self._outbox:
            self._changed.clear()
            if self.closed or self.drained:
                return None
            await self._changed.wait()
        self._writing = self._outbox.popleft()
        return self._writing

    def written(self) -> None:
        """Note that the result of `next` has been passed to the socket."""
        written, self._writing = self._writing, None
        if self.closed and written is not None and written.result.lease_id and not self._ended_here:
            self._streams.shorten([written.result.lease_id])
        self._update()
        self._changed.set()

    def lost(self, arrival: Arrival) -> None:
        """Release the result of `next`, which could not be written, without using an attempt."""
        self._writing = None
        self._remove(arrival.result.lease_id)
        self._streams.pops.give_back(arrival.result)

    def end(self) -> None:
        """Close the stream by the server. Written messages stay leased until their lease expires."""
        self._ended_here = True
        self.close()

    def close(self) -> None:
        """Close after a disconnect: unwritten messages are released, written ones soon expire (rule 17)."""
        if self.closed:
            return
        self.closed = True
        for consumer in list(self.consumers.values()):
            consumer.subscription.leave(consumer)
        self.consumers.clear()
        self._declined.clear()
        unwritten = {"" if self._writing is None else self._writing.result.lease_id}
        while self._outbox:
            result = self._outbox.popleft().result
            unwritten.add(result.lease_id)
            self._streams.pops.give_back(result)
        if not self._ended_here:
            self._streams.shorten([lease for lease in self._leases if lease not in unwritten])
        self._check.cancel()
        self._end_silence()
        self._streams.forget(self, self._leases)
        self._changed.set()

    # The pump's side ---------------------------------------------------------------------------------------

    def begin_pull(self, consumer: StreamConsumer) -> int:
        """The number of messages to pop for a consumer now. The other consumers of the stream wait meanwhile."""
        if not self.interested or self._turn not in (None, consumer) or self._has_overdue():
            self._declined[consumer] = None
            return 0
        self._turn = None
        self._pulling = consumer
        return min(consumer.request.batch, self.credit - self.unsettled)

    def end_pull(self) -> None:
        """Note an empty or failed pop."""
        self._pulling = None
        self._update()
        self._changed.set()

    def arrived(self, arrival: Arrival) -> bool:
        """Receive messages. False: the subscription has ended."""
        self._pulling = None
        if self.consumers.get(arrival.consumer.name) is not arrival.consumer:
            self._update()
            return False
        result = arrival.result
        if self._streams.is_over(result.lease_id):
            self.end_pull()
            return True
        if result.lease_id and (self.silent or self._has_overdue()):
            self._streams.pops.give_back(result)
            self._declined[arrival.consumer] = None
            self.end_pull()
            return True
        try:
            self._streams.pops.unseal(result)
        except HarkError:
            # The messages were given back, and the next pop sets the unreadable ones aside.
            self._declined[arrival.consumer] = None
            self.end_pull()
            return True
        if result.lease_id:
            leased = self._leases[result.lease_id] = LeasedMessages(result)
            self.unsettled += len(leased.addresses)
            self._streams.by_lease[result.lease_id] = self
            if result.expires_at is not None:
                self._first_end = min(self._first_end or result.expires_at, result.expires_at)
            self._check_when(result.expires_at)
        self.consumers[arrival.consumer.name] = self.consumers.pop(arrival.consumer.name)  # The others come first now.
        self._outbox.append(arrival)
        self._update()
        self._changed.set()
        # The writer runs after this turn; data that is still unwritten then is blocked by the client.
        self._streams.soon(lambda: self._streams.soon(self._notice_stuck))
        return True

    def refused(self, consumer: StreamConsumer, error: HarkError) -> None:
        """Report to the client why a subscription cannot be served."""
        self._pulling = None
        if self.consumers.get(consumer.name) is consumer:
            self.unsubscribe(consumer.name)
            self._outbox.append(Arrival(consumer, PopResult(), error))
            self._changed.set()
        self._update()

    def _notice_stuck(self) -> None:
        if (self._writing is not None or self._outbox) and not self._withdrawn:
            self._withdraw()

    def _withdraw(self) -> None:
        """Stop receiving messages until the stream has room."""
        self._withdrawn = True
        for consumer in self.consumers.values():
            self._declined[consumer] = None
            consumer.subscription.set_interest(consumer, False)

    def _resume(self) -> None:
        """Set the interest of subscriptions until one of them is notified. The others follow later."""
        self._withdrawn = False
        while self._declined:
            consumer, _ = self._declined.popitem(last=False)
            consumer.subscription.set_interest(consumer, True)
            if consumer.subscription.is_notified(consumer):
                self._turn = consumer
                self._streams.soon(self._end_turn)
                return

    def _end_turn(self) -> None:
        """End the turn of the current subscription, used or not."""
        self._turn = None
        self._update()

    def _update(self) -> None:
        """Adapt the interest of the subscriptions to the state of the stream."""
        if self._is_quiet:
            if not self._withdrawn:
                self._withdraw()
        elif not self._is_busy and self._turn is None:
            self._resume()
        self._streams.watch(self, full=not self.closed and 0 < self.credit <= self.unsettled)

    # Leases ------------------------------------------------------------------------------------------------

    def settled(self, lease_id: str, item: Settlement, outcome: SettleOutcome) -> None:
        """Note that one of its messages was settled on this server.

        In an ordered group a failed message ends the lease of its partition: later messages are redelivered after it.
        In a shared group each message is settled separately.
        """
        leased = self._leases.get(lease_id)
        if leased is not None:
            before = len(leased.addresses)
            address = leased.find(item)
            if outcome.lease_released:
                leased.remove_part(item.partition_id if address is None else address[0])
            elif address is not None:
                leased.remove(address)
            self.unsettled -= before - len(leased.addresses)
            if not leased.addresses:
                self._remove(lease_id)
        self.spoke()
        self._update()

    def _remove(self, lease_id: str) -> LeasedMessages | None:
        """Remove a lease with its unsettled messages."""
        leased = self._leases.pop(lease_id, None)
        if leased is not None:
            self.unsettled -= len(leased.addresses)
        self._streams.by_lease.pop(lease_id, None)
        return leased

    def ended(self, lease_id: str) -> None:
        """Note the end of one of its leases, for any reason."""
        leased = self._remove(lease_id)
        if leased is not None and leased.expires_at is not None:
            latest = self._streams.timers.now() + (_CLOCKS_DIFFER if self._streams.shared else 0)
            if leased.expires_at <= latest:
                self._begin_silence(leased, lease_id)
            else:
                self.spoke()  # It was settled, maybe on another server.
        self._update()

    def renewed(self, lease_id: str, expires_at: int) -> None:
        """Note the renewal of one of its leases."""
        if lease_id in self._leases:
            self._leases[lease_id].expires_at = expires_at
        self.spoke()

    def leases(self) -> Sequence[str]:
        """The leases that it holds, as far as this server knows."""
        return list(self._leases)

    def _earliest_end(self) -> int | None:
        return min(
            (leased.expires_at for leased in self._leases.values() if leased.expires_at is not None), default=None
        )

    def _has_overdue(self) -> bool:
        """Whether a lease has expired without a report of its end."""
        now = self._streams.timers.now()
        if self._first_end is not None and self._first_end <= now:
            self._first_end = self._earliest_end()
        return self._first_end is not None and self._first_end <= now

    def _check_when(self, due: int | None) -> None:
        """Check the store when the first lease should expire: another server can have renewed it."""
        if due is not None and not self.closed:
            # At least after a pause, because the clock of the store can be behind.
            self._check.set(max(due, self._streams.timers.now()) + _AFTER_THE_END)

    def check_later(self) -> None:
        """Check the leases again after a failure of the store."""
        self._check_when(self._streams.timers.now() + SECOND)

    def _check_leases(self) -> None:
        if not self.closed:
            self._streams.verify(self)

    def verified(self, ends: dict[str, int | None]) -> bool:
        """Apply the ends of its leases in the store. Returns whether some have ended."""
        over = [lease for lease, end in ends.items() if end is None]
        for lease in over:
            self.ended(lease)
        for lease, end in ends.items():
            if end is not None and lease in self._leases:
                self._leases[lease].expires_at = end
        self._check_when(self._earliest_end())
        self._update()
        return bool(over)
