"""The verb pop: which messages a request gets.

Everything is decided in memory but the messages themselves, which one query reads for all requests of a call. A
range of offsets may hold less than it promises (messages removed, expired, not due yet): then the request looks
again, until it has enough or nothing is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from hark.clock import SECOND
from hark.engine.sqlite.groups import Contact
from hark.engine.sqlite.loader import Loader
from hark.engine.sqlite.rows import NO_EXTRA, SELECT_MESSAGES, MessageRow, decode_messages
from hark.engine.sqlite.state import Group, Queue, State
from hark.engine.sqlite.store import scalar
from hark.engine.sqlite.track import MAX_RANGES, Draft, Lease, Part, Track
from hark.errors import Conflict, HarkError, Refused
from hark.ids import IdSource
from hark.model import QUEUE_MODE, Delivery, EmptyReason, GroupMode, PopRequest, PopResult, Subscription

MAX_REPLY_BYTES = 64 << 20
"""A pop ends with the message that takes it beyond this, whatever its batch."""
_LOAD_AHEAD = 128
_LOOK_AT_MOST = 1024
_SEEN_INTERVAL = 3600 * SECOND
_encode = msgspec.json.Encoder().encode


class Job:
    """One request on its way through a call."""

    def __init__(self, request: PopRequest, groups: list[tuple[Queue, Group]]) -> None:
        self.request = request
        self.groups = groups
        self.lease: Lease | None = None
        self.messages: list[Delivery] = []
        self.bytes = 0
        self.tracks = 0
        self.more: list[tuple[Queue, Track, int]] = []
        """Tracks that it holds and that may go on behind an offset."""
        self.look = 1
        """How many times what it needs it looks at: more after each look at messages that were all gone."""
        self.reason: EmptyReason = "nothing_ready"
        self.look_again_at: int | None = None
        self.met_dirty = False
        self.done = False


class Fetch:
    """A track that a job has taken, and the ranges it wants of it."""

    def __init__(self, job: Job, queue: Queue, track: Track, intervals: list[tuple[int, int]]) -> None:
        self.job = job
        self.queue = queue
        self.track = track
        self.intervals = intervals
        self.rows: list[MessageRow] = []


class Claimer:
    """Serves the requests of one call at one moment."""

    def __init__(self, connection: apsw.Connection, state: State, now: int, ids: IdSource) -> None:
        self._connection = connection
        self._state = state
        self._now = now
        self._ids = ids
        self._loader = Loader(connection, state)
        self._reserved: set[Track] = set()
        self.stepped: dict[Track, set[int]] = {}
        """Tracks that moved over what is not there any more, with the ranges that changed; worth saving, not
        worth waiting for."""
        self.expired: dict[str, int] = {}
        """Messages stepped over because their time to live was over, by queue."""
        self.seen: dict[Group, None] = {}
        """Groups whose last sight is to be saved."""

    # Who asks ----------------------------------------------------------------------------------------------

    def contacts(self, request: PopRequest) -> list[Contact]:
        """The groups that this request is the first contact of; to be made before it is served."""
        if request.group_mode == "shared":
            return []  # Refused when it is served.
        mode: GroupMode = request.group_mode or "ordered"
        subscription = request.subscription if request.group != QUEUE_MODE else Subscription()
        label = None
        missing: list[str | None] = [
            name for name in self._queue_names(request) if self._group(name, request.group) is None
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

    def _group(self, queue: str, name: str) -> Group | None:
        group = self._state.groups.get((queue, name))
        if group is None:
            self._loader.groups(queue)
            group = self._state.groups.get((queue, name))
        return group

    def _job(self, request: PopRequest) -> Job:
        if request.group_mode == "shared":
            raise Refused("shared groups arrive with work queues; this server has ordered groups only")
        found = []
        for name in self._queue_names(request):
            queue, group = self._state.queues.get(name), self._group(name, request.group)
            if group is not None and request.group_mode not in (None, group.mode):
                raise Conflict(
                    f"group {request.group!r} of queue {name!r} is {group.mode}, not {request.group_mode}",
                    code="group_mode_conflict",
                )
            if queue is not None and group is not None:
                self._note_seen(group)
                self._loader.discover(group, queue)
                group.wake_due(self._now)
                found.append((queue, group))
        found.sort(key=lambda pair: -pair[0].info.options.priority)
        return Job(request, found)

    def _note_seen(self, group: Group) -> None:
        if self._now - group.last_seen >= _SEEN_INTERVAL:
            group.last_seen = self._now
            self.seen[group] = None

    # Serving -----------------------------------------------------------------------------------------------

    def serve(self, requests: Sequence[PopRequest]) -> list[PopResult | HarkError | None]:
        """An answer to each request; None: something in the way is about to be committed, ask again after that."""
        jobs: list[Job | HarkError] = []
        for request in requests:
            try:
                jobs.append(self._job(request))
            except HarkError as error:
                jobs.append(error)
        active = [job for job in jobs if isinstance(job, Job)]
        while active:
            fetches = [fetch for job in active for fetch in self._plan(job)]
            self._read(fetches)
            for fetch in fetches:
                self._accept(fetch)
            self._reserved.clear()
            active = [job for job in active if not job.done]
        return [job if isinstance(job, HarkError) else self._answer(job) for job in jobs]

    def _answer(self, job: Job) -> PopResult | None:
        if job.messages:
            assert job.lease is not None
            self._state.add_lease(job.lease)
            return PopResult(job.messages, job.lease.id, job.tracks)
        if job.met_dirty or any(group in self._state.expiring for _, group in job.groups):
            return None
        for _, group in job.groups:
            change = group.next_change(self._state.leases)
            if job.reason == "nothing_ready" and group.waking:
                job.reason = min(group.waking.values())[1]
            if change is not None and (job.look_again_at is None or change < job.look_again_at):
                job.look_again_at = change
        return PopResult((), "", 0, job.reason, job.look_again_at)

    def _plan(self, job: Job) -> list[Fetch]:
        request = job.request
        need = request.batch - len(job.messages)
        room = (1 if request.partition is not None else request.partitions) - job.tracks
        bound = max(1, MAX_REPLY_BYTES // max(1, self._state.largest_payload))
        fetches: list[Fetch] = []
        while need > 0 and room > 0 and job.bytes < MAX_REPLY_BYTES:
            taken = self._take(job)
            if taken is None:
                break
            queue, track = taken
            intervals, planned = self._intervals(track, min(need * job.look, bound))
            if not intervals:
                continue
            self._reserved.add(track)
            fetches.append(Fetch(job, queue, track, intervals))
            need -= planned
            bound = max(1, bound - planned)
            room -= 1
        if not fetches and need > 0 and job.more and job.bytes < MAX_REPLY_BYTES:
            # What other tracks promised was not there, but the ones that it has go on.
            queue, track, after = job.more.pop(0)
            intervals, _ = self._intervals(track, min(need * job.look, bound), after)
            fetches = [Fetch(job, queue, track, intervals)] if intervals else self._plan(job)
        job.done = not fetches
        return fetches

    def _take(self, job: Job) -> tuple[Queue, Track] | None:
        """The next track for a job: highest queue priority, then served longest ago (rule 9)."""
        if job.request.partition is not None:
            return self._take_named(job)
        while True:
            best: tuple[tuple[int, int, int], Queue, Group] | None = None
            for queue, group in job.groups:
                if self._is_paused(job, queue, group):
                    continue
                head = group.next_ready()
                if head is not None:
                    order = (-queue.info.options.priority, *head)
                    if best is None or order < best[0]:
                        best = (order, queue, group)
            if best is None:
                return None
            _, queue, group = best
            partition_id = group.take_ready()
            track = self._track(group, partition_id)
            if track is not None and self._may_take(job, track):
                return queue, track

    def _take_named(self, job: Job) -> tuple[Queue, Track] | None:
        name = job.request.partition
        assert name is not None
        if job.tracks or not job.groups:
            if not job.groups:
                job.reason = "partition_not_found"
            return None
        queue, group = job.groups[0]
        if self._is_paused(job, queue, group):
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
        track = self._track(group, partition.id)
        if track is None or not self._may_take(job, track) or not track.has_work:
            return None
        group.ready.pop(partition.id, None)
        return queue, track

    def _is_paused(self, job: Job, queue: Queue, group: Group) -> bool:
        if queue.info.paused or group.paused:
            job.reason = "paused"
            return True
        return False

    def _may_take(self, job: Job, track: Track) -> bool:
        if track.draft is not None:
            job.met_dirty = True  # Ready again, if it still is, when its transaction is published.
            return False
        if track.lease is not None or track in self._reserved:
            job.reason = "lease_held"
            return False
        return True

    def _track(self, group: Group, partition_id: int) -> Track | None:
        track = group.tracks.get(partition_id)
        if track is None:
            ahead = [near for _, near in group.ready_heap[:_LOAD_AHEAD] if near not in group.tracks]
            self._loader.tracks(group, [partition_id, *(near for near in ahead if near != partition_id)])
            track = group.tracks.get(partition_id)
        return track

    def _intervals(self, track: Track, need: int, after: int = 0) -> tuple[list[tuple[int, int]], int]:
        """What may be handed out of a track behind an offset, as far as memory knows, and how much that is."""
        if track.cursor < track.partition.floor:
            track.rise_to(track.partition.floor)
        if len(track.ranges) > MAX_RANGES:
            need = 1
        intervals: list[tuple[int, int]] = []
        planned = 0
        for first, last in track.open_intervals():
            if last <= after:
                continue
            first = max(first, after + 1)
            if track.probe and first <= track.probe:
                need = 1
            last = min(last, first + need - planned - 1)
            intervals.append((first, last))
            planned += last - first + 1
            if planned >= need:
                break
        return intervals, planned

    def _read(self, fetches: list[Fetch]) -> None:
        """The messages of all fetches, in one step of SQLite."""
        owners: list[Fetch] = []
        wanted: list[tuple[int, int, int]] = []
        for fetch in fetches:
            for first, last in fetch.intervals:
                owners.append(fetch)
                wanted.append((fetch.track.partition.id, first, last))
        if not wanted:
            return
        text = scalar(self._connection, SELECT_MESSAGES, _encode(wanted).decode())
        if text is not None:
            for row in decode_messages(text):
                owners[row.fetch].rows.append(row)

    # Handing out -------------------------------------------------------------------------------------------

    def _accept(self, fetch: Fetch) -> None:
        """Hand out what is really there and due; step over what is not there any more."""
        job, track = fetch.job, fetch.track
        group = track.group
        options = fetch.queue.info.options
        holds = track.lease is not None
        """It got some of this track in an earlier look."""
        due = self._window_due(fetch) if options.window_buffer and fetch.rows and not holds else None
        if due is not None:
            job.reason = "window_buffer"
            group.wake_at(track.partition.id, due, "window_buffer")
            return
        deliverable: list[MessageRow] = []
        room = job.request.batch - len(job.messages)
        stop: int | None = None
        """The first offset that stays for later, due or not."""
        for row in fetch.rows:
            if self._is_gone(fetch, row):
                continue
            due = self._due(fetch, row)
            if due is not None or len(deliverable) >= room or job.bytes >= MAX_REPLY_BYTES:
                stop = row.offset
                break
            deliverable.append(row)
            job.bytes += len(memoryview(row.payload))
        if len(deliverable) < sum(last - first + 1 for first, last in fetch.intervals):
            self._step_over(fetch, {row.offset for row in deliverable}, stop)
        if deliverable:
            self._hand_out(fetch, deliverable)
        if deliverable or holds:
            if stop is None and not (track.front or track.probe or len(track.ranges) > MAX_RANGES):
                job.more.append((fetch.queue, track, fetch.intervals[-1][1]))
        elif due is not None:
            job.reason = "waiting"
            group.wake_at(track.partition.id, due)
        else:  # All of it was gone: look again at what is behind, and at more of it.
            job.look = min(job.look * 4, _LOOK_AT_MOST)
            group.refresh(track)

    def _is_gone(self, fetch: Fetch, row: MessageRow) -> bool:
        """Whether a message is not, or no longer, for this group."""
        if row.extra is not None and row.extra.g and row.extra.g != fetch.track.group.id:
            return True
        expiry = self._expiry(fetch, row)
        if expiry is None or expiry > self._now:
            return False
        self.expired[fetch.queue.name] = self.expired.get(fetch.queue.name, 0) + 1
        return True

    def _expiry(self, fetch: Fetch, row: MessageRow) -> int | None:
        """When a message's time to live is over: its own, else the queue's; a requeued one has none."""
        extra, ttl = row.extra, fetch.queue.info.options.ttl
        if extra is not None and (extra.x or extra.g):
            return extra.x or None
        return row.created_at + ttl * SECOND if ttl else None

    def _due(self, fetch: Fetch, row: MessageRow) -> int | None:
        """When to look at a message again that may not be delivered yet; None: now."""
        due = 0 if row.extra is None else row.extra.d
        delayed = fetch.queue.info.options.delayed_processing
        if delayed:
            due = max(due, row.created_at + delayed * SECOND)
        retry = fetch.track.retries.get(row.offset)
        if retry is not None:
            due = max(due, retry.due)
        if due <= self._now:
            return None
        expiry = self._expiry(fetch, row)
        return due if expiry is None else min(due, expiry)

    def _window_due(self, fetch: Fetch) -> int | None:
        """When a partition with a window buffer may be delivered; None: now (rule 11)."""
        window = fetch.queue.info.options.window_buffer * SECOND
        quiet = fetch.track.partition.last_created + window
        longest = fetch.rows[0].created_at + 10 * window
        due = min(quiet, longest)
        return due if due > self._now else None

    def _step_over(self, fetch: Fetch, kept: set[int], stop: int | None) -> None:
        """Settle in memory what is gone among the offsets before `stop`; saved with the next transaction."""
        looked_at = [offset for first, last in fetch.intervals for offset in range(first, last + 1)]
        if stop is not None:
            del looked_at[looked_at.index(stop) :]
        gone = [offset for offset in looked_at if offset not in kept]
        if not gone:
            return
        track = fetch.track
        draft = Draft(track)
        for offset in gone:
            if offset in draft.front:
                draft.front.remove(offset)
            else:
                draft.settle(offset, offset)
            draft.retries.pop(offset, None)
        track.draft = draft
        track.publish()
        self.stepped.setdefault(track, set()).update(draft.touched_ranges)

    def _hand_out(self, fetch: Fetch, rows: list[MessageRow]) -> None:
        job, track, queue = fetch.job, fetch.track, fetch.queue
        lease = job.lease
        if lease is None:
            expires_at = self._now + queue.info.options.lease_time * SECOND
            lease = job.lease = Lease(self._ids.new(), expires_at)
        else:
            lease.expires_at = min(lease.expires_at, self._now + queue.info.options.lease_time * SECOND)
        partition, codec, held, retries = track.partition, self._state.codec, track.held, track.retries
        prefix, uid, name, queue_name = partition.prefix, partition.uid, partition.name, queue.name
        for row in rows:
            message_id = codec.with_prefix(prefix, row.offset)
            transaction_id = row.transaction_id or message_id
            extra = row.extra or NO_EXTRA
            retry = retries.get(row.offset) if retries else None
            held[transaction_id] = (row.offset, lease, extra.b)
            job.messages.append(
                Delivery(
                    message_id,
                    transaction_id,
                    extra.t,
                    row.payload,
                    extra.s,
                    extra.u,
                    row.created_at,
                    queue_name,
                    name,
                    uid,
                    row.offset,
                    extra.p,
                    1 if retry is None else retry.attempts + 1,
                )
            )
        last = max(rows[0].offset, rows[-1].offset)
        if track in lease.parts:
            lease.parts[track].extend(len(rows), last)
            return
        lease.parts[track] = Part(len(rows), last)
        track.lease = lease
        track.served = self._state.next_turn()
        job.tracks += 1
