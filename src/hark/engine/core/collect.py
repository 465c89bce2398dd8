"""Retention: find overdue messages in the committed tables, beside the writer, then remove them (rule 23).

The cost of the search depends on what it finds. Times never decrease within a partition, so old messages are at its
start, and a partition whose first message is young costs one lookup. Messages with their own time to live have an
index. Cursors show which messages groups have settled. `Collector.remove` checks each message again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain, islice
from math import inf
from typing import Any, NamedTuple

import apsw
import msgspec

from hark.clock import SECOND
from hark.engine.core.browse import offsets
from hark.engine.core.explain import LeaseView
from hark.engine.core.position import Stored
from hark.engine.core.queues import leave_gap, settle_removed
from hark.engine.core.state import Partition, Queue
from hark.engine.core.store import delete_traces, extra_of, for_each, rows_of, run, scalar
from hark.engine.core.transaction import WriteTransaction
from hark.engine.core.views import decode_options
from hark.model import QueueOptions

COLUMNS = "seq, created_at, extra, partition, offset, priority, deliver_at, owner"
OWN_TTL = f"select {COLUMNS} from messages indexed by messages_expiry where extra ->> 'x' <= ?1 order by extra ->> 'x'"
_GONE = """
select seq from partitions as partition cross join messages on partition = partition.id where partition.queue = 0
union all
select seq from partitions as partition cross join messages on partition = partition.id and offset <= partition.floor
"""
_GROUPS = "select id, mode, since, highest_partition, last_seen >= ?2 from groups where queue = ?1"
BEGUN_BEFORE = """
select partition.id, partition.name, partition.floor from partitions as partition
where partition.queue = ?1 and partition.name >= ?2 and (
    select created_at from messages
    where messages.partition = partition.id and offset > partition.floor order by offset limit 1) <= ?3
order by partition.name
"""
"""Partitions of a queue whose first message was created at that time or before."""
_PLAIN = "priority = 0 and deliver_at is null and owner is null"
BETWEEN = (
    f"select {COLUMNS} from messages indexed by messages_offset where partition = ?1 and offset > ?2 and offset <= ?3"
)
_FIRST_LANE = f"{BETWEEN} and {_PLAIN}"
_PRIORITY = f"""
select {COLUMNS} from messages indexed by messages_priority where partition = ?1 and offset > ?2 and offset <= ?3
and priority = ?4 and priority > 0 and deliver_at is null and owner is null
"""
_DELAYED = f"""
select {COLUMNS} from messages indexed by messages_delayed where partition = ?1 and offset > ?2 and offset <= ?3
and priority = ?4 and deliver_at is not null and (deliver_at, offset) {{}} (?5, ?6)
"""
_PASSED, _AHEAD = _DELAYED.format("<="), _DELAYED.format(">")
_OWNED = f"{BETWEEN} and offset in (select first from gaps where partition = ?1 and first > ?2 and owner != 0)"
_EXCEPTED = f"{BETWEEN} and offset in (select offset from {{}} where grp = ?4 and partition = ?1)"
_LEVELS = range(10)


class Rules(NamedTuple):
    """How long a queue keeps messages, in microseconds. Infinite: no limit."""

    ttl: float
    retention: float
    wait: float
    """For messages that a group has not settled."""
    completed: float
    """For messages that all groups have settled."""

    @classmethod
    def of(cls, options: QueueOptions, completed_seconds: int) -> Rules:
        """The rules of a queue; `completed_seconds` is the server's default."""
        retention = options.retention_seconds if options.retention_enabled else 0
        completed = options.completed_retention_seconds if options.retention_enabled else 0
        return cls(
            ttl=options.ttl * SECOND or inf,
            retention=retention * SECOND or inf,
            wait=options.max_wait_time_seconds * SECOND or inf,
            completed=0 if options.drop_settled else (completed or completed_seconds) * SECOND,
        )

    def is_expired(self, age: float, now: int, text: str | None, message: Stored) -> bool:
        """Whether a message is past its own time to live, or else that of its queue."""
        if own := extra_of(text).x:
            return own <= now
        return message.owner is None and age >= self.ttl

    def is_over(self, age: float, is_settled: Callable[[], bool]) -> bool:
        """Whether a message that has not expired must be removed."""
        return age >= self.retention or (
            age >= min(self.wait, self.completed) and age >= (self.completed if is_settled() else self.wait)
        )


class StoredPartition(NamedTuple):
    """A partition."""

    queue: str
    id: int
    name: str
    floor: int


