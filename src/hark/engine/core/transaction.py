"""One SQLite transaction: the rows that its verbs write, and what happens in memory once it is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import apsw
import msgspec

from hark.clock import SECOND
from hark.engine.core.keyvalue import KeyBook
from hark.engine.core.loader import Loader
from hark.engine.core.notifications import Arrivals, Teller
from hark.engine.core.ordered import OrderedPosition, save_ordered
from hark.engine.core.position import AnyDraft, Lease, Position, Stored
from hark.engine.core.shared import SharedPosition
from hark.engine.core.shared_rows import Picker, SharedRows
from hark.engine.core.state import Group, Partition, Queue, State
from hark.engine.core.store import Place, Value, for_each, insert_messages, rows_of, run, scalar
from hark.engine.hints import HintBook
from hark.ids import IdSource
from hark.model import Ending, Hint

_BEFORE = """
select first, last from gaps where partition = ?1 and first < ?2 and owner = 0 order by first desc limit 1
"""
_WANTED = "in (select value ->> 0, value ->> 1 from json_each(?1))"
_FIND = """
select message.partition, message.offset, priority, deliver_at, owner from json_each(?2) as wanted
cross join messages as message where message.partition = ?1 and message.offset = wanted.value
"""


def dig(connection: apsw.Connection, partition: int, first: int, last: int) -> None:
    """There is no message between these offsets (any more): one range with those beside it."""
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
            run(connection, "delete from gaps where partition = ?1 and last <= ?2", partition.id, floor)
            for first, last in _runs(offset for offset in offsets if offset > floor):
                dig(connection, partition.id, first, last)

    def publish(self) -> None:
        """It is gone."""
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


# The payload goes from table to table without a detour through Python.
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
# Two for each one that is added: so the table holds little more than what is young.
_FORGET_COMPLETED = """
delete from completions where (grp, partition, offset) in
    (select grp, partition, offset from completions where at < ?1 order by at limit ?2)
