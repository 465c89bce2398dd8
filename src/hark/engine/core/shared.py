"""The position of a shared group: lanes, and messages outstanding beside them."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import apsw
import msgspec

from hark.clock import SECOND
from hark.engine.core.position import AnyDraft, Lease, LeasedMessage, Position, Readiness, Retry, Stored
from hark.engine.core.state import Partition
from hark.engine.core.store import scalar
from hark.ids import IdCodec

if TYPE_CHECKING:
    from hark.engine.core.state import Group


class Entry(msgspec.Struct, eq=False):
    """An exception beside the lanes."""

    offset: int
    priority: int
    created_at: int
    available_at: int
    attempts: int = 0
    error: str | None = None
    requeued: bool = False
    """A requeued dead letter: before all others."""
    is_out: bool = False
    """Held, or on its way to a consumer."""
    saved: bool = False
    """Whether there is a row for it."""
    lease: Lease | None = None
    transaction_id: str = ""
    schedule: tuple[int, ...] | None = None

    @property
    def turn(self) -> tuple[int, int, int]:
        """Its place among those that are due."""
        return -self.priority, self.available_at, self.offset

    def changed(self, attempts: int, available_at: int, error: str | None) -> Entry:
        """A copy that says how it will be."""
        return Entry(self.offset, self.priority, self.created_at, available_at, attempts, error, self.requeued)


# A lane is the messages of one priority, either the plain ones, in the order of their offsets, or those that were
# pushed
# with a delay, in the order of their time of delivery. Up to its position all are passed: settled, or an exception.
# The
# next few behind it are read ahead, without payloads. That can't be wrong later: new plain messages come behind all
# others, and a delayed one that is not visible yet is due later than whatever was due when somebody looked (see
# `Partition.coming`). Removed messages are found to be gone when they are handed out.


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


# Memory is ahead of the disk: lanes move on with every claim, and what claims hand out is an exception in memory
# alone. A
# transaction that touches the place writes down how it stands at that moment: the positions of the lanes, and the
# outstanding below them that are not stored yet. So at every commit what is passed is settled or a stored exception,
# and
# what is handed out and settled between two commits costs no row. A claim need not wait for a commit: it moves lanes
# forward and takes outstanding that nobody holds, a transaction settles or frees what is held.


Turn = tuple[int, int, int]
"""The order of outstanding that are due: -priority, available at, offset."""


class SharedPosition(Position):
    """See the module's text."""

    __slots__ = (
        "_ready",
        "_requeued",
        "_waiting",
        "base",
        "by_lease",
        "delayed",
        "draft",
        "dropped",
        "entries",
        "fell_due",
        "leased",
        "plain",
        "unsaved",
    )

    def __init__(self, group: Group, partition: Partition, base: int) -> None:
        super().__init__(group, partition)
        self.base = base
        """Where it began: what is at or below it does not exist for the group."""
        self.plain: dict[int, PlainLane] = {0: PlainLane(0)}
        self.delayed: dict[int, DelayedLane] = {}
        self.entries: dict[int, Entry] = {}
        """Exceptions by offset: held, to come again, or just being handed out."""
        self.leased: dict[str, Entry] = {}
        """What is on leases, by transaction id."""
        self.by_lease: dict[Lease, dict[int, Entry]] = {}
        self.unsaved: dict[int, Entry] = {}
        """Exceptions that are not stored yet."""
        self.dropped: list[int] = []
        """Stored outstanding that turned out to be gone."""
        self.draft: SharedDraft | None = None
        self.fell_due = False
        """Whether something became ready by the passing of time, so that nobody was told of it."""
        self._requeued: list[Turn] = []
        self._ready: list[Turn] = []
        self._waiting: list[tuple[int, int]] = []

    @property
    def lower(self) -> int:
        """What is at or below this offset is not for the group."""
        return max(self.base, self.partition.floor)

    @property
    def lanes(self) -> list[PlainLane | DelayedLane]:
        """All lanes."""
        return [*self.plain.values(), *self.delayed.values()]

    # What may be taken -------------------------------------------------------------------------------------

    def due_entries(self, now: int) -> tuple[Entry | None, Entry | None]:
        """The first of the requeued messages that may be taken, and the first of the other outstanding."""
        delay = self.partition.queue.info.options.delayed_processing * SECOND
        while self._waiting and self._waiting[0][0] <= now:
            due, offset = heapq.heappop(self._waiting)
            entry = self.entries.get(offset)
            if entry is None or entry.is_out or entry.available_at != due:
                continue
            if delay and entry.created_at + delay > now:
                entry.available_at = entry.created_at + delay
                heapq.heappush(self._waiting, (entry.available_at, offset))
            else:
                self.fell_due = True
                heapq.heappush(self._requeued if entry.requeued else self._ready, entry.turn)
        return self._first(self._requeued), self._first(self._ready)

    def due_since(self, now: int) -> list[int]:
        """When those outstanding became available that may be taken."""
        self.due_entries(now)
        found = ((turn, self.entries.get(turn[2])) for turn in (*self._requeued, *self._ready))
        return [turn[1] for turn, entry in found if entry is not None and not entry.is_out and entry.turn == turn]

    def _first(self, heap: list[Turn]) -> Entry | None:
        while heap:
            entry = self.entries.get(heap[0][2])
            if entry is not None and not entry.is_out and entry.turn == heap[0] and entry.offset > self.partition.floor:
                return entry
            heapq.heappop(heap)
        return None

    def add(self, entry: Entry) -> None:
        """Passed and not settled: it comes (again) when it is available."""
        self.entries[entry.offset] = entry
        entry.is_out = False
        heapq.heappush(self._waiting, (entry.available_at, entry.offset))

    def take(self, entry: Entry) -> None:
        """An exception is being handed out, or a message of a lane that becomes one by that."""
        if entry.offset not in self.entries:
            self.entries[entry.offset] = self.unsaved[entry.offset] = entry
        entry.is_out = True

    def hold(self, entry: Entry, lease: Lease, transaction_id: str, schedule: tuple[int, ...] | None) -> None:
        """It is in the hands of a consumer."""
        entry.lease, entry.transaction_id, entry.schedule = lease, transaction_id, schedule
        self.leased[transaction_id] = entry
        self.by_lease.setdefault(lease, {})[entry.offset] = entry

    def release(self, entry: Entry) -> None:
        """It is in nobody's hands any more."""
        lease = entry.lease
        if lease is None:
            return
        self.leased.pop(entry.transaction_id, None)
        mine = self.by_lease.get(lease, {})
        mine.pop(entry.offset, None)
        if not mine:
            self.by_lease.pop(lease, None)
        entry.lease = None

    def drop(self, entry: Entry) -> None:
        """The group is done with a message."""
        self.release(entry)
        self.entries.pop(entry.offset, None)
        self.unsaved.pop(entry.offset, None)

    def readiness(self, now: int) -> Readiness:
        """See `Position.readiness`."""
        ready = [entry.priority for entry in self.due_entries(now) if entry is not None]
        due = [self._waiting[0][0]] if self._waiting else []
        delay = self.partition.queue.info.options.delayed_processing * SECOND
        for lane in self.plain.values():
            if delay and lane.items and lane.items[0].created_at + delay > now:
                due.append(lane.items[0].created_at + delay)
            elif lane.items or lane.more:
                ready.append(lane.priority)
        for late in self.delayed.values():
            if late.items or late.next_due <= now:
                ready.append(late.priority)
            elif late.next_due < NEVER:
                due.append(late.next_due)
        return Readiness(max(ready, default=None), min(due, default=None))

    def forget_ahead(self) -> None:
        """Messages were removed: what was read ahead is to be read again."""
        for lane in self.lanes:
            lane.forget()

    def count_ready(self, at_most: int) -> int:
        """About how many messages may be taken, as far as memory knows."""
        known = sum(len(lane.items) for lane in self.lanes)
        known += len(self._ready) + len(self._requeued)
        behind = self.partition.tail - self.plain[0].scanned if self.plain[0].more else 0
        return max(1, min(known + behind, at_most))

    def arrived(self, plain: dict[int, int], due: dict[int, int]) -> None:
        """Messages were committed: how many plain ones of each priority, and when the first delayed ones are due."""
        for priority in plain:
            self.plain.setdefault(priority, PlainLane(priority)).arrived()
        for priority, deliver_at in due.items():
            if priority in self.delayed:
                self.delayed[priority].arrived(deliver_at)
            else:
                self.delayed[priority] = DelayedLane(priority, next_due=deliver_at)
        first = self.plain[0]
        if not first.more:  # All that came is of other lanes.
            first.scanned = self.partition.tail
            if not first.items:
                first.cursor = first.scanned

    # What is held ------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """See `Position.in_flight`."""
        return len(self.leased)

    @property
    def is_idle(self) -> bool:
        """See `Position.is_idle`."""
        return not self.leased

    def new_draft(self) -> SharedDraft:
        """See `Position.new_draft`."""
        self.draft = SharedDraft(self)
        return self.draft

    def find_leased(self, name: str, codec: IdCodec) -> LeasedMessage | None:
        """See `Position.find_leased`."""
        entry = self.leased.get(name)
        if entry is None and self.leased:
            address = codec.decode(name)
            if address is not None and address.partition == self.partition.id:
                entry = self.entries.get(address.offset)
        return None if entry is None else self._as_leased(entry)

    def _as_leased(self, entry: Entry) -> LeasedMessage | None:
        draft, lease = self.draft, entry.lease
        if lease is None or (draft is not None and (draft.voided or entry.offset in draft.changes)):
            return None
        return entry.offset, lease, entry.schedule, entry.transaction_id

    def leased_at(self, offset: int) -> LeasedMessage | None:
        """See `Position.leased_at`."""
        entry = self.entries.get(offset)
        return None if entry is None else self._as_leased(entry)

    def keeps(self, offset: int) -> bool:
        """See `Position.keeps`: outstanding; lanes find out by themselves."""
        draft = self.draft
        if draft is not None and (draft.voided or offset in draft.changes or offset in draft.added):
            return offset in draft.added or draft.changes.get(offset) is not SETTLED
        return offset in self.entries

    def leased_by(self, lease: Lease) -> list[LeasedMessage]:
        """See `Position.leased_by`."""
        found = [self._as_leased(entry) for entry in self.by_lease.get(lease, {}).values()]
        return [leased for leased in found if leased is not None]

    def live_offsets(self, lease: Lease) -> list[int]:
        """See `Position.live_offsets`."""
        return list(self.by_lease.get(lease, ()))

    def is_kept_by(self, lease: Lease) -> bool:
        """See `Position.is_kept_by`."""
        return lease in self.by_lease

    def leases(self) -> set[Lease]:
        """See `Position.leases`."""
        return set(self.by_lease)

    def attempts_of(self, offset: int) -> int:
        """See `Position.attempts_of`."""
        retry = (self.draft or SharedDraft(self)).retry_of(offset)
        return 0 if retry is None else retry.attempts

    def is_settled(self, message: Stored) -> bool:
        """See `Position.is_settled`."""
        offset, draft = message.offset, self.draft
        if draft is not None:
            if draft.voided or offset in draft.added:
                return offset <= draft.base and offset not in draft.added
            if offset in draft.changes:
                return draft.changes[offset] is SETTLED
        if offset in self.entries:
            return False
        if offset <= self.lower or message.owner is not None:
            return True
        if message.deliver_at is None:
            plain = self.plain.get(message.priority)
            return plain is not None and offset <= plain.cursor
        late = self.delayed.get(message.priority)
        return late is not None and (message.deliver_at, offset) <= late.cursor

    # Commits -----------------------------------------------------------------------------------------------

    def publish(self, now: int) -> int:
        """See `Position.publish`."""
        draft, self.draft = self.draft, None
        if draft is None:
            return 0
        self.settled_at = draft.settled_at
        known = self.readiness(now)
        back = [entry for entry in (self._take_over(*change) for change in draft.changes.items()) if entry is not None]
        for entry in draft.added.values():
            back.append(entry)
            self.add(entry)
        ready = sum(entry.available_at <= now for entry in back)
        if ready or not back or known.priority is not None:
            return ready
        # Somebody has to look and learn the time, if it is the earliest.
        return int(known.due is None or min(entry.available_at for entry in back) < known.due)

    def _take_over(self, offset: int, change: Entry | None) -> Entry | None:
        """What the transaction made of a message; the answer is what comes again."""
        entry = self.entries.get(offset)
        if entry is None:
            return None
        if change is SETTLED:
            self.drop(entry)
            return None
        self.release(entry)
        entry.attempts, entry.available_at, entry.error = change.attempts, change.available_at, change.error
        self.add(entry)
        return entry


