"""One SQLite transaction: the rows that its verbs write, and the changes of memory and the hints after the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import apsw
import msgspec

from hark.clock import SECOND
from hark.engine.core.handout import Picker
from hark.engine.core.keyvalue import KeyBook
from hark.engine.core.limits import Bounds, room_in
from hark.engine.core.loader import Loader
from hark.engine.core.ordered import Draft, OrderedPosition, save_ordered
from hark.engine.core.position import Lease, Position, Stored
from hark.engine.core.shared import SharedDraft, SharedPosition, SharedRows
from hark.engine.core.state import REMEMBERED, Group, Partition, Queue, State
from hark.engine.core.store import MESSAGE_COLUMNS, Locate, Value, delete_traces, for_each, rows_of, run, scalar
from hark.engine.hints import HintBook, forget_oldest
from hark.ids import IdSource
from hark.model import Hint

_BEFORE = """
select first, last from gaps where partition = ?1 and first < ?2 and owner = 0 order by first desc limit 1
"""
_FIND = """
select message.partition, message.offset, priority, deliver_at, owner from json_each(?2) as wanted
cross join messages as message where message.partition = ?1 and message.offset = wanted.value
"""
_NAMED_AT_MOST = 100
MOST_NOTIFIED = 1000
"""Maximum number of messages that a hint counts in one partition."""
_ROWS_PER_INSERT = (64, 8, 1)
_INSERTS = {
    rows: "insert into messages"
    " (partition, offset, created_at, priority, deliver_at, transaction_id, extra, payload) values "
    + ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?)"] * rows)
    for rows in _ROWS_PER_INSERT
}


def dig(connection: apsw.Connection, partition: int, first: int, last: int) -> None:
    """Store a gap of offsets without messages, merged with the adjacent gaps."""
    run(connection, "delete from gaps where partition = ?1 and first between ?2 and ?3", partition, first, last)
    for before in rows_of(connection, _BEFORE, partition, first):
        if before[1] >= first - 1:
            first, last = before[0], max(last, before[1])
    behind = "select last from gaps where partition = ?1 and first = ?2 and owner = 0"
    reach = scalar(connection, behind, partition, last + 1)
    if reach is not None:
        run(connection, "delete from gaps where partition = ?1 and first = ?2", partition, last + 1)
        last = int(reach)
    run(connection, "insert or replace into gaps (partition, first, last) values (?1, ?2, ?3)", partition, first, last)


class Drops(msgspec.Struct, eq=False):
    """The messages that a transaction settles in queues with `drop_settled`."""

    settled: dict[Partition, dict[int, None]] = {}
    _gone: dict[Partition, list[int]] = {}
    _floors: dict[Partition, int] = {}

    def decide(self, transaction: WriteTransaction) -> None:
        """Find the messages that all groups have settled, in this transaction."""
        for partition, offsets in self.settled.items():
            gone = [offset for offset in offsets if offset > partition.floor]
            if len(partition.queue.groups) > 1:
                gone = list(_settled_by_all(transaction, partition, gone))
            if gone:
                self._gone[partition] = sorted(gone)

    def write(self, connection: apsw.Connection) -> None:
        """Delete them. Dead letters have been copied before."""
        if not self._gone:
            return
        addresses = [(partition.id, offset) for partition, offsets in self._gone.items() for offset in offsets]
        delete_traces(connection, addresses)
        wanted = "in (select value ->> 0, value ->> 1 from json_each(?1))"
        for_each(connection, f"delete from messages where (partition, offset) {wanted}", addresses)
        for partition, offsets in self._gone.items():
            lowest = scalar(connection, "select min(offset) from messages where partition = ?1", partition.id)
            tail = partition.next_tail
            floor = self._floors[partition] = max(partition.floor, tail if lowest is None else lowest - 1)
            sql = "update partitions set floor = ?1, tail = ?2 where id = ?3"
            run(connection, sql, floor, tail, partition.id)
            run(connection, "delete from gaps where partition = ?1 and last <= ?2", partition.id, floor)
            for first, last in runs(offset for offset in offsets if offset > floor):
                dig(connection, partition.id, first, last)

    def publish(self) -> None:
        """Raise the floors of the partitions in memory."""
        for partition, floor in self._floors.items():
            partition.floor = max(partition.floor, floor)


def _settled_by_all(transaction: WriteTransaction, partition: Partition, offsets: list[int]) -> Iterator[int]:
    groups = list(partition.queue.groups.values())
    positions = [transaction.loader.position(group, partition.id) for group in groups]
    wanted = msgspec.json.encode(offsets).decode()
    for row in rows_of(transaction.connection, _FIND, partition.id, wanted):
        message = Stored(*row)
        if all(position is None or position.is_settled(message) for position in positions):
            yield message.offset


def runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive offsets."""
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


