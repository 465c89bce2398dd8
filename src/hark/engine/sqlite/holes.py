"""Offsets without a message, as ranges; and messages that are removed because every group is done with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import apsw
import msgspec

from hark.engine.sqlite.state import Partition
from hark.engine.sqlite.store import for_each, rows_of, run, scalar
from hark.engine.sqlite.track import Stored

if TYPE_CHECKING:
    from hark.engine.sqlite.transaction import WriteTransaction

_BEFORE = """
select first, last from holes where partition = ?1 and first < ?2 and owner = 0 order by first desc limit 1
"""
_WANTED = "in (select value ->> 0, value ->> 1 from json_each(?1))"
_FIND = """
select message.partition, message.offset, priority, deliver_at, owner from json_each(?2) as wanted
cross join messages as message where message.partition = ?1 and message.offset = wanted.value
"""


def dig(connection: apsw.Connection, partition: int, first: int, last: int) -> None:
    """There is no message between these offsets (any more): one range with those beside it."""
    run(connection, "delete from holes where partition = ?1 and first between ?2 and ?3", partition, first, last)
    for before in rows_of(connection, _BEFORE, partition, first):
        if before[1] >= first - 1:
            first, last = before[0], max(last, before[1])
    behind = "select last from holes where partition = ?1 and first = ?2 and owner = 0"
    reach = scalar(connection, behind, partition, last + 1)
    if reach is not None:
        run(connection, "delete from holes where partition = ?1 and first = ?2", partition, last + 1)
        last = int(reach)
    run(connection, "insert or replace into holes (partition, first, last) values (?1, ?2, ?3)", partition, first, last)


class Drops:
    """What a transaction settles in queues that keep nothing (`drop_settled`)."""

    def __init__(self) -> None:
        self._settled: dict[Partition, dict[int, None]] = {}
        self._gone: dict[Partition, list[int]] = {}
        self._floors: dict[Partition, int] = {}

    def note(self, partition: Partition, offset: int) -> None:
        """A group is done with a message."""
        self._settled.setdefault(partition, {})[offset] = None

    def decide(self, transaction: WriteTransaction) -> None:
        """Find out what all groups are done with, as the transaction leaves it."""
        for partition, offsets in self._settled.items():
            gone = [offset for offset in offsets if offset > partition.floor]
            if len(partition.queue.groups) > 1:
                gone = list(_settled_by_all(transaction, partition, gone))
            if gone:
                self._gone[partition] = sorted(gone)

    def write(self, connection: apsw.Connection) -> None:
        """Remove it; dead letters have been copied before."""
        if not self._gone:
            return
        places = [(partition.id, offset) for partition, offsets in self._gone.items() for offset in offsets]
        traces = f"from traces where (partition, offset) {_WANTED}"
        for_each(connection, f"delete from trace_names where trace in (select id {traces})", places)
        for_each(connection, f"delete {traces}", places)
        for_each(connection, f"delete from messages where (partition, offset) {_WANTED}", places)
        for partition, offsets in self._gone.items():
            lowest = scalar(connection, "select min(offset) from messages where partition = ?1", partition.id)
            tail = partition.next_tail
            floor = self._floors[partition] = max(partition.floor, tail if lowest is None else lowest - 1)
            sql = "update partitions set floor = ?1, tail = ?2 where id = ?3"
            run(connection, sql, floor, tail, partition.id)
            run(connection, "delete from holes where partition = ?1 and last <= ?2", partition.id, floor)
            for first, last in _runs(offset for offset in offsets if offset > floor):
                dig(connection, partition.id, first, last)

    def publish(self) -> None:
        """It is gone."""
        for partition, floor in self._floors.items():
            partition.floor = max(partition.floor, floor)


def _settled_by_all(transaction: WriteTransaction, partition: Partition, offsets: list[int]) -> Iterator[int]:
    groups = list(partition.queue.groups.values())
    tracks = [transaction.loader.track(group, partition.id) for group in groups]
    wanted = msgspec.json.encode(offsets).decode()
    for row in rows_of(transaction.connection, _FIND, partition.id, wanted):
        message = Stored(*row)
        if all(track is None or track.is_settled(message) for track in tracks):
            yield message.offset


def _runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ranges of offsets that follow each other."""
    first = last = 0
    for offset in offsets:
        if first and offset == last + 1:
            last = offset
            continue
        if first:
            yield first, last
        first = last = offset
    if first:
        yield first, last
