"""Positions of shared groups: loading, saving, and the choice of their next messages."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from hark.clock import SECOND
from hark.engine.core.shared import NEVER, SETTLED, DelayedLane, Entry, Item, PlainLane, SharedDraft, SharedPosition
from hark.engine.core.state import Group, Partition
from hark.engine.core.store import for_each, run, scalar
from hark.model import Ending

PRIORITIES = "json_each('[0,1,2,3,4,5,6,7,8,9]')"

# What is behind a lane's position, in the partition `address` for the group ?1. Whoever includes these names the tables
# `level` (a priority), `lane` (its row in lanes, or none) and `position` (the group's row in positions, or none).
_LOWER = "max(partition.floor, ifnull(position.cursor, wanted.value ->> 1))"
FIRST_PLAIN = f"""
(select message.offset from messages as message indexed by messages_priority
 where message.partition = partition.id and message.priority = level.value
   and message.offset > max({_LOWER}, ifnull(lane.cursor, 0))
   and message.priority > 0 and message.deliver_at is null and message.owner is null
 order by message.offset limit 1)
"""
FIRST_DELAYED = f"""
(select message.deliver_at from messages as message indexed by messages_delayed
 where message.partition = partition.id and message.priority = level.value and message.deliver_at is not null
   and (message.deliver_at, message.offset) > (ifnull(lane.due, 0), ifnull(lane.due_offset, 0))
   and message.offset > {_LOWER}
 order by message.deliver_at, message.offset limit 1)
"""
_LANES = f"""
select json_group_array(json_array(level.value, ifnull(lane.cursor, 0), ifnull(lane.due, 0),
    ifnull(lane.due_offset, 0), {FIRST_PLAIN} is not null, ifnull({FIRST_DELAYED}, 0)))
from {PRIORITIES} as level
left join lanes as lane on lane.grp = ?1 and lane.partition = partition.id and lane.priority = level.value
"""
_SHARED_POSITIONS = f"""
select json_group_array(json_array(
    partition.id,
    iif(position.cursor is null, null, json_array(position.cursor, position.settled_at)),
    json(({_LANES})),
    json((select json_group_array(json_array(
            outstanding.offset, available_at, attempts, error, requeued, ifnull(created_at, 0), ifnull(priority, 0)))
        from outstanding
        left join messages on messages.partition = outstanding.partition and messages.offset = outstanding.offset
        where outstanding.grp = ?1 and outstanding.partition = partition.id))))
from json_each(?2) as wanted
join partitions as partition on partition.id = wanted.value ->> 0
left join positions as position on position.grp = ?1 and position.partition = partition.id
"""

# Partitions where something may be ready, or will be: the highest priority that is, and whether time may raise that.
DISCOVER = f"""
select json_group_array(json_array(id, found ->> 0, found ->> 1)) from (
    select partition.id, (
        select iif(max(priority) is null, null, json_array(max(priority), max(later))) from (
            select iif({FIRST_PLAIN} is not null or {FIRST_DELAYED} <= ?5, level.value, 0) as priority,
                {FIRST_DELAYED} is not null as later
            from {PRIORITIES} as level
            left join lanes as lane on lane.grp = ?1 and lane.partition = partition.id and lane.priority = level.value
            where {FIRST_PLAIN} is not null or {FIRST_DELAYED} is not null
            union all
            select 0, 0 where max(partition.tail,
                ifnull((select max(offset) from messages where messages.partition = partition.id), 0))
                > max(partition.floor, ifnull(position.cursor, 0), ifnull((select cursor from lanes
                    where grp = ?1 and lanes.partition = partition.id and lanes.priority = 0), 0))
            union all
            select iif(available_at <= ?5, messages.priority, 0), available_at > ?5 from outstanding
            join messages on messages.partition = partition.id and messages.offset = outstanding.offset
            where outstanding.grp = ?1 and outstanding.partition = partition.id
        )) as found
    from partitions as partition
    cross join json_each('[[0, 0]]') as wanted
    left join positions as position on position.grp = ?1 and position.partition = partition.id
    where partition.queue = ?2
      and (position.cursor is not null or ?3 is null or partition.id > ?4
           or ifnull((select created_at from messages where messages.partition = partition.id
                      order by offset desc limit 1), 0) > ?3)
) where found is not null
"""


class Row(msgspec.Struct, array_like=True):
    """A place as it is read."""

    partition: int
    position: tuple[int, int | None] | None
    lanes: list[tuple[int, int, int, int, int, int]]
    entries: list[tuple[int, int, int, str | None, int, int, int]]


_decode_rows = msgspec.json.Decoder(list[Row]).decode
_encode = msgspec.json.Encoder().encode


def load(connection: apsw.Connection, group: Group, keys: Sequence[tuple[int, int]]) -> list[Row]:
    """The rows of a group's places in partitions, each with where it begins if it is new."""
    return _decode_rows(scalar(connection, _SHARED_POSITIONS, group.id, _encode(keys).decode()))


