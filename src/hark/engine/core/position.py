"""A group's position in a partition, its leases, and how a transaction changes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from hark.ids import IdCodec

if TYPE_CHECKING:
    from hark.engine.core.state import Group, Partition

V = TypeVar("V")


class Overlay(MutableMapping[int, V]):
    """A table as the running transaction sees it, in the order of the table and with what is new behind it."""

    __slots__ = ("_table", "changed", "gone")

    def __init__(self, table: MutableMapping[int, V]) -> None:
        self._table = table
        self.changed: dict[int, V] = {}
        """What is new or different."""
        self.gone: set[int] = set()
        """What the table has and the transaction removes."""

    def __getitem__(self, key: int) -> V:
        if key in self.changed:
            return self.changed[key]
        if key in self.gone:
            raise KeyError(key)
        return self._table[key]

    def __setitem__(self, key: int, value: V) -> None:
        self.changed[key] = value
        self.gone.discard(key)

    def __delitem__(self, key: int) -> None:
        was_changed = self.changed.pop(key, None) is not None
        if key in self._table and key not in self.gone:
            self.gone.add(key)
        elif not was_changed:
            raise KeyError(key)

    def __iter__(self) -> Iterator[int]:
        for key in self._table:
            if key not in self.gone:
                yield key
        for key in self.changed:
            if key not in self._table:
                yield key

    def __len__(self) -> int:
        new = sum(key not in self._table for key in self.changed)
        return len(self._table) - len(self.gone) + new

    def publish(self) -> None:
        """The transaction is committed: change the table."""
        for key in self.gone:
            del self._table[key]
        self._table.update(self.changed)


# Here is what all places have in common; those of ordered groups are in `ordered.py`, the others in `shared.py`.


class Retry:
    """A message that used attempts, or that waits."""

    __slots__ = ("attempts", "due", "error")

    def __init__(self, attempts: int, due: int, error: str | None) -> None:
        self.attempts = attempts
        self.due = due
        self.error = error


class Part:
    """What a lease handed out of one partition."""

    __slots__ = ("handed", "last", "open")

    def __init__(self, handed: int, last: int) -> None:
        self.handed = handed
        self.open = handed
        self.last = last

    def extend(self, handed: int, last: int) -> None:
        """More was handed out under the same lease."""
        self.handed += handed
        self.open += handed
        self.last = max(self.last, last)


class Lease:
    """One consumer's expiring hold, over one or more partitions."""

    __slots__ = ("consumer", "expires_at", "id", "parts", "since", "whole")

    def __init__(self, lease_id: str, expires_at: int, consumer: str, since: int) -> None:
        self.id = lease_id
        self.expires_at = expires_at
        self.consumer = consumer
        """Who holds it, as the pop said."""
        self.since = since
        """When it was given; 0: not known."""
        self.whole = 0
        """When it would end if it had not been shortened; 0: it was not."""
        self.parts: dict[Position, Part] = {}


LeasedMessage = tuple[int, Lease, "tuple[int, ...] | None", str]
"""Under what a message was last delivered: offset, lease, the message's own retry schedule, its transaction id."""


class Stored(NamedTuple):
    """Where a stored message is, and what decides about its turn."""

    partition: int
    offset: int
    priority: int
    deliver_at: int | None
    owner: int | None


class Readiness(NamedTuple):
    """Whether something of a place may be taken now, and when more of it."""

    priority: int | None
    """The highest one that may be ready; None: nothing is."""
    due: int | None = None
    """When something else will be."""


NOTHING = Readiness(None)


class AnyDraft(ABC):
    """A place as the running transaction leaves it."""

    __slots__ = ("settled_at", "voided")

    def __init__(self, settled_at: int | None) -> None:
        self.settled_at = settled_at
        self.voided = False
        """All leases on the position are void."""

    @property
    @abstractmethod
    def blocks(self) -> bool:
        """Whether nothing may be handed out before the transaction is committed."""

    @abstractmethod
    def finish(self, offset: int) -> None:
        """The group is done with a message."""

    @abstractmethod
    def retry_of(self, offset: int) -> Retry | None:
        """What is known of a message's attempts."""

    @abstractmethod
    def wait(self, offset: int, retry: Retry) -> None:
        """A message that was held comes again."""

    @abstractmethod
    def is_gone(self, leased: LeasedMessage) -> bool:
        """Whether something was said of a held message already."""

    @abstractmethod
    def forget(self, leased: LeasedMessage) -> None:
        """What was said of a message under its lease is the last word."""

    @abstractmethod
    def detach(self, lease: Lease) -> None:
        """A lease no longer keeps others out here: nothing that it holds is open, or a message of it failed."""

    @abstractmethod
    def is_free_of(self, lease: Lease) -> bool:
        """Whether a lease is over, as far as its consumers are concerned."""

    @abstractmethod
    def expire(self, lease: Lease, leased: Sequence[LeasedMessage]) -> Sequence[LeasedMessage]:
        """The time of a lease is up; which of the messages that it held pay with an attempt."""

    @abstractmethod
    def give_back(self, lease: Lease, leased: Sequence[LeasedMessage]) -> None:
        """What a lease held is as if it had never been handed out."""

    @abstractmethod
    def add_requeued(self, offset: int, priority: int, now: int) -> None:
        """A requeued message comes before all others."""


class Position(ABC):
    """A group's place in a partition, whatever its mode."""

    __slots__ = ("group", "noted", "partition", "served", "settled_at")

    def __init__(self, group: Group, partition: Partition) -> None:
        self.group = group
        self.partition = partition
        self.served = 0
        self.settled_at: int | None = None
        self.noted = 0
        """How many of its messages the group counts as in flight."""

    draft: AnyDraft | None

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """How many messages live leases hold."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether nothing of it was handed out and may still be settled."""

    @abstractmethod
    def new_draft(self) -> AnyDraft:
        """Begin to change it in a transaction."""

    @abstractmethod
    def find_leased(self, name: str, codec: IdCodec) -> LeasedMessage | None:
        """A held message by its transaction id or its own id, as the running transaction sees it."""

    @abstractmethod
    def leased_at(self, offset: int) -> LeasedMessage | None:
        """The held message at an offset, as the running transaction sees it."""

    @abstractmethod
    def keeps(self, offset: int) -> bool:
        """Whether it has to be told that there is no message at an offset any more."""

    @abstractmethod
    def leased_by(self, lease: Lease) -> list[LeasedMessage]:
        """What a lease holds here, as the running transaction sees it."""

    @abstractmethod
    def live_offsets(self, lease: Lease) -> list[int]:
        """The offsets that a lease keeps others from."""

    @abstractmethod
    def is_kept_by(self, lease: Lease) -> bool:
        """Whether a lease keeps others from something here; cheaper than to ask from what."""

    @abstractmethod
    def leases(self) -> set[Lease]:
        """All leases that hold something here."""

    @abstractmethod
    def is_settled(self, message: Stored) -> bool:
        """Whether the group is done with a message, as the running transaction sees it."""

    @abstractmethod
    def attempts_of(self, offset: int) -> int:
        """How many attempts of a message were used."""

    @abstractmethod
    def readiness(self, now: int) -> Readiness:
        """What may be taken, as far as memory knows."""

    @abstractmethod
    def publish(self, now: int) -> int:
        """The transaction is committed: take over its draft; for how many messages somebody has to be told."""
