"""What an administrator can do to an engine and to the model, and all that he can see of both."""

from __future__ import annotations

from hypothesis import strategies as st

from hark.clock import SECOND
from hark.model import QueueSpec

from .comparing import Disagreement, agree, engine_view
from .model_nouns import DeadLetter, Wish
from .steps import NAMESPACE, OPTIONS, PARTITIONS, QUEUES, Steps, pick


class AdminSteps(Steps):
    """The steps of an administrator."""

    def configure(self, queue: str, options: str) -> None:
        """Change a queue's options."""
        spec = QueueSpec(name=queue, namespace=NAMESPACE, options=OPTIONS[options])
        self.run(self.q.configure_spec(spec))
        self.model.configure(queue, NAMESPACE, spec.options)

    def seek(self, data: st.DataObject) -> None:
        """Move a group that exists."""
        partition = data.draw(st.sampled_from([None, *PARTITIONS]), "partition")
        where = data.draw(st.sampled_from(["end", "time", "offset"]), "where")
        queue, group = data.draw(st.sampled_from(sorted(self.model.groups)), "group")
        known = self.model.queues[queue].partitions
        if partition is not None and partition not in known:
            return
        tail = max(one.tail for name, one in known.items() if partition in (None, name))
        offset = data.draw(st.integers(1, tail + 1), "offset") if where == "offset" else None
        # Never exactly the time of a push: an engine may have to move that by a microsecond.
        ago = data.draw(st.sampled_from([0.25, 2.25, 100.25]), "ago")
        after = self.clock.now() - round(ago * SECOND) if where == "time" else None
        outcome = self.run(
            self.q.seek(queue, partition, group=group, to_end=where == "end", timestamp=after, offset=offset)
        )
        agree("partitions moved", outcome.partitions, self.model.seek(queue, group, partition, offset, after))
        self.cursors = {place: one for place, one in self.cursors.items() if (place[0], place[2]) != (queue, group)}

    def requeue(self, data: st.DataObject) -> None:
        """Bring a dead letter back."""
        letter = pick(data, self.model.dead, "dead letter")
        [found] = [
            one
            for one in self.run(self.q.dead_letters(group=letter.group))
            if one.message_id == self.ids[letter.message]
        ]
        new_id = self.run(self.q.requeue(found))
        self.ids[self.model.requeue(letter)] = new_id

    def pause(self, queue: str, group: str | None, paused: bool) -> None:
        """Pause or resume a queue or a group."""
        done = self.run(self.q.engine.pause(queue, group, paused))
        agree("whether there is such a thing", done, group is None or (queue, group) in self.model.groups)
        if group is None:
            self.model.queues[queue].paused = paused
        elif done:
            self.model.groups[queue, group] = paused

    def purge(self, queue: str, group: str | None) -> None:
        """Empty a queue, or settle all that a group has open."""
        agree("number of purged", self.run(self.q.engine.purge(queue, group)), self.model.purge(queue, group))

    def delete_message(self, data: st.DataObject, queue: str) -> None:
        """Delete one message, leased or not."""
        stored = [one for partition in self.model.queues[queue].partitions.values() for one in partition.log]
        if stored:
            chosen = pick(data, stored, "message")
            agree("deleted", self.run(self.q.engine.delete_messages([self.ids[chosen]])), [True])
            self.model.delete(chosen)

    # Looking -----------------------------------------------------------------------------------------------

    def look_around(self) -> None:
        """Compare what an administrator sees."""
        self.look_at_dead_letters()
        for queue in QUEUES:
            stats = self.run(self.q.stats(queue))
            agree(f"discarded of {queue}", stats.discarded, self.model.discarded.get(queue, 0))
        for group in self.run(self.q.engine.group_stats()):
            tracks = list(self.model.tracks_of(group.queue, group.group))
            agree(f"lag of {group.group} in {group.queue}", group.lag, sum(len(one.todo) for one in tracks))
            agree(f"pause of {group.group}", group.paused, self.model.groups[group.queue, group.group])
        for one in self.run(self.q.engine.track_stats()):
            place = (one.queue, one.partition, one.group)
            track = self.model.tracks[place]
            agree(f"lag at {place}", one.lag, len(track.todo))
            agree(f"lease at {place}", one.lease_expires_at, track.lease.expires_at if track.lease else None)
            log = [waiting for waiting in track.todo if waiting not in track.front]
            end = log[0].offset - 1 if log else track.partition.tail
            if not track.partition.holes:
                agree(f"cursor at {place}", one.cursor, end)
            if not self.cursors.get(place, 0) <= one.cursor <= end:
                raise Disagreement(f"cursor at {place} is {one.cursor}, was {self.cursors.get(place)}, end is {end}")
            self.cursors[place] = one.cursor

    def look_at_dead_letters(self) -> None:
        """Every one is there, once, as it died."""
        found = self.run(self.q.dead_letters())
        agree("dead letters", sorted(map(engine_view, found)), sorted(map(self.model_view, self.model.dead)))

    def model_view(self, letter: DeadLetter) -> tuple[object, ...]:
        """A dead letter in comparable form."""
        return (self.ids[letter.message], letter.group, letter.attempts, letter.failed_at, letter.error)

    def drain(self) -> None:
        """Nothing is lost and nothing invented: deliver and settle all that is left."""
        self.pass_time(1000)
        for queue, group in self.model.groups:
            self.pause(queue, None, False)
            self.pause(queue, group, False)
            for _ in range(10_000):
                if not self.pop_once(Wish([queue], None, group, "all", 100, 100, auto_ack=True)):
                    break
            agree(f"left for {group}", [one.todo for one in self.model.tracks_of(queue, group) if one.todo], [])
