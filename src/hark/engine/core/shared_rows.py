"""Positions of shared groups: loading, saving, and the choice of their next messages."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from hark.clock import SECOND
from hark.engine.core.shared import NEVER, SETTLED, DelayedLane, Entry, Item, PlainLane, SharedDraft, SharedTrack
from hark.engine.core.state import Group, Partition
from hark.engine.core.store import for_each, run, scalar
from hark.model import Ending

PRIORITIES = "json_each('[0,1,2,3,4,5,6,7,8,9]')"

# What is behind a lane's position, in the partition `place` for the group ?1. Whoever includes these names the tables
# `level` (a priority), `lane` (its row in lanes, or none) and `track` (the group's row in tracks, or none).
_LOWER = "max(place.floor, ifnull(track.cursor, wanted.value ->> 1))"
FIRST_PLAIN = f"""
(select message.offset from messages as message indexed by messages_priority
 where message.partition = place.id and message.priority = level.value
   and message.offset > max({_LOWER}, ifnull(lane.cursor, 0))
   and message.priority > 0 and message.deliver_at is null and message.owner is null
 order by message.offset limit 1)
"""
FIRST_DELAYED = f"""
(select message.deliver_at from messages as message indexed by messages_delayed
 where message.partition = place.id and message.priority = level.value and message.deliver_at is not null
   and (message.deliver_at, message.offset) > (ifnull(lane.due, 0), ifnull(lane.due_offset, 0))
   and message.offset > {_LOWER}
 order by message.deliver_at, message.offset limit 1)
"""
_LANES = f"""
select json_group_array(json_array(level.value, ifnull(lane.cursor, 0), ifnull(lane.due, 0),
    ifnull(lane.due_offset, 0), {FIRST_PLAIN} is not null, ifnull({FIRST_DELAYED}, 0)))
from {PRIORITIES} as level
left join lanes as lane on lane.grp = ?1 and lane.partition = place.id and lane.priority = level.value
"""
_SHARED_TRACKS = f"""
select json_group_array(json_array(
    place.id,
    iif(track.cursor is null, null, json_array(track.cursor, track.settled_at)),
    json(({_LANES})),
    json((select json_group_array(json_array(
            exceptions.offset, available_at, attempts, error, front, ifnull(created_at, 0), ifnull(priority, 0)))
        from exceptions
        left join messages on messages.partition = exceptions.partition and messages.offset = exceptions.offset
        where exceptions.grp = ?1 and exceptions.partition = place.id))))
from json_each(?2) as wanted
join partitions as place on place.id = wanted.value ->> 0
left join tracks as track on track.grp = ?1 and track.partition = place.id
"""

# Partitions where something may be ready, or will be: the highest priority that is, and whether time may raise that.
DISCOVER = f"""
select json_group_array(json_array(id, found ->> 0, found ->> 1)) from (
    select place.id, (
        select iif(max(priority) is null, null, json_array(max(priority), max(later))) from (
            select iif({FIRST_PLAIN} is not null or {FIRST_DELAYED} <= ?5, level.value, 0) as priority,
                {FIRST_DELAYED} is not null as later
            from {PRIORITIES} as level
            left join lanes as lane on lane.grp = ?1 and lane.partition = place.id and lane.priority = level.value
            where {FIRST_PLAIN} is not null or {FIRST_DELAYED} is not null
            union all
            select 0, 0 where max(place.tail,
                ifnull((select max(offset) from messages where messages.partition = place.id), 0))
                > max(place.floor, ifnull(track.cursor, 0), ifnull((select cursor from lanes
                    where grp = ?1 and lanes.partition = place.id and lanes.priority = 0), 0))
            union all
            select iif(available_at <= ?5, messages.priority, 0), available_at > ?5 from exceptions
            join messages on messages.partition = place.id and messages.offset = exceptions.offset
            where exceptions.grp = ?1 and exceptions.partition = place.id
        )) as found
    from partitions as place
    cross join json_each('[[0, 0]]') as wanted
    left join tracks as track on track.grp = ?1 and track.partition = place.id
    where place.queue = ?2
      and (track.cursor is not null or ?3 is null or place.id > ?4
           or ifnull((select created_at from messages where messages.partition = place.id
                      order by offset desc limit 1), 0) > ?3)
) where found is not null
"""


class Row(msgspec.Struct, array_like=True):
    """A place as it is read."""

    partition: int
    track: tuple[int, int | None] | None
    lanes: list[tuple[int, int, int, int, int, int]]
    entries: list[tuple[int, int, int, str | None, int, int, int]]


_decode_rows = msgspec.json.Decoder(list[Row]).decode
_encode = msgspec.json.Encoder().encode


def load(connection: apsw.Connection, group: Group, places: Sequence[tuple[int, int]]) -> list[Row]:
    """The rows of a group's places in partitions, each with where it begins if it is new."""
    return _decode_rows(scalar(connection, _SHARED_TRACKS, group.id, _encode(places).decode()))


