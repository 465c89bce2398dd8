"""Loads committed rows into the state at their first use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import apsw
import msgspec

from hark.engine.core.ordered import OrderedPosition
from hark.engine.core.position import NEVER, DelayedLane, PlainLane, Position, Retry
from hark.engine.core.schema import LAST_CREATED, PRIORITIES, TAIL
from hark.engine.core.shared import Entry, SharedPosition
from hark.engine.core.state import Group, Label, Partition, Queue, State
from hark.engine.core.store import rows_of, scalar
from hark.model import Limits, QueueInfo, Subscription

_QUEUES = """
select json_group_array(json_array(id, json_object('id', uid, 'name', name, 'namespace', namespace, 'task', task,
    'options', json(options), 'created_at', created_at, 'paused', json(iif(paused, 'true', 'false'))))) from queues
"""

_PARTITION = (
    "json_array(partition.id, partition.name, partition.created_at, partition.floor,"
    f" {TAIL}, {LAST_CREATED}, partition.queue)"
)
_PARTITIONS_BY_NAME = f"""
select json_group_array({_PARTITION}) from json_each(?1) as wanted
join partitions as partition on partition.queue = wanted.value ->> 0 and partition.name = wanted.value ->> 1
"""
_PARTITIONS_BY_ID = f"""
select json_group_array({_PARTITION}) from json_each(?1) as wanted
join partitions as partition on partition.id = wanted.value where partition.queue != 0
"""

_GROUPS = """
select id, queue, name, mode, subscription, since, highest_partition, paused, created_at, last_seen, limits
from groups where queue = ?1
"""

_POSITIONS = """
select json_group_array(json_array(
    wanted.value,
    json((select json_array(cursor, probe, settled_at, tokens, filled_at) from positions
        where grp = ?1 and partition = wanted.value)),
    json((select json_group_array(json_array(first, last)) from
        (select first, last from ranges where grp = ?1 and partition = wanted.value order by first))),
    json((select json_group_array(json_array(offset, attempts, due, error)) from retries
        where grp = ?1 and partition = wanted.value)),
    json((select json_group_array(json_array(offset, probe)) from
        (select offset, probe from requeued where grp = ?1 and partition = wanted.value order by offset))),
    json((select json_group_array(json_array(first, last)) from
        (select first, last from gaps where partition = wanted.value and owner != ?1 order by first)))))
from json_each(?2) as wanted
"""

# Partitions with unsettled messages. Without a position, a group that receives only new messages needs those partitions
# that received a message after its start, or that are younger than the group.
_DISCOVER = f"""
select json_group_array(json_array(id, 0, 0)) from (
    select partition.id
    from partitions as partition
    left join positions as position on position.grp = ?1 and position.partition = partition.id
    where partition.queue = ?2 and {TAIL} > max(partition.floor, ifnull(position.cursor, 0))
      and (position.cursor is not null or ?3 is null or partition.id > ?4 or {LAST_CREATED} > ?3)
    union
    select requeued.partition from requeued where requeued.grp = ?1
)
"""

# The first message of a lane in the row `partition`, for group ?1. The tables `level` (a priority), `lane` (its row in
# lanes) and `position` (the group's row in positions) come from the query around it.
_LOWER = "max(partition.floor, ifnull(position.cursor, wanted.value ->> 1))"
_FIRST_PLAIN = f"""
(select message.offset from messages as message indexed by messages_priority
 where message.partition = partition.id and message.priority = level.value
   and message.offset > max({_LOWER}, ifnull(lane.cursor, 0))
   and message.priority > 0 and message.deliver_at is null and message.owner is null
 order by message.offset limit 1)
"""
_FIRST_DELAYED = f"""
(select message.deliver_at from messages as message indexed by messages_delayed
 where message.partition = partition.id and message.priority = level.value and message.deliver_at is not null
   and (message.deliver_at, message.offset) > (ifnull(lane.due, 0), ifnull(lane.due_offset, 0))
   and message.offset > {_LOWER}
 order by message.deliver_at, message.offset limit 1)
"""
_LANES = f"""
select json_group_array(json_array(level.value, ifnull(lane.cursor, 0), ifnull(lane.due, 0),
    ifnull(lane.due_offset, 0), {_FIRST_PLAIN} is not null, ifnull({_FIRST_DELAYED}, 0)))
