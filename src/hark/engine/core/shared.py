"""The position of a shared group: lanes, and the messages outstanding behind their cursors."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import apsw
import msgspec

from hark.clock import SECOND
from hark.engine.core.position import (
    NEVER,
    DelayedLane,
    Lease,
    LeasedMessage,
    PlainLane,
    Position,
    Readiness,
    Retry,
    Stored,
)
from hark.engine.core.store import DELETE_ROWS, for_each, run
from hark.ids import IdCodec

if TYPE_CHECKING:
    from hark.engine.core.state import Group, Partition
    from hark.engine.core.transaction import WriteTransaction

# Memory is ahead of the disk. Every claim moves lanes forward, and what it delivers is outstanding in memory only. A
# transaction that changes the position writes the cursors of the lanes as they are at that moment, and the outstanding
# messages behind them that are not stored yet. So after every commit each passed message is settled or stored as
# outstanding, and a message that is delivered and settled between two commits costs no row. A claim need not wait for a
# commit: it moves lanes and takes outstanding messages that are not leased, while a transaction settles or releases
# leased ones.

Turn = tuple[int, int, int]
"""The order of due outstanding messages: -priority, available at, offset."""


class Entry(msgspec.Struct, eq=False):
    """An outstanding message: passed by its lane and not settled."""

    offset: int
    priority: int
    created_at: int
    available_at: int
    attempts: int = 0
    error: str | None = None
    requeued: bool = False
    """A requeued dead letter, which is delivered before all others."""
    is_out: bool = False
    """Leased, or about to be delivered."""
    saved: bool = False
    """Whether it has a row."""
    lease: Lease | None = None
    transaction_id: str = ""
    schedule: tuple[int, ...] | None = None

    @property
    def turn(self) -> Turn:
        """Its order among due messages."""
        return -self.priority, self.available_at, self.offset

    def changed(self, attempts: int, available_at: int, error: str | None) -> Entry:
        """A copy with these changes, not leased."""
        return Entry(self.offset, self.priority, self.created_at, available_at, attempts, error, self.requeued)


class SharedPosition(Position):
    """A position of a shared group, with one lease for each message."""

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
        """The offset after which the group started."""
        self.plain: dict[int, PlainLane] = {0: PlainLane(0)}
        self.delayed: dict[int, DelayedLane] = {}
        self.entries: dict[int, Entry] = {}
        """Outstanding messages by offset."""
        self.leased: dict[str, Entry] = {}
        """Leased messages by transaction id."""
        self.by_lease: dict[Lease, dict[int, Entry]] = {}
        self.unsaved: dict[int, Entry] = {}
        """Outstanding messages without a row."""
        self.dropped: list[int] = []
        """Offsets of rows whose message was removed."""
        self.draft: SharedDraft | None = None
        self.fell_due = False
        """Whether a message became ready by the passing of time, which no hint has said."""
        self._requeued: list[Turn] = []
        self._ready: list[Turn] = []
        self._waiting: list[tuple[int, int]] = []

    @property
    def lower(self) -> int:
        """The last offset that the group does not receive."""
        return max(self.base, self.partition.floor)

    @property
    def lanes(self) -> list[PlainLane | DelayedLane]:
        """All lanes."""
        return [*self.plain.values(), *self.delayed.values()]

    # Readiness ---------------------------------------------------------------------------------------------

    def due_entries(self, now: int) -> tuple[Entry | None, Entry | None]:
        """The first ready requeued message, and the first ready message of the other outstanding ones."""
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
        """The times since which ready outstanding messages have been available."""
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
        """Make a passed message outstanding. It is delivered (again) when it is available."""
        self.entries[entry.offset] = entry
        entry.is_out = False
        heapq.heappush(self._waiting, (entry.available_at, entry.offset))

    def take(self, entry: Entry) -> None:
        """Take a message to deliver it: an outstanding one, or one that its lane just passed."""
        if entry.offset not in self.entries:
            self.entries[entry.offset] = self.unsaved[entry.offset] = entry
        entry.is_out = True

    def hold(self, entry: Entry, lease: Lease, transaction_id: str, schedule: tuple[int, ...] | None) -> None:
        """Put a message under a lease."""
        entry.lease, entry.transaction_id, entry.schedule = lease, transaction_id, schedule
        self.leased[transaction_id] = entry
        self.noted += 1
        self.group.in_flight += 1
        self.by_lease.setdefault(lease, {})[entry.offset] = entry

    def release(self, entry: Entry) -> None:
        """End the lease on a message."""
        lease = entry.lease
        if lease is None:
            return
        if self.leased.pop(entry.transaction_id, None) is not None:
            self.noted -= 1
            self.group.in_flight -= 1
        mine = self.by_lease.get(lease, {})
        mine.pop(entry.offset, None)
        if not mine:
            self.by_lease.pop(lease, None)
        entry.lease = None

    def drop(self, entry: Entry) -> None:
        """Remove a settled message."""
        self.release(entry)
        self.entries.pop(entry.offset, None)
        self.unsaved.pop(entry.offset, None)

    def readiness(self, now: int) -> Readiness:
        ready = [entry.priority for entry in self.due_entries(now) if entry is not None]
        waiting = self._waiting
        while waiting:  # A message that was removed or leased is not waited for.
            entry = self.entries.get(waiting[0][1])
            if entry is not None and not entry.is_out and entry.available_at == waiting[0][0]:
                break
            heapq.heappop(waiting)
        due = [waiting[0][0]] if waiting else []
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

    def count_ready(self, at_most: int) -> int:
        """The approximate number of ready messages, as far as memory knows, at least 1."""
        known = sum(len(lane.items) for lane in self.lanes)
        known += len(self._ready) + len(self._requeued)
        behind = self.partition.tail - self.plain[0].scanned if self.plain[0].more else 0
        return max(1, min(known + behind, at_most))

    def arrived(self, plain: dict[int, int], due: dict[int, int]) -> None:
        """Note pushed messages: the number of plain ones, and the first delivery time of delayed ones, by priority."""
        for priority in plain:
            self.plain.setdefault(priority, PlainLane(priority)).more = True
        for priority, deliver_at in due.items():
            late = self.delayed.setdefault(priority, DelayedLane(priority, next_due=deliver_at))
            late.next_due = min(late.next_due, deliver_at)
        first = self.plain[0]
        if not first.more:  # All pushed messages are in other lanes.
            first.scanned = self.partition.tail
            if not first.items:
                first.cursor = first.scanned

    # Leases ------------------------------------------------------------------------------------------------

    def refresh(self, now: int) -> bool:
        group, number = self.group, self.partition.id
        priority, due = self.readiness(now)
        if priority is not None:
            if group.each is not None and self.is_at_limit(now):
                return False
            group.make_ready(number, priority, lower=True)
            if due is not None:
                group.rise_at(number, due)
            else:
                group.rising.pop(number, None)
            return True
        group.rising.pop(number, None)
        if due is not None:
            group.wake_at(number, due)
        else:
            group.ready.pop(number, None)
            group.waking.pop(number, None)
        return False

    def find_leased(self, name: str, codec: IdCodec) -> LeasedMessage | None:
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
        entry = self.entries.get(offset)
        return None if entry is None else self._as_leased(entry)

    def leased_by(self, lease: Lease) -> list[LeasedMessage]:
        found = [self._as_leased(entry) for entry in self.by_lease.get(lease, {}).values()]
        return [leased for leased in found if leased is not None]

    def keeps(self, offset: int) -> bool:
        draft = self.draft  # Lanes find missing messages at delivery, so only outstanding ones matter.
        if draft is not None and (draft.voided or offset in draft.changes or offset in draft.added):
            return offset in draft.added or draft.changes.get(offset) is not SETTLED
        return offset in self.entries

    def live_offsets(self, lease: Lease) -> list[int]:
        return list(self.by_lease.get(lease, ()))

    def is_kept_by(self, lease: Lease) -> bool:
        return lease in self.by_lease

    def leases(self) -> set[Lease]:
        return set(self.by_lease)

    def retry_of(self, offset: int) -> Retry | None:
        entry = (self.draft.changes.get(offset) if self.draft is not None else None) or self.entries.get(offset)
        return None if entry is None else Retry(entry.attempts, entry.available_at, entry.error)

    def is_settled(self, message: Stored) -> bool:
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

    def start_draft(self, transaction: WriteTransaction | None = None) -> SharedDraft:
        if transaction is not None:
            transaction.shared[self] = None
        self.draft = SharedDraft(self, self.settled_at, self.base)
        return self.draft

    def publish(self, now: int) -> int:
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
        # If it is the earliest due time, a consumer must poll to learn it.
        return int(known.due is None or min(entry.available_at for entry in back) < known.due)

    def _take_over(self, offset: int, change: Entry | None) -> Entry | None:
        """Apply the change of one message. Returns it if it will be delivered again."""
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
"""The change of a message that the group settles."""


class SharedDraft(msgspec.Struct, eq=False):
    """The changes of the running transaction to a position of a shared group. For its methods see `Draft`."""

    _position: SharedPosition
    settled_at: int | None
    base: int
    voided: bool = False
    gone: set[str] = set()
    changes: dict[int, Entry | None] = {}
    """New state of outstanding messages, by offset."""
    added: dict[int, Entry] = {}
    """Requeued messages."""
    removes: bool = False
    """The transaction removes messages that a lane may be about to deliver."""

    @property
    def blocks(self) -> bool:
        return self.voided or self.removes  # What is settled is leased, so no claim can take it.

    def restart(self, base: int, entries: Sequence[Entry]) -> None:
        """Start again after an offset, with these outstanding messages."""
        self.voided = True
        self.base = base
        self.changes = {}
        self.added = {entry.offset: entry for entry in entries}

    def finish(self, offset: int) -> None:
        if self.added.pop(offset, None) is None:
            self.changes[offset] = SETTLED

    def wait(self, offset: int, retry: Retry) -> None:
        self.changes[offset] = self._position.entries[offset].changed(retry.attempts, retry.due, retry.error)

    def expire(self, lease: Lease, leased: Sequence[LeasedMessage]) -> Sequence[LeasedMessage]:  # noqa: ARG002  # for ordered groups
        return leased

    def give_back(self, lease: Lease, leased: Sequence[LeasedMessage]) -> None:  # noqa: ARG002  # for ordered groups
        for offset, *_ in leased:
            entry = self._position.entries[offset]
            self.changes[offset] = entry.changed(entry.attempts, entry.available_at, entry.error)

    def add_requeued(self, offset: int, priority: int, now: int) -> None:
        self.added[offset] = Entry(offset, priority, now, now, requeued=True)


_SAVE_SHARED_POSITIONS = """
insert into positions (grp, partition, cursor, settled_at, tokens, filled_at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 from json_each(?1) where true
on conflict (grp, partition) do update
set cursor = excluded.cursor, settled_at = excluded.settled_at, tokens = excluded.tokens,
    filled_at = excluded.filled_at
"""
_SAVE_LANES = """
insert or replace into lanes (grp, partition, priority, cursor, due, due_offset)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 from json_each(?1)
"""
_DELETE_OUTSTANDING = DELETE_ROWS.format(table="outstanding", key="offset")
_SAVE_OUTSTANDING = """
insert or replace into outstanding (grp, partition, offset, available_at, attempts, error, requeued)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6 from json_each(?1)
"""

Key = tuple[int, int]


class SharedRows:
    """The rows of positions that one transaction writes. They are collected under the lock and written without it."""

    def __init__(self, drafted: Iterable[SharedPosition]) -> None:
        self._positions: list[tuple[int, int, int, int | None, float | None, int]] = []
        self._lanes: list[tuple[int, int, int, int, int, int]] = []
        self._wiped: list[Key] = []
        self._gone: list[tuple[int, int, int]] = []
        self._outstanding: list[tuple[int, int, int, int, int, str | None, int]] = []
        self.latest_due = 0
        """The latest delivery time that a group has passed. No message may become due before it any more."""
        for position in drafted:
            self._note(position)

    def _note(self, position: SharedPosition) -> None:
        """Collect the rows of a position with its draft."""
        draft, key = position.draft, (position.group.id, position.partition.id)
        assert draft is not None
        self._positions.append((*key, draft.base, draft.settled_at, position.tokens, position.filled_at))
        if draft.voided:
            self._wiped.append(key)
        else:
            self._note_lanes(position, key)
            self._note_changes(position, draft, key)
            for entry in position.unsaved.values():
                if entry.offset not in draft.changes:
                    self._save(entry, key)
            position.unsaved.clear()
        for entry in draft.added.values():
            self._save(entry, key)

    def _note_lanes(self, position: SharedPosition, key: Key) -> None:
        for priority in position.plain.keys() | position.delayed.keys():
            plain, late = position.plain.get(priority), position.delayed.get(priority)
            if (plain is None or plain.cursor == plain.saved) and (late is None or late.cursor == late.saved):
                continue
            cursor, due = 0, (0, 0)
            if plain is not None:
                cursor = plain.saved = plain.cursor
            if late is not None:
                due = late.saved = late.cursor
            self._lanes.append((*key, priority, cursor, *due))
            self.latest_due = max(self.latest_due, due[0])

    def _note_changes(self, position: SharedPosition, draft: SharedDraft, key: Key) -> None:
        self._gone += [(*key, offset) for offset in position.dropped]
        position.dropped = []
        for offset, change in draft.changes.items():
            entry = position.entries.get(offset)
            if change is not SETTLED:
                self._save(change, key)
                if entry is not None:
                    entry.saved = True
            elif entry is not None and entry.saved:
                self._gone.append((*key, offset))

    def _save(self, entry: Entry, key: Key) -> None:
        entry.saved = True
        self._outstanding.append(
            (*key, entry.offset, entry.available_at, entry.attempts, entry.error, int(entry.requeued))
        )

    def write(self, connection: apsw.Connection) -> None:
        """Write the collected rows."""
        for_each(connection, _SAVE_SHARED_POSITIONS, self._positions)
        for key in self._wiped:
            run(connection, "delete from lanes where grp = ?1 and partition = ?2", *key)
            run(connection, "delete from outstanding where grp = ?1 and partition = ?2", *key)
        for_each(connection, _SAVE_LANES, self._lanes)
        for_each(connection, _DELETE_OUTSTANDING, self._gone)
        for_each(connection, _SAVE_OUTSTANDING, self._outstanding)