def make_position(group: Group, partition: Partition, row: Row, base: int) -> SharedPosition:
    """A place as it is stored; `base` is where it begins if it is new."""
    position = SharedPosition(group, partition, base if row.position is None else row.position[0])
    if row.position is not None:
        position.settled_at = row.position[1]
    for priority, cursor, due, due_offset, more, next_due in row.lanes:
        if priority == 0 or cursor or more:
            lane = position.plain[priority] = PlainLane(priority, cursor)
            lane.more = bool(more) if priority else max(cursor, position.lower) < partition.tail
        if due or next_due:
            late = position.delayed[priority] = DelayedLane(priority, (due, due_offset))
            late.next_due = next_due or NEVER
    for offset, available_at, attempts, error, requeued, created_at, priority in row.entries:
        entry = Entry(offset, priority, created_at, available_at)
        entry.attempts, entry.error, entry.requeued, entry.saved = attempts, error, bool(requeued), True
        position.add(entry)
    return position


_SAVE_SHARED_POSITIONS = """
insert into positions (grp, partition, cursor, settled_at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(?1) where true
on conflict (grp, partition) do update set cursor = excluded.cursor, settled_at = excluded.settled_at
"""
_SAVE_LANES = """
insert or replace into lanes (grp, partition, priority, cursor, due, due_offset)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 from json_each(?1)
"""
_DELETE_OUTSTANDING = """
delete from outstanding where (grp, partition, offset) in
    (select value ->> 0, value ->> 1, value ->> 2 from json_each(?1))
"""
_SAVE_OUTSTANDING = """
insert or replace into outstanding (grp, partition, offset, available_at, attempts, error, requeued)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6 from json_each(?1)
"""

Key = tuple[int, int]