"""
_REPEATABLE = 3600 * SECOND
"""How long it is kept under which lease a transaction completed a message."""


class WriteTransaction:
    """Collects what verbs want, writes it in few wide statements, and publishes it after the commit."""

    def __init__(self, connection: apsw.Connection, state: State, now: int, ids: IdSource) -> None:
        self.connection = connection
        self.state = state
        self.now = now
        self.ids = ids
        self.messages: list[Value] = []
        """Rows for `messages`, flat."""
        self.pushed: dict[Partition, None] = {}
        self.new_transaction_ids: dict[tuple[int, str], int] = {}
        self.pushed_count: dict[Queue, int] = {}
        self.expired = 0
        """Leases whose expiry it applied."""
        self._arrivals: dict[Partition, Arrivals] = {}
        self._drafted: dict[Position, None] = {}
        # What a plain push needs none of is made when a verb first needs it.
        self._ordered: list[OrderedPosition] = []
        self._shared_rows: SharedRows | None = None
        self._drops: Drops | None = None
        self.keys: KeyBook | None = None
        """What it writes of keys, if anything; `key_book` makes it."""
        self._thinned: dict[Partition, None] = {}
        self._dead: list[tuple[str, str, int, str, str, int, int, str, int]] = []
        self._completed: dict[tuple[int, int, int], str] = {}
        self._kept: list[tuple[int, int, int, str, int]] = []
        """Rows for `completions`."""
        self._counts: dict[tuple[str, str], int] = {}
        self._settled_count: dict[Group, int] = {}
        self._on_commit: list[Callable[[], object]] = []
        self._ended_parts: list[tuple[Lease, Position]] = []
        self.hints = HintBook()
        """Whom to tell after the commit."""
        self.place: Place | None = None
        """Puts payloads of dead letters somewhere else; those of messages are placed before `flush`."""
        self._swept = False

    @property
    def loader(self) -> Loader:
        """Loads what is not in memory."""
        return Loader(self.connection, self.state)

    def key_book(self) -> KeyBook:
        """The keys that it writes."""
        if self.keys is None:
            self.keys = KeyBook(self.connection, self.now)
        return self.keys

    # What verbs say ----------------------------------------------------------------------------------------

    def draft(self, position: Position) -> AnyDraft:
        """The position as this transaction changes it."""
        draft = position.draft
        if draft is None:
            draft = position.new_draft()
            self._drafted[position] = None
        return draft

    def note_lane(self, partition: Partition, priority: int, deliver_at: int | None) -> None:
        """A message was pushed that has a priority or a delay."""
        self._arrivals_of(partition).add(priority, deliver_at)
        if deliver_at is not None:
            partition.coming = min(deliver_at, partition.coming or deliver_at)

    def note_requeued(self, partition: Partition) -> None:
        """A message was stored that is for one group only."""
        self.pushed[partition] = None
        self._arrivals_of(partition).others += 1

    def _arrivals_of(self, partition: Partition) -> Arrivals:
        return self._arrivals.setdefault(partition, Arrivals())

    def note_removal(self, partition: Partition) -> None:
        """Note the removal of messages that a lane may have read ahead."""
        self._thinned[partition] = None

    def settle(self, position: Position, offset: int) -> None:
        """The group is done with an offset, for whatever reason."""
        draft = position.draft or self.draft(position)
        draft.finish(offset)
        draft.settled_at = self.now
        if position.partition.queue.info.options.drop_settled:
            self._drops = self._drops or Drops()
            self._drops.note(position.partition, offset)
        self._settled_count[position.group] = self._settled_count.get(position.group, 0) + 1

    def note_completed(self, position: Position, offset: int, lease_id: str) -> None:
        """Note under which lease a message was completed."""
        self._completed[position.group.id, position.partition.id, offset] = lease_id

    def keep_completed(self, position: Position, offset: int, lease_id: str) -> None:
        """Store it too: a consumer that gets no answer may repeat its transaction, even after a restart."""
        self._kept.append((position.group.id, position.partition.id, offset, lease_id, self.now))

    def forget_completed(self, position: Position) -> None:
        """What a group completed here may be delivered again: under whatever lease that was, it is not done."""
        place = (position.group.id, position.partition.id)
        self._kept = [one for one in self._kept if one[:2] != place]
        run(self.connection, "delete from completions where grp = ?1 and partition = ?2", *place)

    def completed_under(self, position: Position, offset: int) -> str | None:
        """The lease under which a message was completed, if that is still known."""
        key = (position.group.id, position.partition.id, offset)
        lease: str | None = self._completed.get(key) or self.state.completed.get(key)
        if lease is None:
            sql = "select lease from completions where grp = ?1 and partition = ?2 and offset = ?3"
            lease = scalar(self.connection, sql, *key)
        return lease

    def bury(
        self,
        position: Position,
        offset: int,
        attempts: int,
        error: str,
        failed_at: int,
        *,
        exhausted: bool,
        always: bool = False,
    ) -> bool:
        """Settle a message that can't be delivered, as a dead letter if the queue keeps them, or always (rule 18)."""
        partition = position.partition
        options = partition.queue.info.options
        self.settle(position, offset)
        self.key_book().set_undelivered(partition.id, offset, partition.queue.name)
        keeps = always or (options.dead_letter_queue and (options.dlq_after_max_retries or not exhausted))
        if not keeps:
            self.count(partition.queue.name, "discarded")
            ending = Ending("discarded", failed_at, attempts, error)
            self.on_commit(lambda: self.state.note_ending(position, offset, ending))
            return False
        self._dead.append(
            (
                self.ids.new(),
                partition.queue.name,
                partition.id,
                partition.name,
                position.group.name,
                offset,
                attempts,
                error,
                failed_at,
            )
        )
        return True

    @property
    def changed(self) -> list[Position]:
        """The places that it changes, so far."""
        return list(self._drafted)

    def settled_by_group(self) -> dict[int, int]:
        """How many messages each group is done with by this transaction, so far."""
        return {group.id: number for group, number in self._settled_count.items()}

    def discard(self, group: Group) -> None:
        """A group is removed: nothing that was to be written of it may be."""
        for position in [position for position in self._drafted if position.group is group]:
            del self._drafted[position]
            self.on_commit(lambda position=position: setattr(position, "draft", None))  # type: ignore[misc]

    def save_dead_letters(self) -> None:
        """Copy what died so far; to be done before any message is removed, or there is nothing left to copy."""
        for_each(self.connection, _SAVE_DEAD_LETTERS, self._dead)
        self._dead = []

    def discard_dead_letters(self, queue: str) -> None:
        """Drop the unsaved dead letters of a removed queue."""
        self._dead = [one for one in self._dead if one[1] != queue]

    def count(self, queue: str, what: str, number: int = 1) -> None:
        """Add to one of a queue's counters."""
        self._counts[queue, what] = self._counts.get((queue, what), 0) + number

    def let_go(self, position: Position, lease: Lease) -> None:
        """One message of a lease is no longer open; with the last one the lease frees the position."""
        part = lease.parts.get(position)
        if part is None:
            return
        part.open -= 1
        if part.open <= 0:
            (position.draft or self.draft(position)).end_part(lease)
            self._ended_parts.append((lease, position))

    def end_part(self, lease: Lease, position: Position) -> None:
        """A lease has nothing to do with a position any more; with its last one it is over."""
        if self.state.end_part(lease, position):
            self.hints.ended(position.group.queue_name, position.group.name, lease.id)

    def end_lease(self, lease: Lease) -> None:
        """A lease is over as a whole."""
        for position in lease.parts:
            self.hints.ended(position.group.queue_name, position.group.name, lease.id)

    def void_leases(self, position: Position) -> None:
        """What is held on a position is held no more."""
        leases = position.leases()
        self.state.note_removed(position, [held for lease in leases for held in position.held_by(lease)])
        self.draft(position).voided = True

        self._ended_parts += [(lease, position) for lease in leases]

    def settled_many(self, queue: Queue) -> None:
        """Request a new count of the unsettled messages of a queue."""
        self.on_commit(lambda: setattr(queue, "open", None))

    def want_sweep(self) -> None:
        """Make `collect` look for messages that were purged, or whose queue was deleted."""
        if not self._swept:
            self._swept = True
            run(
                self.connection,
                "insert into meta values ('sweep', 1) on conflict (key) do update set value = value + 1",
            )

    def on_commit(self, action: Callable[[], object]) -> None:
        """Do something in memory once all is on stable storage."""
        self._on_commit.append(action)

    # What the writer does with it -------------------------------------------------------------------------

    def seal(self) -> None:
        """All verbs have spoken: take down, under the lock, what memory will not keep still for."""
        if self._drops is not None:
            self._drops.decide(self)
        for position in self._drafted:
            if isinstance(position, SharedPosition):
                self._shared_rows = self._shared_rows or SharedRows()
                self._shared_rows.note(position)
            elif isinstance(position, OrderedPosition):
                self._ordered.append(position)
        if self._shared_rows is not None and self._shared_rows.latest_due > self.state.latest_due:
            # Time never goes back behind what was due: not even when the clock does, over a restart.
            self.state.latest_due = self._shared_rows.latest_due
            run(self.connection, "insert or replace into meta values ('latest_due', ?1)", self.state.latest_due)

    def flush(self) -> None:
        """Write everything that was collected."""
        connection = self.connection
        if self.messages:
            insert_messages(connection, self.messages)
        if self._dead:
            self.save_dead_letters()
        if self._kept:
            for_each(connection, _SAVE_COMPLETED, self._kept)
            run(connection, _FORGET_COMPLETED, self.now - _REPEATABLE, 2 * len(self._kept))
        if self._ordered:
            save_ordered(connection, self._ordered)
        if self._shared_rows is not None:
            self._shared_rows.write(connection)
        for (queue, what), number in self._counts.items():
            run(connection, f"update queues set {what} = {what} + ?1 where name = ?2", number, queue)
        if self._drops is not None:
            self._drops.write(connection)

    def publish(self) -> list[Hint]:
        """The commit is through: take it over into memory, and answer the hints."""
        self.state.expiring.clear()
        self.state.deleting.clear()
        if self._completed:
            self.state.note_completed(self._completed)
        for action in self._on_commit:
            action()
        for lease, position in self._ended_parts:
            self.end_part(lease, position)
        for group, number in self._settled_count.items():
            queue = self.state.queues.get(group.queue_name)
            if queue is not None and queue.open is not None:
                queue.open[group.id] = queue.open.get(group.id, 0) - number
        numbers = {partition: partition.next_tail - partition.tail for partition in self.pushed}
        for partition in self.pushed:
            partition.tail, partition.coming = partition.next_tail, None
        if self._drops is not None:
            self._drops.publish()
        for queue, number in self.pushed_count.items():
            if queue.open is not None:
                queue.open = {group_id: open_ + number for group_id, open_ in queue.open.items()}
        if self._thinned:
            self._look_anew()
        teller = Teller(self.hints, self.connection, self.state, self.now)
        if self._drafted:
            self._publish_positions(teller)
        queues: dict[Queue, dict[Partition, int]] = {}
        for partition, number in numbers.items():
            queues.setdefault(partition.queue, {})[partition] = number
        for queue, arrived in queues.items():
            teller.arrived(queue, arrived, self._arrivals, self._drafted)
        return self.hints.hints()

    def _look_anew(self) -> None:
        """What shared groups have read ahead may be gone."""
        picker = Picker(self.connection, self.now)
        for partition in self._thinned:
            positions = [group.positions.get(partition.id) for group in partition.queue.groups.values()]
            for position in positions:
                if isinstance(position, SharedPosition):
                    position.forget_ahead()
                    picker.look(position)
                    position.group.refresh(position, self.now)

    def _publish_positions(self, teller: Teller) -> None:
        changed: dict[str, list[Group]] = {}
        for position in self._drafted:
            changed.setdefault(position.group.queue_name, []).append(position.group)
            if isinstance(position, SharedPosition) and position.draft is not None and position.draft.voided:
                self._restart(teller, position)
            else:
                teller.changed(position)
        for name, groups in changed.items():
            queue = self.state.queues.get(name)
            if queue is not None and (queue.bounds.blocked or any(group.bounds.blocked for group in groups)):
                teller.room(queue, list(dict.fromkeys(groups)))

    def _restart(self, teller: Teller, position: SharedPosition) -> None:
        """A place that was moved is loaded again: what it had in memory is void."""
        group = position.group
        if group.positions.pop(position.partition.id, None) is not position:
            return
        group.in_flight -= position.noted
        anew = self.loader.position(group, position.partition.id)
        if isinstance(anew, SharedPosition):
            anew.served = position.served
            teller.restarted(anew)
