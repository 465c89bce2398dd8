"""A place of a shared group: lanes, and beside them the messages that it has passed and not settled.

Memory is ahead of the disk: lanes move on with every claim, and what claims hand out is an exception in memory alone. A
transaction that touches the place writes down how it stands at that moment: the positions of the lanes, and the
exceptions below them that are not stored yet. So at every commit what is passed is settled or a stored exception, and
what is handed out and settled between two commits costs no row. A claim need not wait for a commit: it moves lanes
forward and takes exceptions that nobody holds, a transaction settles or frees what is held.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from hark.clock import SECOND
from hark.engine.sqlite.shared.draft import SETTLED, SharedDraft
from hark.engine.sqlite.shared.entry import Entry
from hark.engine.sqlite.shared.lanes import NEVER, DelayedLane, PlainLane
from hark.engine.sqlite.track import AnyTrack, Held, Lease, Outlook, Stored
from hark.ids import IdCodec

if TYPE_CHECKING:
    from hark.engine.sqlite.state import Group, Partition

Turn = tuple[int, int, int]
"""The order of exceptions that are due: -priority, available at, offset."""


class SharedTrack(AnyTrack):
    """See the module's text."""

    __slots__ = (
        "_fronts",
        "_ready",
        "_waiting",
        "base",
        "by_lease",
        "delayed",
        "draft",
        "dropped",
        "entries",
        "fell_due",
        "held",
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
        self.held: dict[str, Entry] = {}
        """What is on leases, by transaction id."""
        self.by_lease: dict[Lease, dict[int, Entry]] = {}
        self.unsaved: dict[int, Entry] = {}
        """Exceptions that are not stored yet."""
        self.dropped: list[int] = []
        """Stored exceptions that turned out to be gone."""
        self.draft: SharedDraft | None = None
        self.fell_due = False
        """Whether something became ready by the passing of time, so that nobody was told of it."""
        self._fronts: list[Turn] = []
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
        """The first of the requeued messages that may be taken, and the first of the other exceptions."""
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
                heapq.heappush(self._fronts if entry.front else self._ready, entry.turn)
        return self._first(self._fronts), self._first(self._ready)

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
        self.held[transaction_id] = entry
        self.by_lease.setdefault(lease, {})[entry.offset] = entry

    def let_go(self, entry: Entry) -> None:
        """It is in nobody's hands any more."""
        lease = entry.lease
        if lease is None:
            return
        self.held.pop(entry.transaction_id, None)
        mine = self.by_lease.get(lease, {})
        mine.pop(entry.offset, None)
        if not mine:
            self.by_lease.pop(lease, None)
        entry.lease = None

    def drop(self, entry: Entry) -> None:
        """The group is done with a message."""
        self.let_go(entry)
        self.entries.pop(entry.offset, None)
        self.unsaved.pop(entry.offset, None)

    def outlook(self, now: int) -> Outlook:
        """See `AnyTrack.outlook`."""
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
        return Outlook(max(ready, default=None), min(due, default=None))

    def forget_ahead(self) -> None:
        """Messages were removed: what was read ahead is to be read again."""
        for lane in self.lanes:
            lane.forget()

    def count_ready(self, at_most: int) -> int:
        """About how many messages may be taken, as far as memory knows."""
        known = sum(len(lane.items) for lane in self.lanes)
        known += len(self._ready) + len(self._fronts)
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
        """See `AnyTrack.in_flight`."""
        return len(self.held)

    @property
    def is_idle(self) -> bool:
        """See `AnyTrack.is_idle`."""
        return not self.held

    def new_draft(self) -> SharedDraft:
        """See `AnyTrack.new_draft`."""
        self.draft = SharedDraft(self)
        return self.draft

    def find_held(self, name: str, codec: IdCodec) -> Held | None:
        """See `AnyTrack.find_held`."""
        entry = self.held.get(name)
        if entry is None and self.held:
            place = codec.decode(name)
            if place is not None and place.partition == self.partition.id:
                entry = self.entries.get(place.offset)
        return None if entry is None else self._as_held(entry)

    def _as_held(self, entry: Entry) -> Held | None:
        draft, lease = self.draft, entry.lease
        if lease is None or (draft is not None and (draft.voided or entry.offset in draft.changes)):
            return None
        return entry.offset, lease, entry.schedule, entry.transaction_id

    def held_at(self, offset: int) -> Held | None:
        """See `AnyTrack.held_at`."""
        entry = self.entries.get(offset)
        return None if entry is None else self._as_held(entry)

    def keeps(self, offset: int) -> bool:
        """See `AnyTrack.keeps`: exceptions; lanes find out by themselves."""
        draft = self.draft
        if draft is not None and (draft.voided or offset in draft.changes or offset in draft.added):
            return offset in draft.added or draft.changes.get(offset) is not SETTLED
        return offset in self.entries

    def held_by(self, lease: Lease) -> list[Held]:
        """See `AnyTrack.held_by`."""
        found = [self._as_held(entry) for entry in self.by_lease.get(lease, {}).values()]
        return [held for held in found if held is not None]

    def live_offsets(self, lease: Lease) -> list[int]:
        """See `AnyTrack.live_offsets`."""
        return list(self.by_lease.get(lease, ()))

    def is_kept_by(self, lease: Lease) -> bool:
        """See `AnyTrack.is_kept_by`."""
        return lease in self.by_lease

    def leases(self) -> set[Lease]:
        """See `AnyTrack.leases`."""
        return set(self.by_lease)

    def attempts_of(self, offset: int) -> int:
        """See `AnyTrack.attempts_of`."""
        retry = (self.draft or SharedDraft(self)).retry_of(offset)
        return 0 if retry is None else retry.attempts

    def is_settled(self, message: Stored) -> bool:
        """See `AnyTrack.is_settled`."""
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
        """See `AnyTrack.publish`."""
        draft, self.draft = self.draft, None
        if draft is None:
            return 0
        self.settled_at = draft.settled_at
        known = self.outlook(now)
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
        self.let_go(entry)
        entry.attempts, entry.available_at, entry.error = change.attempts, change.available_at, change.error
        self.add(entry)
        return entry