from {PRIORITIES} as level
left join lanes as lane on lane.grp = ?1 and lane.partition = partition.id and lane.priority = level.value
"""
_SHARED_POSITIONS = f"""
select json_group_array(json_array(
    partition.id,
    iif(position.cursor is null, null,
        json_array(position.cursor, position.settled_at, position.tokens, position.filled_at)),
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

# Partitions where messages are ready or will be: the highest ready priority, and whether it may rise with time.
_DISCOVER_SHARED = f"""
select json_group_array(json_array(id, found ->> 0, found ->> 1)) from (
    select partition.id, (
        select iif(max(priority) is null, null, json_array(max(priority), max(later))) from (
            select iif({_FIRST_PLAIN} is not null or {_FIRST_DELAYED} <= ?5, level.value, 0) as priority,
                {_FIRST_DELAYED} is not null as later
            from {PRIORITIES} as level
            left join lanes as lane on lane.grp = ?1 and lane.partition = partition.id and lane.priority = level.value
            where {_FIRST_PLAIN} is not null or {_FIRST_DELAYED} is not null
            union all
            select 0, 0 where {TAIL} > max(partition.floor, ifnull(position.cursor, 0), ifnull((select cursor from lanes
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
      and (position.cursor is not null or ?3 is null or partition.id > ?4 or {LAST_CREATED} > ?3)
) where found is not null
"""


class _PartitionRow(msgspec.Struct, array_like=True):
    id: int
    name: str
    created_at: int
    floor: int
    tail: int
    last_created: int
    queue: int


class _PositionRow(msgspec.Struct, array_like=True):
    partition: int
    position: tuple[int, int, int | None, float | None, int] | None
    ranges: list[tuple[int, int]]
    retries: list[tuple[int, int, int, str | None]]
    requeued: list[tuple[int, int]]
    gaps: list[tuple[int, int]]


class _SharedRow(msgspec.Struct, array_like=True):
    partition: int
    position: tuple[int, int | None, float | None, int] | None
    lanes: list[tuple[int, int, int, int, int, int]]
    entries: list[tuple[int, int, int, str | None, int, int, int]]


_decode_shared = msgspec.json.Decoder(list[_SharedRow]).decode
_decode_queues = msgspec.json.Decoder(list[tuple[int, QueueInfo]]).decode
_decode_partitions = msgspec.json.Decoder(list[_PartitionRow]).decode
_decode_positions = msgspec.json.Decoder(list[_PositionRow]).decode
_decode_ready = msgspec.json.Decoder(list[tuple[int, int, bool]], strict=False).decode
_decode_limits = msgspec.json.Decoder(Limits).decode
_encode = msgspec.json.Encoder().encode


class Loader:
    """Loads rows with one connection: that of the running transaction, so that it sees its own rows."""

    def __init__(self, connection: apsw.Connection, state: State) -> None:
        self._connection = connection
        self._state = state

    def queues(self) -> None:
        """Load all queues, because pops by namespace and task need them."""
        text = scalar(self._connection, _QUEUES)
        for number, info in _decode_queues(text):
            queue = self._state.queues[info.name] = Queue(number, info)
            queue.created_floor = self.created_floor(info.name)
        self.numbers()

    def numbers(self) -> None:
        """Load the numbers of the store as a whole."""
        self._state.largest_payload = self._number("largest_payload")
        self._state.latest_due = self._number("latest_due")
        self._state.ahead = self._number("ahead")

    def _number(self, key: str) -> int:
        return int(scalar(self._connection, "select value from meta where key = ?1", key) or 0)

    def created_floor(self, queue: str) -> int:
        """The earliest creation time of messages: after the start of each group that receives only new ones."""
        since = scalar(
            self._connection, "select max(since) from groups where queue = ?1 and subscription = 'new'", queue
        )
        return 0 if since is None else int(since) + 1

    def partitions(self, wanted: Iterable[tuple[Queue, str]]) -> None:
        """Load the named partitions that exist."""
        text = scalar(self._connection, _PARTITIONS_BY_NAME, _encode([(q.id, name) for q, name in wanted]).decode())
        self._adopt(text)

    def partition(self, partition_id: int) -> Partition | None:
        """A partition by its number."""
        partition = self._state.partitions.get(partition_id)
        if partition is None:
            self._adopt(scalar(self._connection, _PARTITIONS_BY_ID, f"[{partition_id}]"))
            partition = self._state.partitions.get(partition_id)
        return partition

    def partitions_by_id(self, ids: Sequence[int]) -> None:
        """Load those of these partitions that exist."""
        missing = [partition_id for partition_id in ids if partition_id not in self._state.partitions]
        if missing:
            self._adopt(scalar(self._connection, _PARTITIONS_BY_ID, _encode(missing).decode()))

    def renew_partitions(self, ids: Collection[int]) -> None:
        """Load partitions again whose rows another server changed. Deleted ones are dropped."""
        if not ids:
            return
        state = self._state
        text = scalar(self._connection, _PARTITIONS_BY_ID, _encode(list(ids)).decode())
        rows = {row.id: row for row in _decode_partitions(text)}
        for partition_id in ids:
            known, row = state.partitions.get(partition_id), rows.get(partition_id)
            if known is not None and row is None:
                del state.partitions[partition_id], state.partitions_by_uid[known.uid]
                known.queue.partitions.pop(known.name, None)
            elif known is not None and row is not None:
                known.floor, known.tail, known.last_created = row.floor, row.tail, row.last_created
                known.next_tail, known.coming = row.tail, None
        self.partitions_by_id(list(rows))

    def _adopt(self, text: str) -> None:
        state = self._state
        by_id = None
        for row in _decode_partitions(text):
            if row.id in state.partitions:
                continue
            by_id = by_id or {queue.id: queue for queue in state.queues.values()}
            queue = by_id.get(row.queue)
            if queue is not None:
                adopt_partition(state, queue, *msgspec.structs.astuple(row)[:-1])

    def groups(self, queue_name: str) -> None:
        """Load all groups of a queue, whether it exists or not."""
        state = self._state
        for row in rows_of(self._connection, _GROUPS, queue_name):
            if (queue_name, row[2]) not in state.groups:
                adopt_group(state, make_group(row))

    def group(self, queue_name: str, name: str) -> Group | None:
        """A group of a queue, whether the queue exists or not."""
        group = self._state.groups.get((queue_name, name))
        if group is None:
            self.groups(queue_name)
            group = self._state.groups.get((queue_name, name))
        return group

    def label(self, label: Label) -> bool:
        """Load the start of a group that pops by namespace or task. False if it has none."""
        wanted = "grp = ?1 and namespace is ?2 and task is ?3"
        sql = f"select subscription, since, highest_partition from labels where {wanted}"
        rows = rows_of(self._connection, sql, *label)
        for subscription, since, highest in rows:
            self._state.labels[label] = Subscription(subscription, since), highest
        return bool(rows)

    def discover(self, group: Group, queue: Queue, now: int) -> bool:
        """Find the ready partitions of a group, once after each start. False: this was done before."""
        if group.discovered:
            return False
        group.discovered = True
        since = None if group.subscription.mode == "all" else group.subscription.since
        start = (group.id, queue.id, since, group.highest_partition)
        if group.mode == "shared":
            text = scalar(self._connection, _DISCOVER_SHARED, *start, now)
        else:
            text = scalar(self._connection, _DISCOVER, *start)
        found = _decode_ready(text)
        # Positions are loaded where earlier messages must not count, because the group started later.
        self.positions(
            group,
            [
                partition_id
                for partition_id, _, changes in found
                if changes
                or (since is not None and group.mode == "shared")
                or (group.id, partition_id) in self._state.turns
            ],
        )
        for partition_id, priority, _ in found:
            if partition_id not in group.positions:
                group.make_ready(partition_id, priority)
            elif partition_id not in group.waking:
                group.positions[partition_id].refresh(now)
        return True

    def positions(self, group: Group, ids: Sequence[int]) -> None:
        """Load the positions of a group. A new position starts where the subscription says (rule 20)."""
        missing = [partition_id for partition_id in ids if partition_id not in group.positions]
        if not missing:
            return
        self.partitions_by_id(missing)
        if group.mode == "shared":
            self._shared_positions(group, missing)
            return
        text = scalar(self._connection, _POSITIONS, group.id, _encode(missing).decode())
        for row in _decode_positions(text):
            partition = self._own_partition(group, row.partition)
            if partition is None:
                continue
            position = OrderedPosition(group, partition)
            position.served = self._state.turns.get((group.id, row.partition), 0)
            if row.position is None:
                position.begin(self._start(group, partition), row.gaps)
            else:
                position.cursor, position.probe, position.settled_at, position.tokens, position.filled_at = row.position
                position.ranges = row.ranges
            position.rise_to(partition.floor)
            position.retries = {offset: Retry(attempts, due, error) for offset, attempts, due, error in row.retries}
            position.requeued.update(
                (offset, bool(probe)) for offset, probe in row.requeued if offset > partition.floor
            )
            group.positions[row.partition] = position

    def _shared_positions(self, group: Group, ids: Sequence[int]) -> None:
        for row in _load_shared(self._connection, group, [(partition_id, 0) for partition_id in ids]):
            partition = self._own_partition(group, row.partition)
            if partition is None:
                continue
            base = self._start(group, partition) if row.position is None else 0
            if base > partition.floor:
                [row] = _load_shared(self._connection, group, [(partition.id, base)])
            position = group.positions[row.partition] = _shared_position(group, partition, row, base)
            position.served = self._state.turns.get((group.id, row.partition), 0)

    def _own_partition(self, group: Group, partition_id: int) -> Partition | None:
        partition = self._state.partitions.get(partition_id)
        return None if partition is None or partition.queue.name != group.queue_name else partition

    def position(self, group: Group, partition_id: int) -> Position | None:
        """The position of a group in a partition."""
        position = group.positions.get(partition_id)
        if position is None:
            self.positions(group, [partition_id])
            position = group.positions.get(partition_id)
        return position

    def _start(self, group: Group, partition: Partition) -> int:
        since = group.subscription.since
        if group.subscription.mode == "all" or since is None:
            return partition.floor
        if partition.id > group.highest_partition:
            return partition.floor
        return self.last_offset_at(partition, since)

    def gaps(self, group: Group, partition: Partition) -> list[tuple[int, int]]:
        """Ranges of offsets that have no message for a group."""
        sql = "select first, last from gaps where partition = ?1 and owner != ?2 order by first"
        return rows_of(self._connection, sql, partition.id, group.id)

    def last_offset_at(self, partition: Partition, time: int) -> int:
        """The last offset created at or before a time, by binary search: times never decrease."""
        low, high = partition.floor, partition.tail
        sql = "select created_at from messages where partition = ?1 and offset >= ?2 order by offset limit 1"
        while low < high:
            middle = (low + high + 1) // 2
            created = scalar(self._connection, sql, partition.id, middle)
            if created is not None and created <= time:
                low = middle
            else:
                high = middle - 1
        return low


def adopt_partition(
    state: State, queue: Queue, number: int, name: str, created_at: int, floor: int = 0, tail: int = 0, newest: int = 0
) -> Partition:
    """Add a partition to the state."""
    codec = state.codec
    ids = (codec.prefix(number), codec.encode(number, 0))
    partition = Partition(number, name, created_at, floor, tail, newest, queue, *ids, tail)
    state.partitions[partition.id] = state.partitions_by_uid[partition.uid] = partition
    queue.partitions[name] = partition
    return partition


def adopt_group(state: State, group: Group) -> None:
    """Add a group to the state."""
    state.groups[group.queue_name, group.name] = group
    queue = state.queues.get(group.queue_name)
    if queue is not None:
        queue.groups[group.name] = group
        group.limit(queue)


def make_group(row: Sequence[Any]) -> Group:
    """A group from its row."""
    number, queue, name, mode, subscription, since, highest, paused, created_at, last_seen, limits = row
    group = Group(number, queue, name, mode, Subscription(subscription, since), highest, bool(paused))
    group.created_at, group.last_seen = created_at, last_seen
    group.bounds.set(_decode_limits(limits))
    return group


def _load_shared(connection: apsw.Connection, group: Group, addresses: Sequence[tuple[int, int]]) -> list[_SharedRow]:
    """Rows of positions. Each address is a partition, and the offset after which a new position starts."""
    return _decode_shared(scalar(connection, _SHARED_POSITIONS, group.id, _encode(addresses).decode()))


def _shared_position(group: Group, partition: Partition, row: _SharedRow, base: int) -> SharedPosition:
    """A position from its row. A new one starts after `base`."""
    position = SharedPosition(group, partition, base if row.position is None else row.position[0])
    if row.position is not None:
        _, position.settled_at, position.tokens, position.filled_at = row.position
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
