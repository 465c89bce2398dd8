"""The window of a stream: what it got and has not settled."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hark.broker.delivery.subscription import Subscription
from hark.broker.timers import Timer
from hark.clock import MILLISECOND, SECOND
from hark.errors import Conflict, HarkError
from hark.model import PopRequest, PopResult, Settlement, SettleOutcome

if TYPE_CHECKING:
    from hark.broker.delivery.streams import Streams


class LeasedMessages:
    """What is left of the messages of one lease, by partition."""

    __slots__ = ("addresses", "expires_at", "parts")

    def __init__(self, result: PopResult) -> None:
        self.expires_at = result.expires_at
        self.parts: dict[str, dict[str, str]] = {}
        """The ids of messages by their transaction ids, which are unique in a partition only."""
        self.addresses: dict[str, tuple[str, str]] = {}
        """The partition and the transaction id of a message, by its id."""
        for message in result.messages:
            self.parts.setdefault(message.partition_id, {})[message.transaction_id] = message.id
            self.addresses[message.id] = message.partition_id, message.transaction_id

    def find(self, item: Settlement) -> tuple[str, str] | None:
        """Which message a settlement is about, whatever it names it by: partition and transaction id."""
        if item.transaction_id in self.parts.get(item.partition_id, ()):
            return item.partition_id, item.transaction_id
        return self.addresses.get(item.transaction_id)

    def remove(self, address: tuple[str, str]) -> None:
        """Forget a message."""
        partition, transaction_id = address
        part = self.parts[partition]
        del self.addresses[part.pop(transaction_id)]
        if not part:
            del self.parts[partition]

    def remove_part(self, partition: str) -> None:
        """Forget all messages of a partition, if there are any."""
        for message_id in self.parts.pop(partition, {}).values():
            del self.addresses[message_id]


class Window:
    """Unsettled messages by lease."""

    def __init__(self) -> None:
        self._leases: dict[str, LeasedMessages] = {}
        self._messages = 0

    def __len__(self) -> int:
        return self._messages

    def leases(self) -> Sequence[str]:
        """The leases of what is held."""
        return list(self._leases)

    def first_end(self) -> int | None:
        """When the first of them is over."""
        return min(
            (leased.expires_at for leased in self._leases.values() if leased.expires_at is not None), default=None
        )

    def add(self, result: PopResult) -> None:
        """Messages came under a lease."""
        leased = self._leases[result.lease_id] = LeasedMessages(result)
        self._messages += len(leased.addresses)

    def settled(self, lease_id: str, item: Settlement, outcome: SettleOutcome) -> bool:
        """A message of a lease was settled; whether the lease is over with that.

        In an ordered group one that fails takes along what was behind it in its partition: that comes again, in order,
        after it. In a shared group each goes by itself.
        """
        leased = self._leases.get(lease_id)
        if leased is None:
            return False
        before = len(leased.addresses)
        address = leased.find(item)
        if outcome.lease_released:
            leased.remove_part(item.partition_id if address is None else address[0])
        elif address is not None:
            leased.remove(address)
        self._messages -= before - len(leased.addresses)
        if leased.addresses:
            return False
        del self._leases[lease_id]
        return True

    def end(self, lease_id: str) -> LeasedMessages | None:
        """A lease is over, with all that is left of it, which is returned."""
        leased = self._leases.pop(lease_id, None)
        if leased is not None:
            self._messages -= len(leased.addresses)
        return leased

    def renewed(self, lease_id: str, expires_at: int) -> None:
        """A lease ends later."""
        leased = self._leases.get(lease_id)
        if leased is not None:
            leased.expires_at = expires_at


# A stream has one credit and any number of subscriptions. It is interested while it has credit left, is not paused,
# and
# everything that it was given has been handed to its socket: so a client that does not read holds no more than one
# batch.


_AFTER_THE_END = 10 * MILLISECOND
"""When a lease is asked about after its time: the store has let go of it by then."""
_CLOCKS_DIFFER = 100 * MILLISECOND
"""A lease in a shared store that ended at most this long before its time may have expired by the store's clock."""


class Arrival(NamedTuple):
    """Messages for a stream, or an error that ended one of its subscriptions."""

    consumer: StreamConsumer
    result: PopResult
    error: HarkError | None = None


