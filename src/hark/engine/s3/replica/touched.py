"""Which rows a record changed, sorted by what memory has to do with them."""

from __future__ import annotations

from typing import Any

import apsw

from hark.keys import decode_key
from hark.model import Key

Place = tuple[int, int]
"""A group's number and a partition's."""

# Tables that say where groups are: their keys begin with (group, partition).
_PLACES = frozenset({"tracks", "ranges", "retries", "fronts", "lanes", "exceptions"})
# Columns that memory does not keep, or does not need at once: what a queue has lost, when a group was seen.
_QUIET = {"queues": frozenset({8, 9}), "groups": frozenset({9})}


class Touched:
    """What there is in a patchset; of removed rows it has nothing but their keys."""

    def __init__(self, changes: bytes) -> None:
        self.arrived: dict[int, int] = {}
        """How many messages came to partitions."""
        self.partitions: set[int] = set()
        """Partitions with messages more or less, or whose floor was moved."""
        self.places: set[Place] = set()
        self.leases: set[str] = set()
        self.rates: set[tuple[str, int]] = set()
        self.queues: set[int] = set()
        self.groups: set[int] = set()
        self.labels = False
        self.numbers = False
        """What is noted of the store as a whole."""
        self.keys: list[Key] = []
        for change in apsw.Changeset.iter(changes):
            self._note(change)

    @property
    def is_structural(self) -> bool:
        """Whether queues or groups came, went or were changed: then nothing in memory is worth keeping."""
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
        elif table in _PLACES:
            second: Any = row[1]
            self.places.add((key, second))
        elif table == "leases":
            self.leases.add(key)
        elif table in ("partitions", "holes"):
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
