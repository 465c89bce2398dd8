"""Leases that end by themselves (expire) or because nobody received what they hold (release)."""

from __future__ import annotations

from collections.abc import Sequence

from hark.engine.sqlite.settle import fail
from hark.engine.sqlite.track import AnyTrack, Lease
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
        for track in lease.parts:
            for held in transaction.draft(track).expire(lease, track.held_by(lease)):
                if fail(transaction, track, held, EXPIRED_TEXT, lease.expires_at, delay_ms=0):
                    transaction.state.expiries_buried += 1
            transaction.state.expiring.add(track.group)
        transaction.expired += 1


def release(transaction: WriteTransaction, lease_ids: Sequence[str]) -> None:
    """Give back what leases hold, as if it had never been handed out (rule 17)."""
    for lease_id in lease_ids:
        lease = transaction.state.leases.pop(lease_id, None)
        if lease is None:
            continue
        transaction.end_lease(lease)
        for track in lease.parts:
            transaction.draft(track).give_back(lease, track.held_by(lease))


def settle_held(transaction: WriteTransaction, lease: Lease, track: AnyTrack) -> None:
    """Complete everything that a lease holds on a track, at once (auto-ack)."""
    held = track.held_by(lease)
    transaction.draft(track).give_back(lease, held)
    for offset, *_ in held:
        transaction.settle(track, offset)
