"""The verb settle: the arrays of one call, and what its answer means for each item."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from hark.clock import MILLISECOND
from hark.engine.postgres.deliveries import Deliveries
from hark.engine.postgres.directory import Directory, Group, Place
from hark.engine.postgres.leases import Released, lease_uuid
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.push import storable
from hark.engine.postgres.telling import Telling
from hark.ids import IdCodec
from hark.model import Settlement, SettleOutcome

_STATUSES = {"completed": 0, "failed": 1, "retry": 2, "dlq": 3}
_NOWHERE = 0
"""No group or partition has this number."""

_EXPIRED_TEXT = "Invalid or expired lease: its time is up"
_SUPERSEDED_TEXT = "Invalid or expired lease: the message was not last delivered under this lease"
REFUSALS = {
    1: ("not_found", "Message not found"),
    2: ("lease_expired", _EXPIRED_TEXT),
    3: ("lease_invalid", _SUPERSEDED_TEXT),
    4: ("not_leased", "Invalid or expired lease: the group does not hold this message"),
    5: ("dead_lettered", "The message is in the dead letters already"),
}

_SETTLE = (
    "select * from hark.settle_v1($1, $2::int[], $3::bigint[], $4::boolean[], $5::int[], $6::int[], $7::bigint[],"
    " $8::text[], $9::bigint[], $10::uuid[], $11::smallint[], $12::text[], $13::bigint[], null)"
)


def partition_of(item: Settlement, codec: IdCodec) -> int:
    """The number of the partition that a settlement names, or that the id of its message says."""
    decoded = codec.decode(item.partition_id or item.transaction_id)
    if decoded is None or bool(decoded.offset) == bool(item.partition_id):
        return _NOWHERE
    return decoded.partition


class Settlements:
    """Settlements that go to the database together."""

    def __init__(self, directory: Directory, deliveries: Deliveries, codec: IdCodec) -> None:
        self._directory = directory
        self._deliveries = deliveries
        self._codec = codec
        self.items: list[Settlement] = []
        self.places: list[Place | None] = []
        self.tracks: list[tuple[int, int]] = []
        """Group and partition, each pair once."""
        self.groups: list[Group | None] = []
        self._positions: dict[tuple[int, int], int] = {}
        self.request: list[int] = []
        self.track: list[int] = []
        self.offset: list[int | None] = []
        self.transaction_id: list[str | None] = []
        self.own: list[int | None] = []
        self.lease: list[uuid.UUID | str | None] = []
        self.status: list[int] = []
        self.error: list[str | None] = []
        self.delay: list[int | None] = []
        self.released = Released()
        self._freed: set[int] = set()
        """Positions of tracks that a lease let go of."""
        self._settled: set[int] = set()
        """Positions of tracks where something was settled."""

    def add(self, request: int, items: Iterable[Settlement]) -> None:
        """Add the settlements of a request; their partitions and groups have been loaded as far as they exist."""
        deliveries, decode = self._deliveries, self._codec.decode
        for item in items:
            place = self._directory.places_by_id.get(partition_of(item, self._codec))
            number = self._track(place, item.group)
            partition = self.tracks[number][1]
            self.items.append(item)
            self.places.append(place)
            self.request.append(request)
            self.track.append(number + 1)
            transaction_id, lease = item.transaction_id, item.lease_id
            own = decode(transaction_id)
            own_offset = own.offset if own is not None and own.partition == partition else None
            offset = None if lease is None else deliveries.find(lease, partition, transaction_id)
            if offset is None and own_offset and deliveries.knows(lease):
                offset = own_offset
            self.offset.append(offset)
            self.transaction_id.append(None if offset is not None else storable(transaction_id))
            self.own.append(own_offset)
            self.lease.append(lease if offset is not None else lease_uuid(lease) if lease else None)
            self.status.append(_STATUSES[item.status])
            self.error.append(storable(item.error))
            self.delay.append(None if item.delay_ms is None else item.delay_ms * MILLISECOND)

    def _track(self, place: Place | None, group_name: str) -> int:
        group = None if place is None else self._directory.groups.get((place.queue, group_name))
        key = (_NOWHERE if group is None else group.id, _NOWHERE if place is None else place.id)
        number = self._positions.get(key)
        if number is None:
            number = self._positions[key] = len(self.tracks)
            self.tracks.append(key)
            self.groups.append(group)
        return number

    def arguments(self) -> tuple[object, ...]:
        """Those of `settle_v1` after the time."""
        return (
            [group for group, _ in self.tracks],
            [partition for _, partition in self.tracks],
            [group is not None and group.shared is not None for group in self.groups],
            self.request,
            self.track,
            self.offset,
            self.transaction_id if None in self.offset else None,
            self.own,
            self.lease,
            self.status,
            self.error,
            self.delay,
        )

    def outcomes(
        self,
        codes: Sequence[int],
        released: Sequence[bool],
        dead: Sequence[bool],
        holders: Sequence[uuid.UUID | None],
    ) -> list[SettleOutcome]:
        """What became of each item; what was settled is no longer remembered as delivered."""
        answers = []
        settled: dict[str, int] = {}
        let_go: dict[str, Group] = {}
        for item, place, track, code, free, buried, holder in zip(
            self.items, self.places, self.track, codes, released, dead, holders, strict=True
        ):
            lease = None if holder is None or code else str(holder)
            answers.append(self._outcome(item, place, track, code, free, buried, lease))
            if lease is None:
                continue
            settled[lease] = settled.get(lease, 0) + 1
            group = self.groups[track - 1]
            if free and group is not None:
                self._freed.add(track - 1)
                let_go[lease] = group
        over = {lease for lease, number in settled.items() if self._deliveries.settled(lease, number)}
        for lease, group in let_go.items():
            self.released.add(lease, group, over=lease in over or group.shared is not None)
        self._settled = {track - 1 for track, holder in zip(self.track, holders, strict=True) if holder is not None}
        return answers

    def _outcome(
        self,
        item: Settlement,
        place: Place | None,
        track: int,
        code: int,
        released: bool,
        dead: bool,
        lease: str | None,
    ) -> SettleOutcome:
        refusal, text = REFUSALS[code] if code else (None, None)
        if place is None or self.groups[track - 1] is None:
            return SettleOutcome(item.transaction_id, not code, refusal, text)
        return SettleOutcome(
            item.transaction_id, not code, refusal, text, place.queue, place.name, released, dead, lease
        )

    def tell(self, ready: Sequence[bool], counts: Sequence[int], dues: Sequence[int | None], telling: Telling) -> None:
        """Tracks that can be taken again, and those that leases let go of; after `outcomes`."""
        for number, ((_, partition), group) in enumerate(zip(self.tracks, self.groups, strict=True)):
            if group is None:
                continue
            if group.shared is not None:
                telling.given_back(group, partition, counts[number], dues[number])
            elif ready[number]:
                telling.free(group, (partition,))
            elif number in self._freed:
                telling.drained(group, partition)
            if number in self._settled:
                telling.has_room(group)


class Settler:
    """Settles for one engine."""

    def __init__(self, pool: Pool, directory: Directory, deliveries: Deliveries, codec: IdCodec) -> None:
        self._pool = pool
        self._directory = directory
        self._deliveries = deliveries
        self._codec = codec

    async def settle(
        self, requests: Sequence[Sequence[Settlement]], given: int | None, telling: Telling
    ) -> list[list[SettleOutcome]]:
        """The outcomes of each request."""
        if not any(requests):
            return [[] for _ in requests]
        while True:
            await self.load(item for request in requests for item in request)
            batch = Settlements(self._directory, self._deliveries, self._codec)
            for number, request in enumerate(requests):
                batch.add(number, request)
            row = await self._pool.fetchrow(_SETTLE, given, *batch.arguments())
            assert row is not None
            if row["o_stale"] is None:
                break
            self._directory.forget_groups(row["o_stale"])
        outcomes = iter(batch.outcomes(row["o_codes"], row["o_released"], row["o_dead"], row["o_holders"]))
        batch.tell(row["o_ready"], row["o_counts"], row["o_dues"], telling)
        await batch.released.tell(self._pool, given, telling)
        return [[next(outcomes) for _ in request] for request in requests]

    async def load(self, items: Iterable[Settlement]) -> None:
        """Find what the settlements name, as far as it is not known here."""
        places = self._directory.places_by_id
        wanted = [(partition_of(item, self._codec), item.group) for item in items]
        await self._directory.load_places(list(dict.fromkeys(number for number, _ in wanted if number != _NOWHERE)))
        await self._directory.load_groups(
            dict.fromkeys((places[partition].queue, group) for partition, group in wanted if partition in places)
        )
