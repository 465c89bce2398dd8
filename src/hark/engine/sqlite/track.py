"""A group's place in a partition, what is leased of it, and how a transaction changes it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hark.engine.sqlite.state import Group, Partition

MAX_RANGES = 10_000
"""Beyond so many ranges only the head of a partition is delivered (rule 13)."""


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

    __slots__ = ("expires_at", "id", "parts")

    def __init__(self, lease_id: str, expires_at: int) -> None:
        self.id = lease_id
        self.expires_at = expires_at
        self.parts: dict[Track, Part] = {}


Held = tuple[int, Lease, "tuple[int, ...] | None"]
"""Under what a message was last delivered: its offset, the lease, and the message's own retry schedule."""


class Draft:
    """A track as the running transaction leaves it."""

    __slots__ = (
        "cursor",
        "front",
        "gone",
        "probe",
        "ranges",
        "released",
        "retries",
        "settled_at",
        "touched_ranges",
        "voided",
        "wiped",
    )

    def __init__(self, track: Track) -> None:
        self.cursor = track.cursor
        self.ranges = list(track.ranges)
        self.retries = dict(track.retries)
        self.front = list(track.front)
        self.probe = track.probe
        self.settled_at = track.settled_at
        self.released = False
        """The lease no longer blocks the partition."""
        self.gone: set[str] = set()
        """Transaction ids that are no longer held."""
        self.voided = False
        """All leases on the track are void."""
        self.touched_ranges: set[int] = set(track.unsaved)
        """First offsets of ranges that were added, changed or removed."""
        self.wiped = False
        """Nothing that is stored about the track beyond its cursor counts any more."""

    def settle(self, first: int, last: int) -> None:
        """Mark offsets as done: the cursor moves over them when they continue it, else they are kept as a range."""
        ranges, touched = self.ranges, self.touched_ranges
        if first <= self.cursor + 1:
            if last <= self.cursor:
                return
            self.cursor = last
            while ranges and ranges[0][0] <= self.cursor + 1:
                touched.add(ranges[0][0])
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
            touched.add(ranges[end][0])
            last = max(last, ranges[end][1])
            end += 1
        touched.add(first)
        ranges[at:end] = [(first, last)]


class Track:
    """A group's place in a partition."""

    __slots__ = (
        "cursor",
        "draft",
        "front",
        "group",
        "held",
        "lease",
        "partition",
        "probe",
        "ranges",
        "retries",
        "served",
        "settled_at",
        "unsaved",
    )

    def __init__(self, group: Group, partition: Partition) -> None:
        self.group = group
        self.partition = partition
        self.cursor = 0
        self.ranges: list[tuple[int, int]] = []
        self.retries: dict[int, Retry] = {}
        self.front: list[int] = []
        self.probe = 0
        self.settled_at: int | None = None
        self.lease: Lease | None = None
        self.held: dict[str, Held] = {}
        self.served = 0
        self.draft: Draft | None = None
        self.unsaved: set[int] = set()
        """First offsets of ranges that are not stored yet, because the track itself is not."""

    def begin(self, cursor: int, holes: list[int]) -> None:
        """Start where the group has not been before; where there is no message it is done already."""
        self.cursor = cursor
        draft = Draft(self)
        for offset in holes:
            draft.settle(offset, offset)
        self.cursor, self.ranges = draft.cursor, draft.ranges
        self.unsaved = {first for first, _ in self.ranges}

    @property
    def has_work(self) -> bool:
        """Whether something is unsettled, ready or not."""
        return self.cursor < self.partition.tail or bool(self.front)

    def is_settled(self, offset: int) -> bool:
        """Whether the group is done with an offset, as the running transaction sees it."""
        cursor, ranges, front = (
            (self.draft.cursor, self.draft.ranges, self.draft.front)
            if self.draft is not None
            else (self.cursor, self.ranges, self.front)
        )
        if offset in front:
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
        for offset in seen.front:
            yield offset, offset
        position = max(seen.cursor, self.partition.floor) + 1
        for first, last in seen.ranges:
            if position < first:
                yield position, first - 1
            position = max(position, last + 1)
        if position <= self.partition.tail:
            yield position, self.partition.tail

    def publish(self) -> None:
        """The transaction is committed: take over its draft."""
        draft = self.draft
        if draft is None:
            return
        self.draft = None
        self.cursor, self.ranges, self.retries = draft.cursor, draft.ranges, draft.retries
        self.front, self.probe, self.settled_at = draft.front, draft.probe, draft.settled_at
        self.unsaved = set()
        if draft.voided:
            self.held.clear()
        for transaction_id in draft.gone:
            self.held.pop(transaction_id, None)
        if draft.released or draft.voided:
            self.lease = None
