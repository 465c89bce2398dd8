"""The second half of a pop: what of the messages that were read is handed out, and what is stepped over."""

from __future__ import annotations

from hark.clock import MILLISECOND, SECOND
from hark.engine.core.ordered import MAX_RANGES, Draft, OrderedPosition
from hark.engine.core.position import Lease, Part, Position
from hark.engine.core.shared import Entry, SharedPosition
from hark.engine.core.state import Group, Queue, State
from hark.engine.core.store import NO_EXTRA, MessageRow, payload_of, size_of
from hark.ids import IdSource
from hark.model import Delivery, EmptyReason, Ending, PopRequest

"""A pop ends with the message that takes it beyond this, whatever its batch."""
_LOOK_AT_MOST = 1024


class Job:
    """One request on its way through a call."""

    def __init__(self, request: PopRequest, groups: list[tuple[Queue, Group]], max_bytes: int) -> None:
        self.request = request
        self.max_bytes = max_bytes
        self.groups = groups
        self.lease: Lease | None = None
        self.messages: list[Delivery] = []
        self.bytes = 0
        self.positions = 0
        self.more: list[tuple[Queue, Position, int]] = []
        """Positions that it holds and that may go on behind an offset."""
        self.look = 1
        """How many times what it needs it looks at: more after each look at messages that were all gone."""
        self.reason: EmptyReason = "nothing_ready"
        self.look_again_at: int | None = None
        self.met_dirty = False
        self.done = False

    def holds(self, position: Position) -> bool:
        """Whether it got some of a position in an earlier look."""
        return self.lease is not None and position in self.lease.parts


class Fetch:
    """A position that a job has taken, and the ranges it wants of it, with room for so many messages."""

    def __init__(self, job: Job, queue: Queue, position: Position, intervals: list[tuple[int, int]], room: int) -> None:
        self.job = job
        self.queue = queue
        self.position = position
        self.intervals = intervals
        self.room = room
        """How many it may hand out at most."""
        self.planned = room
        """How many it reads."""
        self.rows: list[MessageRow] = []


class OrderedFetch(Fetch):
    """Of an ordered group."""

    position: OrderedPosition


class SharedFetch(Fetch):
    """Of a shared group: these messages, in their order."""

    position: SharedPosition

    def __init__(self, job: Job, queue: Queue, position: SharedPosition, entries: list[Entry]) -> None:
        ranges: list[tuple[int, int]] = []
        for entry in entries:
            if ranges and ranges[-1][1] == entry.offset - 1:
                ranges[-1] = (ranges[-1][0], entry.offset)
            else:
                ranges.append((entry.offset, entry.offset))
        super().__init__(job, queue, position, ranges, len(entries))
        self.entries = entries