class Group(NamedTuple):
    """A group, with the columns that determine its positions."""

    id: int
    mode: str
    since: int | None
    highest_partition: int
    active: bool

    def cursor(self, connection: apsw.Connection, stored: StoredPartition) -> int:
        """The cursor of the group in a partition; without a position, where it will start."""
        sql = "select cursor from positions where grp = ?1 and partition = ?2"
        cursor: int | None = scalar(connection, sql, self.id, stored.id)
        if cursor is None and self.since is not None and stored.id <= self.highest_partition:
            cursor = offsets(connection, stored.queue, self.since, stored.name)[0].offset - 1
        return max(stored.floor, cursor or 0)


def groups_of(connection: apsw.Connection, queue: str, active_since: int) -> list[Group]:
    """The groups of a queue."""
    return [Group(*row) for row in rows_of(connection, _GROUPS, queue, active_since)]


class SharedCursors:
    """The stored position of a shared group."""

    def __init__(self, connection: apsw.Connection, group: Group, stored: StoredPartition) -> None:
        sql = "select priority, cursor, due, due_offset from lanes where grp = ?1 and partition = ?2"
        self.group = group.id
        self.base = group.cursor(connection, stored)
        self._lanes = {level: (cursor, due) for level, cursor, *due in rows_of(connection, sql, group.id, stored.id)}

    def plain(self, priority: int) -> int:
        """The last passed offset of messages without a delay."""
        return max(self.base, self._lanes[priority][0] if priority in self._lanes else 0)

    def delayed(self, priority: int) -> tuple[int, int]:
        """Delivery time and offset of the last passed message with a delay."""
        due, offset = self._lanes[priority][1] if priority in self._lanes else (0, 0)
        return due, offset

    def has_passed(self, message: Stored) -> bool:
        """Whether a message is settled or outstanding."""
        if message.offset <= self.base or message.owner is not None:
            return True
        if message.deliver_at is None:
            return message.offset <= self.plain(message.priority)
        return (message.deliver_at, message.offset) <= self.delayed(message.priority)


class Standing:
    """The stored positions of all groups that hold retention, in one partition."""

    def __init__(self, connection: apsw.Connection, stored: StoredPartition, groups: Iterable[Group]) -> None:
        self._connection, self._stored = connection, stored
        everyone = list(groups)
        active = [group for group in everyone if group.active]
        self._ordered = [group.id for group in everyone if group.mode == "ordered"]
        self._shared = [SharedCursors(connection, group, stored) for group in active if group.mode == "shared"]
        cursors = [group.cursor(connection, stored) for group in active if group.mode == "ordered"]
        self._slowest = min(cursors, default=inf)
        self._counts = bool(active)

    def is_settled(self, message: Stored) -> bool:
        """Whether every group has settled a message."""
        return (
            self._counts
            and message.offset <= self._slowest
            and all(shared.has_passed(message) for shared in self._shared)
            and not self._is_excepted(message.offset)
        )

    def _is_excepted(self, offset: int) -> bool:
        tables = chain(
            (("requeued", one) for one in self._ordered), (("outstanding", one.group) for one in self._shared)
        )
        sql = "select 1 from {} where grp = ?1 and partition = ?2 and offset = ?3"
        return any(
            scalar(self._connection, sql.format(table), group, self._stored.id, offset) for table, group in tables
        )

    def old(self, last: int) -> Iterator[Any]:
        """All rows up to an offset."""
        return self._rows(BETWEEN, self._stored.floor, last)

    def settled(self, last: int) -> Iterator[Any]:
        """All settled rows up to an offset, and few others."""
        if not self._counts:
            return
        last = int(min(last, self._slowest))
        base = min((one.base for one in self._shared), default=last)
        yield from self._rows(BETWEEN, self._stored.floor, min(base, last))
        if not self._shared:
            return
        yield from self._rows(_FIRST_LANE, base, min(last, *(one.plain(0) for one in self._shared), last))
        yield from self._rows(_OWNED, base, last)
        for level in _LEVELS:
            yield from self._rows(_PRIORITY, base, min(last, *(one.plain(level) for one in self._shared)), level)
            yield from self._rows(_PASSED, base, last, level, *min(one.delayed(level) for one in self._shared))

    def unsettled(self, last: int) -> Iterator[Any]:
        """All unsettled rows up to an offset, and few others."""
        floor = self._stored.floor
        if not self._counts:
            yield from self._rows(BETWEEN, floor, last)
            return
        first = int(min(last, self._slowest, *(one.plain(0) for one in self._shared), last))
        yield from self._rows(BETWEEN, first, last)
        for group in self._ordered:
            yield from self._rows(_EXCEPTED.format("requeued"), floor, first, group)
        for one in self._shared:
            yield from self._rows(_EXCEPTED.format("outstanding"), floor, first, one.group)
            for level in _LEVELS:
                yield from self._rows(_PRIORITY, one.plain(level), first, level)
                yield from self._rows(_AHEAD, one.base, first, level, *one.delayed(level))

    def _rows(self, sql: str, after: int, last: int, *values: int) -> Iterator[Any]:
        if after < last:
            yield from self._connection.execute(sql, (self._stored.id, after, last, *values))


