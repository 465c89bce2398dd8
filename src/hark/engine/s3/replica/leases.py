"""Leases as rows: every process has to know who holds what.

In memory they are what the SQLite engine makes of them. After each batch of verbs the rows of those leases are
written that the batch touched; when memory is read back the leases are made from the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import apsw
import msgspec

from hark.engine.s3.replica.touched import Place
from hark.engine.sqlite.loader import Loader
from hark.engine.sqlite.ordered import Track
from hark.engine.sqlite.rows import Extra
from hark.engine.sqlite.shared.track import SharedTrack
from hark.engine.sqlite.state import Group, State
from hark.engine.sqlite.store import for_each, rows_of, scalar
from hark.engine.sqlite.track import AnyTrack, Lease, Part

_SAVE = """
insert into leases (id, expires_at, writer, parts)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(?1) where true
on conflict (id) do update set expires_at = excluded.expires_at, writer = excluded.writer, parts = excluded.parts
"""
_DELETE = "delete from leases where id in (select value from json_each(?1))"
_MESSAGES = """
select json_group_array(json_array(message.offset, message.transaction_id, json(message.extra)))
from json_each(?2) as wanted
cross join messages as message indexed by messages_place
where message.partition = ?1 and message.offset between wanted.value ->> 0 and wanted.value ->> 1
"""

_ROWS = "select id, expires_at, writer, parts from leases"

Ranges = list[tuple[int, int]]


class _Part(msgspec.Struct, array_like=True, gc=False):
    group: int
    partition: int
    handed: int
    open: int
    last: int
    blocks: bool
    held: Ranges
    consumer: str = ""
    """Of the lease, as is the next: a Hark that does not know them reads on, and rows of one have none."""
    since: int = 0


_encode = msgspec.json.Encoder().encode
_decode_parts = msgspec.json.Decoder(list[_Part]).decode
_decode_messages = msgspec.json.Decoder(list[tuple[int, str | None, Extra | None]]).decode


class _Row(msgspec.Struct, frozen=True, gc=False):
    """A lease as it is stored."""

    ends_here: int
    """When it ends for this process: other processes' clocks differ, so their leases last a little longer here."""
    expires_at: int
    writer: str
    parts: str
    places: frozenset[Place]