def make_track(group: Group, partition: Partition, row: Row, base: int) -> SharedTrack:
    """A place as it is stored; `base` is where it begins if it is new."""
    track = SharedTrack(group, partition, base if row.track is None else row.track[0])
    if row.track is not None:
        track.settled_at = row.track[1]
    for priority, cursor, due, due_offset, more, next_due in row.lanes:
        if priority == 0 or cursor or more:
            lane = track.plain[priority] = PlainLane(priority, cursor)
            lane.more = bool(more) if priority else max(cursor, track.lower) < partition.tail
        if due or next_due:
            late = track.delayed[priority] = DelayedLane(priority, (due, due_offset))
            late.next_due = next_due or NEVER
    for offset, available_at, attempts, error, front, created_at, priority in row.entries:
        entry = Entry(offset, priority, created_at, available_at)
        entry.attempts, entry.error, entry.front, entry.saved = attempts, error, bool(front), True
        track.add(entry)
    return track


_SAVE_SHARED_TRACKS = """
insert into tracks (grp, partition, cursor, settled_at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(?1) where true
on conflict (grp, partition) do update set cursor = excluded.cursor, settled_at = excluded.settled_at
"""
_SAVE_LANES = """
insert or replace into lanes (grp, partition, priority, cursor, due, due_offset)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 from json_each(?1)
"""
_DELETE_EXCEPTIONS = """
delete from exceptions where (grp, partition, offset) in
    (select value ->> 0, value ->> 1, value ->> 2 from json_each(?1))
"""
_SAVE_EXCEPTIONS = """
insert or replace into exceptions (grp, partition, offset, available_at, attempts, error, front)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6 from json_each(?1)
"""

Key = tuple[int, int]


class SharedRows:
    """The rows of one transaction. They are taken under the lock and written without it."""

    def __init__(self) -> None:
        self._tracks: list[tuple[int, int, int, int | None]] = []
        self._lanes: list[tuple[int, int, int, int, int, int]] = []
        self._wiped: list[Key] = []
        self._gone: list[tuple[int, int, int]] = []
        self._exceptions: list[tuple[int, int, int, int, int, str | None, int]] = []
        self.latest_due = 0
        """The latest time of delivery that a group has passed: no message may ever be due before it any more."""

    def note(self, track: SharedTrack) -> None:
        """Take down how a place stands."""
        draft, key = track.draft, (track.group.id, track.partition.id)
        assert draft is not None
        self._tracks.append((*key, draft.base, draft.settled_at))
        if draft.voided:
            self._wiped.append(key)
        else:
            self._note_lanes(track, key)
            self._note_changes(track, draft, key)
            for entry in track.unsaved.values():
                if entry.offset not in draft.changes:
                    self._save(entry, key)
            track.unsaved.clear()
        for entry in draft.added.values():
            self._save(entry, key)

    def _note_lanes(self, track: SharedTrack, key: Key) -> None:
        for priority in track.plain.keys() | track.delayed.keys():
            plain, late = track.plain.get(priority), track.delayed.get(priority)
            if (plain is None or plain.cursor == plain.saved) and (late is None or late.cursor == late.saved):
                continue
            cursor, due = 0, (0, 0)
            if plain is not None:
                cursor = plain.saved = plain.cursor
            if late is not None:
                due = late.saved = late.cursor
            self._lanes.append((*key, priority, cursor, *due))
            self.latest_due = max(self.latest_due, due[0])

    def _note_changes(self, track: SharedTrack, draft: SharedDraft, key: Key) -> None:
        self._gone += [(*key, offset) for offset in track.dropped]
        track.dropped = []
        for offset, change in draft.changes.items():
            entry = track.entries.get(offset)
            if change is not SETTLED:
                self._save(change, key)
                if entry is not None:
                    entry.saved = True
            elif entry is not None and entry.saved:
                self._gone.append((*key, offset))

    def _save(self, entry: Entry, key: Key) -> None:
        entry.saved = True
        self._exceptions.append((*key, entry.offset, entry.available_at, entry.attempts, entry.error, int(entry.front)))

    def write(self, connection: apsw.Connection) -> None:
        """Write them."""
        if not self._tracks:
            return
        for_each(connection, _SAVE_SHARED_TRACKS, self._tracks)
        for key in self._wiped:
            run(connection, "delete from lanes where grp = ?1 and partition = ?2", *key)
            run(connection, "delete from exceptions where grp = ?1 and partition = ?2", *key)
        for_each(connection, _SAVE_LANES, self._lanes)
        for_each(connection, _DELETE_EXCEPTIONS, self._gone)
        for_each(connection, _SAVE_EXCEPTIONS, self._exceptions)


Turn = tuple[int, int, int, int]
"""The order of delivery: 0 for requeued ones, else 1; then -priority, available at, offset."""
Source = PlainLane | DelayedLane | None
"""Where the next message comes from; None: the exceptions."""


