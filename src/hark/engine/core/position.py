"""What the positions of ordered and shared groups have in common: leases, drafts, and the lanes of shared groups.

A position is what a group has done in one partition. `ordered.py` and `shared.py` implement it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import apsw
import msgspec

from hark.engine.core.limits import room_in
from hark.engine.core.store import scalar
from hark.ids import IdCodec

if TYPE_CHECKING:
    from hark.engine.core.ordered import Draft
    from hark.engine.core.shared import SharedDraft
    from hark.engine.core.state import Group, Partition
    from hark.engine.core.transaction import WriteTransaction


class Retry(NamedTuple):
    """A message that used attempts, or that waits for its next delivery."""

    attempts: int
    due: int
    error: str | None


class Part(msgspec.Struct, eq=False):
    """The messages of one partition under a lease."""

    handed: int
    """Number of delivered messages."""
    last: int
    """The highest of their offsets, without requeued messages."""
    open: int = 0
    """Number of these that are not settled."""


class Lease(msgspec.Struct, eq=False):
    """A lease of a consumer on messages of one or more partitions."""

    id: str
    expires_at: int
    consumer: str
    """Name of the consumer in the pop."""
    since: int
    """Time of the pop; 0: not known."""
    whole: int = 0
    """Expiry before the lease was shortened; 0: it was not shortened."""
    parts: dict[Position, Part] = {}


LeasedMessage = tuple[int, Lease, "tuple[int, ...] | None", str]
"""A leased message: offset, lease, retry schedule of the message, transaction id."""


class Stored(NamedTuple):
    """A stored message, with the columns that decide about the order of delivery."""

    partition: int
    offset: int
    priority: int
    deliver_at: int | None
    owner: int | None


class Readiness(NamedTuple):
    """The readiness of a position."""

    priority: int | None
    """The highest priority that may be ready; None: no message is ready."""
    due: int | None = None
    """When more messages become ready."""


NOTHING = Readiness(None)


class Position(ABC):
    """A group's position in a partition. Reads that `running transaction` names include its draft."""

    __slots__ = ("filled_at", "group", "noted", "partition", "served", "settled_at", "tokens")

    def __init__(self, group: Group, partition: Partition) -> None:
        self.group = group
        self.partition = partition
        self.served = 0
        """The turn in which it was last served; 0: never."""
        self.settled_at: int | None = None
        self.noted = 0
        """Number of its leased messages that the group counts as in flight."""
        self.tokens: float | None = None
        """Tokens of the rate of the partition that are left; None: all, because none was used."""
        self.filled_at = 0

    def is_at_limit(self, now: int) -> bool:
        """Whether a limit of the partition prevents deliveries. The group then knows until when."""
        room = room_in(self, now)
        if room.left > 0:
            return False
        self.group.hold_back(self.partition.id, room)
        return True

    draft: Draft | SharedDraft | None

    @abstractmethod
    def start_draft(self, transaction: WriteTransaction | None = None) -> Draft | SharedDraft:
        """Begin to change the position, in a transaction; None: in memory alone."""

    @abstractmethod
    def refresh(self, now: int) -> bool:
        """Let the group know, after a change, what is leased and what is ready. True: it is ready now."""

    @abstractmethod
    def find_leased(self, name: str, codec: IdCodec) -> LeasedMessage | None:
        """A leased message by transaction id or message id, in the running transaction."""

    @abstractmethod
    def leased_at(self, offset: int) -> LeasedMessage | None:
        """A leased message by offset, in the running transaction."""

    @abstractmethod
    def leased_by(self, lease: Lease) -> list[LeasedMessage]:
        """The messages of a lease, in the running transaction."""

    @abstractmethod
    def keeps(self, offset: int) -> bool:
        """Whether the removal of the message at this offset must settle it here."""

    @abstractmethod
    def live_offsets(self, lease: Lease) -> list[int]:
        """Offsets of messages that a lease blocks for other consumers."""

    @abstractmethod
    def is_kept_by(self, lease: Lease) -> bool:
        """Whether a lease blocks any message here; cheaper than `live_offsets`."""

    @abstractmethod
    def leases(self) -> set[Lease]:
        """All leases on this position."""

    @abstractmethod
    def is_settled(self, message: Stored) -> bool:
        """Whether the group has settled a message, in the running transaction."""

    @abstractmethod
    def retry_of(self, offset: int) -> Retry | None:
        """The used attempts and the next delivery of a message, in the running transaction."""

    @abstractmethod
    def readiness(self, now: int) -> Readiness:
        """What is ready, as far as memory knows."""

    @abstractmethod
    def publish(self, now: int) -> int:
        """Apply the draft after the commit. Returns the number of messages of a shared group to notify consumers of."""


# A lane has the messages of one priority: either the plain ones, in offset order, or the delayed ones, in the order of
# their delivery times. The group has passed all messages up to the lane's cursor: they are settled or outstanding. The
# next few messages are read ahead, without payloads. They stay valid: new plain messages have higher offsets, and a new
# delayed message is due later than all messages that were due when the lane was read (see `Partition.coming`). Messages
# that were removed meanwhile are found missing at delivery.

NEVER = 1 << 62
"""Later than any time."""
UNKNOWN = 0
_AHEAD = 16
_AHEAD_AT_MOST = 512


