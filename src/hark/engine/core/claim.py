"""The verb pop: which messages a request receives.

Partitions and offsets are chosen in memory. Then one query reads the messages of all requests of a call. A range of
offsets may contain fewer messages than expected (removed, expired, not due yet). Then the request looks again, until it
has enough messages or nothing is left. `handout.py` picks the next messages of a shared group and leases messages.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import apsw
import msgspec

from hark.clock import SECOND
from hark.engine.core.groups import Contact
from hark.engine.core.handout import Fetch, HandOut, Job, OrderedFetch, Picker, SharedFetch
from hark.engine.core.limits import Allowance
from hark.engine.core.loader import Loader
from hark.engine.core.ordered import OrderedPosition
from hark.engine.core.position import Lease, Position
from hark.engine.core.shared import Entry, SharedPosition
from hark.engine.core.state import Group, Queue, State
from hark.engine.core.store import SELECT_MESSAGES, decode_messages, scalar
from hark.engine.core.transaction import MOST_NOTIFIED, runs
from hark.engine.hints import CALL_BYTES, HintBook, reply_bound
from hark.errors import Conflict, HarkError
from hark.ids import IdSource
from hark.model import QUEUE_MODE, GroupMode, PopRequest, PopResult, Subscription

_LOAD_AHEAD = 128
_SEEN_INTERVAL = 3600 * SECOND
_encode = msgspec.json.Encoder().encode


class Claimer:
    """Serves the pop requests of one call, at one time."""

    def __init__(self, connection: apsw.Connection, state: State, now: int, ids: IdSource) -> None:
        self._connection = connection
        self._state = state
        self._now = now
        self._loader = Loader(connection, state)
        self._reserved: set[Position] = set()
        self._taken: set[Position] = set()
        self._picked: list[tuple[SharedPosition, Entry]] = []
        self._allowance = Allowance(now)
        self._round_left = 0
        """Messages that may still be read in this round."""
        self.settled_at_once: dict[str, Lease] = {}
        """Leases of pops with `auto_ack`, which end before other calls can see them."""
        self.hand_out = HandOut(state, now, ids)
        self.picker = Picker(connection, now)
        self.seen: dict[Group, None] = {}
        """Groups whose `last_seen` must be saved."""
        self._found: dict[Group, set[int] | None] = {}
        """Partitions that this call found ready and that have no hint yet; None: any."""

    # Groups ------------------------------------------------------------------------------------------------

    def contacts(self, request: PopRequest) -> list[Contact]:
        """The groups that this request must create before it is served."""
        mode: GroupMode = request.group_mode or "ordered"
        subscription = request.subscription if request.group != QUEUE_MODE else Subscription()
        label = None
        missing: list[str | None] = [
            name
            for name in self._queue_names(request)
            if name not in self._state.deleting and self._loader.group(name, request.group) is None
        ]
        if request.queue is None:
            label = (request.group, request.namespace, request.task)
            if label not in self._state.labels and not self._loader.label(label):
                missing.insert(0, None)
        return [Contact(name, request.group, mode, subscription, label) for name in missing]

    def _queue_names(self, request: PopRequest) -> list[str]:
        if request.queue is not None:
            return [request.queue]
        return [
            queue.name
            for queue in self._state.queues.values()
            if (request.namespace is None or queue.info.namespace == request.namespace)
            and (request.task is None or queue.info.task == request.task)
        ]

    def _job(self, request: PopRequest, max_bytes: int) -> Job:
        found = []
        in_the_way = False
        for name in self._queue_names(request):
            if name in self._state.deleting:
                in_the_way = True  # Its tables are about to be deleted.
                continue
            queue, group = self._state.queues.get(name), self._loader.group(name, request.group)
            if group is not None and request.group_mode not in (None, group.mode):
                raise Conflict(
                    f"consumer group {request.group!r} of queue {name!r} is {group.mode}, not "
                    f"{request.group_mode}; use its mode, or another group",
                    code="group_mode_conflict",
                )
            if group is not None and (group.pending or group in self._state.expiring):
                in_the_way = True  # The next message is known after the commit.
            elif queue is not None and group is not None:
                self._note_seen(group)
                if self._loader.discover(group, queue, self._now):
                    self._found[group] = None
                self._note_found(group, group.wake_due(self._now))
                found.append((queue, group))
        found.sort(key=lambda pair: -pair[0].info.options.priority)
        # While a commit changes one of its queues, the next partition is not known yet.
        job = Job(request, [] if in_the_way else found, max_bytes)
        job.met_dirty = in_the_way
        return job

    def _note_seen(self, group: Group) -> None:
        if self._now - group.last_seen >= _SEEN_INTERVAL:
            group.last_seen = self._now
            self.seen[group] = None

    def _note_found(self, group: Group, partitions: Collection[int]) -> None:
        known = self._found.setdefault(group, set()) if partitions else None
        if known is not None:
            known.update(partitions)

    def notify_rest(self, hints: HintBook) -> None:
        """Notify of messages that this call found ready and did not take."""
        positions = dict.fromkeys(position for position, _ in self._picked)
        for group, found in self._found.items():
            if found is None:
                if group.next_ready() is not None:
                    hints.add(group.queue_name, group.name, None)
                continue
            left = []
            for one in found & group.ready.keys():
                position = group.positions.get(one)
                if isinstance(position, SharedPosition):
                    position.fell_due = True
                    positions[position] = None
                else:
                    left.append(self._state.partitions[one].name)
            if left:
                hints.add(group.queue_name, group.name, left)
        self._found.clear()
        for shared in positions:
            _hint_left(hints, shared, self._now)
        self._picked.clear()

    def note_endings(self) -> None:
        """Note the endings of messages that expired before a delivery."""
        for one in self.picker.ended:
            self._state.note_ending(*one)
        self.picker.ended.clear()

    # Serving -----------------------------------------------------------------------------------------------

    def serve(self, requests: Sequence[PopRequest]) -> list[PopResult | HarkError | None]:
        """The result of each request. None: try again after the commit in progress."""
        jobs: list[Job | HarkError] = []
        for request in requests:
            try:
                jobs.append(self._job(request, reply_bound(len(requests))))
            except HarkError as error:
                jobs.append(error)
        active = [job for job in jobs if isinstance(job, Job)]
        try:
            while active:
                # One round reads one text of SQLite, so its size must be bounded.
                self._round_left = max(1, CALL_BYTES // max(1, self._state.largest_payload))
                fetches = [fetch for job in active for fetch in self._plan(job)]
                self._read(fetches)
                for fetch in fetches:
                    number = self.hand_out.accept(fetch)
                    if fetch.position.group.limited:
                        self._allowance.spend(fetch.position, number)
                self._allowance = Allowance(self._now)
                self._reserved.clear()
                active = [job for job in active if not job.done]
        except BaseException:
            self._undo([job for job in jobs if isinstance(job, Job)])
            raise
        return [job if isinstance(job, HarkError) else self._answer(job) for job in jobs]

    def _undo(self, jobs: list[Job]) -> None:
        """Undo all claims of a failed call, or their messages would be unavailable until the next start."""
        leases = {job.lease for job in jobs if job.lease is not None}
        for shared, entry in self._picked:
            if entry.offset in shared.entries:
                shared.release(entry)
                shared.add(entry)
        for position in self._taken:
            if isinstance(position, OrderedPosition) and position.lease in leases:
                position.lease = None
                for transaction_id in [key for key, leased in position.leased.items() if leased[1] in leases]:
                    del position.leased[transaction_id]
            if position.refresh(self._now):
                self._note_found(position.group, [position.partition.id])
        self._taken.clear()
        self._reserved.clear()

    def _answer(self, job: Job) -> PopResult | None:
        if job.messages:
            assert job.lease is not None
            if job.request.auto_ack and not any(message.sealed for message in job.messages):
                self.settled_at_once[job.lease.id] = job.lease
            else:
                self._state.add_lease(job.lease)
            return PopResult(job.messages, job.lease.id, job.positions, expires_at=job.lease.expires_at)
        if job.met_dirty:
            return None
        for queue, group in job.groups:
            named = None if job.request.partition is None else queue.partitions.get(job.request.partition)
            change = group.next_change(self._state.leases, None if named is None else named.id)
            if job.request.partition is None and job.reason == "nothing_ready" and group.waking:
                job.reason = min(group.waking.values())[1]
            if change is not None and (job.look_again_at is None or change < job.look_again_at):
                job.look_again_at = change
            if named is None and change is not None:
                group.learned = change
        return PopResult((), "", 0, job.reason, job.look_again_at)

    def _plan(self, job: Job) -> list[Fetch]:
        request = job.request
        need = request.batch - len(job.messages)
        room = (1 if request.partition is not None else request.partitions) - job.positions
        fetches: list[Fetch] = []
        while need > 0 and room > 0 and job.bytes < job.max_bytes:
            if self._must_wait(job):
                return fetches  # The next round continues.
            taken = self._take(job)
            if taken is None:
                break
            fetch = self._fetch(job, *taken, need)
            if fetch is None:
                if request.partition is not None:
                    break
                continue
            fetches.append(fetch)
            need -= fetch.planned
            room -= not job.holds(fetch.position)
        while not fetches and need > 0 and job.more and job.bytes < job.max_bytes:
            # The other positions had fewer messages than expected, so continue in those that the job holds.
            if self._must_wait(job):
                return []
            queue, position, after = job.more.pop()
            if not self._is_closed(job, queue, position.group):
                fetch = self._fetch(job, queue, position, need, after)
                fetches += [] if fetch is None else [fetch]
        job.done = not fetches
        return fetches

    def _must_wait(self, job: Job) -> bool:
        """Whether this round reads enough, or the rest for a job depends on what other jobs receive."""
        return self._round_left <= 0 or any(
            group.limited and self._allowance.is_unsure(queue, group) for queue, group in job.groups
        )

    def _fetch(self, job: Job, queue: Queue, position: Position, need: int, after: int = 0) -> Fetch | None:
        """The messages that a job may receive from a taken position, within the limits of its group."""
        limited = position.group.limited
        if limited:
            need = self._allowed(job, queue, position, need)
            if need <= 0:
                return None
        fetch: Fetch | None = None
        if isinstance(position, SharedPosition):
            fetch = self._pick(job, queue, position, min(need, self._round_left))
        elif isinstance(position, OrderedPosition):
            intervals, planned = position.intervals(min(need * job.look, self._round_left), after)
            if intervals:
                self._reserved.add(position)
                fetch = OrderedFetch(job, queue, position, intervals, min(need, planned), planned)
        if fetch is not None:
            if limited:
                exact, auto_ack = isinstance(fetch, SharedFetch), job.request.auto_ack
                self._allowance.reserve(position, fetch.room, exact=exact, auto_ack=auto_ack)
            self._round_left -= fetch.planned
        return fetch

    def _allowed(self, job: Job, queue: Queue, position: Position, need: int) -> int:
        """How many of the messages the limits allow. A partition at its limit is held back until it may deliver."""
        left = self._allowance.room(queue, position.group, auto_ack=job.request.auto_ack).left
        if left < need:
            self._note_blocked(queue, position.group)
        own = job.lease.parts[position].open if job.lease is not None and position in job.lease.parts else 0
        room = self._allowance.room_in(position, auto_ack=job.request.auto_ack, own=own)
        if room.left <= 0 and not own:
            job.reason = room.reason
            position.group.hold_back(position.partition.id, room)
        return min(need, left, room.left)

    def _pick(self, job: Job, queue: Queue, position: SharedPosition, need: int) -> SharedFetch | None:
        group, partition = position.group, position.partition
        group.ready.pop(partition.id, None)
        due = None if job.holds(position) else self.picker.window_due(position)
        if due is not None:
            job.reason = "window_buffer"
            group.wake_at(partition.id, due, "window_buffer")
            return None
        entries = self.picker.pick(position, need)
        clear = self.picker.look(position)
        if not entries:
            if clear:
                position.refresh(self._now)
                job.reason = (
                    "waiting" if partition.id in group.waking else "lease_held" if position.leased else job.reason
                )
            job.met_dirty = job.met_dirty or not clear  # It is ready again after the commit in progress.
            return None
        position.served = self._state.next_turn()
        position.refresh(self._now)
        self._picked += [(position, entry) for entry in entries]
        ranges = list(runs(entry.offset for entry in entries))
        return SharedFetch(job, queue, position, ranges, len(entries), len(entries), entries)

    def _take(self, job: Job) -> tuple[Queue, Position] | None:
        """The next position for a job: highest queue priority, then message priority, then served longest ago (rule 9).

        The priorities of queues compete only within a namespace (rule 27).
        """
        if job.request.partition is not None:
            return self._take_named(job)
        while True:
            best: dict[str, tuple[tuple[int, int, int, int], Queue, Group]] = {}
            for queue, group in job.groups:
                if self._is_closed(job, queue, group):
                    continue
                head = group.next_ready()
                if head is not None:
                    order = (-queue.info.options.priority, *head)
                    known = best.get(queue.info.namespace)
                    if known is None or order < known[0]:
                        best[queue.info.namespace] = (order, queue, group)
            if not best:
                return None
            _, queue, group = min(best.values(), key=lambda one: one[0][1:])
            partition_id = group.take_ready()
            position = self._position(group, partition_id)
            if position is not None and self._may_take(job, position):
                return queue, position

    def _take_named(self, job: Job) -> tuple[Queue, Position] | None:
        name = job.request.partition
        assert name is not None
        if job.positions or not job.groups:
            if not job.groups:
                job.reason = "partition_not_found"
            return None
        queue, group = job.groups[0]
        if self._is_closed(job, queue, group):
            return None
        if name not in queue.partitions:
            self._loader.partitions([(queue, name)])
        partition = queue.partitions.get(name)
        if partition is None:
            job.reason = "partition_not_found"
            return None
        if partition.id in group.waking:
            job.reason = group.waking[partition.id][1]
            return None
        position = self._position(group, partition.id)
        if (
            position is None
            or not self._may_take(job, position)
            or (isinstance(position, OrderedPosition) and position.readiness(self._now).priority is None)
        ):
            return None
        group.ready.pop(partition.id, None)
        return queue, position

    def _is_closed(self, job: Job, queue: Queue, group: Group) -> bool:
        if queue.info.paused or group.paused:
            job.reason = "paused"
            return True
        if not group.limited:
            return False
        room = self._allowance.room(queue, group, auto_ack=job.request.auto_ack)
        if room.left <= 0:
            job.reason = room.reason
            if room.look_again_at is not None:
                job.look_again_at = min(room.look_again_at, job.look_again_at or room.look_again_at)
            self._note_blocked(queue, group)
            return True
        return False

    def _note_blocked(self, queue: Queue, group: Group) -> None:
        """Request a hint for when there is room again."""
        for bounds in (queue.bounds, group.bounds):
            bounds.blocked = bool(bounds.limits.max_in_flight)

    def _may_take(self, job: Job, position: Position) -> bool:
        self._taken.add(position)
        if position.draft is not None and position.draft.blocks:
            job.met_dirty = True  # The commit in progress marks it as ready again.
            return False
        if isinstance(position, OrderedPosition) and (position.lease is not None or position in self._reserved):
            job.reason = "lease_held"
            return False
        return True

    def _position(self, group: Group, partition_id: int) -> Position | None:
        position = group.positions.get(partition_id)
        if position is None:
            ahead = [near for *_, near in group.ready_heap[:_LOAD_AHEAD] if near not in group.positions]
            self._loader.positions(group, [partition_id, *(near for near in ahead if near != partition_id)])
            position = group.positions.get(partition_id)
        return position

    def _read(self, fetches: list[Fetch]) -> None:
        """Read the messages of all fetches, in one step of SQLite."""
        owners: list[Fetch] = []
        wanted: list[tuple[int, int, int]] = []
        for fetch in fetches:
            for first, last in fetch.intervals:
                owners.append(fetch)
                wanted.append((fetch.position.partition.id, first, last))
        if not wanted:
            return
        text = scalar(self._connection, SELECT_MESSAGES, _encode(wanted).decode())
        if text is not None:
            for row in decode_messages(text):
                owners[row.fetch].rows.append(row)


def _hint_left(hints: HintBook, position: SharedPosition, now: int) -> None:
    """Notify of messages that became due and were not taken, and of the next due time if no consumer knows it."""
    group, partition = position.group, position.partition
    count = 0
    if partition.id in group.ready:
        count = position.count_ready(MOST_NOTIFIED) if position.fell_due else 0
    elif partition.id in group.waking and group.must_learn(partition.id, now):
        count = 1
    if count:
        hints.add(group.queue_name, group.name, (partition.name,), counts={partition.name: count})
    position.fell_due = False
