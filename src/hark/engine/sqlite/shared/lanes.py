"""The lanes of a shared group in a partition: up to where it has passed the messages of one kind.

A lane is the messages of one priority, either the plain ones, in the order of their offsets, or those that were pushed
with a delay, in the order of their time of delivery. Up to its position all are passed: settled, or an exception. The
next few behind it are read ahead, without payloads. That can't be wrong later: new plain messages come behind all
others, and a delayed one that is not visible yet is due later than whatever was due when somebody looked (see
`Partition.coming`). Removed messages are found to be gone when they are handed out.
"""

from __future__ import annotations

from collections import deque

import apsw
import msgspec

from hark.engine.sqlite.state import Partition
from hark.engine.sqlite.store import scalar

NEVER = 1 << 62
"""Later than any time."""
UNKNOWN = 0
_AHEAD = 16
_AHEAD_AT_MOST = 512


class Item(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A message that nobody has passed yet."""

    offset: int
    created_at: int
    deliver_at: int
    """0: it is plain."""
    expires_at: int
    """The end of its own time to live, or 0."""


# Time and end of life of a message, of the lane that the condition describes, as one text.
_READ = """
select json_group_array(json_array(offset, created_at, ifnull(deliver_at, 0), expires_at)) from (
    select offset, created_at, deliver_at, iif(extra is null, 0, ifnull(extra ->> 'x', 0)) as expires_at
    from messages {lane} limit {limit})
"""
READ_FIRST = _READ.format(
    lane="indexed by messages_place where partition = ?1 and offset > ?2 and offset <= ?3"
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
        """What is at or below it is passed."""
        self.saved = cursor
        self.scanned = cursor
        """Up to where `items` has all that is not passed."""
        self.items: deque[Item] = deque()
        self.more = True
        """Whether there may be something behind `scanned`."""
        self._ahead = _AHEAD

    def arrived(self) -> None:
        """Messages for it were committed."""
        self.more = True

    def forget(self) -> None:
        """What was read ahead may be gone."""
        self.more = self.more or bool(self.items)
        if self.items:
            self.items.clear()
            self.scanned = self.cursor

    def fill(self, connection: apsw.Connection, partition: Partition, lower: int, need: int) -> None:
        """Read ahead, so that there is an item if there is one at all."""
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
    """Messages of one priority that were pushed with a delay."""

    __slots__ = ("cursor", "items", "next_due", "priority", "saved", "scanned")

    def __init__(self, priority: int, cursor: tuple[int, int] = (0, 0), next_due: int = UNKNOWN) -> None:
        self.priority = priority
        self.cursor = cursor
        """The time of delivery and offset up to which all are passed."""
        self.saved = cursor
        self.scanned = cursor
        self.items: deque[Item] = deque()
        self.next_due = next_due
        """When the first one behind `scanned` is due, or may be."""

    def arrived(self, deliver_at: int) -> None:
        """Messages for it were committed, the first of them due then."""
        self.next_due = min(self.next_due, deliver_at)

    def forget(self) -> None:
        """What was read ahead may be gone."""
        self.items.clear()
        self.scanned, self.next_due = self.cursor, UNKNOWN

    def fill(self, connection: apsw.Connection, partition: Partition, now: int, lower: int, need: int) -> bool:
        """Read ahead among what is due; False: something that is about to be committed may be due before."""
        bound = now if partition.coming is None else min(now, partition.coming - 1)
        while self.items and self.items[0].offset <= lower:
            self._pass()
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
            else:  # Behind these, or behind many that are not for the group: then it is looked at when they are due.
                self.next_due = UNKNOWN if len(due) == limit else rows[-1].deliver_at
            if due:
                self.scanned = (due[-1].deliver_at, due[-1].offset)
            self.items.extend(item for item in due if item.offset > lower)
            if not self.items:
                self.cursor = self.scanned
        return bool(self.items) or self.next_due > now or bound >= now

    def _pass(self) -> None:
        item = self.items.popleft()
        self.cursor = (item.deliver_at, item.offset) if self.items else self.scanned

    def take(self) -> Item:
        """Pass the next message."""
        item = self.items[0]
        self._pass()
        return item