# Payloads are copied inside SQLite, not through Python.
_SAVE_DEAD_LETTERS = """
insert into dead_letters (uid, queue, partition, partition_name, grp, offset, transaction_id, created_at, priority,
    payload, extra, attempts, error, failed_at)
select value ->> 0, value ->> 1, message.partition, value ->> 3, value ->> 4, message.offset, message.transaction_id,
    message.created_at, message.priority, message.payload, message.extra, value ->> 6, value ->> 7, value ->> 8
from json_each(?1)
join messages as message on message.partition = value ->> 2 and message.offset = value ->> 5
where true
on conflict (partition, offset, grp) do update
set attempts = excluded.attempts, error = excluded.error, failed_at = excluded.failed_at
"""


_SAVE_COMPLETED = """
insert into completions (grp, partition, offset, lease, at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 from json_each(?1) where true
on conflict (grp, partition, offset) do update set lease = excluded.lease, at = excluded.at
"""
# Two rows for each new one, so the table has few expired rows.
_FORGET_COMPLETED = """
delete from completions where (grp, partition, offset) in
    (select grp, partition, offset from completions where at < ?1 order by at limit ?2)
"""
_REPEATABLE = 3600 * SECOND
"""How long the leases of completed messages are stored, in microseconds."""


class Arrivals(msgspec.Struct, eq=False):
    """The messages that a transaction pushed to one partition, except plain ones without a priority."""

    plain: dict[int, int] = {}
    """Number of messages without a delay, by priority."""
    due: dict[int, int] = {}
    """First delivery time of messages with a delay, by priority."""
    others: int = 0
    """Number of messages that have a delay or are for one group only."""


