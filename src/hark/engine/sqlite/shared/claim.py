"""Which messages of a shared group's place are next: a merge of its lanes and of the exceptions that are due."""

from __future__ import annotations

import apsw

from hark.clock import SECOND
from hark.engine.sqlite.shared.entry import Entry
from hark.engine.sqlite.shared.lanes import DelayedLane, Item, PlainLane
from hark.engine.sqlite.shared.track import SharedTrack
from hark.model import Ending

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
        window = track.partition.queue.info.options.window_buffer * SECOND
        if not window:
            return None
        self.look(track)
        created = [lane.items[0].created_at for lane in track.lanes if lane.items]
        created += [entry.created_at for entry in track.due_entries(self._now) if entry is not None]
        if not created:
            return None
        due = min(track.partition.last_created + window, min(created) + 10 * window)
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
