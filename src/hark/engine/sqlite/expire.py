"""Leases that end by themselves (expire) or because nobody received what they hold (release)."""

from __future__ import annotations

from collections.abc import Sequence

from hark.engine.sqlite.settle import fail
from hark.engine.sqlite.track import Lease, Part, Retry, Track
from hark.engine.sqlite.transaction import WriteTransaction

EXPIRED_TEXT = "Lease expired: the consumer neither settled nor renewed in time"


def expire(transaction: WriteTransaction, limit: int) -> None:
    """Apply what is due, at most `limit` leases, as of the time each was due (rule 16)."""
    while transaction.expired < limit:
        lease = transaction.state.pop_expired(transaction.now)
        if lease is None:
            break
        # Not live from here on: what settles later in this transaction must be refused.
        transaction.state.note_expired(lease)
        transaction.end_lease(lease)
        for track, part in lease.parts.items():
            _expire_part(transaction, lease, track, part)
            transaction.state.expiring.add(track.group)
        transaction.expired += 1


def _expire_part(transaction: WriteTransaction, lease: Lease, track: Track, part: Part) -> None:
    offsets = _let_go(transaction, lease, track)
    draft = transaction.draft(track)
    if track.lease is not lease or draft.voided:
        return  # A failure or a retry gave the partition back before.
    draft.released = True
    if part.handed > 1:
        # Somebody in this batch may be killing its consumers: one at a time until it is found.
        draft.probe = max(draft.probe, part.last) if draft.cursor < part.last else draft.probe
        for offset, _ in offsets:
            # Requeued messages have offsets beyond all others, so these are marked one by one.
            if offset in draft.front:
                draft.retries.setdefault(offset, Retry(0, lease.expires_at, None))
        return
    for offset, schedule in offsets:
        fail(transaction, track, offset, schedule, EXPIRED_TEXT, lease.expires_at, backoff=False)


def _let_go(transaction: WriteTransaction, lease: Lease, track: Track) -> list[tuple[int, tuple[int, ...] | None]]:
    """Take what the lease still holds on a track out of its hands."""
    draft = transaction.draft(track)
    mine = [
        (transaction_id, held)
        for transaction_id, held in track.held.items()
        if held[1] is lease and transaction_id not in draft.gone
    ]
    draft.gone.update(transaction_id for transaction_id, _ in mine)
    return [(held[0], held[2]) for _, held in mine]


def release(transaction: WriteTransaction, lease_ids: Sequence[str]) -> None:
    """Give back what leases hold, as if it had never been handed out (rule 17)."""
    for lease_id in lease_ids:
        lease = transaction.state.leases.pop(lease_id, None)
        if lease is None:
            continue
        transaction.end_lease(lease)
        for track in lease.parts:
            _let_go(transaction, lease, track)
            if track.lease is lease:
                transaction.draft(track).released = True


def settle_held(transaction: WriteTransaction, lease: Lease, track: Track) -> None:
    """Complete everything that a lease holds on a track, at once (auto-ack)."""
    for offset, _ in _let_go(transaction, lease, track):
        transaction.settle(track, offset)
    transaction.draft(track).released = True
