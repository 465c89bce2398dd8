"""The deliveries of a pop: messages of shared groups are picked; messages that were read are leased or skipped."""

from __future__ import annotations

from dataclasses import dataclass, field

import apsw
import msgspec

from hark.clock import MILLISECOND, SECOND
from hark.engine.core.ordered import MAX_RANGES, OrderedPosition
from hark.engine.core.position import DelayedLane, Item, Lease, Part, PlainLane, Position
from hark.engine.core.shared import Entry, SharedPosition
from hark.engine.core.state import Group, Queue, State
from hark.engine.core.store import NO_EXTRA, MessageRow, payload_of, size_of
from hark.ids import IdSource
from hark.model import Delivery, EmptyReason, Ending, PopRequest

_LOOK_AT_MOST = 1024


class Job(msgspec.Struct, eq=False):
    """The progress of one pop request."""

    request: PopRequest
    groups: list[tuple[Queue, Group]]
    max_bytes: int
    lease: Lease | None = None
    messages: list[Delivery] = []
    bytes: int = 0
    positions: int = 0
    more: list[tuple[Queue, Position, int]] = []
    """Positions under its lease that may have more messages after an offset."""
    look: int = 1
    """How many times the needed number it reads: more after each round that found no message."""
    reason: EmptyReason = "nothing_ready"
    look_again_at: int | None = None
    met_dirty: bool = False
    """Whether the commit in progress may make messages ready."""
    done: bool = False

    def holds(self, position: Position) -> bool:
        """Whether it received messages of a position in an earlier round."""
        return self.lease is not None and position in self.lease.parts


@dataclass(eq=False)
class Fetch:
    """A position that a job has taken, and the ranges of offsets to read."""

    job: Job
    queue: Queue
    position: Position
    intervals: list[tuple[int, int]]
    room: int
    """Maximum number of messages to deliver."""
    planned: int
    """Number of offsets to read."""
    rows: list[MessageRow] = field(default_factory=list, init=False)


class OrderedFetch(Fetch):
    """A fetch of an ordered group."""

    position: OrderedPosition


@dataclass(eq=False)
class SharedFetch(Fetch):
    """A fetch of these messages of a shared group, in this order."""

    position: SharedPosition
    entries: list[Entry]


def expiry_of(queue: Queue, row: MessageRow) -> int | None:
    """When a message expires, by its own time to live, else that of the queue. A requeued one has only its own."""
    extra, ttl = row.extra, queue.info.options.ttl
    if row.owner is not None or (extra is not None and extra.x):
        return None if extra is None else extra.x or None
    return row.created_at + ttl * SECOND if ttl else None


def available_at(position: OrderedPosition, row: MessageRow) -> int:
    """When a message of an ordered group becomes available; 0: at once."""
    due, delayed = row.deliver_at or 0, position.partition.queue.info.options.delayed_processing
    if delayed:
        due = max(due, row.created_at + delayed * SECOND)
    retry = position.retry_of(row.offset)
    return due if retry is None else max(due, retry.due)


def window_end(position: OrderedPosition, first: MessageRow, window: int) -> int:
    """When the window buffer allows delivery of a partition with this first message (rule 11)."""
    since = max(first.created_at, available_at(position, first))
    return min(position.partition.last_created + window, since + 10 * window)


