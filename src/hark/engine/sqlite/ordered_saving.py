"""Writes down how a transaction leaves places of ordered groups."""

from __future__ import annotations

import apsw

from hark.engine.sqlite.ordered import Track
from hark.engine.sqlite.store import Value, for_each, run

_SAVE_TRACKS = """
insert into tracks (grp, partition, cursor, probe, settled_at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 from json_each(?1) where true
on conflict (grp, partition) do update
set cursor = excluded.cursor, probe = excluded.probe, settled_at = excluded.settled_at
"""
_DELETE_RANGES = """
delete from ranges where (grp, partition, first) in
    (select value ->> 0, value ->> 1, value ->> 2 from json_each(?1))
"""
_SAVE_RANGES = """
insert into ranges (grp, partition, first, last)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(?1)
"""
_DELETE_RETRIES = """
delete from retries where (grp, partition, offset) in
    (select value ->> 0, value ->> 1, value ->> 2 from json_each(?1))
"""
_SAVE_RETRIES = """
insert into retries (grp, partition, offset, attempts, due, error)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 from json_each(?1) where true
on conflict (grp, partition, offset) do update
set attempts = excluded.attempts, due = excluded.due, error = excluded.error
"""
_DELETE_FRONTS = """
delete from fronts where (grp, partition, offset) in
    (select value ->> 0, value ->> 1, value ->> 2 from json_each(?1))
"""
_SAVE_FRONTS = """
insert into fronts (grp, partition, offset, probe)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(?1) where true
on conflict (grp, partition, offset) do update set probe = excluded.probe
"""

Row = tuple[Value, ...]


class OrderedRows:
    """The rows of one transaction. Its drafts are nobody else's to change, so they can be written without the lock."""

    def __init__(self) -> None:
        self._tracks: list[Track] = []

    def note(self, track: Track) -> None:
        """A place that the transaction changes."""
        self._tracks.append(track)

    def write(self, connection: apsw.Connection) -> None:
        """Write them."""
        if not self._tracks:
            return
        tracks: list[Row] = []
        gone: tuple[list[Row], list[Row], list[Row]] = ([], [], [])
        kept: tuple[list[Row], list[Row], list[Row]] = ([], [], [])
        for track in self._tracks:
            draft, key = track.draft, (track.group.id, track.partition.id)
            assert draft is not None
            tracks.append((*key, draft.cursor, draft.probe, draft.settled_at))
            if draft.wiped:
                for table in ("ranges", "retries", "fronts"):
                    run(connection, f"delete from {table} where grp = ?1 and partition = ?2", *key)
            if draft.touched_ranges:
                gone[0].extend((*key, first) for first in draft.touched_ranges)
                kept[0].extend((*key, *pair) for pair in draft.ranges if pair[0] in draft.touched_ranges)
            if draft.retries or track.retries:
                gone[1].extend((*key, offset) for offset in track.retries if offset not in draft.retries)
                kept[1].extend(
                    (*key, offset, retry.attempts, retry.due, retry.error)
                    for offset, retry in draft.retries.items()
                    if track.retries.get(offset) is not retry
                )
            if draft.front or track.front:
                gone[2].extend((*key, offset) for offset in track.front if offset not in draft.front)
                kept[2].extend(
                    (*key, offset, int(probe))
                    for offset, probe in draft.front.items()
                    if track.front.get(offset) is not probe
                )
        for_each(connection, _SAVE_TRACKS, tracks)
        statements = ((_DELETE_RANGES, _SAVE_RANGES), (_DELETE_RETRIES, _SAVE_RETRIES), (_DELETE_FRONTS, _SAVE_FRONTS))
        for (delete, save), old, new in zip(statements, gone, kept, strict=True):
            for_each(connection, delete, old)
            for_each(connection, save, new)
