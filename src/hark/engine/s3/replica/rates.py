"""What is left of the rates of queues and groups, as rows: they hold over all processes."""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from hark.engine.sqlite.state import Bounds, State
from hark.engine.sqlite.store import for_each, rows_of
from hark.engine.sqlite.track import AnyTrack

_SAVE = """
insert into rates (kind, owner, tokens, filled_at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(?1) where true
on conflict (kind, owner) do update set tokens = excluded.tokens, filled_at = excluded.filled_at
"""

Owner = tuple[str, int]


def save(connection: apsw.Connection, state: State, taken: Iterable[AnyTrack]) -> None:
    """Write down what is left of the rates of those whose messages were taken."""
    found: dict[Owner, Bounds] = {}
    for track in taken:
        queue = state.queues.get(track.group.queue_name)
        if queue is not None and queue.bounds.limits.rate_limit:
            found["queue", queue.id] = queue.bounds
        if track.group.bounds.limits.rate_limit:
            found["group", track.group.id] = track.group.bounds
    rows = [(*owner, one.tokens, one.filled_at) for owner, one in found.items() if one.tokens is not None]
    for_each(connection, _SAVE, rows)


class Rates:
    """Puts what is stored where it belongs, when queues and groups are in memory."""

    def __init__(self, connection: apsw.Connection) -> None:
        rows = rows_of(connection, "select kind, owner, tokens, filled_at from rates")
        self._rows: dict[Owner, tuple[float, int]] = {(row[0], row[1]): (row[2], row[3]) for row in rows}

    @property
    def groups(self) -> list[int]:
        """Groups that have one."""
        return [owner for kind, owner in self._rows if kind == "group"]

    def give(self, kind: str, owner: int, bounds: Bounds) -> None:
        """Say what is left of a rate, if somebody has taken of it."""
        stored = self._rows.get((kind, owner))
        if stored is not None:
            bounds.tokens, bounds.filled_at = stored