class SharedRows:
    """The rows of one transaction. They are taken under the lock and written without it."""

    def __init__(self) -> None:
        self._positions: list[tuple[int, int, int, int | None]] = []
        self._lanes: list[tuple[int, int, int, int, int, int]] = []
        self._wiped: list[Key] = []
        self._gone: list[tuple[int, int, int]] = []
        self._outstanding: list[tuple[int, int, int, int, int, str | None, int]] = []
        self.latest_due = 0
        """The latest time of delivery that a group has passed: no message may ever be due before it any more."""

    def note(self, position: SharedPosition) -> None:
        """Take down how a place stands."""
        draft, key = position.draft, (position.group.id, position.partition.id)
        assert draft is not None
        self._positions.append((*key, draft.base, draft.settled_at))
        if draft.voided:
            self._wiped.append(key)
        else:
            self._note_lanes(position, key)
            self._note_changes(position, draft, key)
            for entry in position.unsaved.values():
                if entry.offset not in draft.changes:
                    self._save(entry, key)
            position.unsaved.clear()
        for entry in draft.added.values():
            self._save(entry, key)

    def _note_lanes(self, position: SharedPosition, key: Key) -> None:
        for priority in position.plain.keys() | position.delayed.keys():
            plain, late = position.plain.get(priority), position.delayed.get(priority)
            if (plain is None or plain.cursor == plain.saved) and (late is None or late.cursor == late.saved):
                continue
            cursor, due = 0, (0, 0)
            if plain is not None:
                cursor = plain.saved = plain.cursor
            if late is not None:
                due = late.saved = late.cursor
            self._lanes.append((*key, priority, cursor, *due))
            self.latest_due = max(self.latest_due, due[0])

    def _note_changes(self, position: SharedPosition, draft: SharedDraft, key: Key) -> None:
        self._gone += [(*key, offset) for offset in position.dropped]
        position.dropped = []
        for offset, change in draft.changes.items():
            entry = position.entries.get(offset)
            if change is not SETTLED:
                self._save(change, key)
                if entry is not None:
                    entry.saved = True
            elif entry is not None and entry.saved:
                self._gone.append((*key, offset))

    def _save(self, entry: Entry, key: Key) -> None:
        entry.saved = True
        self._outstanding.append(
            (*key, entry.offset, entry.available_at, entry.attempts, entry.error, int(entry.requeued))
        )

    def write(self, connection: apsw.Connection) -> None:
        """Write them."""
        if not self._positions:
            return
        for_each(connection, _SAVE_SHARED_POSITIONS, self._positions)
        for key in self._wiped:
            run(connection, "delete from lanes where grp = ?1 and partition = ?2", *key)
            run(connection, "delete from outstanding where grp = ?1 and partition = ?2", *key)
        for_each(connection, _SAVE_LANES, self._lanes)
        for_each(connection, _DELETE_OUTSTANDING, self._gone)
        for_each(connection, _SAVE_OUTSTANDING, self._outstanding)


Turn = tuple[int, int, int, int]
"""The order of delivery: 0 for requeued ones, else 1; then -priority, available at, offset."""
Source = PlainLane | DelayedLane | None
"""Where the next message comes from; None: the outstanding."""