class HandOut:
    """Leases the deliverable messages among those that were read, at one time."""

    def __init__(self, state: State, now: int, ids: IdSource) -> None:
        self._state = state
        self._now = now
        self._ids = ids
        self.stepped: dict[Position, set[int]] = {}
        """Positions that moved over removed messages, with the changed ranges. They need not be saved at once."""
        self.expired: dict[str, int] = {}
        """Number of skipped expired messages, by queue."""

    def accept(self, fetch: Fetch) -> int:
        """Deliver the messages that were read. Returns their number."""
        before = len(fetch.job.messages)
        if isinstance(fetch, SharedFetch):
            self._accept_shared(fetch)
        elif isinstance(fetch, OrderedFetch):
            self._accept_ordered(fetch)
        return len(fetch.job.messages) - before

    def _accept_shared(self, fetch: SharedFetch) -> None:
        """Deliver the messages that are stored, in the order in which they were picked."""
        job, position = fetch.job, fetch.position
        rows = {row.offset: row for row in fetch.rows}
        handed = 0
        for entry in fetch.entries:
            row = rows.get(entry.offset)
            if row is None or self._is_gone(fetch, row):
                if entry.saved:
                    position.dropped.append(entry.offset)
                position.drop(entry)
                self.stepped.setdefault(position, set())
            elif job.bytes >= job.max_bytes:
                position.add(entry)
            else:
                job.bytes += size_of(row.payload, row.extra)
                handed += 1
                lease = self._lease(job, fetch.queue)
                delivery = self._deliver(fetch, row, entry.attempts)
                position.hold(entry, lease, delivery.transaction_id, (row.extra or NO_EXTRA).b)
        if handed:
            self._add_part(fetch, handed, 0)
        position.refresh(self._now)
        if position.partition.id in position.group.ready:
            job.more.append((fetch.queue, position, 0))

    def _accept_ordered(self, fetch: OrderedFetch) -> None:
        """Deliver the messages that are stored and due, and skip removed ones."""
        job, position = fetch.job, fetch.position
        group = position.group
        holds = position.lease is not None
        """The job received messages of this position in an earlier round."""
        window = 0 if holds else fetch.queue.info.options.window_buffer * SECOND
        reason: EmptyReason = "waiting"
        due: int | None = None
        deliverable: list[MessageRow] = []
        room = min(job.request.batch - len(job.messages), fetch.room)
        stop: int | None = None
        """The first offset that stays for a later pop."""
        for row in fetch.rows:
            if self._is_gone(fetch, row):
                continue
            due = self._due(fetch, row, 0)
            if due is None and window and not deliverable:
                due = self._due(fetch, row, window)
                reason = "waiting" if due is None else "window_buffer"
            if due is not None or len(deliverable) >= room or job.bytes >= job.max_bytes:
                stop = row.offset
                break
            deliverable.append(row)
            job.bytes += size_of(row.payload, row.extra)
        if len(deliverable) < sum(last - first + 1 for first, last in fetch.intervals):
            self._step_over(fetch, {row.offset for row in deliverable}, stop)
        if deliverable:
            self._hand_out(fetch, deliverable)
        if deliverable or holds:
            end = fetch.intervals[-1][1]
            more = stop is None and end < position.partition.tail
            if more and not (position.requeued or position.is_probed or len(position.ranges) > MAX_RANGES):
                job.more.append((fetch.queue, position, end))
        elif due is not None:
            job.reason = reason
            group.wake_at(position.partition.id, due, reason)
        else:  # No message was found: read more of the following offsets.
            job.look = min(job.look * 4, _LOOK_AT_MOST)
            position.refresh(self._now)

    def _is_gone(self, fetch: Fetch, row: MessageRow) -> bool:
        """Whether a message is for another group, or expired."""
        if row.owner is not None and row.owner != fetch.position.group.id:
            return True
        expiry = expiry_of(fetch.queue, row)
        if expiry is None or expiry > self._now:
            return False
        self.expired[fetch.queue.name] = self.expired.get(fetch.queue.name, 0) + 1
        self._state.note_ending(fetch.position, row.offset, Ending("expired", expiry))
        return True

    def _due(self, fetch: OrderedFetch, row: MessageRow, window: int) -> int | None:
        """When a message that is not due must be checked again; None: it is due, or its window buffer is closed."""
        due = window_end(fetch.position, row, window) if window else available_at(fetch.position, row)
        if due <= self._now:
            return None
        expiry = expiry_of(fetch.queue, row)
        return due if expiry is None else min(due, expiry)

    def _step_over(self, fetch: OrderedFetch, kept: set[int], stop: int | None) -> None:
        """Settle missing offsets before `stop` in memory. The next transaction saves this."""
        looked_at = [offset for first, last in fetch.intervals for offset in range(first, last + 1)]
        if stop is not None:
            del looked_at[looked_at.index(stop) :]
        gone = [offset for offset in looked_at if offset not in kept]
        if not gone:
            return
        position = fetch.position
        draft = position.start_draft()
        for offset in gone:
            draft.finish(offset)
        position.publish(self._now)
        self.stepped.setdefault(position, set()).update(draft.changed_ranges)

    def _lease(self, job: Job, queue: Queue) -> Lease:
        """The lease of a request. It lasts for the shortest lease time of its queues."""
        options, wanted = queue.info.options, job.request.lease_ms
        lasts = options.lease_time * SECOND if wanted is None else (options.lock_duration or wanted) * MILLISECOND
        if job.lease is None:
            job.lease = Lease(self._ids.new(), self._now + lasts, job.request.consumer, self._now)
        else:
            job.lease.expires_at = min(job.lease.expires_at, self._now + lasts)
        return job.lease

    def _hand_out(self, fetch: OrderedFetch, rows: list[MessageRow]) -> None:
        job, position = fetch.job, fetch.position
        lease = self._lease(job, fetch.queue)
        leased, retries = position.leased, position.retries
        handed_out_before = bool(leased)
        for row in rows:
            retry = retries.get(row.offset) if retries else None
            transaction_id = self._deliver(fetch, row, 0 if retry is None else retry.attempts).transaction_id
            if handed_out_before and transaction_id in leased:  # Its former lease ends with its last message.
                former = leased[transaction_id][1]
                part = former.parts.get(position)
                if part is not None:
                    part.open -= 1
                    if part.open <= 0:
                        self._state.detach(former, position)
            leased[transaction_id] = (row.offset, lease, (row.extra or NO_EXTRA).b, transaction_id)
        # Requeued messages have high offsets, but were delivered first.
        last = rows[-1].offset
        if position.requeued:
            last = max((row.offset for row in rows if row.offset not in position.requeued), default=0)
        if self._add_part(fetch, len(rows), last):
            position.lease = lease
            position.served = self._state.next_turn()
        position.refresh(self._now)

    def _deliver(self, fetch: Fetch, row: MessageRow, attempts: int) -> Delivery:
        partition = fetch.position.partition
        message_id = self._state.codec.with_prefix(partition.prefix, row.offset)
        extra = row.extra or NO_EXTRA
        delivery = Delivery(
            message_id,
            row.transaction_id or message_id,
            extra.t,
            payload_of(row.payload, extra),
            extra.s,
            extra.u,
            row.created_at,
            fetch.queue.name,
            partition.name,
            partition.uid,
            row.offset,
            row.priority,
            attempts + 1,
            extra.c,
        )
        fetch.job.messages.append(delivery)
        return delivery

    def _add_part(self, fetch: Fetch, handed: int, last: int) -> bool:
        """Add delivered messages to the lease. True: they are its first in this position."""
        job, lease = fetch.job, fetch.job.lease
        assert lease is not None
        if fetch.position in lease.parts:
            part = lease.parts[fetch.position]
            part.handed, part.open, part.last = part.handed + handed, part.open + handed, max(part.last, last)
            return False
        lease.parts[fetch.position] = Part(handed, last, handed)
        job.positions += 1
        return True


