"""The reference model, first part: what is stored, and who has how much of it open."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from hark.clock import MILLISECOND
from hark.model import GroupMode, QueueOptions

from .model_nouns import DeadLetter, Group, Message, Mode, Partition, Push, Queue
from .model_tracks import OrderedTrack, SharedTrack, Track


class StoreModel:
    """Queues with their messages, groups with their tracks, dead letters."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.queues: dict[str, Queue] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        """By queue and group, those that were seen."""
        self.tracks: dict[tuple[str, str, str], Track] = {}
        self.dead: list[DeadLetter] = []
        self.discarded: dict[str, int] = {}
        self.numbers = count(1)

    def configure(self, name: str, namespace: str, options: QueueOptions) -> None:
        """Make a queue or change its options."""
        queue = self.queues.setdefault(name, Queue(name, namespace, options))
        queue.options = options
        self.partition(queue, "Default")

    def push(self, new: Push) -> tuple[str, Message | None]:
        """Append a message; its status, and the message (or the one that it duplicates)."""
        queue = self.queues[new.queue]
        partition = self.partition(queue, new.partition)
        for one in partition.log:
            if new.key is not None and one.push.key == new.key:
                return "duplicate", one
        if queue.options.max_size and self.size(queue) >= queue.options.max_size:
            return "failed", None
        return "queued", self.append(partition, new, self.now + new.delay_ms * MILLISECOND)

    def size(self, queue: Queue) -> int:
        """Pushed minus done by the slowest group."""
        names = [group for name, group in self.groups if name == queue.name]
        if not names:
            return sum(len(one.log) for one in queue.partitions.values())
        return max(sum(len(one.todo) for one in self.tracks_of(queue.name, name)) for name in names)

    def partition(self, queue: Queue, name: str) -> Partition:
        """A partition, made when it is first named."""
        if name not in queue.partitions:
            partition = queue.partitions[name] = Partition(queue, name, next(self.numbers))
            for (known, group), found in self.groups.items():
                if known == queue.name:
                    self.tracks[known, name, group] = new_track(found.mode, group, partition, [])
        return queue.partitions[name]

    def append(self, partition: Partition, push: Push, deliver_at: int, only_for: str | None = None) -> Message:
        """Store a message; with `only_for` it was requeued for that group."""
        partition.tail += 1
        message = Message(partition, partition.tail, push, self.now, deliver_at, only_for)
        partition.log.append(message)
        partition.holes |= only_for is not None
        for track in self.tracks_in(partition):
            if only_for is None:
                track.todo.append(message)
            elif only_for == track.group:
                track.add_front(message)
        return message

    def contact(self, queue: str, group: str, start: Mode, mode: GroupMode | None) -> None:
        """A group meets a queue; the first time says where it starts and how it shares."""
        if (queue, group) not in self.groups:
            found = self.groups[queue, group] = Group(mode or "ordered")
            for partition in self.queues[queue].partitions.values():
                todo = [one for one in partition.log if start == "all" and one.only_for is None]
                self.tracks[queue, partition.name, group] = new_track(found.mode, group, partition, todo)

    def remove(self, message: Message) -> None:
        """Take a message away, from whoever has it."""
        message.partition.log.remove(message)
        message.partition.holes = True
        for track in self.tracks_in(message.partition):
            track.settled(message)

    def drop_settled(self) -> None:
        """Queues that keep nothing lose what all their groups are done with."""
        for queue in self.queues.values():
            if not queue.options.drop_settled:
                continue
            for message in [one for partition in queue.partitions.values() for one in partition.log]:
                tracks = [one for one in self.tracks_in(message.partition) if one.concerns(message)]
                if tracks and not any(message in one.todo for one in tracks):
                    self.remove(message)

    def tracks_of(self, queue: str, group: str) -> Iterator[Track]:
        """A group's tracks in a queue."""
        return (one for key, one in self.tracks.items() if (key[0], key[2]) == (queue, group))

    def tracks_in(self, partition: Partition) -> Iterator[Track]:
        """All groups' tracks in a partition."""
        return (one for one in self.tracks.values() if one.partition is partition)


def new_track(mode: GroupMode, group: str, partition: Partition, todo: list[Message]) -> Track:
    """A track of either kind."""
    return (SharedTrack if mode == "shared" else OrderedTrack)(group, partition, todo)
