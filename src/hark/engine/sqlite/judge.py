"""Who may settle what (rule 12)."""

from __future__ import annotations

from collections.abc import Sequence

from hark.engine.sqlite.places import find_message
from hark.engine.sqlite.state import Partition
from hark.engine.sqlite.store import scalar
from hark.engine.sqlite.track import AnyTrack, Held, Stored
from hark.engine.sqlite.transaction import WriteTransaction
from hark.model import Settlement

NOT_FOUND = ("not_found", "Message not found")
EXPIRED = ("lease_expired", "Invalid or expired lease: the lease expired; renew leases in time, or lengthen them")
SUPERSEDED = (
    "lease_invalid",
    "Invalid or expired lease: the last delivery of the message was under another lease",
)
NOT_LEASED = ("not_leased", "Invalid or expired lease: no consumer of the group holds this message")
DEAD = ("dead_lettered", "The message is already dead-lettered; requeue it to deliver it again")


class Verdict:
    """Whether a settlement counts, and for what."""

    __slots__ = ("held", "refusal", "track")

    def __init__(self, track: AnyTrack | None, held: Held | None, refusal: tuple[str, str] | None) -> None:
        self.track = track
        self.held = held
        """None with no refusal: completed already."""
        self.refusal = refusal


class Judge:
    """Judges settlements by the leases as they stand, changing nothing."""

    def __init__(self, transaction: WriteTransaction, required_leases: Sequence[str] = ()) -> None:
        self._transaction = transaction
        self._required = frozenset(required_leases)
        self._tracks: dict[tuple[str, str], AnyTrack | None] = {}

    def judge(self, item: Settlement) -> Verdict:
        """Whether a settlement counts."""
        track = self._track(item)
        if track is None:
            return self._without_track(item)
        state = self._transaction.state
        held = track.find_held(item.transaction_id, state.codec)
        if held is None:
            return self._not_held(track, item)
        lease = held[1]
        if item.lease_id:
            if lease.id != item.lease_id:
                return self._not_held(track, item)
        elif self._required and lease.id not in self._required:
            return Verdict(track, None, SUPERSEDED)
        if lease.expires_at <= self._transaction.now or lease.id not in state.leases:
            return Verdict(track, None, EXPIRED)
        return Verdict(track, held, None)

    def _track(self, item: Settlement) -> AnyTrack | None:
        if not item.partition_id:
            return self._find_track(item)
        key = (item.partition_id, item.group)
        track = self._tracks.get(key)
        if track is None and key not in self._tracks:
            track = self._tracks[key] = self._find_track(item)
        return track

    def _partition(self, item: Settlement) -> Partition | None:
        """The partition of a message; its own id says that too."""
        state = self._transaction.state
        partition = state.partitions_by_uid.get(item.partition_id)
        if partition is not None:
            return partition
        place = state.codec.decode(item.partition_id or item.transaction_id)
        if place is None or bool(place.offset) is bool(item.partition_id):
            return None
        return self._transaction.loader.partition(place.partition)

    def _find_track(self, item: Settlement) -> AnyTrack | None:
        partition = self._partition(item)
        if partition is None:
            return None
        state = self._transaction.state
        group = state.groups.get((partition.queue.name, item.group))
        if group is None:
            self._transaction.loader.groups(partition.queue.name)
            group = state.groups.get((partition.queue.name, item.group))
            if group is None:
                return None
        return self._transaction.loader.track(group, partition.id)

    def _without_track(self, item: Settlement) -> Verdict:
        partition = self._partition(item)
        known = partition is not None and self._message(partition, item.transaction_id) is not None
        return Verdict(None, None, NOT_LEASED if known else NOT_FOUND)

    def _not_held(self, track: AnyTrack, item: Settlement) -> Verdict:
        """The slow path: a lease that ended, a message settled before, or one that never was."""
        message = self._message(track.partition, item.transaction_id)
        if message is None:
            return self._removed(track, item)
        if track.is_settled(message):
            if self._is_dead(track, message.offset):
                return Verdict(track, None, DEAD)
            if item.status == "completed":
                return Verdict(track, None, None)
        if not item.lease_id:
            return Verdict(track, None, NOT_LEASED)
        expired = item.lease_id in self._transaction.state.expired_leases
        return Verdict(track, None, EXPIRED if expired else SUPERSEDED)

    def _removed(self, track: AnyTrack, item: Settlement) -> Verdict:
        """A message that is not there; its id says whether it ever was."""
        place = self._transaction.state.codec.decode(item.transaction_id)
        if place is None or place.partition != track.partition.id or not 0 < place.offset <= track.partition.tail:
            return Verdict(track, None, NOT_FOUND)
        if self._is_dead(track, place.offset):
            return Verdict(track, None, DEAD)
        taken_away = (track.group.id, *place) in self._transaction.state.removed
        return Verdict(track, None, None if item.status == "completed" and not taken_away else NOT_FOUND)

    def _message(self, partition: Partition, name: str) -> Stored | None:
        message = find_message(self._transaction, partition.id, name)
        return None if message is None or message.offset <= partition.floor else message

    def _is_dead(self, track: AnyTrack, offset: int) -> bool:
        self._transaction.save_dead_letters()  # It may have died in this very transaction.
        sql = "select 1 from dead_letters where partition = ?1 and offset = ?2 and grp = ?3"
        return scalar(self._transaction.connection, sql, track.partition.id, offset, track.group.name) is not None