class HandOut:
    """Judges messages at one moment, and puts them under leases."""

    def __init__(self, state: State, now: int, ids: IdSource) -> None:
        self._state = state
        self._now = now
        self._ids = ids
        self.stepped: dict[Position, set[int]] = {}
        """Positions that moved over what is not there any more, with the ranges that changed; worth saving, not
        worth waiting for."""
        self.expired: dict[str, int] = {}
        """Messages stepped over because their time to live was over, by queue."""

    def accept(self, fetch: Fetch) -> int:
        """Hand out what was read; how many messages that are."""
        before = len(fetch.job.messages)
        if isinstance(fetch, SharedFetch):
            self._accept_shared(fetch)
        elif isinstance(fetch, OrderedFetch):
            self._accept_ordered(fetch)
        return len(fetch.job.messages) - before

    def _accept_shared(self, fetch: SharedFetch) -> None:
        """Hand out what is there, in the order in which it was picked."""
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
        position.group.refresh(position, self._now)
        if position.partition.id in position.group.ready:
            job.more.append((fetch.queue, position, 0))

    def _accept_ordered(self, fetch: OrderedFetch) -> None:
        """Hand out what is really there and due; step over what is not there any more."""
        job, position = fetch.job, fetch.position
        group = position.group
        holds = position.lease is not None
        """It got some of this position in an earlier look."""
        window = 0 if holds else fetch.queue.info.options.window_buffer * SECOND
        reason: EmptyReason = "waiting"
        due: int | None = None
        deliverable: list[MessageRow] = []
        room = min(job.request.batch - len(job.messages), fetch.room)
        stop: int | None = None
        """The first offset that stays for later, due or not."""
        for row in fetch.rows:
            if self._is_gone(fetch, row):
                continue
            due = self._due(fetch, row)
            if due is None and window and not deliverable:
                due = self._window_due(fetch, row, window)
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
        else:  # All of it was gone: look again at what is behind, and at more of it.
            job.look = min(job.look * 4, _LOOK_AT_MOST)
            group.refresh(position, self._now)

    def _is_gone(self, fetch: Fetch, row: MessageRow) -> bool:
        """Whether a message is not, or no longer, for this group."""
        if row.owner is not None and row.owner != fetch.position.group.id:
            return True
        expiry = self._expiry(fetch, row)
        if expiry is None or expiry > self._now:
            return False
        self.expired[fetch.queue.name] = self.expired.get(fetch.queue.name, 0) + 1
        self._state.note_ending(fetch.position, row.offset, Ending("expired", expiry))
        return True

    def _expiry(self, fetch: Fetch, row: MessageRow) -> int | None:
        """When a message's time to live is over: its own, else the queue's; a requeued one has none."""
        extra, ttl = row.extra, fetch.queue.info.options.ttl
        if row.owner is not None or (extra is not None and extra.x):
            return None if extra is None else extra.x or None
        return row.created_at + ttl * SECOND if ttl else None

    def _due(self, fetch: OrderedFetch, row: MessageRow) -> int | None:
        """When to look at a message again that may not be delivered yet; None: now."""
        due = self._since(fetch, row)
        return None if due <= self._now else self._before_expiry(fetch, row, due)

    def _since(self, fetch: OrderedFetch, row: MessageRow) -> int:
        """When a message becomes available; a plain one always is."""
        due = row.deliver_at or 0
        delayed = fetch.queue.info.options.delayed_processing
        if delayed:
            due = max(due, row.created_at + delayed * SECOND)
        retry = fetch.position.retries.get(row.offset)
        return due if retry is None else max(due, retry.due)

    def _before_expiry(self, fetch: Fetch, row: MessageRow, due: int) -> int:
        expiry = self._expiry(fetch, row)
        return due if expiry is None else min(due, expiry)

    def _window_due(self, fetch: OrderedFetch, row: MessageRow, window: int) -> int | None:
        """When a partition with a window buffer may be delivered, whose first message is ready; None: now (rule 11)."""
        since = max(row.created_at, self._since(fetch, row))
        due = min(fetch.position.partition.last_created + window, since + 10 * window)
        return self._before_expiry(fetch, row, due) if due > self._now else None

    def _step_over(self, fetch: OrderedFetch, kept: set[int], stop: int | None) -> None:
        """Settle in memory what is gone among the offsets before `stop`; saved with the next transaction."""
        looked_at = [offset for first, last in fetch.intervals for offset in range(first, last + 1)]
        if stop is not None:
            del looked_at[looked_at.index(stop) :]
        gone = [offset for offset in looked_at if offset not in kept]
        if not gone:
            return
        position = fetch.position
        draft = Draft(position)
        for offset in gone:
            draft.finish(offset)
        position.draft = draft
        position.publish(self._now)
        self.stepped.setdefault(position, set()).update(draft.touched_ranges)

    def _supersede(self, position: OrderedPosition, lease: Lease) -> None:
        """A message is handed out again: the lease it was under has one less, and ends with the last."""
        part = lease.parts.get(position)
        if part is not None:
            part.open -= 1
            if part.open <= 0:
                self._state.end_part(lease, position)

    def _lease(self, job: Job, queue: Queue) -> Lease:
        """The lease of a request, which ends when the first of its queues wants it to."""
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
        held, retries = position.held, position.retries
        handed_out_before = bool(held)
        for row in rows:
            retry = retries.get(row.offset) if retries else None
            transaction_id = self._deliver(fetch, row, 0 if retry is None else retry.attempts).transaction_id
            if handed_out_before and transaction_id in held:
                self._supersede(position, held[transaction_id][1])
            held[transaction_id] = (row.offset, lease, (row.extra or NO_EXTRA).b, transaction_id)
        # A requeued message has a high offset but was not behind the others.
        last = rows[-1].offset
        if position.requeued:
            last = max((row.offset for row in rows if row.offset not in position.requeued), default=0)
        if self._add_part(fetch, len(rows), last):
            position.lease = lease
            position.served = self._state.next_turn()
        position.group.note_in_flight(position)

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
        """Note what a lease has of a position; True: it is the first."""
        job, lease = fetch.job, fetch.job.lease
        assert lease is not None
        if fetch.position in lease.parts:
            lease.parts[fetch.position].extend(handed, last)
            return False
        lease.parts[fetch.position] = Part(handed, last)
        job.positions += 1
        return True