class Picker:
    """Takes messages in the order of delivery, at one moment."""

    def __init__(self, connection: apsw.Connection, now: int) -> None:
        self._connection = connection
        self._now = now
        self.stepped: dict[SharedTrack, None] = {}
        """Places that moved over what is gone; worth saving."""
        self.expired: dict[str, int] = {}
        """Messages passed because their time to live was over, by queue."""
        self.ended: list[tuple[SharedTrack, int, Ending]] = []
        """The same ones, each by itself."""

    def look(self, track: SharedTrack, need: int = 1) -> bool:
        """Make the next message of every lane known; False: what is about to be committed may come before some."""
        clear = [self._fill(track, lane, need) for lane in track.lanes]
        return all(clear)

    def window_due(self, track: SharedTrack) -> int | None:
        """When a partition with a window buffer may be delivered; None: now, or there is nothing (rule 11)."""
        if not track.partition.queue.info.options.window_buffer:
            return None
        self._heads(track, 1)  # Passes what has outlived its time.
        return self.window_until(track)

    def window_until(self, track: SharedTrack) -> int | None:
        """The same for those who only look: what is ready, and has been for the longest, decides."""
        window = track.partition.queue.info.options.window_buffer * SECOND
        if not window:
            return None
        self.look(track)
        delay = self._delay(track)
        came = track.due_since(self._now)
        for lane in track.lanes:
            item = next((one for one in lane.items if not 0 < self._expiry(track, one) <= self._now), None)
            if item is not None and (not delay or item.created_at + delay <= self._now):
                came.append(max(item.deliver_at, item.created_at + delay))
        since = min(came, default=None)
        if since is None:
            return None
        due = min(track.partition.last_created + window, since + 10 * window)
        return due if due > self._now else None

    def pick(self, track: SharedTrack, need: int) -> list[Entry]:
        """The next messages, at most so many; they are exceptions from now on."""
        taken: list[Entry] = []
        heads = self._heads(track, need)
        while heads and len(taken) < need:
            heads.sort(key=lambda head: head[0])
            turn, source = heads[0]
            limit = heads[1][0] if len(heads) > 1 else None
            if source is None:
                taken.append(track.entries[turn[3]])
                track.take(taken[-1])
            else:
                self._take_run(track, source, need, limit, taken)
            next_turn = self._turn(track, source, need - len(taken), front=turn[0] == 0)
            heads[0:1] = [] if next_turn is None else [(next_turn, source)]
        return taken

    def _take_run(
        self, track: SharedTrack, lane: PlainLane | DelayedLane, need: int, limit: Turn | None, taken: list[Entry]
    ) -> None:
        """Pass what of a lane is read already and comes before all else; its first message is known to do so."""
        options = track.partition.queue.info.options
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
            track.take(entry)
            taken.append(entry)

    def _heads(self, track: SharedTrack, need: int) -> list[tuple[Turn, Source]]:
        front = self._turn(track, None, need, front=True)
        other = self._turn(track, None, need, front=False)
        heads: list[tuple[Turn, Source]] = [(turn, None) for turn in (front, other) if turn is not None]
        for lane in track.lanes:
            turn = self._turn(track, lane, need, front=False)
            if turn is not None:
                heads.append((turn, lane))
        return heads

    def _turn(self, track: SharedTrack, source: Source, need: int, *, front: bool) -> Turn | None:
        """The turn of the next message of a source, if it is ready."""
        if source is None:
            entry = track.due_entries(self._now)[0 if front else 1]
            return None if entry is None else (0 if front else 1, *entry.turn)
        while True:
            self._fill(track, source, need)
            if not source.items:
                return None
            item = source.items[0]
            expiry = self._expiry(track, item)
            if expiry and expiry <= self._now:
                source.take()
                self._note_expired(track, item.offset, expiry)
                continue
            old_enough_at = item.created_at + self._delay(track)
            available_at = max(item.deliver_at or item.created_at, old_enough_at)
            if old_enough_at <= self._now or not self._delay(track):
                return 1, -source.priority, available_at, item.offset
            if isinstance(source, PlainLane):
                return None  # So are all behind it.
            # It is due, but not old enough: those behind it need not wait for that.
            late = Entry(item.offset, source.priority, item.created_at, available_at)
            source.take()
            track.take(late)
            track.add(late)

    def _fill(self, track: SharedTrack, lane: PlainLane | DelayedLane, need: int) -> bool:
        if isinstance(lane, PlainLane):
            lane.fill(self._connection, track.partition, track.lower, need)
            return True
        before = len(lane.items)
        clear = lane.fill(self._connection, track.partition, self._now, track.lower, need)
        track.fell_due = track.fell_due or len(lane.items) > before
        return clear

    def _delay(self, track: SharedTrack) -> int:
        return track.partition.queue.info.options.delayed_processing * SECOND

    def _expiry(self, track: SharedTrack, item: Item) -> int:
        """When a message's time to live is over; 0: never."""
        ttl = track.partition.queue.info.options.ttl
        return item.expires_at or (item.created_at + ttl * SECOND if ttl else 0)

    def _note_expired(self, track: SharedTrack, offset: int, expiry: int) -> None:
        name = track.partition.queue.name
        self.ended.append((track, offset, Ending("expired", expiry)))
        self.expired[name] = self.expired.get(name, 0) + 1
        self.stepped[track] = None
