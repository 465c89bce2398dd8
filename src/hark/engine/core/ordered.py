"""The position of an ordered group: a cursor, settled ranges beyond it, and one lease at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import apsw
import msgspec

from hark.engine.core.position import NOTHING, Lease, LeasedMessage, Position, Readiness, Retry, Stored
from hark.engine.core.store import DELETE_ROWS, Value, run
from hark.ids import IdCodec

if TYPE_CHECKING:
    from hark.engine.core.state import Group, Partition
    from hark.engine.core.transaction import WriteTransaction

V = TypeVar("V")
MAX_RANGES = 10_000
"""Number of ranges above which only the first unsettled message of a partition is delivered (rule 13)."""


class Overlay(msgspec.Struct, Generic[V], eq=False):
    """A table with the changes of the running transaction, in the order of the table; new entries come last."""

    _table: MutableMapping[int, V]
    changed: dict[int, V] = {}
    """New and changed entries."""
    gone: set[int] = set()
    """Removed entries of the table."""

    def get(self, key: int) -> V | None:
        if key in self.changed:
            return self.changed[key]
        return None if key in self.gone else self._table.get(key)

    def __contains__(self, key: int) -> bool:
        return key in self.changed or (key in self._table and key not in self.gone)

    def __setitem__(self, key: int, value: V) -> None:
        self.changed[key] = value
        self.gone.discard(key)

    def discard(self, key: int) -> bool:
        """Remove an entry. False if there is none."""
        was_changed = self.changed.pop(key, None) is not None
        if key in self._table and key not in self.gone:
            self.gone.add(key)
            return True
        return was_changed

    def clear(self) -> None:
        self.changed.clear()
        self.gone.update(self._table)

    def __iter__(self) -> Iterator[int]:
        yield from (key for key in self._table if key not in self.gone)
        yield from (key for key in self.changed if key not in self._table)

    def items(self) -> Iterator[tuple[int, V]]:
        return ((key, self.changed[key] if key in self.changed else self._table[key]) for key in self)

    def publish(self) -> None:
        """Change the table, after the commit."""
        for key in self.gone:
            del self._table[key]
        self._table.update(self.changed)


class Draft(msgspec.Struct, eq=False):
    """The changes of the running transaction to a position of an ordered group."""

    position: OrderedPosition
    settled_at: int | None
    cursor: int
    ranges: list[tuple[int, int]]
    retries: Overlay[Retry]
    requeued: Overlay[bool]
    probe: int
    changed_ranges: set[int]
    """First offsets of ranges that were added, changed or removed."""
    released: bool = False
    """The lease no longer blocks the partition."""
    voided: bool = False
    """All leases on the position are void."""
    wiped: bool = False
    """All stored rows of the position except its cursor are removed."""
    gone: set[str] = set()
    """Transaction ids of messages that are no longer leased. A second settlement of them has no effect."""

    @property
    def blocks(self) -> bool:
        """Whether nothing may be delivered before the commit: here the next delivery depends on what is settled."""
        return True

    def finish(self, first: int, last: int = 0) -> None:
        """Settle a message, or the offsets up to `last`. The cursor moves if they continue it, else they are kept."""
        # This runs for every settled message, and most positions have no requeued messages and no retries.
        position = self.position
        if position.retries or self.retries.changed:
            self.retries.discard(first)
        if (position.requeued or self.requeued.changed) and self.requeued.discard(first):
            return
        ranges, changed, last = self.ranges, self.changed_ranges, last or first
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

    def wait(self, offset: int, retry: Retry) -> None:
        """Schedule the next delivery of a leased message. The partition waits with it."""
        self.retries[offset] = retry

    def expire(self, lease: Lease, leased: Sequence[LeasedMessage]) -> Sequence[LeasedMessage]:
        """Expire a lease. Returns the messages that use an attempt.

        A batch uses none. Its messages are delivered one at a time from now on, to find the cause (rule 16).
        """
        self.gone.update(one[3] for one in leased)
        if self.position.lease is not lease or self.voided:
            return ()  # A failure or a retry released the partition before.
        self.released = True
        part = lease.parts[self.position]
        if part.handed <= 1:
            return leased
        if self.cursor < part.last:
            self.probe = max(self.probe, part.last)
        for offset, *_ in leased:
            # Requeued messages have higher offsets than all others, so each of them is marked.
            if offset in self.requeued:
                self.requeued[offset] = True
        return ()

    def give_back(self, lease: Lease, leased: Sequence[LeasedMessage]) -> None:
        """Release messages as if they had not been delivered."""
        self.gone.update(one[3] for one in leased)
        self.released = self.released or self.position.lease is lease

    def add_requeued(self, offset: int, priority: int, now: int) -> None:  # noqa: ARG002  # for shared groups
        """Add a requeued message in front of all others."""
        self.finish(offset)  # It is delivered first, so it must not be delivered again at its offset.
        self.requeued[offset] = False


class OrderedPosition(Position):
    """A position of an ordered group, with one lease at a time on the whole partition."""

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
        """Leased messages at the last lookup by offset; may be out of date."""
        self.cursor = 0
        self.ranges: list[tuple[int, int]] = []
        self.retries: dict[int, Retry] = {}
        self.requeued: OrderedDict[int, bool] = OrderedDict()
        """Requeued messages in their order; True: part of a batch whose lease expired."""
        self.probe = 0
        self.lease: Lease | None = None
        self.leased: dict[str, LeasedMessage] = {}
        self.draft: Draft | None = None
        self.unsaved: set[int] = set()
        """First offsets of ranges that are not stored yet, because the position is not stored."""

    def begin(self, cursor: int, gaps: list[tuple[int, int]]) -> None:
        """Start a new position. Offsets without a message count as settled."""
        self.cursor = cursor
        draft = self.start_draft()
        for first, last in gaps:
            draft.finish(first, last)
        self.cursor, self.ranges, self.draft = draft.cursor, draft.ranges, None
        self.unsaved = {first for first, _ in self.ranges}

    def start_draft(self, transaction: WriteTransaction | None = None) -> Draft:
        if transaction is not None:
            transaction.ordered[self] = None
        retries, requeued = Overlay(self.retries), Overlay(self.requeued)
        self.draft = Draft(
            self, self.settled_at, self.cursor, list(self.ranges), retries, requeued, self.probe, set(self.unsaved)
        )
        return self.draft

    @property
    def is_probed(self) -> bool:
        """Whether messages are delivered one at a time, because the lease of a batch expired (rule 16)."""
        # A batch starts with the first requeued messages, so the first of them is marked if any is.
        return self.probe > self.cursor or next(iter(self.requeued.values()), False)

    def refresh(self, now: int) -> bool:
        part = None if self.lease is None else self.lease.parts.get(self)
        in_flight = 0 if part is None else part.open
        self.group.in_flight += in_flight - self.noted
        self.noted = in_flight
        if self.readiness(now).priority is None:
            self.group.ready.pop(self.partition.id, None)
            self.group.waking.pop(self.partition.id, None)
            return False
        if self.group.each is not None and self.is_at_limit(now):
            return False
        self.group.make_ready(self.partition.id, lower=True)
        return True

    def readiness(self, now: int) -> Readiness:  # noqa: ARG002  # messages that are not due are found by a claim
        is_ready = self.lease is None and (self.cursor < self.partition.tail or self.requeued)
        return Readiness(0) if is_ready else NOTHING

    def find_leased(self, name: str, codec: IdCodec) -> LeasedMessage | None:
        leased = self.leased.get(name)
        if leased is None:
            offset = codec.offset_in(self.partition.prefix, self.partition.id, name) if self.leased else None
            return None if offset is None else self.leased_at(offset)
        draft = self.draft
        return None if draft is not None and (draft.voided or leased[3] in draft.gone) else leased

    def leased_at(self, offset: int) -> LeasedMessage | None:
        leased, draft = self._by_offset.get(offset), self.draft
        if leased is None or self.leased.get(leased[3]) is not leased:
            # Built once for a batch that is settled by message ids; never for one that is settled by transaction ids.
            self._by_offset = {one[0]: one for one in self.leased.values()}
            leased = self._by_offset.get(offset)
        return None if leased is None or (draft is not None and (draft.voided or leased[3] in draft.gone)) else leased

    def keeps(self, offset: int) -> bool:
        return not self._is_done(offset)  # The cursor must pass the offset.

    def leased_by(self, lease: Lease) -> list[LeasedMessage]:
        gone = () if self.draft is None else self.draft.gone
        return [leased for leased in self.leased.values() if leased[1] is lease and leased[3] not in gone]

    def live_offsets(self, lease: Lease) -> list[int]:
        return [leased[0] for leased in self.leased.values() if leased[1] is lease] if self.lease is lease else []

    def is_kept_by(self, lease: Lease) -> bool:
        return self.lease is lease and any(leased[1] is lease for leased in self.leased.values())

    def leases(self) -> set[Lease]:
        return {leased[1] for leased in self.leased.values()} | ({self.lease} if self.lease else set())

    def retry_of(self, offset: int) -> Retry | None:
        return (self.draft or self).retries.get(offset)

    def is_settled(self, message: Stored) -> bool:
        return self._is_done(message.offset)

    def _is_done(self, offset: int) -> bool:
        seen = self.draft or self
        if offset in seen.requeued:
            return False
        if offset <= seen.cursor:
            return True
        at = bisect_right(seen.ranges, (offset, 1 << 62))
        return at > 0 and seen.ranges[at - 1][1] >= offset

    def rise_to(self, floor: int) -> None:
        """Move the cursor over removed messages at the start of the partition."""
        self.cursor = max(self.cursor, floor)
        while self.ranges and self.ranges[0][0] <= self.cursor + 1:
            self.cursor = max(self.cursor, self.ranges.pop(0)[1])

    def open_intervals(self) -> Iterator[tuple[int, int]]:
        """Unsettled offsets in the order of delivery, requeued ones first, in the running transaction."""
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
        """Offsets after `after` that may be deliverable, as far as memory knows, and their number."""
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
        draft, self.draft = self.draft, None
        if draft is None:
            return 0
        self.cursor, self.ranges = draft.cursor, draft.ranges
        self.probe, self.settled_at = draft.probe, draft.settled_at
        for overlay in (draft.retries, draft.requeued):
            if overlay.changed or overlay.gone:
                overlay.publish()
        self.unsaved = set()
        if draft.voided:
            self.leased.clear()
        for transaction_id in draft.gone:
            self.leased.pop(transaction_id, None)
        if draft.released or draft.voided:
            self.lease = None
        return 0


_SAVE_POSITIONS = """
insert into positions (grp, partition, cursor, probe, settled_at, tokens, filled_at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6
from json_each(?1) where true
on conflict (grp, partition) do update
set cursor = excluded.cursor, probe = excluded.probe, settled_at = excluded.settled_at, tokens = excluded.tokens,
    filled_at = excluded.filled_at
"""
_DELETE_RANGES = DELETE_ROWS.format(table="ranges", key="first")
_SAVE_RANGES = """
insert into ranges (grp, partition, first, last)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(?1)
"""
_DELETE_RETRIES = DELETE_ROWS.format(table="retries", key="offset")
_SAVE_RETRIES = """
insert into retries (grp, partition, offset, attempts, due, error)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 from json_each(?1) where true
on conflict (grp, partition, offset) do update
set attempts = excluded.attempts, due = excluded.due, error = excluded.error
"""
_DELETE_REQUEUED = DELETE_ROWS.format(table="requeued", key="offset")
_SAVE_REQUEUED = """
insert into requeued (grp, partition, offset, probe)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(?1) where true
on conflict (grp, partition, offset) do update set probe = excluded.probe
"""

Row = tuple[Value, ...]


def save_ordered(connection: apsw.Connection, changed: Iterable[OrderedPosition]) -> None:
    """Write the drafts of a transaction. No other thread changes them, so this needs no lock."""
    positions: list[Row] = []
    ranges: list[Row] = []
    old_ranges: list[Row] = []
    retries: list[Row] = []
    old_retries: list[Row] = []
    requeued: list[Row] = []
    old_requeued: list[Row] = []
    for position in changed:
        draft, key = position.draft, (position.group.id, position.partition.id)
        assert draft is not None
        tokens = (position.tokens, position.filled_at)
        positions.append((*key, draft.cursor, draft.probe, draft.settled_at, *tokens))
        if draft.wiped:
            for table in ("ranges", "retries", "requeued"):
                run(connection, f"delete from {table} where grp = ?1 and partition = ?2", *key)
        if draft.changed_ranges:
            old_ranges += ((*key, first) for first in draft.changed_ranges)
            ranges += ((*key, *pair) for pair in draft.ranges if pair[0] in draft.changed_ranges)
        old_retries += ((*key, offset) for offset in draft.retries.gone)
        retries += ((*key, offset, *retry) for offset, retry in draft.retries.changed.items())
        old_requeued += ((*key, offset) for offset in draft.requeued.gone)
        requeued += ((*key, offset, int(probe)) for offset, probe in draft.requeued.changed.items())
    for sql, rows in (
        (_SAVE_POSITIONS, positions),
        (_DELETE_RANGES, old_ranges),
        (_SAVE_RANGES, ranges),
        (_DELETE_RETRIES, old_retries),
        (_SAVE_RETRIES, retries),
        (_DELETE_REQUEUED, old_requeued),
        (_SAVE_REQUEUED, requeued),
    ):
        if rows:
            connection.execute(sql, (msgspec.json.encode(rows).decode(),))
