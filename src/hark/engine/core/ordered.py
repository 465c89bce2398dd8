"""The position of an ordered group: a cursor, ranges settled beyond it, and one lease at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import apsw

from hark.engine.core.position import (
    NOTHING,
    AnyDraft,
    Lease,
    LeasedMessage,
    Overlay,
    Position,
    Readiness,
    Retry,
    Stored,
)
from hark.engine.core.store import Value, for_each, run
from hark.ids import IdCodec

if TYPE_CHECKING:
    from hark.engine.core.state import Group, Partition

MAX_RANGES = 10_000
"""Beyond so many ranges only the head of a partition is delivered (rule 13)."""


class Draft(AnyDraft):
    """A position of an ordered group as the running transaction leaves it."""

    __slots__ = (
        "_position",
        "changed_ranges",
        "cursor",
        "gone",
        "probe",
        "ranges",
        "released",
        "requeued",
        "retries",
        "wiped",
    )

    def __init__(self, position: OrderedPosition) -> None:
        super().__init__(position.settled_at)
        self._position = position
        self.cursor = position.cursor
        self.ranges = list(position.ranges)
        self.retries = Overlay(position.retries)
        self.requeued = Overlay(position.requeued)
        self.probe = position.probe
        self.released = False
        """The lease no longer blocks the partition."""
        self.gone: set[str] = set()
        """Transaction ids that are no longer held."""
        self.changed_ranges: set[int] = set(position.unsaved)
        """First offsets of ranges that were added, changed or removed."""
        self.wiped = False
        """Nothing that is stored about the position beyond its cursor counts any more."""

    def settle(self, first: int, last: int) -> None:
        """Mark offsets as done: the cursor moves over them when they continue it, else they are kept as a range."""
        ranges, changed = self.ranges, self.changed_ranges
        if first <= self.cursor + 1:
            if last <= self.cursor:
                return
            self.cursor = last
            while ranges and ranges[0][0] <= self.cursor + 1:
                changed.add(ranges[0][0])
                self.cursor = max(self.cursor, ranges[0][1])
                del ranges[0]
            if self.probe and self.cursor >= self.probe:
                self.probe = 0
            return
        at = bisect_right(ranges, (first, last))
        if at and ranges[at - 1][1] >= first - 1:
            at -= 1
            first = ranges[at][0]
        end = at
        while end < len(ranges) and ranges[end][0] <= last + 1:
            changed.add(ranges[end][0])
            last = max(last, ranges[end][1])
            end += 1
        changed.add(first)
        ranges[at:end] = [(first, last)]

    @property
    def blocks(self) -> bool:
        """See `AnyDraft.blocks`: whatever is handed out next depends on it."""
        return True

    def open_messages(self) -> int:
        """How many messages are not settled."""
        return sum(last - first + 1 for first, last in self._position.open_intervals())

    def finish(self, offset: int) -> None:
        """See `AnyDraft.finish`."""
        if self.requeued.pop(offset, None) is None:
            self.settle(offset, offset)
        self.retries.pop(offset, None)

    def retry_of(self, offset: int) -> Retry | None:
        """See `AnyDraft.retry_of`."""
        return self.retries.get(offset)

    def wait(self, offset: int, retry: Retry) -> None:
        """See `AnyDraft.wait`; the partition waits with it."""
        self.retries[offset] = retry

    def is_gone(self, leased: LeasedMessage) -> bool:
        """See `AnyDraft.is_gone`."""
        return leased[3] in self.gone

    def forget(self, leased: LeasedMessage) -> None:
        """See `AnyDraft.forget`."""
        self.gone.add(leased[3])

    def detach(self, lease: Lease) -> None:
        """See `AnyDraft.detach`."""
        self.released = self.released or self._position.lease is lease

    def is_free_of(self, lease: Lease) -> bool:
        """See `AnyDraft.is_free_of`: whether it blocks this partition no more."""
        return self.released or self._position.lease is not lease

    def expire(self, lease: Lease, leased: Sequence[LeasedMessage]) -> Sequence[LeasedMessage]:
        """See `AnyDraft.expire`: a batch costs nothing, but is looked through one by one (rule 16)."""
        self.gone.update(one[3] for one in leased)
        if self._position.lease is not lease or self.voided:
            return ()  # A failure or a retry gave the partition back before.
        self.released = True
        part = lease.parts[self._position]
        if part.handed <= 1:
            return leased
        if self.cursor < part.last:
            self.probe = max(self.probe, part.last)
        for offset, *_ in leased:
            # Requeued messages have offsets beyond all others, so these are marked one by one.
            if offset in self.requeued:
                self.requeued[offset] = True
        return ()

    def give_back(self, lease: Lease, leased: Sequence[LeasedMessage]) -> None:
        """See `AnyDraft.give_back`."""
        self.gone.update(one[3] for one in leased)
        self.detach(lease)

    def add_requeued(self, offset: int, priority: int, now: int) -> None:  # noqa: ARG002  # these order shared ones
        """See `AnyDraft.add_requeued`."""
        self.requeued[offset] = False
        self.settle(offset, offset)  # Delivered from the front, so not again where the cursor meets it.


class OrderedPosition(Position):
    """A place of an ordered group: one lease at a time on the whole partition."""

    __slots__ = (
        "_by_offset",
        "cursor",
        "draft",
        "lease",
        "leased",
        "probe",
        "ranges",
        "requeued",
        "retries",
        "unsaved",
    )

    def __init__(self, group: Group, partition: Partition) -> None:
        super().__init__(group, partition)
        self._by_offset: dict[int, LeasedMessage] = {}
        """What was held when somebody last asked by offset; may be out of date."""
        self.cursor = 0
        self.ranges: list[tuple[int, int]] = []
        self.retries: dict[int, Retry] = {}
        self.requeued: OrderedDict[int, bool] = OrderedDict()
        """Requeued messages in their order; True: of a batch whose lease ran out."""
        self.probe = 0
        self.lease: Lease | None = None
        self.leased: dict[str, LeasedMessage] = {}
        self.draft: Draft | None = None
        self.unsaved: set[int] = set()
        """First offsets of ranges that are not stored yet, because the position itself is not."""

    def begin(self, cursor: int, gaps: list[tuple[int, int]]) -> None:
        """Start where the group has not been before; where there is no message it is done already."""
        self.cursor = cursor
        draft = Draft(self)
        for first, last in gaps:
            draft.settle(first, last)
        self.cursor, self.ranges = draft.cursor, draft.ranges
        self.unsaved = {first for first, _ in self.ranges}

    @property
    def has_work(self) -> bool:
        """Whether something is unsettled, ready or not."""
        return self.cursor < self.partition.tail or bool(self.requeued)

    @property
    def is_probed(self) -> bool:
        """Whether messages are handed out one at a time, because of a batch whose lease ran out (rule 16)."""
        # A batch begins with what is in front, so if one of these was in it, the first was.
        return self.probe > self.cursor or next(iter(self.requeued.values()), False)

    @property
    def in_flight(self) -> int:
        """See `Position.in_flight`."""
        part = None if self.lease is None else self.lease.parts.get(self)
        return 0 if part is None else part.open

    @property
    def is_idle(self) -> bool:
        """See `Position.is_idle`."""
        return self.lease is None and not self.leased

    def readiness(self, now: int) -> Readiness:  # noqa: ARG002  # what waits is found when somebody looks at it
        """See `Position.readiness`."""
        return Readiness(0) if self.lease is None and self.has_work else NOTHING

    def new_draft(self) -> Draft:
        """See `Position.new_draft`."""
        self.draft = Draft(self)
        return self.draft

    def find_leased(self, name: str, codec: IdCodec) -> LeasedMessage | None:
        """See `Position.find_leased`."""
        leased = self.leased.get(name)
        if leased is not None:
            return self._seen(leased)
        offset = codec.offset_in(self.partition.prefix, self.partition.id, name) if self.leased else None
        return None if offset is None else self.leased_at(offset)

    def leased_at(self, offset: int) -> LeasedMessage | None:
        """See `Position.leased_at`."""
        leased = self._by_offset.get(offset)
        if leased is None or self.leased.get(leased[3]) is not leased:
            # Made once for a batch that is settled by ids, and not for what is settled by keys.
            self._by_offset = {one[0]: one for one in self.leased.values()}
            leased = self._by_offset.get(offset)
        return None if leased is None else self._seen(leased)

    def _seen(self, leased: LeasedMessage) -> LeasedMessage | None:
        draft = self.draft
        return None if draft is not None and (draft.voided or leased[3] in draft.gone) else leased

    def keeps(self, offset: int) -> bool:
        """See `Position.keeps`: all that is not settled, as the cursor has to get over it."""
        return not self._is_done(offset)

    def leased_by(self, lease: Lease) -> list[LeasedMessage]:
        """See `Position.leased_by`."""
        gone = () if self.draft is None else self.draft.gone
        return [leased for leased in self.leased.values() if leased[1] is lease and leased[3] not in gone]

    def live_offsets(self, lease: Lease) -> list[int]:
        """See `Position.live_offsets`."""
        return [leased[0] for leased in self.leased.values() if leased[1] is lease] if self.lease is lease else []

    def is_kept_by(self, lease: Lease) -> bool:
        """See `Position.is_kept_by`."""
        return self.lease is lease and any(leased[1] is lease for leased in self.leased.values())

    def leases(self) -> set[Lease]:
        """See `Position.leases`."""
        return {leased[1] for leased in self.leased.values()} | ({self.lease} if self.lease else set())

    def attempts_of(self, offset: int) -> int:
        """See `Position.attempts_of`."""
        retry = (self.draft or self).retries.get(offset)
        return 0 if retry is None else retry.attempts

    def is_settled(self, message: Stored) -> bool:
        """See `Position.is_settled`."""
        return self._is_done(message.offset)

    def _is_done(self, offset: int) -> bool:
        cursor, ranges, requeued = (
            (self.draft.cursor, self.draft.ranges, self.draft.requeued)
            if self.draft is not None
            else (self.cursor, self.ranges, self.requeued)
        )
        if offset in requeued:
            return False
        if offset <= cursor:
            return True
        at = bisect_right(ranges, (offset, 1 << 62))
        return at > 0 and ranges[at - 1][1] >= offset

    def rise_to(self, floor: int) -> None:
        """Leave what was removed from the partition behind."""
        self.cursor = max(self.cursor, floor)
        while self.ranges and self.ranges[0][0] <= self.cursor + 1:
            self.cursor = max(self.cursor, self.ranges.pop(0)[1])

    def open_intervals(self) -> Iterator[tuple[int, int]]:
        """Unsettled offsets in order of delivery, requeued ones first, as the running transaction sees them."""
        seen = self.draft or self
        for offset in seen.requeued:
            yield offset, offset
        start = max(seen.cursor, self.partition.floor) + 1
        for first, last in seen.ranges:
            if start < first:
                yield start, first - 1
            start = max(start, last + 1)
        if start <= self.partition.tail:
            yield start, self.partition.tail

    def intervals(self, need: int, after: int = 0) -> tuple[list[tuple[int, int]], int]:
        """What may be handed out behind an offset, as far as memory knows, and how much that is."""
        if self.cursor < self.partition.floor:
            self.rise_to(self.partition.floor)
        if self.is_probed or len(self.ranges) > MAX_RANGES:
            need = 1
        intervals: list[tuple[int, int]] = []
        planned = 0
        for first, last in self.open_intervals():
            if last <= after:
                continue
            first = max(first, after + 1)
            last = min(last, first + need - planned - 1)
            intervals.append((first, last))
            planned += last - first + 1
            if planned >= need:
                break
        return intervals, planned

    def publish(self, now: int) -> int:  # noqa: ARG002  # see `readiness`
        """See `Position.publish`."""
        draft = self.draft
        if draft is None:
            return 0
        self.draft = None
        self.cursor, self.ranges = draft.cursor, draft.ranges
        self.probe, self.settled_at = draft.probe, draft.settled_at
        draft.retries.publish()
        draft.requeued.publish()
        self.unsaved = set()
        if draft.voided:
            self.leased.clear()
        for transaction_id in draft.gone:
            self.leased.pop(transaction_id, None)
        if draft.released or draft.voided:
            self.lease = None
        return 0


_SAVE_POSITIONS = """
insert into positions (grp, partition, cursor, probe, settled_at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 from json_each(?1) where true
on conflict (grp, partition) do update
set cursor = excluded.cursor, probe = excluded.probe, settled_at = excluded.settled_at
"""
_DELETE_RANGES = """
delete from ranges where (grp, partition, first) in
    (select value ->> 0, value ->> 1, value ->> 2 from json_each(?1))
"""
_SAVE_RANGES = """
insert into ranges (grp, partition, first, last)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(?1)
"""
_DELETE_RETRIES = """
delete from retries where (grp, partition, offset) in
    (select value ->> 0, value ->> 1, value ->> 2 from json_each(?1))
"""
_SAVE_RETRIES = """
insert into retries (grp, partition, offset, attempts, due, error)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 from json_each(?1) where true
on conflict (grp, partition, offset) do update
set attempts = excluded.attempts, due = excluded.due, error = excluded.error
"""
_DELETE_REQUEUED = """
delete from requeued where (grp, partition, offset) in
    (select value ->> 0, value ->> 1, value ->> 2 from json_each(?1))
"""
_SAVE_REQUEUED = """
insert into requeued (grp, partition, offset, probe)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(?1) where true
on conflict (grp, partition, offset) do update set probe = excluded.probe
"""

Row = tuple[Value, ...]


def save_ordered(connection: apsw.Connection, changed: Iterable[OrderedPosition]) -> None:
    """Write the drafts of a transaction. Only it can change them, so this needs no lock."""
    positions: list[Row] = []
    gone: tuple[list[Row], list[Row], list[Row]] = ([], [], [])
    kept: tuple[list[Row], list[Row], list[Row]] = ([], [], [])
    for position in changed:
        draft, key = position.draft, (position.group.id, position.partition.id)
        assert draft is not None
        positions.append((*key, draft.cursor, draft.probe, draft.settled_at))
        if draft.wiped:
            for table in ("ranges", "retries", "requeued"):
                run(connection, f"delete from {table} where grp = ?1 and partition = ?2", *key)
        if draft.changed_ranges:
            gone[0].extend((*key, first) for first in draft.changed_ranges)
            kept[0].extend((*key, *pair) for pair in draft.ranges if pair[0] in draft.changed_ranges)
        gone[1].extend((*key, offset) for offset in draft.retries.gone)
        kept[1].extend(
            (*key, offset, retry.attempts, retry.due, retry.error) for offset, retry in draft.retries.changed.items()
        )
        gone[2].extend((*key, offset) for offset in draft.requeued.gone)
        kept[2].extend((*key, offset, int(probe)) for offset, probe in draft.requeued.changed.items())
    for_each(connection, _SAVE_POSITIONS, positions)
    statements = ((_DELETE_RANGES, _SAVE_RANGES), (_DELETE_RETRIES, _SAVE_RETRIES), (_DELETE_REQUEUED, _SAVE_REQUEUED))
    for (delete, save), old, new in zip(statements, gone, kept, strict=True):
        if old:
            for_each(connection, delete, old)
        if new:
            for_each(connection, save, new)