class SearchPosition(NamedTuple):
    """Where a search continues: the number of a queue and the name of a partition."""

    queue: int
    partition: str


START = SearchPosition(0, "")


class Overdue(NamedTuple):
    """The result of a search."""

    messages: list[int]
    """The `seq` of the messages."""
    more: bool
    """The search stopped at the limit."""
    position: SearchPosition
    """Where the search stopped."""
    swept: int | None
    """The flag `sweep`, if the search has found all purged messages."""


NOTHING = Overdue([], False, START, None)


class Search:
    """A search for overdue messages."""

    def __init__(
        self, connection: apsw.Connection, leased: LeaseView, limit: int, completed_seconds: int, active_since: int
    ) -> None:
        self._connection = connection
        self._now = leased.now
        self._leased = leased.leased_messages()
        self._limit = limit
        self._completed_seconds = completed_seconds
        self._active_since = active_since
        self._found: dict[int, None] = {}

    def run(self, start: SearchPosition) -> Overdue:
        """Search from a position on."""
        swept = None
        if start == START:
            swept = scalar(self._connection, "select value from meta where key = 'sweep'")
            if swept is not None and not self._add(seq for (seq,) in self._connection.execute(_GONE)):
                return Overdue(list(self._found), True, START, None)
            own = self._connection.execute(OWN_TTL, (self._now,))
            if not self._add(row[0] for row in own if not self._is_leased(Stored(*row[3:]))):
                return Overdue(list(self._found), True, START, swept)
        sql = "select id, name, options from queues where id >= ?1 order by id"
        for queue_id, name, options in rows_of(self._connection, sql, start.queue):
            rules = Rules.of(decode_options(options), self._completed_seconds)
            stopped = self._search_queue(queue_id, name, rules, start.partition if queue_id == start.queue else "")
            if stopped is not None:
                return Overdue(list(self._found), True, SearchPosition(queue_id, stopped), swept)
        return Overdue(list(self._found), False, START, swept)

    def _search_queue(self, queue_id: int, queue: str, rules: Rules, after: str) -> str | None:
        """Returns the name of the partition where the search stopped."""
        groups = groups_of(self._connection, queue, self._active_since)
        counts = any(group.active for group in groups)
        shortest = min(rules.ttl, rules.retention, rules.wait, rules.completed if counts else inf)
        if shortest == inf:
            return None
        begun = self._connection.execute(BEGUN_BEFORE, (queue_id, after, self._now - int(shortest)))
        for partition_id, name, floor in begun:
            stored = StoredPartition(queue, partition_id, name, floor)
            if not self._add(self._search_partition(stored, rules, Standing(self._connection, stored, groups))):
                return str(name)
        return None

    def _search_partition(self, stored: StoredPartition, rules: Rules, standing: Standing) -> Iterator[int]:
        shortest = min(rules.ttl, rules.retention)
        ways = ((shortest, standing.old), (rules.completed, standing.settled), (rules.wait, standing.unsettled))
        for limit, rows in ways:
            if limit == inf:
                continue
            last = offsets(self._connection, stored.queue, self._now - int(limit), stored.name)[0].offset - 1
            for seq, created_at, text, *rest in rows(last):
                message, age = Stored(*rest), self._now - created_at
                if not self._is_leased(message) and (
                    rules.is_expired(age, self._now, text, message)
                    or rules.is_over(age, lambda message=message: standing.is_settled(message))  # type: ignore[misc]
                ):
                    yield seq

    def _is_leased(self, message: Stored) -> bool:
        return (message.partition, message.offset) in self._leased

    def _add(self, found: Iterable[int]) -> bool:
        """Add messages. False: the limit is reached."""
        for seq in found:
            self._found[seq] = None
            if len(self._found) >= self._limit:
                return False
        return True


