"""All streams of this server, and the leases of each."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from hark.broker.delivery.stream import LeasedMessages, Stream
from hark.broker.timers import FallbackPolls
from hark.clock import MILLISECOND
from hark.engine.api import Engine
from hark.errors import HarkError, Overloaded, Unavailable
from hark.model import Settlement, SettleOutcome
from hark.settings import Settings

if TYPE_CHECKING:
    from hark.broker.delivery.delivery import Delivery

log = logging.getLogger(__name__)

Name = str | tuple[str, str]
"""A lease or message in a settlement: its id, or the transaction id and the partition id of the message."""
_REMEMBERED = 1024
"""Maximum number of remembered leases that ended before their messages reached a stream."""


def admit_stream(closed: bool, number: int, most: int, what: str) -> None:
    """Refuse a client that wants to read on, if the server shuts down or has `most` of its kind already."""
    if closed:
        raise Unavailable("the server is shutting down; retry", code="stopping")
    if number >= most:
        text = f"{number} {what}; retry later or raise limits.max_streams"
        raise Overloaded(text, code="too_many_streams")


class Streams:
    """All streams of this server, and the stream of each lease."""

    def __init__(self, delivery: Delivery, engine: Engine, settings: Settings, random: Callable[[], float]) -> None:
        self._delivery = delivery
        self._engine = engine
        self._most = settings.limits.max_streams
        self.by_number: dict[int, Stream] = {}
        """All open streams."""
        self._next = 0
        self._closed = False
        self.by_lease: dict[str, Stream] = {}
        """The stream of each lease."""
        self._expired: dict[Name, Stream] = {}
        """Streams whose client has sent nothing since a lease expired, by the names of the lease and its messages."""
        self._expired_of: dict[Stream, list[Name]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        """The last ended leases that were of no stream."""
        self._left: list[str] = []
        """Leases of streams that were disconnected in this turn of the event loop."""
        self._polls: FallbackPolls[Stream] = FallbackPolls(settings.fallback, delivery.timers, self.verify, random)
        self.grace = settings.delivery.disconnect_grace_ms * MILLISECOND
        self.shared = delivery.shared
        self.timers = delivery.timers
        self.subscription = delivery.subscription
        self.pops = delivery.pops
        self.soon = delivery.soon

    def __len__(self) -> int:
        return len(self.by_number)

    def __iter__(self) -> Iterator[Stream]:
        return iter(list(self.by_number.values()))

    def open(self, credit: int, *, mute: bool = False) -> Stream:
        """Open a stream of messages to a client. `mute`: the client cannot send on its connection."""
        admit_stream(self._closed, len(self.by_number), self._most, "streams are already open")
        self._next += 1
        stream = self.by_number[self._next] = Stream(self, self._next, credit, self.timers.now(), mute=mute)
        return stream

    def forget(self, stream: Stream, leases: Iterable[str]) -> None:
        """Remove a closed stream."""
        self.by_number.pop(stream.number, None)
        self._polls.forget(stream)
        for lease in leases:
            self.by_lease.pop(lease, None)

    def shorten(self, leases: Sequence[str]) -> None:
        """Shorten the leases of disconnected clients, so that their messages are redelivered soon."""
        if leases and not self._left:
            self.soon(self._shorten_all)
        self._left += leases

    def _shorten_all(self) -> None:
        leases, self._left = self._left, []
        self._delivery.run(self._shorten(leases))

    async def _shorten(self, leases: Sequence[str]) -> None:
        try:
            await self._engine.shorten(leases, self.grace)
        except HarkError as error:
            log.warning("cannot shorten %d leases of disconnected streams; they expire in time: %s", len(leases), error)

    def settled(self, items: Sequence[Settlement], outcomes: Sequence[SettleOutcome]) -> None:
        """Note settlements by any client. Streams get room for new messages."""
        if not self.by_lease and not self._expired:
            return
        for item, outcome in zip(items, outcomes, strict=True):
            lease_id = outcome.lease_id or item.lease_id
            stream = None if lease_id is None else self.by_lease.get(lease_id)
            if stream is None:
                self.tried([item])
            elif outcome.success and lease_id is not None:
                stream.settled(lease_id, item, outcome)

    def tried(self, items: Iterable[Settlement]) -> None:
        """Note settlements by any client, successful or not: a client that settles an expired message is alive."""
        for item in items:
            address = item.transaction_id, item.partition_id
            for name in (item.lease_id,) if item.lease_id else (item.transaction_id, address):
                self.tried_lease(name)

    def tried_lease(self, name: Name) -> None:
        """Note a settlement or renewal by the name of a lease or message."""
        stream = self._expired.get(name)
        if stream is not None:
            stream.spoke()

    def note_expired(self, stream: Stream, lease_id: str, leased: LeasedMessages) -> None:
        """Note an expired lease. The stream receives nothing until its client sends something."""
        names: list[Name] = [lease_id]
        for message_id, (partition_id, transaction_id) in leased.addresses.items():
            names += [message_id, (transaction_id, partition_id)]
        self._expired_of.setdefault(stream, []).extend(names)
        self._expired.update(dict.fromkeys(names, stream))

    def forget_expired(self, stream: Stream) -> None:
        """Remove the expired leases of a stream whose client is alive."""
        for name in self._expired_of.pop(stream, ()):
            if self._expired.get(name) is stream:
                del self._expired[name]

    def ended(self, lease_ids: Sequence[str]) -> None:
        """Note ended leases."""
        for lease_id in lease_ids:
            stream = self.by_lease.get(lease_id)
            if stream is not None:
                stream.ended(lease_id)
            else:
                self._ended[lease_id] = None
                if len(self._ended) > _REMEMBERED:
                    self._ended.popitem(last=False)

    def is_over(self, lease_id: str) -> bool:
        """Whether a lease ended before its messages arrived: a seek can overtake a pop."""
        return lease_id in self._ended

    def renewed(self, lease_id: str, expires_at: int) -> None:
        """Note a renewed lease."""
        stream = self.by_lease.get(lease_id)
        if stream is not None:
            stream.renewed(lease_id, expires_at)

    def watch(self, stream: Stream, *, full: bool) -> None:
        """Poll the leases of a full stream in a shared store: other servers can settle without a notification."""
        if self._delivery.shared:
            if full:
                self._polls.watch(stream)
            else:
                self._polls.unwatch(stream)

    def verify(self, stream: Stream) -> None:
        """Check in the store which leases of a stream have ended."""
        self._delivery.run(self._verify(stream))

    async def _verify(self, stream: Stream) -> None:
        leases = list(stream.leases())
        try:
            ends = await self._engine.lease_ends(leases) if leases else []
        except HarkError:
            stream.check_later()
            self._polls.polled(stream, found=False)
            return
        over = stream.verified(dict(zip(leases, ends, strict=True)))
        self._polls.polled(stream, found=over)

    def close(self) -> None:
        """End all streams, because the server shuts down."""
        self._closed = True
        self._polls.close()
        for stream in list(self.by_number.values()):
            stream.end()
