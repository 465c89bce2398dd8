"""One SQLite transaction: the rows that its verbs want written, and what happens in memory once it is committed."""

from __future__ import annotations

from collections.abc import Callable

import apsw

from hark.engine.hints import HintBook
from hark.engine.sqlite.loader import Loader
from hark.engine.sqlite.state import Group, Partition, Queue, State
from hark.engine.sqlite.store import Value, for_each, insert_messages, run
from hark.engine.sqlite.track import Draft, Lease, Track
from hark.ids import IdSource
from hark.model import Hint

_SAVE_TRACKS = """
insert into tracks (grp, partition, cursor, probe, settled_at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 from json_each(?1) where true
on conflict (grp, partition) do update
set cursor = excluded.cursor, probe = excluded.probe, settled_at = excluded.settled_at
"""
_DELETE_RANGES = """
delete from ranges where (grp, partition, first) in
    (select value ->> 0, value ->> 1, value ->> 2 from json_each(?1))
"""
_SAVE_RANGES = """
insert into ranges (grp, partition, first, last)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(?1)
"""
_DELETE_RETRIES = """
delete from retries where (grp, partition, offset) in
    (select value ->> 0, value ->> 1, value ->> 2 from json_each(?1))
"""
_SAVE_RETRIES = """
insert into retries (grp, partition, offset, attempts, due, error)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 from json_each(?1) where true
on conflict (grp, partition, offset) do update
set attempts = excluded.attempts, due = excluded.due, error = excluded.error
"""
_DELETE_FRONTS = """
delete from fronts where (grp, partition, offset) in
    (select value ->> 0, value ->> 1, value ->> 2 from json_each(?1))
"""
_SAVE_FRONTS = """
insert into fronts (grp, partition, offset) select value ->> 0, value ->> 1, value ->> 2 from json_each(?1)
"""
# The payload goes from table to table without a detour through Python.
_SAVE_DEAD_LETTERS = """
insert into dead_letters (uid, queue, partition, partition_name, grp, offset, transaction_id, created_at, payload,
    extra, attempts, error, failed_at)
select value ->> 0, value ->> 1, message.partition, value ->> 3, value ->> 4, message.offset, message.transaction_id,
    message.created_at, message.payload, message.extra, value ->> 6, value ->> 7, value ->> 8
from json_each(?1)
join messages as message on message.partition = value ->> 2 and message.offset = value ->> 5
where true
on conflict (partition, offset, grp) do update
set attempts = excluded.attempts, error = excluded.error, failed_at = excluded.failed_at
"""