# The search runs beside the writer. Each message is checked again under the lock: meanwhile it may have been leased, a
# group may have moved back to it, or new options may keep it for longer.


_FOUND_AT_ONCE = 100_000
_FIND = f"select {COLUMNS} from messages where seq in (select value from json_each(?1)) order by seq"
_OF_GROUPS = "grp in (select id from groups where queue = ?1) and partition = ?2"


class Policy:
    """How long a queue keeps messages, and for which groups."""

    def __init__(self, transaction: WriteTransaction, queue: Queue, completed_seconds: int, active_since: int) -> None:
        transaction.loader.groups(queue.name)
        self.active_since = active_since
        self.groups = groups_of(transaction.connection, queue.name, active_since)
        self.rules = Rules.of(queue.info.options, completed_seconds)


class Keeper:
    """The positions of all groups in one partition, as the running transaction sees them."""

    def __init__(self, transaction: WriteTransaction, partition: Partition, policy: Policy) -> None:
        self.rules = policy.rules
        connection, queue = transaction.connection, partition.queue
        stored = StoredPartition(queue.name, partition.id, partition.name, partition.floor)
        ordered = [one for one in policy.groups if one.mode == "ordered"]
        cursors = [(one.cursor(connection, stored), one.active) for one in ordered]
        self._slowest_active = min((cursor for cursor, active in cursors if active), default=None)
        self._fastest = max((cursor for cursor, _ in cursors), default=0)
        requeued = rows_of(connection, f"select offset from requeued where {_OF_GROUPS}", queue.name, partition.id)
        self._requeued = {offset for (offset,) in requeued}
        shared = [group for group in queue.groups.values() if group.mode == "shared"]
        positions = [(group, transaction.loader.position(group, partition.id)) for group in shared]
        self._shared = [
            (position, group.last_seen >= policy.active_since) for group, position in positions if position is not None
        ]

    def is_settled(self, message: Stored) -> bool:
        """Whether every group that holds retention has settled a message."""
        active = [position for position, active in self._shared if active]
        if self._slowest_active is None:
            return bool(active) and all(position.is_settled(message) for position in active)
        if message.offset > self._slowest_active or message.offset in self._requeued:
            return False
        return all(position.is_settled(message) for position in active)

    def was_passed(self, message: Stored) -> bool:
        """Whether a group has passed a message."""
        return message.offset <= self._fastest or any(position.is_settled(message) for position, _ in self._shared)


class Collector:
    """Removes the messages of a search, in parts, and remembers where the next search starts."""

    def __init__(self, completed_seconds: int, idle_group_seconds: int) -> None:
        self._completed_seconds = completed_seconds
        self._idle_group_seconds = idle_group_seconds
        self._overdue = NOTHING
        """The last search."""
        self._left: dict[int, None] = {}
        """Its remaining messages, in the order of arrival, because neighbours share pages."""
        self._removed = 0

    @property
    def is_empty(self) -> bool:
        """Whether a new search is needed."""
        return not self._left

    def search(self, connection: apsw.Connection, leased: LeaseView) -> Overdue:
        """Find the next overdue messages."""
        start = self._overdue.position
        if self._overdue.more and not self._removed:  # Not the same partition again.
            start = start._replace(partition=start.partition + "\0")
        active_since = self._active_since(leased.now)
        return Search(connection, leased, _FOUND_AT_ONCE, self._completed_seconds, active_since).run(start)

    def take(self, overdue: Overdue) -> None:
        """Take over the result of a search."""
        self._overdue = overdue
        self._left = dict.fromkeys(sorted(overdue.messages))
        self._removed = 0

    def part(self, limit: int) -> Overdue:
        """The next messages to remove."""
        messages, overdue = list(islice(self._left, limit)), self._overdue
        more = len(messages) < len(self._left)
        return overdue._replace(messages=messages, more=more or overdue.more, swept=None if more else overdue.swept)

    def note_removed(self, part: Overdue, removed: int) -> None:
        """Note that a part was processed."""
        for seq in part.messages:
            self._left.pop(seq, None)
        self._removed += removed

    def _active_since(self, now: int) -> int:
        return now - self._idle_group_seconds * SECOND

    def remove(self, transaction: WriteTransaction, part: Overdue) -> int:
        """Remove the messages of a part that are still overdue. Returns their number."""
        connection = transaction.connection
        leased = LeaseView(transaction.state, transaction.now).leased_messages()
        keepers: dict[int, Keeper] = {}
        gone: list[int] = []
        changed: dict[int, list[int]] = {}
        active_since = self._active_since(transaction.now)
        policy_of = cache(lambda queue: Policy(transaction, queue, self._completed_seconds, active_since))
        for seq, created_at, text, *columns in rows_of(connection, _FIND, msgspec.json.encode(part.messages).decode()):
            message = Stored(*columns)
            partition_id, offset = message.partition, message.offset
            partition = transaction.loader.partition(partition_id)
            if partition is not None and offset > partition.floor:
                if (partition_id, offset) in leased:
                    continue
                if partition_id not in keepers:
                    keepers[partition_id] = Keeper(transaction, partition, policy_of(partition.queue))
                if not _is_over(transaction, partition, keepers[partition_id], message, created_at, text):
                    continue
            gone.append(seq)
            changed.setdefault(partition_id, []).append(offset)
        if gone:
            transaction.save_dead_letters()
            delete_traces(connection, [(one, offset) for one, offsets in changed.items() for offset in offsets])
            for_each(connection, "delete from messages where seq in (select value from json_each(?1))", gone)
            for partition_id, offsets in changed.items():
                _raise_floor(transaction, partition_id, offsets)
        if part.swept is not None:
            _finish_sweep(transaction, part.swept)
        return len(gone)