class Item(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A message that is read ahead."""

    offset: int
    created_at: int
    deliver_at: int
    """0 for a plain message."""
    expires_at: int
    """End of its own time to live; 0: it has none."""


_READ = """
select json_group_array(json_array(offset, created_at, ifnull(deliver_at, 0), expires_at)) from (
    select offset, created_at, deliver_at, iif(extra is null, 0, ifnull(extra ->> 'x', 0)) as expires_at
    from messages {lane} limit {limit})
"""
READ_FIRST = _READ.format(
    lane="indexed by messages_offset where partition = ?1 and offset > ?2 and offset <= ?3"
    " and priority = 0 and deliver_at is null and owner is null order by offset",
    limit="?4",
)
READ_PRIORITY = _READ.format(
    lane="indexed by messages_priority where partition = ?1 and priority = ?2 and offset > ?3 and offset <= ?4"
    " and priority > 0 and deliver_at is null and owner is null order by offset",
    limit="?5",
)
READ_DELAYED = _READ.format(
    lane="indexed by messages_delayed where partition = ?1 and priority = ?2 and (deliver_at, offset) > (?3, ?4)"
    " and deliver_at is not null order by deliver_at, offset",
    limit="?5",
)
_decode = msgspec.json.Decoder(list[Item]).decode


class PlainLane:
    """Messages of one priority without a delay."""

    __slots__ = ("_ahead", "cursor", "items", "more", "priority", "saved", "scanned")

    def __init__(self, priority: int, cursor: int = 0) -> None:
        self.priority = priority
        self.cursor = cursor
        """The last passed offset."""
        self.saved = cursor
        self.scanned = cursor
        """The last offset that was read ahead."""
        self.items: deque[Item] = deque()
        self.more = True
        """Whether there may be messages after `scanned`."""
        self._ahead = _AHEAD

    def forget(self) -> None:
        """Drop what was read ahead, because messages were removed."""
        self.more = self.more or bool(self.items)
        if self.items:
            self.items.clear()
            self.scanned = self.cursor

    def fill(self, connection: apsw.Connection, partition: Partition, lower: int, need: int) -> None:
        """Read ahead, unless an item is present."""
        while self.items and self.items[0].offset <= lower:
            self.items.popleft()
        if self.items or not self.more:
            return
        limit = max(self._ahead, min(need, _AHEAD_AT_MOST))
        self._ahead = min(2 * limit, _AHEAD_AT_MOST)
        start, tail = max(self.scanned, lower), partition.tail
        if self.priority:
            text = scalar(connection, READ_PRIORITY, partition.id, self.priority, start, tail, limit)
        else:
            text = scalar(connection, READ_FIRST, partition.id, start, tail, limit)
        self.items.extend(_decode(text))
        self.more = len(self.items) >= limit
        self.scanned = self.items[-1].offset if self.more else tail
        if not self.items:
            self.cursor = self.scanned

    def take(self) -> Item:
        """Pass the next message."""
        item = self.items.popleft()
        self.cursor = item.offset if self.items else self.scanned
        return item


class DelayedLane:
    """Messages of one priority with a delay."""

    __slots__ = ("cursor", "items", "next_due", "priority", "saved", "scanned")

    def __init__(self, priority: int, cursor: tuple[int, int] = (0, 0), next_due: int = UNKNOWN) -> None:
        self.priority = priority
        self.cursor = cursor
        """Delivery time and offset of the last passed message."""
        self.saved = cursor
        self.scanned = cursor
        self.items: deque[Item] = deque()
        self.next_due = next_due
        """Earliest possible delivery time of the first message after `scanned`."""

    def forget(self) -> None:
        """Drop what was read ahead, because messages were removed."""
        self.items.clear()
        self.scanned, self.next_due = self.cursor, UNKNOWN

    def fill(self, connection: apsw.Connection, partition: Partition, now: int, lower: int, need: int) -> bool:
        """Read due messages ahead. False: the commit in progress may add a message that is due earlier."""
        bound = now if partition.coming is None else min(now, partition.coming - 1)
        while self.items and self.items[0].offset <= lower:
            self.take()
        while not self.items and self.next_due <= bound:
            limit = min(max(need, _AHEAD), _AHEAD_AT_MOST)
            text = scalar(connection, READ_DELAYED, partition.id, self.priority, *self.scanned, limit)
            rows = _decode(text)
            due = [item for item in rows if item.deliver_at <= bound]
            behind = [item.deliver_at for item in rows[len(due) :] if item.offset > lower]
            if behind:
                self.next_due = behind[0]
            elif len(rows) < limit:
                self.next_due = NEVER
            else:  # All rows after the due ones are below `lower`, so the lane is read again when they are due.
                self.next_due = UNKNOWN if len(due) == limit else rows[-1].deliver_at
            if due:
                self.scanned = (due[-1].deliver_at, due[-1].offset)
            self.items.extend(item for item in due if item.offset > lower)
            if not self.items:
                self.cursor = self.scanned
        return bool(self.items) or self.next_due > now or bound >= now

    def take(self) -> Item:
        """Pass the next message."""
        item = self.items.popleft()
        self.cursor = (item.deliver_at, item.offset) if self.items else self.scanned
        return item
