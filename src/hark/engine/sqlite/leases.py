"""Leases as those see them who look from outside: a copy, made under the lock."""

from __future__ import annotations

from collections.abc import Sequence

from hark.engine.sqlite.state import State
from hark.engine.sqlite.track import AnyTrack, Lease
from hark.errors import HarkError
from hark.model import HeldPart, LeaseFilter, Leases, Renewal, RenewOutcome

Place = tuple[int, int]
"""A group's number and a partition's number."""


class LeaseView:
    """What is held at one moment."""

    def __init__(self, state: State) -> None:
        self._leases: dict[Place, tuple[str, int]] = {}
        self._held: dict[Place, dict[int, int]] = {}
        self._by_group: dict[int, int] = {}
        self._messages_by_group: dict[int, int] = {}
        for lease in state.leases.values():
            for track in lease.parts:
                place = (track.group.id, track.partition.id)
                offsets = track.live_offsets(lease)
                if not offsets:
                    continue
                if track.group.mode == "ordered":
                    self._leases[place] = (lease.id, lease.expires_at)
                self._by_group[place[0]] = self._by_group.get(place[0], 0) + 1
                self._messages_by_group[place[0]] = self._messages_by_group.get(place[0], 0) + len(offsets)
                self._held.setdefault(place, {}).update(dict.fromkeys(offsets, lease.expires_at))

    def lease_of(self, group: int, partition: int) -> tuple[str, int] | None:
        """The lease that blocks a partition for an ordered group, with its end."""
        return self._leases.get((group, partition))

    def expiry_of(self, group: int, partition: int, offset: int) -> int | None:
        """Until when a message is held."""
        return self._held.get((group, partition), {}).get(offset)

    def held_in(self, group: int, partition: int) -> int:
        """How many messages of a partition a group holds."""
        return len(self._held.get((group, partition), ()))

    def held_by_group(self, group: int) -> int:
        """How many messages a group holds."""
        return self._messages_by_group.get(group, 0)

    def leases_of_group(self, group: int) -> int:
        """How many leases a group has, one for each partition that they are on."""
        return self._by_group.get(group, 0)

    def held_places(self) -> set[Place]:
        """All (partition, offset) that somebody holds."""
        return {(partition, offset) for (_, partition), held in self._held.items() for offset in held}


def page(state: State, where: LeaseFilter) -> Leases:
    """A page of what live leases hold, oldest first."""
    found = [
        (lease, track)
        for lease in state.leases.values()
        for track in lease.parts
        if where.queue in (None, track.group.queue_name)
        and where.group in (None, track.group.name)
        and where.partition in (None, track.partition.name)
        and track.is_kept_by(lease)
    ]
    found.sort(key=lambda pair: (pair[0].since, pair[0].id))
    shown = found[where.offset : where.offset + where.limit]
    return Leases([_held_part(state, lease, track) for lease, track in shown], len(found))


def _held_part(state: State, lease: Lease, track: AnyTrack) -> HeldPart:
    offsets, partition = track.live_offsets(lease), track.partition
    return HeldPart(
        lease_id=lease.id,
        queue=track.group.queue_name,
        partition=partition.name,
        partition_id=partition.uid,
        group=track.group.name,
        mode=track.group.mode,
        consumer=lease.consumer,
        since=lease.since or None,
        until=lease.expires_at,
        messages=len(offsets),
        first_message_id=state.codec.with_prefix(partition.prefix, min(offsets)),
    )


def lease_ends(state: State, now: int, lease_ids: Sequence[str]) -> list[int | None]:
    """When leases end as things are now."""
    leases = [state.leases.get(lease_id) for lease_id in lease_ids]
    return [None if lease is None or lease.expires_at <= now else lease.expires_at for lease in leases]


def renew(state: State, now: int, requests: list[Renewal]) -> list[RenewOutcome | HarkError]:
    """Extend leases; one call covers all partitions that share the lease."""
    answers: list[RenewOutcome | HarkError] = []
    for request in requests:
        lease = state.leases.get(request.lease_id)
        if lease is None:
            if request.lease_id in state.expired_leases:
                answers.append(RenewOutcome(False, None, "lease_expired", "Lease already expired"))
            else:
                answers.append(RenewOutcome(False, None, "lease_not_found", "Lease not found"))
            continue
        wanted = now + request.seconds * 1_000_000
        if wanted > lease.expires_at:
            lease.expires_at = wanted
            state.schedule_expiry(lease)
        answers.append(RenewOutcome(True, lease.expires_at))
    return answers