class WriteTransaction:
    """Collects what verbs want, writes it in few wide statements, and publishes it after the commit."""

    def __init__(self, connection: apsw.Connection, state: State, now: int, ids: IdSource) -> None:
        self.connection = connection
        self.state = state
        self.now = now
        self.ids = ids
        self.loader = Loader(connection, state)
        self.messages: list[Value] = []
        """Rows for `messages`, flat."""
        self.pushed: dict[Partition, None] = {}
        self.new_transaction_ids: dict[tuple[int, str], int] = {}
        self.pushed_count: dict[Queue, int] = {}
        self.expired = 0
        """Leases whose expiry it applied."""
        self._drafted: dict[Track, None] = {}
        self._dead: list[tuple[str, str, int, str, str, int, int, str, int]] = []
        self._counts: dict[tuple[str, str], int] = {}
        self._settled_count: dict[Group, int] = {}
        self._on_commit: list[Callable[[], object]] = []
        self.hints = HintBook()
        """Whom to tell after the commit."""
        self._swept = False

    # What verbs say ----------------------------------------------------------------------------------------

    def draft(self, track: Track) -> Draft:
        """The track as this transaction changes it."""
        if track.draft is None:
            track.draft = Draft(track)
            self._drafted[track] = None
        return track.draft

    def settle(self, track: Track, offset: int) -> None:
        """The group is done with an offset, for whatever reason."""
        draft = self.draft(track)
        if offset in draft.front:
            draft.front.remove(offset)
        else:
            draft.settle(offset, offset)
        draft.retries.pop(offset, None)
        draft.settled_at = self.now
        self._settled_count[track.group] = self._settled_count.get(track.group, 0) + 1

    def bury(self, track: Track, offset: int, attempts: int, error: str, failed_at: int, *, exhausted: bool) -> bool:
        """Settle a message that can't be delivered, as a dead letter if the queue keeps them (rule 18)."""
        partition = track.partition
        options = partition.queue.info.options
        self.settle(track, offset)
        if not options.dead_letter_queue or (exhausted and not options.dlq_after_max_retries):
            self.count(partition.queue.name, "discarded")
            return False
        self._dead.append(
            (
                self.ids.new(),
                partition.queue.name,
                partition.id,
                partition.name,
                track.group.name,
                offset,
                attempts,
                error,
                failed_at,
            )
        )
        return True

    def discard(self, group: Group) -> None:
        """A group is removed: nothing that was to be written of it may be."""
        for track in [track for track in self._drafted if track.group is group]:
            del self._drafted[track]
            self.on_commit(lambda track=track: setattr(track, "draft", None))  # type: ignore[misc]

    def save_dead_letters(self) -> None:
        """Copy what died so far; to be done before any message is removed, or there is nothing left to copy."""
        for_each(self.connection, _SAVE_DEAD_LETTERS, self._dead)
        self._dead = []

    def discard_dead_letters(self, queue: str) -> None:
        """A queue is removed: nobody dies in it any more."""
        self._dead = [one for one in self._dead if one[1] != queue]

    def count(self, queue: str, what: str, number: int = 1) -> None:
        """Add to one of a queue's counters."""
        self._counts[queue, what] = self._counts.get((queue, what), 0) + number

    def let_go(self, track: Track, lease: Lease) -> None:
        """One message of a lease is no longer open; with the last one the lease frees the track."""
        part = lease.parts.get(track)
        if part is None:
            return
        part.open -= 1
        if part.open <= 0:
            if track.lease is lease:
                self.draft(track).released = True
            self.on_commit(lambda: self.end_part(lease, track))

    def end_part(self, lease: Lease, track: Track) -> None:
        """A lease has nothing to do with a track any more; with its last one it is over."""
        if self.state.end_part(lease, track):
            self.hints.ended(track.group.queue_name, track.group.name, lease.id)

    def end_lease(self, lease: Lease) -> None:
        """A lease is over as a whole."""
        for track in lease.parts:
            self.hints.ended(track.group.queue_name, track.group.name, lease.id)

    def void_leases(self, track: Track) -> None:
        """What is held on a track is held no more."""
        self.draft(track).voided = True
        leases = {held[1] for held in track.held.values()} | ({track.lease} if track.lease else set())

        def end() -> None:
            for lease in leases:
                self.end_part(lease, track)

        self.on_commit(end)

    def want_sweep(self) -> None:
        """Make the next whole pass of `collect` look at every message."""
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

    def flush(self) -> None:
        """Write everything that was collected."""
        connection = self.connection
        if self.messages:
            insert_messages(connection, self.messages)
        self.save_dead_letters()
        if self._drafted:
            self._flush_tracks()
        for (queue, what), number in self._counts.items():
            run(connection, f"update queues set {what} = {what} + ?1 where name = ?2", number, queue)

    def _flush_tracks(self) -> None:
        tracks, retries, fronts, ranges = [], [], [], []
        no_retries, no_fronts, no_ranges = [], [], []
        for track in self._drafted:
            draft, key = track.draft, (track.group.id, track.partition.id)
            assert draft is not None
            tracks.append((*key, draft.cursor, draft.probe, draft.settled_at))
            if draft.wiped:
                for table in ("ranges", "retries", "fronts"):
                    run(self.connection, f"delete from {table} where grp = ?1 and partition = ?2", *key)
            if draft.touched_ranges:
                no_ranges += [(*key, first) for first in draft.touched_ranges]
                ranges += [(*key, *pair) for pair in draft.ranges if pair[0] in draft.touched_ranges]
            if draft.retries or track.retries:
                no_retries += [(*key, offset) for offset in track.retries if offset not in draft.retries]
                retries += [
                    (*key, offset, retry.attempts, retry.due, retry.error)
                    for offset, retry in draft.retries.items()
                    if track.retries.get(offset) is not retry
                ]
            if draft.front or track.front:
                no_fronts += [(*key, offset) for offset in track.front if offset not in draft.front]
                fronts += [(*key, offset) for offset in draft.front if offset not in track.front]
        connection = self.connection
        for_each(connection, _SAVE_TRACKS, tracks)
        for_each(connection, _DELETE_RANGES, no_ranges)
        for_each(connection, _SAVE_RANGES, ranges)
        for_each(connection, _DELETE_RETRIES, no_retries)
        for_each(connection, _SAVE_RETRIES, retries)
        for_each(connection, _DELETE_FRONTS, no_fronts)
        for_each(connection, _SAVE_FRONTS, fronts)

    def publish(self) -> list[Hint]:
        """The commit is through: take it over into memory, and answer the hints."""
        self.state.expiring.clear()
        self.state.deleting.clear()
        for action in self._on_commit:
            action()
        for group, number in self._settled_count.items():
            queue = self.state.queues.get(group.queue_name)
            if queue is not None and queue.open is not None:
                queue.open[group.id] = queue.open.get(group.id, 0) - number
        for partition in self.pushed:
            partition.tail = partition.next_tail
        for queue, number in self.pushed_count.items():
            if queue.open is not None:
                queue.open = {group_id: open_ + number for group_id, open_ in queue.open.items()}
        self._publish_tracks()
        self._publish_pushes()
        return self.hints.hints()

    def _publish_tracks(self) -> None:
        for track in self._drafted:
            track.publish()
            if track.group.refresh(track):
                self.hints.add(track.group.queue_name, track.group.name, (track.partition.name,))

    def _publish_pushes(self) -> None:
        queues: dict[Queue, list[Partition]] = {}
        for partition in self.pushed:
            queues.setdefault(partition.queue, []).append(partition)
        for queue, partitions in queues.items():
            self.hints.arrived(queue.name, [partition.name for partition in partitions], queue.groups)
            for group in queue.groups.values():
                offered = [partition.name for partition in partitions if self._offer(group, partition)]
                if offered:
                    self.hints.add(queue.name, group.name, offered, "message")

    def _offer(self, group: Group, partition: Partition) -> bool:
        """Whether a group may take what came to a partition; if a lease or a time is in the way, that is told of."""
        track = group.tracks.get(partition.id)
        if track is not None and (track in self._drafted or track.lease is not None):
            return False
        if partition.id in group.waking:
            return False
        group.make_ready(partition.id)
        return True
