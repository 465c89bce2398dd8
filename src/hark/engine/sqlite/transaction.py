"""One SQLite transaction: the rows that its verbs want written, and what happens in memory once it is committed."""

from __future__ import annotations

from collections.abc import Callable

import apsw

from hark.engine.hints import HintBook
from hark.engine.sqlite.holes import Drops
from hark.engine.sqlite.keyvalue import KeyBook
from hark.engine.sqlite.loader import Loader
from hark.engine.sqlite.ordered import Track
from hark.engine.sqlite.ordered_saving import OrderedRows
from hark.engine.sqlite.shared.claim import Picker
from hark.engine.sqlite.shared.saving import SharedRows
from hark.engine.sqlite.shared.track import SharedTrack
from hark.engine.sqlite.state import Group, Partition, Queue, State
from hark.engine.sqlite.store import Value, for_each, insert_messages, run
from hark.engine.sqlite.telling import Arrivals, Teller
from hark.engine.sqlite.track import AnyDraft, AnyTrack, Lease
from hark.ids import IdSource
from hark.model import Ending, Hint

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
        self._arrivals: dict[Partition, Arrivals] = {}
        self._drafted: dict[AnyTrack, None] = {}
        self._ordered_rows = OrderedRows()
        self._shared_rows = SharedRows()
        self._drops = Drops()
        self._thinned: dict[Partition, None] = {}
        self._dead: list[tuple[str, str, int, str, str, int, int, str, int]] = []
        self._counts: dict[tuple[str, str], int] = {}
        self._settled_count: dict[Group, int] = {}
        self._on_commit: list[Callable[[], object]] = []
        self.hints = HintBook()
        """Whom to tell after the commit."""
        self.keys = KeyBook(connection, now)
        self._swept = False

    # What verbs say ----------------------------------------------------------------------------------------

    def draft(self, track: AnyTrack) -> AnyDraft:
        """The track as this transaction changes it."""
        draft = track.draft
        if draft is None:
            draft = track.new_draft()
            self._drafted[track] = None
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

    def settle(self, track: AnyTrack, offset: int) -> None:
        """The group is done with an offset, for whatever reason."""
        draft = track.draft or self.draft(track)
        draft.finish(offset)
        draft.settled_at = self.now
        if track.partition.queue.info.options.drop_settled:
            self._drops.note(track.partition, offset)
        self._settled_count[track.group] = self._settled_count.get(track.group, 0) + 1

    def bury(self, track: AnyTrack, offset: int, attempts: int, error: str, failed_at: int, *, exhausted: bool) -> bool:
        """Settle a message that can't be delivered, as a dead letter if the queue keeps them (rule 18)."""
        partition = track.partition
        options = partition.queue.info.options
        self.settle(track, offset)
        self.keys.set_undelivered(partition.id, offset, partition.queue.name)
        if not options.dead_letter_queue or (exhausted and not options.dlq_after_max_retries):
            self.count(partition.queue.name, "discarded")
            ending = Ending("discarded", failed_at, attempts, error)
            self.on_commit(lambda: self.state.note_ending(track, offset, ending))
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

    @property
    def changed(self) -> list[AnyTrack]:
        """The places that it changes, so far."""
        return list(self._drafted)

    def settled_by_group(self) -> dict[int, int]:
        """How many messages each group is done with by this transaction, so far."""
        return {group.id: number for group, number in self._settled_count.items()}

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
        """Drop the unsaved dead letters of a removed queue."""
        self._dead = [one for one in self._dead if one[1] != queue]

    def count(self, queue: str, what: str, number: int = 1) -> None:
        """Add to one of a queue's counters."""
        self._counts[queue, what] = self._counts.get((queue, what), 0) + number

    def let_go(self, track: AnyTrack, lease: Lease) -> None:
        """One message of a lease is no longer open; with the last one the lease frees the track."""
        part = lease.parts.get(track)
        if part is None:
            return
        part.open -= 1
        if part.open <= 0:
            self.draft(track).end_part(lease)
            self.on_commit(lambda: self.end_part(lease, track))

    def end_part(self, lease: Lease, track: AnyTrack) -> None:
        """A lease has nothing to do with a track any more; with its last one it is over."""
        if self.state.end_part(lease, track):
            self.hints.ended(track.group.queue_name, track.group.name, lease.id)

    def end_lease(self, lease: Lease) -> None:
        """A lease is over as a whole."""
        for track in lease.parts:
            self.hints.ended(track.group.queue_name, track.group.name, lease.id)

    def void_leases(self, track: AnyTrack) -> None:
        """What is held on a track is held no more."""
        leases = track.leases()
        self.state.note_removed(track, [held for lease in leases for held in track.held_by(lease)])
        self.draft(track).voided = True

        def end() -> None:
            for lease in leases:
                self.end_part(lease, track)

        self.on_commit(end)

    def settled_many(self, queue: Queue) -> None:
        """Request a new count of the unsettled messages of a queue, and a search for messages to remove."""
        self.on_commit(lambda: setattr(queue, "open", None))
        if queue.info.options.drop_settled:
            self.want_sweep()

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

    def seal(self) -> None:
        """All verbs have spoken: take down, under the lock, what memory will not keep still for."""
        self._drops.decide(self)
        for track in self._drafted:
            if isinstance(track, SharedTrack):
                self._shared_rows.note(track)
            elif isinstance(track, Track):
                self._ordered_rows.note(track)
        if self._shared_rows.latest_due > self.state.latest_due:
            # Time never goes back behind what was due: not even when the clock does, over a restart.
            self.state.latest_due = self._shared_rows.latest_due
            run(self.connection, "insert or replace into meta values ('latest_due', ?1)", self.state.latest_due)

    def flush(self) -> None:
        """Write everything that was collected."""
        connection = self.connection
        if self.messages:
            insert_messages(connection, self.messages)
        self.save_dead_letters()
        self._ordered_rows.write(connection)
        self._shared_rows.write(connection)
        for (queue, what), number in self._counts.items():
            run(connection, f"update queues set {what} = {what} + ?1 where name = ?2", number, queue)
        self._drops.write(connection)

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
        numbers = {partition: partition.next_tail - partition.tail for partition in self.pushed}
        for partition in self.pushed:
            partition.tail, partition.coming = partition.next_tail, None
        self._drops.publish()
        for queue, number in self.pushed_count.items():
            if queue.open is not None:
                queue.open = {group_id: open_ + number for group_id, open_ in queue.open.items()}
        self._look_anew()
        teller = Teller(self.hints, self.loader, self.now)
        self._publish_tracks(teller)
        self._publish_pushes(teller, numbers)
        return self.hints.hints()

    def _look_anew(self) -> None:
        """What shared groups have read ahead may be gone."""
        if not self._thinned:
            return
        picker = Picker(self.connection, self.now)
        for partition in self._thinned:
            tracks = [group.tracks.get(partition.id) for group in partition.queue.groups.values()]
            for track in tracks:
                if isinstance(track, SharedTrack):
                    track.forget_ahead()
                    picker.look(track)
                    track.group.refresh(track, self.now)

    def _publish_tracks(self, teller: Teller) -> None:
        changed: dict[str, list[Group]] = {}
        for track in self._drafted:
            changed.setdefault(track.group.queue_name, []).append(track.group)
            if isinstance(track, SharedTrack) and track.draft is not None and track.draft.voided:
                self._restart(teller, track)
            else:
                teller.changed(track)
        for name, groups in changed.items():
            queue = self.state.queues.get(name)
            if queue is not None and (queue.bounds.blocked or any(group.bounds.blocked for group in groups)):
                teller.room(queue, list(dict.fromkeys(groups)))

    def _restart(self, teller: Teller, track: SharedTrack) -> None:
        """A place that was moved is loaded again: what it had in memory is void."""
        group = track.group
        if group.tracks.pop(track.partition.id, None) is not track:
            return
        group.in_flight -= track.noted
        anew = self.loader.track(group, track.partition.id)
        if isinstance(anew, SharedTrack):
            anew.served = track.served
            teller.restarted(anew)

    def _publish_pushes(self, teller: Teller, numbers: dict[Partition, int]) -> None:
        queues: dict[Queue, dict[Partition, Arrivals]] = {}
        for partition, number in numbers.items():
            came = self._arrivals_of(partition)
            came.complete(number)
            queues.setdefault(partition.queue, {})[partition] = came
        for queue, arrivals in queues.items():
            teller.arrived(queue, arrivals, self._drafted)