class LeaseRows:
    """What is stored of leases, and how that is kept in step with memory."""

    def __init__(self, state: State, writer: str, margin: int) -> None:
        self._state = state
        self._writer = writer
        self._margin = margin
        """Microseconds by which leases of other processes last longer here."""
        self._stored: dict[str, _Row] = {}
        self._at: dict[Place, set[str]] = {}
        """Which leases hold something of a place."""

    def save(self, connection: apsw.Connection, touched: Iterable[AnyTrack], renewed: Iterable[str] = ()) -> None:
        """Write down what became of leases on these places, and of those that were renewed or are over."""
        live = self._state.leases
        anew = dict.fromkeys(renewed)
        names = dict(anew)
        for track in touched:
            names |= dict.fromkeys(self._at.get((track.group.id, track.partition.id), ()))
            names |= dict.fromkeys(lease.id for lease in track.leases())
        # Also where a queue or group was deleted, which is no change of a place.
        shrunk = (one for one, row in self._stored.items() if one in live and len(live[one].parts) != len(row.places))
        names |= dict.fromkeys(shrunk)
        over = [lease_id for lease_id in self._stored if lease_id not in live]
        for lease_id in over:
            self.forget(lease_id)
        saved = [self._note(live[lease_id], lease_id in anew) for lease_id in names if lease_id in live]
        for_each(connection, _DELETE, over)
        for_each(connection, _SAVE, [row for row in saved if row is not None])

    def _note(self, lease: Lease, is_renewed: bool) -> tuple[str, int, str, str] | None:
        """The row that a lease needs; None: it is there."""
        old = self._stored.get(lease.id)
        expires_at, writer = lease.expires_at, self._writer
        if old is not None and old.ends_here == lease.expires_at and not is_renewed:
            # It stays the lease of who wrote it. What is renewed lasts as long as was said here, for everybody.
            expires_at, writer = old.expires_at, old.writer
        parts = _encode(_parts_of(lease)).decode()
        if old is not None and (old.expires_at, old.parts) == (expires_at, parts):
            return None
        self._remember(lease, expires_at, writer, parts)
        return lease.id, expires_at, writer, parts

    def _remember(self, lease: Lease, expires_at: int, writer: str, parts: str) -> None:
        self.forget(lease.id)
        places = frozenset((track.group.id, track.partition.id) for track in lease.parts)
        self._stored[lease.id] = _Row(lease.expires_at, expires_at, writer, parts, places)
        for place in places:
            self._at.setdefault(place, set()).add(lease.id)

    def forget(self, lease_id: str) -> None:
        """It is not in memory any more."""
        row = self._stored.pop(lease_id, None)
        for place in () if row is None else row.places:
            self._at[place].discard(lease_id)
            if not self._at[place]:
                del self._at[place]

    def held_at(self, place: Place) -> set[str]:
        """The leases that hold something of a place."""
        return self._at.get(place, set())

    def places_of(self, lease_id: str) -> frozenset[Place]:
        """The places that a lease holds something of."""
        row = self._stored.get(lease_id)
        return frozenset() if row is None else row.places

    def stored_places(self, connection: apsw.Connection, lease_ids: Iterable[str]) -> set[Place]:
        """The same of leases as their rows say it, which may be newer."""
        rows = rows_of(connection, f"{_ROWS} where id in (select value from json_each(?1))", _names(lease_ids))
        return {(part.group, part.partition) for *_, parts in rows for part in _decode_parts(parts)}

    def load(self, connection: apsw.Connection, lease_ids: Iterable[str] | None = None) -> None:
        """Make leases from their rows: these, or all that there are."""
        if lease_ids is None:
            self._stored.clear()
            self._at.clear()
            rows = rows_of(connection, _ROWS)
        else:
            rows = rows_of(connection, f"{_ROWS} where id in (select value from json_each(?1))", _names(lease_ids))
        loader = Loader(connection, self._state)
        groups = _Groups(connection, self._state, loader)
        for lease_id, expires_at, writer, parts in rows:
            stored = _decode_parts(parts)
            ends = expires_at if writer == self._writer else expires_at + self._margin
            lease = Lease(lease_id, ends, *next(((one.consumer, one.since) for one in stored), ("", 0)))
            for part in stored:
                group = groups.find(part.group)
                track = None if group is None else loader.track(group, part.partition)
                if track is not None:
                    self._hold(connection, lease, track, part)
            self._remember(lease, expires_at, writer, parts)
            self._state.add_lease(lease)

    def _hold(self, connection: apsw.Connection, lease: Lease, track: AnyTrack, stored: _Part) -> None:
        part = lease.parts[track] = Part(stored.handed, stored.last)
        part.open = stored.open
        text = scalar(connection, _MESSAGES, stored.partition, _encode(stored.held).decode())
        prefix = track.partition.prefix
        for offset, transaction_id, extra in _decode_messages(text):
            name = transaction_id or self._state.codec.with_prefix(prefix, offset)
            schedule = None if extra is None else extra.b
            if isinstance(track, Track):
                track.held[name] = (offset, lease, schedule, name)
            elif isinstance(track, SharedTrack) and offset in track.entries:
                entry = track.entries[offset]
                entry.is_out = True
                track.hold(entry, lease, name, schedule)
        if isinstance(track, Track) and stored.blocks:
            track.lease = lease
        track.group.note_in_flight(track)


class _Groups:
    """Groups by their numbers."""

    def __init__(self, connection: apsw.Connection, state: State, loader: Loader) -> None:
        self._connection = connection
        self._state = state
        self._loader = loader
        self._known: dict[int, Group | None] = {}

    def find(self, number: int) -> Group | None:
        """The group with a number; None: it is gone."""
        if number not in self._known:
            self._known[number] = self._load(number)
        return self._known[number]

    def _load(self, number: int) -> Group | None:
        for queue, name in rows_of(self._connection, "select queue, name from groups where id = ?1", number):
            self._loader.groups(queue)
            return self._state.groups.get((queue, name))
        return None


def _parts_of(lease: Lease) -> list[_Part]:
    parts = []
    for track, part in lease.parts.items():
        if isinstance(track, Track):
            blocks = track.lease is lease
            offsets = sorted(held[0] for held in track.held.values() if held[1] is lease)
        else:
            blocks = False
            offsets = sorted(track.live_offsets(lease))
        place = (track.group.id, track.partition.id)
        numbers = (part.handed, part.open, part.last)
        parts.append(_Part(*place, *numbers, blocks, _ranges(offsets), lease.consumer, lease.since))
    return parts


def _names(lease_ids: Iterable[str]) -> str:
    return _encode(list(lease_ids)).decode()


def _ranges(offsets: Sequence[int]) -> Ranges:
    ranges: Ranges = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1] = (ranges[-1][0], offset)
        else:
            ranges.append((offset, offset))
    return ranges
