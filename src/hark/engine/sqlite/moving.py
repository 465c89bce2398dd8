"""Places of groups that are set anew: by a seek, or because all that is open is to be settled."""

from __future__ import annotations

from hark.engine.sqlite.ordered import Draft
from hark.engine.sqlite.shared.draft import SharedDraft
from hark.engine.sqlite.shared.entry import Entry
from hark.engine.sqlite.sql import SHARED_OPEN_HERE
from hark.engine.sqlite.store import rows_of, scalar
from hark.engine.sqlite.track import AnyTrack
from hark.engine.sqlite.transaction import WriteTransaction

# Requeued for the group itself: in no lane, and no longer in front.
_OWN = """
select message.offset, message.priority, message.created_at from holes
join messages as message on message.partition = holes.partition and message.offset = holes.first
where holes.partition = ?1 and holes.owner = ?2 and holes.first > ?3
"""


def move(transaction: WriteTransaction, track: AnyTrack, cursor: int) -> None:
    """Set a cursor; what was settled, retried or requeued beyond it is forgotten, open leases are void."""
    draft, partition = transaction.draft(track), track.partition
    start = max(cursor, partition.floor)
    if isinstance(draft, SharedDraft):
        own = rows_of(transaction.connection, _OWN, partition.id, track.group.id, start)
        now = transaction.now
        draft.restart(start, [Entry(offset, level, created, min(created, now)) for offset, level, created in own])
    elif isinstance(draft, Draft):
        draft.wiped = True
        draft.cursor, draft.ranges, draft.probe = start, [], 0
        draft.retries, draft.front = {}, {}
        for first, last in transaction.loader.holes(track.group, partition):
            draft.settle(first, last)
    transaction.void_leases(track)


def settle_all(transaction: WriteTransaction, track: AnyTrack) -> int:
    """Settle whatever a group has open in a partition; how many messages."""
    draft, partition = transaction.draft(track), track.partition
    settled = 0
    if isinstance(draft, SharedDraft):
        if not draft.voided:
            stored = scalar(transaction.connection, SHARED_OPEN_HERE, track.group.id, partition.id)
            settled = int(stored) + partition.next_tail - partition.tail - draft.settled
        draft.restart(partition.next_tail, ())
    elif isinstance(draft, Draft):
        settled = draft.open_messages()
        draft.front, draft.retries = {}, {}
        draft.settle(draft.cursor + 1, partition.next_tail)
    transaction.void_leases(track)
    return settled
