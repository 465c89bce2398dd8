"""The verb collect: removes messages whose retention is over, a bounded number of rows at a time (rule 23).

Messages are stored in the order of their arrival, so a pass goes from the oldest on and ends at the first one that
is too young for every rule. Only after a purge, a deleted queue or a message with a time to live of its own (the
flag `sweep`) does a pass have to look at all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hark.clock import SECOND
from hark.engine.sqlite.leases import LeaseView
from hark.engine.sqlite.messages import leave_hole, settle_removed
from hark.engine.sqlite.rows import NO_EXTRA, decode_extra
from hark.engine.sqlite.sql import CURSOR
from hark.engine.sqlite.state import Partition, Queue
from hark.engine.sqlite.store import for_each, rows_of, run, scalar
from hark.engine.sqlite.track import Stored
from hark.engine.sqlite.transaction import WriteTransaction
from hark.model import Collected, QueueOptions

_SCAN = """
select seq, created_at, extra, partition, offset, priority, deliver_at, owner from messages
where seq > ?1 order by seq limit ?2
"""


class Keeper:
    """Who holds messages of one partition: cursors of ordered groups, places of shared ones."""

    def __init__(self, transaction: WriteTransaction, partition: Partition, active_since: int) -> None:
        rows = rows_of(
            transaction.connection,
            f"""
            select {CURSOR}, groups.last_seen >= ?3 from groups
            join partitions as place on place.id = ?2
            left join tracks as track on track.grp = groups.id and track.partition = place.id
            where groups.queue = ?1 and groups.mode = 'ordered'
            """,
            partition.queue.name,
            partition.id,
            active_since,
        )
        self._slowest_active = min((cursor for cursor, active in rows if active), default=None)
        self._fastest = max((cursor for cursor, _ in rows), default=0)
        fronts = rows_of(transaction.connection, "select offset from fronts where partition = ?1", partition.id)
        self._fronts = {offset for (offset,) in fronts}
        transaction.loader.groups(partition.queue.name)
        shared = [group for group in partition.queue.groups.values() if group.mode == "shared"]
        tracks = [(group, transaction.loader.track(group, partition.id)) for group in shared]
        self._shared = [(track, group.last_seen >= active_since) for group, track in tracks if track is not None]

    def is_settled(self, message: Stored) -> bool:
        """Whether every group that still counts is done with a message."""
        active = [track for track, active in self._shared if active]
        if self._slowest_active is None:
            return bool(active) and all(track.is_settled(message) for track in active)
        if message.offset > self._slowest_active or message.offset in self._fronts:
            return False
        return all(track.is_settled(message) for track in active)

    def was_passed(self, message: Stored) -> bool:
        """Whether some group has been at a message, or behind it."""
        return message.offset <= self._fastest or any(track.is_settled(message) for track, _ in self._shared)


class Collector:
    """Goes through the messages, remembering where it stopped."""

    def __init__(self, completed_seconds: int, idle_group_seconds: int) -> None:
        self._completed_seconds = completed_seconds
        self._idle_group_seconds = idle_group_seconds
        self._position = 0
        self._sweeping: int | None = None
        """What the flag `sweep` was when this pass began."""

    def step(self, transaction: WriteTransaction, limit: int) -> Collected:
        """Look at the next messages, and remove those whose time is over."""
        connection = transaction.connection
        if not self._position:
            self._sweeping = scalar(connection, "select value from meta where key = 'sweep'")
        rows = rows_of(connection, _SCAN, self._position, limit)
        youngest = transaction.now - self._shortest(transaction.state.queues.values()) * SECOND
        at_end = len(rows) < limit
        if self._sweeping is None and rows and rows[0][1] > youngest:
            rows, at_end = [], True
        removed = self._remove(transaction, rows) if rows else 0
        self._position = 0 if at_end else rows[-1][0]
        if at_end and self._sweeping is not None:
            self._finish_sweep(transaction)
        return Collected(len(rows), removed, not at_end)

    def _shortest(self, queues: Iterable[Queue]) -> int:
        shortest = self._completed_seconds
        for queue in queues:
            options = queue.info.options
            for seconds in (options.ttl, options.max_wait_time_seconds, *_enabled(options)):
                if seconds:
                    shortest = min(shortest, seconds)
        return shortest

    def _remove(self, transaction: WriteTransaction, rows: list[Any]) -> int:
        held = LeaseView(transaction.state).held_places()
        keepers: dict[int, Keeper] = {}
        gone: list[int] = []
        touched: dict[int, list[int]] = {}
        active_since = transaction.now - self._idle_group_seconds * SECOND
        for seq, created_at, extra, *place in rows:
            message = Stored(*place)
            partition_id, offset = message.partition, message.offset
            partition = transaction.loader.partition(partition_id)
            if partition is not None and offset > partition.floor:
                if (partition_id, offset) in held:
                    continue
                if partition_id not in keepers:
                    keepers[partition_id] = Keeper(transaction, partition, active_since)
                if not self._is_over(transaction, partition.queue, keepers[partition_id], message, created_at, extra):
                    continue
            gone.append(seq)
            touched.setdefault(partition_id, []).append(offset)
        if gone:
            connection = transaction.connection
            transaction.save_dead_letters()
            traces = """
                from traces where (partition, offset) in
                    (select partition, offset from messages where seq in (select value from json_each(?1)))
            """
            for_each(connection, f"delete from trace_names where trace in (select id {traces})", gone)
            for_each(connection, f"delete {traces}", gone)
            for_each(connection, "delete from messages where seq in (select value from json_each(?1))", gone)
            for partition_id, offsets in touched.items():
                self._raise_floor(transaction, partition_id, offsets)
        return len(gone)

    def _is_over(
        self,
        transaction: WriteTransaction,
        queue: Queue,
        keeper: Keeper,
        message: Stored,
        created_at: int,
        text: str | None,
    ) -> bool:
        options = queue.info.options
        age = transaction.now - created_at
        extra = NO_EXTRA if text is None else decode_extra(text)
        expires_at = extra.x or (created_at + options.ttl * SECOND if options.ttl and message.owner is None else 0)
        if expires_at and expires_at <= transaction.now:
            if not keeper.was_passed(message):  # Nobody has stepped over it, and so nobody has counted it.
                transaction.count(queue.name, "expired")
            return True
        retention, completed = _enabled(options)
        if retention and age >= retention * SECOND:
            return True
        if keeper.is_settled(message):
            if options.drop_settled:
                return True
            return age >= (completed or self._completed_seconds) * SECOND
        return bool(options.max_wait_time_seconds) and age >= options.max_wait_time_seconds * SECOND

    def _raise_floor(self, transaction: WriteTransaction, partition_id: int, removed: list[int]) -> None:
        """What is below the first message that is left can be forgotten altogether."""
        partition = transaction.loader.partition(partition_id)
        if partition is None:
            return
        connection = transaction.connection
        lowest = scalar(connection, "select min(offset) from messages where partition = ?1", partition_id)
        floor = max(partition.floor, partition.tail if lowest is None else lowest - 1)
        run(
            connection,
            "update partitions set floor = ?1, tail = ?2 where id = ?3",
            floor,
            partition.tail,
            partition_id,
        )
        run(connection, "delete from retries where partition = ?1 and offset <= ?2", partition_id, floor)
        run(connection, "delete from fronts where partition = ?1 and offset <= ?2", partition_id, floor)
        run(connection, "delete from holes where partition = ?1 and last <= ?2", partition_id, floor)
        partition.floor = floor
        transaction.note_removal(partition)
        for offset in removed:
            if offset > floor:
                leave_hole(transaction, partition, offset)
            else:
                _settle_exceptions(transaction, partition, offset)
        transaction.on_commit(lambda: _look_behind(transaction, partition))

    def _finish_sweep(self, transaction: WriteTransaction) -> None:
        connection = transaction.connection
        gone = """
            select id from partitions
            where queue = 0 and not exists (select 1 from messages where messages.partition = partitions.id)
        """
        for table in ("tracks", "ranges", "retries", "fronts", "lanes", "exceptions", "holes"):
            run(connection, f"delete from {table} where partition in ({gone})")
        run(connection, f"delete from partitions where id in ({gone})")
        # Unless another one was wanted meanwhile.
        run(connection, "delete from meta where key = 'sweep' and value = ?1", self._sweeping)


def _settle_exceptions(transaction: WriteTransaction, partition: Partition, offset: int) -> None:
    """What is below the floor counts as settled by itself, but for exceptions of shared groups."""
    for group in partition.queue.groups.values():
        track = transaction.loader.track(group, partition.id) if group.mode == "shared" else None
        if track is not None and track.keeps(offset):
            settle_removed(transaction, track, offset)


def _look_behind(transaction: WriteTransaction, partition: Partition) -> None:
    """What groups waited for in a partition may be what was removed: then they need not wait for it."""
    queue = partition.queue
    queue.open = None
    if partition.floor >= partition.tail:
        return
    for group in queue.groups.values():
        if partition.id in group.waking:
            group.reconsider(partition.id, transaction.now)
            transaction.hints.add(queue.name, group.name, (partition.name,))


def _enabled(options: QueueOptions) -> tuple[int, int]:
    """Retention by age and after completion, 0 where the queue has none of its own."""
    if not options.retention_enabled:
        return 0, 0
    return options.retention_seconds, options.completed_retention_seconds
