"""Writes down how places of shared groups stand at the end of a transaction's bodies."""

from __future__ import annotations

import apsw

from hark.engine.sqlite.shared.draft import SETTLED, SharedDraft
from hark.engine.sqlite.shared.entry import Entry
from hark.engine.sqlite.shared.track import SharedTrack
from hark.engine.sqlite.store import for_each, run

_SAVE_TRACKS = """
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
        for_each(connection, _SAVE_TRACKS, self._tracks)
        for key in self._wiped:
            run(connection, "delete from lanes where grp = ?1 and partition = ?2", *key)
            run(connection, "delete from exceptions where grp = ?1 and partition = ?2", *key)
        for_each(connection, _SAVE_LANES, self._lanes)
        for_each(connection, _DELETE_EXCEPTIONS, self._gone)
        for_each(connection, _SAVE_EXCEPTIONS, self._exceptions)