class Picker:
    """Takes messages in the order of delivery, at one moment."""

    def __init__(self, connection: apsw.Connection, now: int) -> None:
        self._connection = connection
        self._now = now
        self.stepped: dict[SharedPosition, None] = {}
        """Places that moved over what is gone; worth saving."""
        self.expired: dict[str, int] = {}
        """Messages passed because their time to live was over, by queue."""
        self.ended: list[tuple[SharedPosition, int, Ending]] = []
        """The same ones, each by itself."""

    def look(self, position: SharedPosition, need: int = 1) -> bool:
        """Make the next message of every lane known; False: what is about to be committed may come before some."""
        clear = [self._fill(position, lane, need) for lane in position.lanes]
        return all(clear)

    def window_due(self, position: SharedPosition) -> int | None:
        """When a partition with a window buffer may be delivered; None: now, or there is nothing (rule 11)."""
        if not position.partition.queue.info.options.window_buffer:
            return None
        self._heads(position, 1)  # Passes what has outlived its time.
        return self.window_until(position)

    def window_until(self, position: SharedPosition) -> int | None:
        """The same for those who only look: what is ready, and has been for the longest, decides."""
        window = position.partition.queue.info.options.window_buffer * SECOND
        if not window:
            return None
        self.look(position)
        delay = self._delay(position)
        came = position.due_since(self._now)
        for lane in position.lanes:
            item = next((one for one in lane.items if not 0 < self._expiry(position, one) <= self._now), None)
            if item is not None and (not delay or item.created_at + delay <= self._now):
                came.append(max(item.deliver_at, item.created_at + delay))
        since = min(came, default=None)
        if since is None:
            return None
        due = min(position.partition.last_created + window, since + 10 * window)
        return due if due > self._now else None

    def pick(self, position: SharedPosition, need: int) -> list[Entry]:
        """The next messages, at most so many; they are outstanding from now on."""
        taken: list[Entry] = []
        heads = self._heads(position, need)
        while heads and len(taken) < need:
            heads.sort(key=lambda head: head[0])
            turn, source = heads[0]
            limit = heads[1][0] if len(heads) > 1 else None
            if source is None:
                taken.append(position.entries[turn[3]])
                position.take(taken[-1])
            else:
                self._take_run(position, source, need, limit, taken)
            next_turn = self._turn(position, source, need - len(taken), requeued=turn[0] == 0)
            heads[0:1] = [] if next_turn is None else [(next_turn, source)]
        return taken

    def _take_run(
        self, position: SharedPosition, lane: PlainLane | DelayedLane, need: int, limit: Turn | None, taken: list[Entry]
    ) -> None:
        """Pass what of a lane is read already and comes before all else; its first message is known to do so."""
        options = position.partition.queue.info.options
        items, priority, now = lane.items, lane.priority, self._now
        delay = options.delayed_processing * SECOND
        first = True
        while items and len(taken) < need:
            item = items[0]
            available_at = max(item.deliver_at or item.created_at, item.created_at + delay)
            if not first and (
                (limit is not None and (1, -priority, available_at, item.offset) > limit)
                or (delay and available_at > now)
                or options.ttl
                or item.expires_at
            ):
                break  # Who sorts messages out looks at it.
            first = False
            lane.take()
            # A message may be created a moment later than now, so that it is after the start of a group.
            entry = Entry(item.offset, priority, item.created_at, min(available_at, now))
            position.take(entry)
            taken.append(entry)

    def _heads(self, position: SharedPosition, need: int) -> list[tuple[Turn, Source]]:
        requeued = self._turn(position, None, need, requeued=True)
        other = self._turn(position, None, need, requeued=False)
        heads: list[tuple[Turn, Source]] = [(turn, None) for turn in (requeued, other) if turn is not None]
        for lane in position.lanes:
            turn = self._turn(position, lane, need, requeued=False)
            if turn is not None:
                heads.append((turn, lane))
        return heads

    def _turn(self, position: SharedPosition, source: Source, need: int, *, requeued: bool) -> Turn | None:
        """The turn of the next message of a source, if it is ready."""
        if source is None:
            entry = position.due_entries(self._now)[0 if requeued else 1]
            return None if entry is None else (0 if requeued else 1, *entry.turn)
        while True:
            self._fill(position, source, need)
            if not source.items:
                return None
            item = source.items[0]
            expiry = self._expiry(position, item)
            if expiry and expiry <= self._now:
                source.take()
                self._note_expired(position, item.offset, expiry)
                continue
            old_enough_at = item.created_at + self._delay(position)
            available_at = max(item.deliver_at or item.created_at, old_enough_at)
            if old_enough_at <= self._now or not self._delay(position):
                return 1, -source.priority, available_at, item.offset
            if isinstance(source, PlainLane):
                return None  # So are all behind it.
            # It is due, but not old enough: those behind it need not wait for that.
            late = Entry(item.offset, source.priority, item.created_at, available_at)
            source.take()
            position.take(late)
            position.add(late)

    def _fill(self, position: SharedPosition, lane: PlainLane | DelayedLane, need: int) -> bool:
        if isinstance(lane, PlainLane):
            lane.fill(self._connection, position.partition, position.lower, need)
            return True
        before = len(lane.items)
        clear = lane.fill(self._connection, position.partition, self._now, position.lower, need)
        position.fell_due = position.fell_due or len(lane.items) > before
        return clear

    def _delay(self, position: SharedPosition) -> int:
        return position.partition.queue.info.options.delayed_processing * SECOND

    def _expiry(self, position: SharedPosition, item: Item) -> int:
        """When a message's time to live is over; 0: never."""
        ttl = position.partition.queue.info.options.ttl
        return item.expires_at or (item.created_at + ttl * SECOND if ttl else 0)

    def _note_expired(self, position: SharedPosition, offset: int, expiry: int) -> None:
        name = position.partition.queue.name
        self.ended.append((position, offset, Ending("expired", expiry)))
        self.expired[name] = self.expired.get(name, 0) + 1
        self.stepped[position] = None