class WriteTransaction(msgspec.Struct, eq=False):
    """Collects the changes of verbs: rows until the commit, changes of memory until afterwards."""

    connection: apsw.Connection
    state: State
    now: int
    ids: IdSource
    messages: list[Value] = []
    """Rows of `messages`, flat."""
    pushed: dict[Partition, None] = {}
    new_transaction_ids: dict[tuple[int, str], int] = {}
    pushed_count: dict[Queue, int] = {}
    settled_count: dict[Group, int] = {}
    expired: int = 0
    """Number of expired leases."""
    thinned: dict[Partition, None] = {}
    """Partitions that lost messages which a lane may have read ahead."""
    completed: dict[tuple[int, int, int], str] = {}
    """Leases of completed messages, by group, partition and offset."""
    kept: list[tuple[int, int, int, str, int]] = []
    """Rows of `completions`. A consumer that gets no answer may repeat its transaction, even after a restart."""
    dead: list[tuple[str, str, int, str, str, int, int, str, int]] = []
    """Dead letters to store."""
    ordered: dict[OrderedPosition, None] = {}
    """Positions of ordered groups with a draft."""
    shared: dict[SharedPosition, None] = {}
    """Positions of shared groups with a draft."""
    drops: Drops | None = None
    """Settled messages to remove, if any."""
    ended: list[tuple[Lease, Position]] = []
    """Leases that end on a position."""
    hints: HintBook = msgspec.field(default_factory=HintBook)
    """Hints to send after the commit."""
    locate: Locate | None = None
    """Stores payloads of dead letters elsewhere. Those of messages are stored before `flush`."""
    keys: KeyBook | None = None
    """The changes of keys, if any; see `key_book`."""
    _arrivals: dict[Partition, Arrivals] = {}
    _counts: dict[tuple[str, str], int] = {}
    _on_commit: list[Callable[[], object]] = []
    _shared_rows: SharedRows | None = None

    @property
    def loader(self) -> Loader:
        """Loads rows into the state."""
        return Loader(self.connection, self.state)

    def key_book(self) -> KeyBook:
        """The changes of keys."""
        if self.keys is None:
            self.keys = KeyBook(self.connection, self.now)
        return self.keys

    # For verbs ---------------------------------------------------------------------------------------------

    def draft(self, position: Position) -> Draft | SharedDraft:
        """The draft of a position."""
        return position.draft or position.start_draft(self)

    def note_lane(self, partition: Partition, priority: int, deliver_at: int | None) -> None:
        """Note a pushed message with a priority or a delay."""
        arrivals = self._arrivals.setdefault(partition, Arrivals())
        if deliver_at is None:
            arrivals.plain[priority] = arrivals.plain.get(priority, 0) + 1
        else:
            arrivals.others += 1
            arrivals.due[priority] = min(deliver_at, arrivals.due.get(priority, deliver_at))
            partition.coming = min(deliver_at, partition.coming or deliver_at)

    def note_requeued(self, partition: Partition) -> None:
        """Note a stored message that is for one group only."""
        self.pushed[partition] = None
        self._arrivals.setdefault(partition, Arrivals()).others += 1

    def settle(self, position: Position, offset: int) -> None:
        """Settle a message for a group, for any reason."""
        draft = position.draft or position.start_draft(self)
        draft.finish(offset)
        draft.settled_at = self.now
        if position.partition.queue.info.options.drop_settled:
            self.drops = self.drops or Drops()
            self.drops.settled.setdefault(position.partition, {})[offset] = None
        self.settled_count[position.group] = self.settled_count.get(position.group, 0) + 1

    @property
    def changed(self) -> list[Position]:
        """The positions with a draft."""
        return [*self.ordered, *self.shared]

    def discard(self, group: Group) -> None:
        """Drop the drafts of a deleted group."""
        for drafted in (self.ordered, self.shared):
            for position in [position for position in drafted if position.group is group]:
                del drafted[position]  # type: ignore[arg-type]  # It is one of its keys.
                self.on_commit(partial(setattr, position, "draft", None))

    def save_dead_letters(self) -> None:
        """Copy dead messages to `dead_letters`. This must precede each removal of messages."""
        for_each(self.connection, _SAVE_DEAD_LETTERS, self.dead)
        self.dead = []

    def count(self, queue: str, what: str, number: int = 1) -> None:
        """Add to a counter of a queue."""
        self._counts[queue, what] = self._counts.get((queue, what), 0) + number

    def release(self, position: Position, lease: Lease, *, at_once: bool = False) -> bool:
        """Take one settled message off a lease. With the last one, or `at_once`, the lease releases the position.

        True: the lease has ended for its consumer.
        """
        part = lease.parts.get(position)
        if part is not None:
            part.open -= 1
            if part.open <= 0:
                self.ended.append((lease, position))
                at_once = True
        draft = position.draft
        if isinstance(draft, SharedDraft):  # A lease on one message blocks no other message.
            return all(one.open <= 0 for one in lease.parts.values())
        if draft is None or draft.position.lease is not lease:
            return True
        if at_once:
            draft.released = True
        return draft.released

    def settled_many(self, queue: Queue) -> None:
        """Request a new count of the unsettled messages of a queue."""
        self.on_commit(lambda: setattr(queue, "open", None))

    def on_commit(self, action: Callable[[], object]) -> None:
        """Change memory after the commit."""
        self._on_commit.append(action)

    # For the writer ----------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Collect, under the lock, the rows that depend on memory which claims change: `drops` and `shared`."""
        if self.drops is not None:
            self.drops.decide(self)
        if self.shared:
            rows = self._shared_rows = SharedRows(self.shared)
            if rows.latest_due > self.state.latest_due:
                # After a restart the time must not be earlier than this, even if the clock was set back.
                self.state.latest_due = rows.latest_due
                run(self.connection, "insert or replace into meta values ('latest_due', ?1)", rows.latest_due)

    def flush(self) -> None:
        """Write all collected rows."""
        connection = self.connection
        flat, at = self.messages, 0
        for rows in _ROWS_PER_INSERT:
            width = rows * MESSAGE_COLUMNS
            while len(flat) - at >= width:
                connection.execute(_INSERTS[rows], flat[at : at + width])
                at += width
        if self.dead:
            self.save_dead_letters()
        if self.kept:
            for_each(connection, _SAVE_COMPLETED, self.kept)
            run(connection, _FORGET_COMPLETED, self.now - _REPEATABLE, 2 * len(self.kept))
        if self.ordered:
            save_ordered(connection, self.ordered)
        if self._shared_rows is not None:
            self._shared_rows.write(connection)
        for (queue, what), number in self._counts.items():
            run(connection, f"update queues set {what} = {what} + ?1 where name = ?2", number, queue)
        if self.drops is not None:
            self.drops.write(connection)

    def publish(self) -> list[Hint]:
        """Change memory after the commit, and return the hints."""
        state = self.state
        state.expiring.clear()
        state.deleting.clear()
        state.completed.update(self.completed)
        if len(state.completed) > REMEMBERED:
            forget_oldest(state.completed, REMEMBERED)
        for action in self._on_commit:
            action()
        for lease, position in self.ended:
            lease.parts.pop(position, None)
            if not lease.parts and state.leases.pop(lease.id, None) is not None:
                self.hints.add(position.group.queue_name, position.group.name, (), ended=lease.id)
        for group, number in self.settled_count.items():
            queue = state.queues.get(group.queue_name)
            if queue is not None and queue.open is not None:
                queue.open[group.id] = queue.open.get(group.id, 0) - number
        if self.drops is not None:
            self.drops.publish()
        for queue, number in self.pushed_count.items():
            if queue.open is not None:
                queue.open = {group_id: open_ + number for group_id, open_ in queue.open.items()}
        came: dict[Queue, dict[Partition, int]] = {}
        for partition in self.pushed:
            came.setdefault(partition.queue, {})[partition] = partition.next_tail - partition.tail
            partition.tail, partition.coming = partition.next_tail, None
        if self.thinned:
            self._read_ahead_again()
        for ordered in self.ordered:
            ordered.publish(self.now)
            group, number = ordered.group, ordered.partition.id
            if ordered.refresh(self.now) or (group.each is not None and group.must_learn(number, self.now)):
                self.hints.add(group.queue_name, group.name, (ordered.partition.name,))
        for shared in self.shared:
            self._publish_shared(shared)
        refused: dict[str, dict[Group, None]] = {}
        for one in (*self.ordered, *self.shared):
            if one.group.bounds.blocked or one.partition.queue.bounds.blocked:
                refused.setdefault(one.group.queue_name, {})[one.group] = None
        for name, groups in refused.items():
            if name in state.queues:
                self._publish_room(state.queues[name], list(groups))
        for queue, arrived in came.items():
            self._publish_arrivals(queue, arrived)
        return self.hints.hints()

    def _read_ahead_again(self) -> None:
        """Read the lanes of shared groups again, because messages were removed."""
        picker = Picker(self.connection, self.now)
        for partition in self.thinned:
            positions = [group.positions.get(partition.id) for group in partition.queue.groups.values()]
            for position in positions:
                if isinstance(position, SharedPosition):
                    for lane in position.lanes:
                        lane.forget()
                    picker.look(position)
                    position.refresh(self.now)

    def _publish_shared(self, position: SharedPosition) -> None:
        group, partition = position.group, position.partition
        if position.draft is None or not position.draft.voided:
            was_full = group.each is not None and group.waking.get(partition.id, (0, ""))[1] == "max_in_flight"
            notified = position.publish(self.now)
            if position.refresh(self.now):
                if was_full:
                    room = room_in(position, self.now).left  # More consumers than that would be woken for nothing.
                    notified = max(notified, position.count_ready(min(room, MOST_NOTIFIED)))
            elif group.each is not None:
                notified = int(group.must_learn(partition.id, self.now))
            if notified:
                self.hints.add(group.queue_name, group.name, (partition.name,), counts={partition.name: notified})
            return
        # Memory is void after a seek, so the position is loaded again.
        if group.positions.pop(partition.id, None) is not position:
            return
        group.in_flight -= position.noted
        again = self.loader.position(group, partition.id)
        if isinstance(again, SharedPosition):
            again.served = position.served
            if again.refresh(self.now) or partition.id in group.waking:
                counts = {partition.name: again.count_ready(MOST_NOTIFIED)}
                self.hints.add(group.queue_name, group.name, counts, counts=counts)

    def _publish_arrivals(self, queue: Queue, arrived: dict[Partition, int]) -> None:
        """Notify of the messages that were pushed to the partitions of a queue."""
        numbers = {partition.name: number for partition, number in arrived.items()}
        self.hints.add(queue.name, None, numbers, "message", numbers, excluded=queue.groups)
        for group in queue.groups.values():
            offered: dict[str, int] = {}
            for partition, number in arrived.items():
                if group.mode == "shared":
                    count = self._offer_shared(group, partition, number)
                else:
                    count = int(self._offer(group, partition))
                if count:
                    offered[partition.name] = count
            if offered:
                self.hints.add(queue.name, group.name, offered, "message", offered if group.mode == "shared" else None)

    def _offer(self, group: Group, partition: Partition) -> bool:
        """Whether new messages of a partition are ready for an ordered group. Else a later hint says so."""
        position = group.positions.get(partition.id)
        if position is not None and (position in self.ordered or position.readiness(self.now).priority is None):
            return False
        if partition.id in group.waking:
            return False
        group.make_ready(partition.id)
        return True

    def _offer_shared(self, group: Group, partition: Partition, number: int) -> int:
        """About how many of the new messages a shared group can receive, or 1 if a consumer must learn a due time."""
        came = self._arrivals.setdefault(partition, Arrivals())
        rest = number - came.others - sum(came.plain.values())
        if rest > 0:
            came.plain[0] = rest
        if not came.plain and not came.due:
            return 0
        position = group.positions.get(partition.id)
        number = sum(came.plain.values())
        if not isinstance(position, SharedPosition):
            group.make_ready(partition.id, max(came.plain, default=0))
            late = self.loader.position(group, partition.id) if came.due else None
            if late is not None:  # Its rank changes with time.
                late.refresh(self.now)
            return max(1, number)
        known = position.readiness(self.now)
        position.arrived(came.plain, came.due)
        if group.waking.get(partition.id, (0, ""))[1] == "window_buffer":
            return 0
        if not position.refresh(self.now) and group.each is not None:
            return int(group.must_learn(partition.id, self.now))
        found = position.readiness(self.now)
        if found.priority is not None:
            young = partition.queue.info.options.delayed_processing
            return number if number and not young else int(known.priority is None)
        return int(found.due is not None and (known.due is None or found.due < known.due))

    def _publish_room(self, queue: Queue, groups: list[Group]) -> None:
        """Notify groups that were refused because of `max_in_flight`, when there is room again.

        Of a shared group only some consumers hear of it, so it stays `blocked` until nothing is ready.
        """
        most, blocked = _room(queue.bounds, queue.in_flight), queue.bounds.blocked
        if most <= 0:
            return
        queue.bounds.blocked = False
        for group in list(queue.groups.values()) if blocked else groups:
            room = min(most, _room(group.bounds, group.in_flight))
            if room > 0 and self._hint_room(group, room):
                group.bounds.blocked = False
            elif room > 0:
                queue.bounds.blocked = blocked

    def _hint_room(self, group: Group, room: int) -> bool:
        """Notify a group of ready messages, a shared group of about as many as there is room for. True: of all."""
        known: list[Position] = []
        if len(group.ready) <= _NAMED_AT_MOST:
            known = [group.positions[one] for one in group.ready if one in group.positions]
        if len(known) < len(group.ready):
            self.hints.add(group.queue_name, group.name, None)
            return True
        counts: dict[str, int] = {}
        for position in known:
            if isinstance(position, SharedPosition):
                counts[position.partition.name] = number = position.count_ready(max(1, room))
                room -= number
        if known:
            self.hints.add(group.queue_name, group.name, [one.partition.name for one in known], counts=counts or None)
        return not counts


def _room(bounds: Bounds, in_flight: int) -> int:
    return bounds.limits.max_in_flight - in_flight if bounds.limits.max_in_flight else MOST_NOTIFIED