Turn = tuple[int, int, int, int]
"""The order of delivery: 0 for requeued messages, else 1; then -priority, available at, offset."""
Source = PlainLane | DelayedLane | None
"""The source of the next message; None: the outstanding messages."""


class Picker:
    """Picks messages of shared groups in the order of delivery, at one time."""

    def __init__(self, connection: apsw.Connection, now: int) -> None:
        self._connection = connection
        self._now = now
        self.stepped: dict[SharedPosition, None] = {}
        """Positions that moved over expired messages, to be saved."""
        self.expired: dict[str, int] = {}
        """Number of passed expired messages, by queue."""
        self.ended: list[tuple[SharedPosition, int, Ending]] = []
        """These messages, with their expiry."""

    def look(self, position: SharedPosition, need: int = 1) -> bool:
        """Read the next message of every lane. False: the commit in progress may add an earlier one."""
        clear = [self._fill(position, lane, need) for lane in position.lanes]
        return all(clear)

    def window_due(self, position: SharedPosition) -> int | None:
        """When the window buffer allows delivery of a partition; None: now, or nothing is ready (rule 11)."""
        if not position.partition.queue.info.options.window_buffer:
            return None
        self._heads(position, 1)  # Passes expired messages.
        return self.window_until(position)

    def window_until(self, position: SharedPosition) -> int | None:
        """The same without a change. The message that has been ready for the longest time decides."""
        window = position.partition.queue.info.options.window_buffer * SECOND
        if not window:
            return None
        self.look(position)
        delay = self._delay(position)
        came = position.due_since(self._now)
        for lane in position.lanes:
            item = next((one for one in lane.items if not 0 < self._expiry(position, one) <= self._now), None)
            if item is not None and (not delay or item.created_at + delay <= self._now):
                came.append(max(item.deliver_at, item.created_at + delay))
        since = min(came, default=None)
        if since is None:
            return None
        due = min(position.partition.last_created + window, since + 10 * window)
        return due if due > self._now else None

    def pick(self, position: SharedPosition, need: int) -> list[Entry]:
        """Take the next messages, at most `need`. They are outstanding from now on."""
        taken: list[Entry] = []
        heads = self._heads(position, need)
        while heads and len(taken) < need:
            heads.sort(key=lambda head: head[0])
            turn, source = heads[0]
            limit = heads[1][0] if len(heads) > 1 else None
            if source is None:
                taken.append(position.entries[turn[3]])
                position.take(taken[-1])
            else:
                self._take_run(position, source, need, limit, taken)
            next_turn = self._turn(position, source, need - len(taken), requeued=turn[0] == 0)
            heads[0:1] = [] if next_turn is None else [(next_turn, source)]
        return taken

    def _take_run(
        self, position: SharedPosition, lane: PlainLane | DelayedLane, need: int, limit: Turn | None, taken: list[Entry]
    ) -> None:
        """Take messages of a lane up to the turn `limit`. The first of them is known to be next."""
        options = position.partition.queue.info.options
        items, priority, now = lane.items, lane.priority, self._now
        delay = options.delayed_processing * SECOND
        first = True
        while items and len(taken) < need:
            item = items[0]
            available_at = max(item.deliver_at or item.created_at, item.created_at + delay)
            if not first and (
                (limit is not None and (1, -priority, available_at, item.offset) > limit)
                or (delay and available_at > now)
                or options.ttl
                or item.expires_at
            ):
                break  # `_turn` checks it first.
            first = False
            lane.take()
            # A creation time can be slightly later than now, to be after the start of a group.
            entry = Entry(item.offset, priority, item.created_at, min(available_at, now))
            position.take(entry)
            taken.append(entry)

    def _heads(self, position: SharedPosition, need: int) -> list[tuple[Turn, Source]]:
        requeued = self._turn(position, None, need, requeued=True)
        other = self._turn(position, None, need, requeued=False)
        heads: list[tuple[Turn, Source]] = [(turn, None) for turn in (requeued, other) if turn is not None]
        for lane in position.lanes:
            turn = self._turn(position, lane, need, requeued=False)
            if turn is not None:
                heads.append((turn, lane))
        return heads

    def _turn(self, position: SharedPosition, source: Source, need: int, *, requeued: bool) -> Turn | None:
        """The turn of the next message of a source, if it is ready."""
        if source is None:
            entry = position.due_entries(self._now)[0 if requeued else 1]
            return None if entry is None else (0 if requeued else 1, *entry.turn)
        while True:
            self._fill(position, source, need)
            if not source.items:
                return None
            item = source.items[0]
            expiry = self._expiry(position, item)
            if expiry and expiry <= self._now:
                source.take()
                name = position.partition.queue.name
                self.ended.append((position, item.offset, Ending("expired", expiry)))
                self.expired[name] = self.expired.get(name, 0) + 1
                self.stepped[position] = None
                continue
            old_enough_at = item.created_at + self._delay(position)
            available_at = max(item.deliver_at or item.created_at, old_enough_at)
            if old_enough_at <= self._now or not self._delay(position):
                return 1, -source.priority, available_at, item.offset
            if isinstance(source, PlainLane):
                return None  # All messages after it are younger.
            # It is due, but too young. The messages after it must not wait for it.
            late = Entry(item.offset, source.priority, item.created_at, available_at)
            source.take()
            position.take(late)
            position.add(late)

    def _fill(self, position: SharedPosition, lane: PlainLane | DelayedLane, need: int) -> bool:
        if isinstance(lane, PlainLane):
            lane.fill(self._connection, position.partition, position.lower, need)
            return True
        before = len(lane.items)
        clear = lane.fill(self._connection, position.partition, self._now, position.lower, need)
        position.fell_due = position.fell_due or len(lane.items) > before
        return clear

    def _delay(self, position: SharedPosition) -> int:
        return position.partition.queue.info.options.delayed_processing * SECOND

    def _expiry(self, position: SharedPosition, item: Item) -> int:
        """When a message expires; 0: never."""
        ttl = position.partition.queue.info.options.ttl
        return item.expires_at or (item.created_at + ttl * SECOND if ttl else 0)