class StreamConsumer:
    """A stream's part in one subscription."""

    def __init__(
        self, name: str, stream: Stream, request: PopRequest, priority: int, subscription: Subscription
    ) -> None:
        self.name = name
        self.stream = stream
        self.request = request
        self.priority = priority
        self.subscription = subscription

    @property
    def partition(self) -> str | None:
        """The partition that it wants, if not any."""
        return self.request.partition

    @property
    def batch(self) -> int:
        """How many messages it takes at once, with enough credit."""
        return self.request.batch

    def next_pull(self) -> PopRequest | None:
        """A pop of at most what the stream has credit for."""
        batch = self.stream.begin_pull(self)
        if batch == self.request.batch:
            return self.request
        return msgspec.structs.replace(self.request, batch=batch) if batch else None

    def deliver(self, result: PopResult) -> bool:
        """Hand it to the stream, if that is still there."""
        return self.stream.arrived(Arrival(self, result))

    def came_up_empty(self) -> None:
        """There was nothing; it keeps its turn."""
        self.stream.end_pull()

    def failed(self, failure: HarkError) -> None:
        """The store is away; it is looked for again later."""
        if self.request.auto_ack and failure.code == "outcome_unknown":
            self.refuse(failure)  # What was settled at once does not come again: the client should hear of it.
        else:
            self.stream.end_pull()

    def refuse(self, error: HarkError) -> None:
        """What it wants can't be: the subscription ends."""
        self.stream.refused(self, error)


