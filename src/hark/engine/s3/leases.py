"""Leases and rate limits as rows, because they apply to all processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any

import apsw
import msgspec

from hark.engine.core.limits import Bounds
from hark.engine.core.loader import Loader
from hark.engine.core.ordered import OrderedPosition
from hark.engine.core.position import Lease, Part, Position
from hark.engine.core.shared import SharedPosition
from hark.engine.core.state import Group, State
from hark.engine.core.store import Extra, for_each, rows_of, scalar
from hark.keys import decode_key
from hark.model import Key

PositionKey = tuple[int, int]
"""Ids of a group and a partition."""

# Tables of positions: their keys begin with (group, partition).
_POSITION_TABLES = frozenset({"positions", "ranges", "retries", "requeued", "lanes", "outstanding"})
# Columns that memory does not keep or does not need at once: counters of a queue, when a group was last seen.
_QUIET = {"queues": frozenset({8, 9}), "groups": frozenset({9})}


class Changeset:
    """The rows that a changeset changes. It has only the keys of removed rows."""

    def __init__(self, changes: bytes) -> None:
        self.arrived: dict[int, int] = {}
        """Number of new messages by partition."""
        self.partitions: set[int] = set()
        """Partitions with added or removed messages, or a new floor."""
        self.positions: set[PositionKey] = set()
        self.leases: set[str] = set()
        self.rates: set[tuple[str, int]] = set()
        self.queues: set[int] = set()
        self.groups: set[int] = set()
        self.labels = False
        self.numbers = False
        """Whether values of the store as a whole changed."""
        self.keys: list[Key] = []
        for change in apsw.Changeset.iter(changes):
            self._note(change)

    @property
    def is_structural(self) -> bool:
        """Whether queues or groups were created, changed or deleted, so that all memory must be reloaded."""
        return bool(self.queues or self.groups)

    def _note(self, change: apsw.TableChange) -> None:
        table, row = change.name, change.new if change.op == "INSERT" else change.old
        assert row is not None
        key: Any = row[0]
        if table == "messages":
            if change.op == "INSERT":
                partition: Any = row[1]
                self.arrived[partition] = self.arrived.get(partition, 0) + 1
                self.partitions.add(partition)
        elif table in _POSITION_TABLES:
            second: Any = row[1]
            self.positions.add((key, second))
        elif table == "leases":
            self.leases.add(key)
        elif table in ("partitions", "gaps"):
            self.partitions.add(key)
        elif table == "kv":
            self.keys.append(decode_key(key))
        else:
            self._note_rare(table, key, row, change)

    def _note_rare(self, table: str, key: Any, row: tuple[Any, ...], change: apsw.TableChange) -> None:
        if table in _QUIET:
            changed = {at for at, value in enumerate(change.new or ()) if value is not apsw.no_change}
            if change.op != "UPDATE" or changed - _QUIET[table]:
                (self.queues if table == "queues" else self.groups).add(key)
        elif table == "rates":
            self.rates.add((key, row[1]))
        elif table == "labels":
            self.labels = True
        elif table == "meta":
            self.numbers = True


_SAVE_RATES = """
insert into rates (kind, owner, tokens, filled_at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(?1) where true
on conflict (kind, owner) do update set tokens = excluded.tokens, filled_at = excluded.filled_at
"""

Owner = tuple[str, int]


def save(connection: apsw.Connection, state: State, taken: Iterable[Position]) -> None:
    """Save the remaining tokens of queues and groups that received messages."""
    found: dict[Owner, Bounds] = {}
    for position in taken:
        queue = state.queues.get(position.group.queue_name)
        if queue is not None and queue.bounds.limits.rate_limit:
            found["queue", queue.id] = queue.bounds
        if position.group.bounds.limits.rate_limit:
            found["group", position.group.id] = position.group.bounds
    rows = [(*owner, one.tokens, one.filled_at) for owner, one in found.items() if one.tokens is not None]
    for_each(connection, _SAVE_RATES, rows)


def stored_rates(connection: apsw.Connection) -> dict[Owner, tuple[float, int]]:
    """Return the stored tokens of queues and groups, and when each was last filled."""
    rows = rows_of(connection, "select kind, owner, tokens, filled_at from rates")
    return {(kind, owner): (tokens, filled_at) for kind, owner, tokens, filled_at in rows}


# In memory, leases are those of `engine/core`. After each batch of verbs, the rows of changed leases are written. A
# reload of memory makes the leases from the rows.


_SAVE = """
insert into leases (id, expires_at, writer, parts)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(?1) where true
on conflict (id) do update set expires_at = excluded.expires_at, writer = excluded.writer, parts = excluded.parts
"""
_DELETE = "delete from leases where id in (select value from json_each(?1))"
_MESSAGES = """
select json_group_array(json_array(message.offset, message.transaction_id, json(message.extra)))
from json_each(?2) as wanted
cross join messages as message indexed by messages_offset
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
    leased: Ranges
    consumer: str = ""
    """Belongs to the lease, as the next two. An older Hark ignores these fields, and its rows lack them."""
    since: int = 0
    whole: int = 0


_encode = msgspec.json.Encoder().encode
_decode_parts = msgspec.json.Decoder(list[_Part]).decode
_decode_messages = msgspec.json.Decoder(list[tuple[int, str | None, Extra | None]]).decode


class _Row(msgspec.Struct, frozen=True, gc=False):
    ends_here: int
    """Its end for this process. Leases of other processes last a little longer here, because clocks differ."""
    expires_at: int
    writer: str
    parts: str
    positions: frozenset[PositionKey]


class LeaseRows:
    """The stored leases, and their synchronisation with memory."""

    def __init__(self, state: State, writer: str, margin: int) -> None:
        self._state = state
        self._writer = writer
        self._margin = margin
        """Microseconds that leases of other processes last longer here."""
        self._stored: dict[str, _Row] = {}
        self._at: dict[PositionKey, set[str]] = {}
        """Lease ids by position."""

    def save(self, connection: apsw.Connection, changed: Iterable[Position], renewed: Iterable[str] = ()) -> None:
        """Save the leases on these positions, and those that were renewed or have ended."""
        live = self._state.leases
        wanted = dict.fromkeys(renewed)
        names = dict(wanted)
        for position in changed:
            names |= dict.fromkeys(self._at.get((position.group.id, position.partition.id), ()))
            names |= dict.fromkeys(lease.id for lease in position.leases())
        # Also leases of deleted queues and groups, whose positions did not change.
        shrunk = (
            one for one, row in self._stored.items() if one in live and len(live[one].parts) != len(row.positions)
        )
        names |= dict.fromkeys(shrunk)
        over = [lease_id for lease_id in self._stored if lease_id not in live]
        for lease_id in over:
            self.forget(lease_id)
        saved = [self._note(live[lease_id], lease_id in wanted) for lease_id in names if lease_id in live]
        for_each(connection, _DELETE, over)
        for_each(connection, _SAVE, [row for row in saved if row is not None])

    def _note(self, lease: Lease, is_renewed: bool) -> tuple[str, int, str, str] | None:
        """Return the row of a lease, or None if it is stored already."""
        old = self._stored.get(lease.id)
        expires_at, writer = lease.expires_at, self._writer
        if old is not None and old.ends_here == lease.expires_at and not is_renewed:
            # It remains the lease of its writer. A renewed lease belongs to this process, for all processes.
            expires_at, writer = old.expires_at, old.writer
        parts = _encode(_parts_of(lease)).decode()
        if old is not None and (old.expires_at, old.parts) == (expires_at, parts):
            return None
        self._remember(lease, expires_at, writer, parts)
        return lease.id, expires_at, writer, parts

    def _remember(self, lease: Lease, expires_at: int, writer: str, parts: str) -> None:
        self.forget(lease.id)
        positions = frozenset((position.group.id, position.partition.id) for position in lease.parts)
        self._stored[lease.id] = _Row(lease.expires_at, expires_at, writer, parts, positions)
        for key in positions:
            self._at.setdefault(key, set()).add(lease.id)

    def forget(self, lease_id: str) -> None:
        """Forget a lease that is no longer in memory."""
        row = self._stored.pop(lease_id, None)
        for key in () if row is None else row.positions:
            self._at[key].discard(lease_id)
            if not self._at[key]:
                del self._at[key]

    def leases_at(self, key: PositionKey) -> set[str]:
        """Return the leases on a position."""
        return self._at.get(key, set())

    def positions_of(self, lease_id: str) -> frozenset[PositionKey]:
        """Return the positions of a lease."""
        row = self._stored.get(lease_id)
        return frozenset() if row is None else row.positions

    def stored_positions(self, connection: apsw.Connection, lease_ids: Iterable[str]) -> set[PositionKey]:
        """Return the positions of leases according to their rows, which can be newer."""
        rows = rows_of(connection, f"{_ROWS} where id in (select value from json_each(?1))", _names(lease_ids))
        return {(part.group, part.partition) for *_, parts in rows for part in _decode_parts(parts)}

    def load(self, connection: apsw.Connection, lease_ids: Iterable[str] | None = None) -> None:
        """Load leases from their rows: these, or all."""
        if lease_ids is None:
            self._stored.clear()
            self._at.clear()
            rows = rows_of(connection, _ROWS)
        else:
            rows = rows_of(connection, f"{_ROWS} where id in (select value from json_each(?1))", _names(lease_ids))
        loader = Loader(connection, self._state)
        find_group = cache(partial(group_by_id, connection, loader))
        for lease_id, expires_at, writer, parts in rows:
            stored = _decode_parts(parts)
            ends = expires_at if writer == self._writer else expires_at + self._margin
            lease = Lease(lease_id, ends, *next(((one.consumer, one.since) for one in stored), ("", 0)))
            lease.whole = max((one.whole for one in stored), default=0)
            for part in stored:
                group = find_group(part.group)
                position = None if group is None else loader.position(group, part.partition)
                if position is not None:
                    self._hold(connection, lease, position, part)
            self._remember(lease, expires_at, writer, parts)
            self._state.add_lease(lease)

    def _hold(self, connection: apsw.Connection, lease: Lease, position: Position, stored: _Part) -> None:
        part = lease.parts[position] = Part(stored.handed, stored.last)
        part.open = stored.open
        text = scalar(connection, _MESSAGES, stored.partition, _encode(stored.leased).decode())
        prefix = position.partition.prefix
        for offset, transaction_id, extra in _decode_messages(text):
            name = transaction_id or self._state.codec.with_prefix(prefix, offset)
            schedule = None if extra is None else extra.b
            if isinstance(position, OrderedPosition):
                position.leased[name] = (offset, lease, schedule, name)
            elif isinstance(position, SharedPosition) and offset in position.entries:
                entry = position.entries[offset]
                entry.is_out = True
                position.hold(entry, lease, name, schedule)
        if isinstance(position, OrderedPosition) and stored.blocks:
            position.lease = lease
            position.refresh(lease.since)


def group_by_id(connection: apsw.Connection, loader: Loader, number: int) -> Group | None:
    """Return the group with an id, loaded if necessary; None: it was deleted."""
    found = rows_of(connection, "select queue, name from groups where id = ?1", number)
    return next((loader.group(queue, name) for queue, name in found), None)


def _parts_of(lease: Lease) -> list[_Part]:
    parts = []
    for position, part in lease.parts.items():
        if isinstance(position, OrderedPosition):
            blocks = position.lease is lease
            offsets = sorted(leased[0] for leased in position.leased.values() if leased[1] is lease)
        else:
            blocks = False
            offsets = sorted(position.live_offsets(lease))
        key = (position.group.id, position.partition.id)
        numbers = (part.handed, part.open, part.last)
        parts.append(_Part(*key, *numbers, blocks, _ranges(offsets), lease.consumer, lease.since, lease.whole))
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