def _is_over(
    transaction: WriteTransaction,
    partition: Partition,
    keeper: Keeper,
    message: Stored,
    created_at: int,
    text: str | None,
) -> bool:
    rules, age = keeper.rules, transaction.now - created_at
    if rules.is_expired(age, transaction.now, text, message):
        if not keeper.was_passed(message):  # No group has skipped it, so it is not counted yet.
            transaction.count(partition.queue.name, "expired")
        return True
    return rules.is_over(age, lambda: keeper.is_settled(message))


def _raise_floor(transaction: WriteTransaction, partition_id: int, removed: list[int]) -> None:
    """Raise the floor of a partition to its first stored message, and delete the rows below it."""
    partition = transaction.loader.partition(partition_id)
    if partition is None:
        return
    connection = transaction.connection
    lowest = scalar(connection, "select min(offset) from messages where partition = ?1", partition_id)
    floor = max(partition.floor, partition.tail if lowest is None else lowest - 1)
    run(connection, "update partitions set floor = ?1, tail = ?2 where id = ?3", floor, partition.tail, partition_id)
    for table in ("retries", "requeued"):
        sql = f"delete from {table} where {_OF_GROUPS} and offset <= ?3"
        run(connection, sql, partition.queue.name, partition_id, floor)
    run(connection, "delete from gaps where partition = ?1 and last <= ?2", partition_id, floor)
    partition.floor = floor
    transaction.thinned[partition] = None
    for offset in removed:
        if offset > floor:
            leave_gap(transaction, partition, offset)
        else:
            _settle_outstanding(transaction, partition, offset)
    transaction.on_commit(lambda: _look_behind(transaction, partition))


def _finish_sweep(transaction: WriteTransaction, swept: int) -> None:
    connection = transaction.connection
    gone = """
        select id from partitions
        where queue = 0 and not exists (select 1 from messages where messages.partition = partitions.id)
    """
    for table in ("positions", "ranges", "retries", "requeued", "lanes", "outstanding", "gaps"):
        run(connection, f"delete from {table} where partition in ({gone})")
    run(connection, f"delete from partitions where id in ({gone})")
    # Unless another sweep was requested meanwhile.
    run(connection, "delete from meta where key = 'sweep' and value = ?1", swept)


def _settle_outstanding(transaction: WriteTransaction, partition: Partition, offset: int) -> None:
    """Settle an outstanding message below the floor in shared groups. Elsewhere the floor settles it."""
    for group in partition.queue.groups.values():
        position = transaction.loader.position(group, partition.id) if group.mode == "shared" else None
        if position is not None and position.keeps(offset):
            settle_removed(transaction, position, offset)


def _look_behind(transaction: WriteTransaction, partition: Partition) -> None:
    """Check the groups that wait in a partition again: they may have waited for a removed message."""
    queue = partition.queue
    queue.open = None
    if partition.floor >= partition.tail:
        return
    for group in queue.groups.values():
        if partition.id in group.waking:
            group.reevaluate(partition.id, transaction.now)
            transaction.hints.add(queue.name, group.name, (partition.name,))