SETTLED = None
"""What becomes of an exception that the group is done with."""


class SharedDraft(AnyDraft):
    """A place of a shared group as the running transaction leaves it."""

    __slots__ = ("_position", "added", "base", "changes", "removes")

    def __init__(self, position: SharedPosition) -> None:
        super().__init__(position.settled_at)
        self._position = position
        self.base = position.base
        self.changes: dict[int, Entry | None] = {}
        """What becomes of outstanding, by offset."""
        self.added: dict[int, Entry] = {}
        """New outstanding: requeued messages."""
        self.removes = False
        """Messages that lanes may be at are being removed."""

    @property
    def blocks(self) -> bool:
        """See `AnyDraft.blocks`: what it settles is in somebody's hands, but what it removes may be the next."""
        return self.voided or self.removes

    def restart(self, base: int, entries: Sequence[Entry]) -> None:
        """Begin anew behind an offset, with these outstanding."""
        self.voided = True
        self.base = base
        self.changes = {}
        self.added = {entry.offset: entry for entry in entries}

    @property
    def settled(self) -> int:
        """How many messages it settles."""
        return sum(change is SETTLED for change in self.changes.values())

    def finish(self, offset: int) -> None:
        """See `AnyDraft.finish`."""
        if self.added.pop(offset, None) is None:
            self.changes[offset] = SETTLED

    def retry_of(self, offset: int) -> Retry | None:
        """See `AnyDraft.retry_of`."""
        entry = self.changes.get(offset) or self._position.entries.get(offset)
        return None if entry is None else Retry(entry.attempts, entry.available_at, entry.error)

    def wait(self, offset: int, retry: Retry) -> None:
        """See `AnyDraft.wait`."""
        self.changes[offset] = self._position.entries[offset].changed(retry.attempts, retry.due, retry.error)

    def is_gone(self, leased: LeasedMessage) -> bool:
        """See `AnyDraft.is_gone`."""
        return leased[0] in self.changes

    def forget(self, leased: LeasedMessage) -> None:
        """See `AnyDraft.forget`: every change says that already."""

    def detach(self, lease: Lease) -> None:
        """See `AnyDraft.detach`: nobody waited for it."""

    def is_free_of(self, lease: Lease) -> bool:
        """See `AnyDraft.is_free_of`: whether it was the last message, here and elsewhere."""
        return all(part.open <= 0 for part in lease.parts.values())

    def expire(self, lease: Lease, leased: Sequence[LeasedMessage]) -> Sequence[LeasedMessage]:  # noqa: ARG002  # each by itself
        """See `AnyDraft.expire`: each message pays."""
        return leased

    def give_back(self, lease: Lease, leased: Sequence[LeasedMessage]) -> None:  # noqa: ARG002  # each by itself
        """See `AnyDraft.give_back`."""
        for offset, *_ in leased:
            entry = self._position.entries[offset]
            self.changes[offset] = entry.changed(entry.attempts, entry.available_at, entry.error)

    def add_requeued(self, offset: int, priority: int, now: int) -> None:
        """See `AnyDraft.add_requeued`."""
        entry = self.added[offset] = Entry(offset, priority, now, now)
        entry.requeued = True