class Stream:
    """One client, its credit and what it holds."""

    def __init__(self, streams: Streams, number: int, credit: int, created_at: int, *, mute: bool) -> None:
        self.number = number
        self.mute = mute
        """Its client can't send anything on it."""
        self.created_at = created_at
        self.credit = credit
        self.paused = False
        self.draining = False
        self.closed = False
        self._ended_here = False
        """The server closed it, not its client."""
        self.silent = False
        """A lease expired, and the client has said nothing since: it may not read what it is sent."""
        self._hang_up: Timer | None = None
        self.consumers: dict[str, StreamConsumer] = {}
        self._streams = streams
        self._window = Window()
        self._pulling: StreamConsumer | None = None
        self._writing: Arrival | None = None
        """What was given out by `next` and has not been handed to the socket yet."""
        self._outbox: deque[Arrival] = deque()
        self._declined: OrderedDict[StreamConsumer, None] = OrderedDict()
        """Subscriptions without interest until the stream has room again, in order of turns. While the stream is busy
        for a short time the others stay interested, and decline when they are notified.
        """
        self._withdrawn = False
        """All subscriptions are parked: the stream wants no messages."""
        self._turn: StreamConsumer | None = None
        """The one that was just told of something and may fetch it before the others."""
        self._changed = asyncio.Event()
        self._check: Timer | None = None
        self._check_at = 0
        self._first_end: int | None = None
        """No lease that it holds ends before this."""

    @property
    def unsettled(self) -> int:
        """Messages that it got and that have not been settled."""
        return len(self._window)

    @property
    def interested(self) -> bool:
        """Whether it can take messages now."""
        return not self._is_quiet and not self._is_busy

    @property
    def _is_quiet(self) -> bool:
        """Whether it can take nothing until its client says or settles something."""
        return self.paused or self.draining or self.closed or self.silent or self.unsettled >= self.credit

    @property
    def _is_busy(self) -> bool:
        return self._pulling is not None or self._writing is not None or bool(self._outbox)

    # The client's side -------------------------------------------------------------------------------------

    def subscribe(self, name: str, request: PopRequest, priority: int = 0) -> StreamConsumer:
        """Take messages of a subscription as well."""
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
        """Take no more of a subscription; what it holds of it stays."""
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
        """Give it nothing until it is resumed."""
        self.paused = True
        self._update()

    def resume(self) -> None:
        """Give it messages again, after a pause or a drain."""
        self.paused = self.draining = False
        self._update()

    def drain(self) -> None:
        """Give it nothing more; `next` says when all that was on its way has been handed over."""
        self.draining = True
        self._update()
        self._changed.set()

    def spoke(self) -> None:
        """Its client gave a sign of life: a frame, or a settlement or renewal of something that it got."""
        if self.silent:
            self._end_silence()
            self._update()

    def _begin_silence(self, leased: LeasedMessages, lease_id: str) -> None:
        self._streams.note_expired(self, lease_id, leased)
        if not self.silent:
            self.silent = True
            if self.mute:
                # It may have said something to another server. A client that lives connects again.
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
        """Whether nothing more will come until it is resumed."""
        return self.draining and not self._is_busy

    async def next(self) -> Arrival | None:
        """What came, to be written; None: nothing came, but something changed (it was drained or closed)."""
        while not self._outbox:
            self._changed.clear()
            if self.closed or self.drained:
                return None
            await self._changed.wait()
        self._writing = self._outbox.popleft()
        return self._writing

    def written(self) -> None:
        """What `next` gave has been handed to the socket."""
        written, self._writing = self._writing, None
        if self.closed and written is not None and written.result.lease_id and not self._ended_here:
            self._streams.shorten([written.result.lease_id])
        self._update()
        self._changed.set()

    def lost(self, arrival: Arrival) -> None:
        """What `next` gave could not be written: it is free again, uncounted."""
        self._writing = None
        self._window.end(arrival.result.lease_id)
        self._streams.release(arrival.result.lease_id)
        self._streams.pops.give_back(arrival.result)

    def end(self) -> None:
        """The server ends it: what was written runs out with its lease."""
        self._ended_here = True
        self.close()

    def close(self) -> None:
        """The client is gone: what was not written is free again, what was written soon runs out (rule 17)."""
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
            self._streams.shorten([lease for lease in self._window.leases() if lease not in unwritten])
        if self._check is not None:
            self._check.cancel()
        self._end_silence()
        self._streams.forget(self, self._window.leases())
        self._changed.set()

    # The pump's side ---------------------------------------------------------------------------------------

    def begin_pull(self, consumer: StreamConsumer) -> int:
        """How many messages may be fetched for a consumer now; the others of the stream have to wait meanwhile."""
        if not self.interested or self._turn not in (None, consumer) or self._has_overdue():
            self._declined[consumer] = None
            return 0
        self._turn = None
        self._pulling = consumer
        return min(consumer.request.batch, self.credit - self.unsettled)

    def end_pull(self) -> None:
        """What was fetched came to nothing."""
        self._pulling = None
        self._update()
        self._changed.set()

    def arrived(self, arrival: Arrival) -> bool:
        """Messages for this stream; False: its client is gone."""
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
            # It was given back, and the next pop knows that something in the queue cannot be read.
            self._declined[arrival.consumer] = None
            self.end_pull()
            return True
        if result.lease_id:
            self._window.add(result)
            self._streams.hold(self, result.lease_id)
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
        """Say that it can take something, until a subscription has something for it: the others come later."""
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
        """Whether it can take messages may have changed."""
        if self._is_quiet:
            if not self._withdrawn:
                self._withdraw()
        elif not self._is_busy and self._turn is None:
            self._resume()
        self._streams.watch(self, full=not self.closed and 0 < self.credit <= self.unsettled)

    # What became of what it holds --------------------------------------------------------------------------

    def settled(self, lease_id: str, item: Settlement, outcome: SettleOutcome) -> None:
        """A message of one of its leases was settled on this server."""
        if self._window.settled(lease_id, item, outcome):
            self._streams.release(lease_id)
        self.spoke()
        self._update()

    def ended(self, lease_id: str) -> None:
        """A lease of it is over, however it ended."""
        leased = self._window.end(lease_id)
        self._streams.release(lease_id)
        if leased is not None and leased.expires_at is not None:
            latest = self._streams.timers.now() + (_CLOCKS_DIFFER if self._streams.shared else 0)
            if leased.expires_at <= latest:
                self._begin_silence(leased, lease_id)
            else:
                self.spoke()  # It was settled, maybe on another server.
        self._update()

    def renewed(self, lease_id: str, expires_at: int) -> None:
        """A lease of it goes on."""
        self._window.renewed(lease_id, expires_at)
        self.spoke()

    def leases(self) -> Sequence[str]:
        """The leases that it holds, as far as this server knows."""
        return self._window.leases()

    def _has_overdue(self) -> bool:
        """Whether a lease has expired without a report of its end."""
        now = self._streams.timers.now()
        if self._first_end is not None and self._first_end <= now:
            self._first_end = self._window.first_end()
        return self._first_end is not None and self._first_end <= now

    def _check_when(self, due: int | None) -> None:
        """Check the store when the first lease should expire: another server can have renewed it."""
        if due is None or self.closed:
            return
        if self._check is not None:
            if self._check_at <= due:
                return
            self._check.cancel()
        self._check_at = due
        # Not again and again in the same turn where the store's clock is behind.
        timers = self._streams.timers
        self._check = timers.at(max(due, timers.now()) + _AFTER_THE_END, self._check_leases)

    def check_later(self) -> None:
        """The store could not be asked."""
        self._check_when(self._streams.timers.now() + SECOND)

    def _check_leases(self) -> None:
        self._check = None
        if not self.closed:
            self._streams.verify(self)

    def verified(self, ends: dict[str, int | None]) -> bool:
        """What the store says of its leases; whether some of them are over."""
        over = [lease for lease, end in ends.items() if end is None]
        for lease in over:
            self.ended(lease)
        for lease, end in ends.items():
            if end is not None:
                self._window.renewed(lease, end)
        self._check_when(self._window.first_end())
        self._update()
        return bool(over)
