"""All streams of this server: how many there may be, which of them holds which lease, and what became of that."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from hark.broker.delivery.fallback import FallbackPolls
from hark.broker.delivery.stream import LeasedMessages, Stream
from hark.clock import MILLISECOND
from hark.engine.api import Engine
from hark.errors import HarkError, Overloaded, Unavailable
from hark.model import Settlement, SettleOutcome
from hark.settings import Settings

if TYPE_CHECKING:
    from hark.broker.delivery.delivery import Delivery

log = logging.getLogger(__name__)

Name = str | tuple[str, str]
"""A lease or a message, as a settlement names it: by its id, or by its transaction id and the id of its partition."""
_REMEMBERED = 1024
"""Leases that may have ended while what they hold was on its way to a stream."""


class Streams:
    """All streams of this server, and which of them holds which lease."""

    def __init__(self, delivery: Delivery, engine: Engine, settings: Settings, random: Callable[[], float]) -> None:
        self._delivery = delivery
        self._engine = engine
        self._most = settings.limits.max_streams
        self._all: dict[int, Stream] = {}
        self._next = 0
        self._closed = False
        self._by_lease: dict[str, Stream] = {}
        self._expired: dict[Name, Stream] = {}
        """Streams that have said nothing since a lease of theirs expired, by its id and by its messages."""
        self._expired_of: dict[Stream, list[Name]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        """The last leases that ended and were held by no stream."""
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
        return len(self._all)

    def __iter__(self) -> Iterator[Stream]:
        return iter(list(self._all.values()))

    def open(self, credit: int, *, mute: bool) -> Stream:
        """A new one."""
        if self._closed:
            raise Unavailable("the server is shutting down; retry", code="stopping")
        if len(self._all) >= self._most:
            raise Overloaded(
                f"{len(self._all)} streams are already open; retry later or raise limits.max_streams",
                code="too_many_streams",
            )
        self._next += 1
        stream = self._all[self._next] = Stream(self, self._next, credit, self.timers.now(), mute=mute)
        return stream

    def forget(self, stream: Stream, leases: Iterable[str]) -> None:
        """A stream is closed."""
        self._all.pop(stream.number, None)
        self._polls.forget(stream)
        for lease in leases:
            self.release(lease)

    def shorten(self, leases: Sequence[str]) -> None:
        """Clients are gone: what they hold comes again soon, unless they renew it."""
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
            log.warning("%d leases of streams that were disconnected last to their end: %s", len(leases), error)

    def hold(self, stream: Stream, lease_id: str) -> None:
        """A stream got messages under a lease."""
        self._by_lease[lease_id] = stream

    def release(self, lease_id: str) -> None:
        """A lease is over."""
        self._by_lease.pop(lease_id, None)

    def settled(self, items: Sequence[Settlement], outcomes: Sequence[SettleOutcome]) -> None:
        """Settlements of any client; those of messages that streams hold make room there."""
        if not self._by_lease and not self._expired:
            return
        for item, outcome in zip(items, outcomes, strict=True):
            lease_id = outcome.lease_id or item.lease_id
            stream = None if lease_id is None else self._by_lease.get(lease_id)
            if stream is None:
                self.tried([item])
            elif outcome.success and lease_id is not None:
                stream.settled(lease_id, item, outcome)

    def tried(self, items: Iterable[Settlement]) -> None:
        """Settlements of any client, whether they count or not: who tries to settle what expired is there."""
        for item in items:
            address = item.transaction_id, item.partition_id
            for name in (item.lease_id,) if item.lease_id else (item.transaction_id, address):
                self.tried_lease(name)

    def tried_lease(self, name: Name) -> None:
        """The same of a renewal."""
        stream = self._expired.get(name)
        if stream is not None:
            stream.spoke()

    def note_expired(self, stream: Stream, lease_id: str, leased: LeasedMessages) -> None:
        """A lease of a stream expired; it gets nothing until its client gives a sign of life."""
        names: list[Name] = [lease_id]
        for message_id, (partition_id, transaction_id) in leased.addresses.items():
            names += [message_id, (transaction_id, partition_id)]
        self._expired_of.setdefault(stream, []).extend(names)
        self._expired.update(dict.fromkeys(names, stream))

    def forget_expired(self, stream: Stream) -> None:
        """A stream is not silent any more."""
        for name in self._expired_of.pop(stream, ()):
            if self._expired.get(name) is stream:
                del self._expired[name]

    def ended(self, lease_ids: Sequence[str]) -> None:
        """Leases are over."""
        if not self._all:
            return
        for lease_id in lease_ids:
            stream = self._by_lease.get(lease_id)
            if stream is not None:
                stream.ended(lease_id)
            else:
                self._ended[lease_id] = None
                if len(self._ended) > _REMEMBERED:
                    self._ended.popitem(last=False)

    def is_over(self, lease_id: str) -> bool:
        """Whether a lease ended before what it holds arrived: a seek may overtake a pop."""
        return lease_id in self._ended

    def renewed(self, lease_id: str, expires_at: int) -> None:
        """A lease goes on."""
        stream = self._by_lease.get(lease_id)
        if stream is not None:
            stream.renewed(lease_id, expires_at)

    def watch(self, stream: Stream, *, full: bool) -> None:
        """Where others settle too, without a word, the leases of a stream that has no credit left are asked about."""
        if self._delivery.shared:
            if full:
                self._polls.watch(stream)
            else:
                self._polls.unwatch(stream)

    def verify(self, stream: Stream) -> None:
        """Ask the store which leases of a stream are over."""
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
        for stream in list(self._all.values()):
            stream.end()
