"""The rules of the queue by the simplest possible code: lists, linear scans, no store.

It follows the rules and knows nothing of any engine. A `Track` (a group in a partition) has its open messages
in a list, in the order in which they will be delivered; settled means: no longer in that list. Left out, because
single tests show them better: ttl, retention, delayed processing, the window buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from hark.clock import MILLISECOND, SECOND
from hark.model import QueueOptions

from .model_nouns import (
    STALE,
    Answer,
    DeadLetter,
    Lease,
    Message,
    Mode,
    Partition,
    Popped,
    Push,
    Queue,
    Track,
    Verdict,
    Wish,
)


class Model:
    """The queue."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.queues: dict[str, Queue] = {}
        self.groups: dict[tuple[str, str], bool] = {}
        """(queue, group) of those that were seen, and whether they are paused."""
        self.tracks: dict[tuple[str, str, str], Track] = {}
        self.dead: list[DeadLetter] = []
        self.discarded: dict[str, int] = {}
        self.order_is_known = True
        """False after a restart, which may forget who was served when."""
        self._numbers = count(1)

    def advance(self, seconds: float) -> None:
        """Let time pass; what is due happens at its time, in order of time."""
        self.now += round(seconds * SECOND)
        for track in sorted(self.tracks.values(), key=lambda one: one.lease.expires_at if one.lease else 0):
            lease = track.lease
            if lease is not None and lease.expires_at <= self.now:
                track.lease = None
                if len(track.handed) > 1:
                    track.suspects |= set(track.handed)
                elif track.holder.get(track.handed[0]) is lease:
                    self._use_attempt(track, track.handed[0], "", lease.expires_at, at_once=True)

    def restart(self, leases_survive: bool) -> None:
        """The order of service is lost, and leases are unless the engine keeps them."""
        for track in self.tracks.values():
            track.served = 0
            if not leases_survive:
                track.lease = None
                track.holder.clear()
        self.order_is_known = False

    # Messages ----------------------------------------------------------------------------------------------

    def configure(self, name: str, namespace: str, options: QueueOptions) -> None:
        """Make a queue or change its options."""
        queue = self.queues.setdefault(name, Queue(name, namespace, options))
        queue.options = options
        self._partition(queue, "Default")

    def push(self, new: Push) -> tuple[str, Message | None]:
        """Append a message; its status, and the message (or the one that it duplicates)."""
        queue = self.queues[new.queue]
        partition = self._partition(queue, new.partition)
        for one in partition.log:
            if new.key is not None and one.push.key == new.key:
                return "duplicate", one
        if queue.options.max_size and self.size(queue) >= queue.options.max_size:
            return "failed", None
        return "queued", self._append(partition, new, self.now + new.delay_ms * MILLISECOND)

    def size(self, queue: Queue) -> int:
        """Pushed minus done by the slowest group."""
        names = [group for name, group in self.groups if name == queue.name]
        if not names:
            return sum(len(one.log) for one in queue.partitions.values())
        return max(sum(len(one.todo) for one in self.tracks_of(queue.name, name)) for name in names)

    def pop(self, wish: Wish, answered: dict[tuple[str, str], int]) -> Popped:
        """Lease messages.

        What the rules leave open is as `answered`, which says how many messages came from where: the order of
        partitions after a restart, and how a batch is shared out among its partitions.
        """
        for name in wish.queues:
            self._contact(name, wish.group, wish.mode)
        candidates = [
            track
            for name in wish.queues
            if not (self.queues[name].paused or self.groups[name, wish.group])
            for track in self.tracks_of(name, wish.group)
            if wish.partition in (None, track.partition.name) and track.ready(self.now)
        ]

        def turn(track: Track) -> tuple[int, int, int, int]:
            known = self.order_is_known or track.served or track.place not in answered
            rank = len(answered) if known else list(answered).index(track.place)
            return (-track.partition.queue.options.priority, track.served, rank, track.partition.age)

        lease = Lease(next(self._numbers), self.now + (1 << 60))
        popped = Popped(lease.id, [])
        chosen = sorted(candidates, key=turn)[: wish.partitions]
        for track, share in zip(chosen, self._shares(wish, chosen, answered), strict=True):
            taken = track.ready(self.now)[:share]
            if not taken:
                break
            popped.messages += [(one, track.attempts.get(one, 0) + 1) for one in taken]
            track.served = next(self._numbers)
            if wish.auto_ack:
                for one in taken:
                    track.settled(one)
                continue
            track.lease, track.handed = lease, taken
            track.holder.update(dict.fromkeys(taken, lease))
            end = self.now + track.partition.queue.options.lease_time * SECOND
            lease.expires_at = min(lease.expires_at, end)
        if not popped.messages and wish.partition is not None:
            popped.reasons = self._reasons(wish.queues[0], wish.partition, wish.group)
        return popped

    def settle(self, verdicts: list[Verdict]) -> list[Answer]:
        """Settle; every item is judged before anything is done."""
        judged = [(one, self.judge(one), self._is_done(one)) for one in verdicts]
        return [self._apply(*one) for one in judged]

    def transact(self, verdicts: list[Verdict], required: list[int]) -> int | None:
        """The index of the settlement that is refused (-1: a required lease), or None: all is done."""
        if any(not self.is_live(one) for one in required):
            return -1
        for index, one in enumerate(verdicts):
            if not self.judge(one, required).success:
                return index
        self.settle(verdicts)
        return None

    def holds(self, message: Message, group: str, lease_id: int) -> bool:
        """Whether a message was last delivered under that lease, and its verdict is open."""
        track = self.tracks.get((*message.place, group))
        lease = None if track is None else track.holder.get(message)
        return lease is not None and lease.id == lease_id and lease.expires_at > self.now

    def named(self, message: Message) -> Message:
        """The message that a settlement names: a key outlives a removed message if another one has it now."""
        same = [one for one in message.partition.log if one.push.key == message.push.key is not None]
        return same[0] if same and message not in message.partition.log else message

    def renew(self, lease_id: int, seconds: int) -> int | None:
        """The lease's new end, or None when it is over."""
        held = [one.lease for one in self.tracks.values() if one.lease is not None and one.lease.id == lease_id]
        if not held:
            return None
        held[0].expires_at = max(held[0].expires_at, self.now + seconds * SECOND)
        return held[0].expires_at

    def release(self, lease_id: int) -> None:
        """Give back, uncounted."""
        for track in self.tracks.values():
            if track.lease is not None and track.lease.id == lease_id:
                track.lease = None
            for message in [one for one, lease in track.holder.items() if lease.id == lease_id]:
                del track.holder[message]

    def is_live(self, lease_id: int) -> bool | None:
        """Whether a lease holds a partition; None: no longer, but settlements under it may still count."""
        if any(one.lease is not None and one.lease.id == lease_id for one in self.tracks.values()):
            return True
        return (
            None
            if any(lease.id == lease_id for one in self.tracks.values() for lease in one.holder.values())
            else False
        )

    # Administration ----------------------------------------------------------------------------------------

    def seek(self, queue: str, group: str, partition: str | None, offset: int | None, after: int | None) -> int:
        """Go on at an offset, after a time, or (neither) at the end; how many partitions moved."""
        tracks = [one for one in self.tracks_of(queue, group) if partition in (None, one.partition.name)]
        for track in tracks:
            log = [one for one in track.partition.log if one.only_for in (None, group)]
            if after is not None:
                todo = [one for one in log if one.created_at > after]
            else:
                todo = [one for one in log if offset is not None and one.offset >= offset]
            track.restart(todo)
        return len(tracks)

    def requeue(self, letter: DeadLetter) -> Message:
        """Put a dead letter in front of its partition, for its group; its key stays with the one that died."""
        self.dead.remove(letter)
        old = letter.message
        taken = any(one.push.key == old.push.key for one in old.partition.log)
        push = replace(old.push, key=None) if taken else old.push
        return self._append(old.partition, push, old.deliver_at, letter.group)

    def purge(self, queue: str, group: str | None) -> int:
        """Remove all messages, or settle all that a group has open; how many."""
        if group is not None:
            tracks = list(self.tracks_of(queue, group))
            done = sum(len(one.todo) for one in tracks)
            for track in tracks:
                track.restart([])
            return done
        messages = [one for partition in self.queues[queue].partitions.values() for one in partition.log]
        for message in messages:
            self.delete(message)
        return len(messages)

    def delete(self, message: Message) -> None:
        """Remove a message, leased or not."""
        message.partition.log.remove(message)
        message.partition.holes = True
        for track in self.tracks_in(message.partition):
            track.settled(message)

    def tracks_of(self, queue: str, group: str) -> Iterator[Track]:
        """A group's tracks in a queue."""
        return (one for key, one in self.tracks.items() if (key[0], key[2]) == (queue, group))

    def tracks_in(self, partition: Partition) -> Iterator[Track]:
        """All groups' tracks in a partition."""
        return (one for one in self.tracks.values() if one.partition is partition)

    # Inside ------------------------------------------------------------------------------------------------

    def _partition(self, queue: Queue, name: str) -> Partition:
        if name not in queue.partitions:
            partition = queue.partitions[name] = Partition(queue, name, next(self._numbers))
            for known, group in self.groups:
                if known == queue.name:
                    self.tracks[known, name, group] = Track(group, partition, [])
        return queue.partitions[name]

    def _append(self, partition: Partition, push: Push, deliver_at: int, only_for: str | None = None) -> Message:
        partition.tail += 1
        message = Message(partition, partition.tail, push, self.now, deliver_at, only_for)
        partition.log.append(message)
        partition.holes |= only_for is not None
        for track in self.tracks_in(partition):
            if only_for is None:
                track.todo.append(message)
            elif only_for == track.group:
                track.todo.insert(sum(one in track.front for one in track.todo), message)
                track.front.add(message)
        return message

    def _contact(self, queue: str, group: str, mode: Mode) -> None:
        if (queue, group) not in self.groups:
            self.groups[queue, group] = False
            for partition in self.queues[queue].partitions.values():
                todo = [one for one in partition.log if mode == "all" and one.only_for is None]
                self.tracks[queue, partition.name, group] = Track(group, partition, todo)

    def _shares(self, wish: Wish, chosen: list[Track], answered: dict[tuple[str, str], int]) -> list[int]:
        """How many messages each partition gives: as answered if that fills the batch, else as many as it can."""
        ready = [len(one.ready(self.now)) for one in chosen]
        asked = [min(number, answered.get(one.place, 0)) for number, one in zip(ready, chosen, strict=True)]
        used = sum(one > 0 for one in asked)
        if sum(asked) == min(wish.batch, sum(ready)) and all(asked[:used]):
            return asked
        return [max(0, min(one, wish.batch - sum(ready[:index]))) for index, one in enumerate(ready)]

    def _reasons(self, queue: str, name: str, group: str) -> frozenset[str]:
        paused = self.queues[queue].paused or self.groups[queue, group]
        if name not in self.queues[queue].partitions:
            return frozenset({"partition_not_found", "paused"} if paused else {"partition_not_found"})
        if paused:
            return frozenset({"paused"})
        track = self.tracks[queue, name, group]
        if track.lease is not None:
            return frozenset({"lease_held"})
        return frozenset({"waiting"} if track.todo else {"nothing_ready"})

    def judge(self, verdict: Verdict, required: list[int] | None = None) -> Answer:
        message = verdict.message
        partition = message.partition
        track = self.tracks.get((partition.queue.name, partition.name, verdict.group))
        if message not in partition.log:
            return Answer(False, frozenset({"not_found"}))
        if track is None:
            return Answer(False, STALE)
        if message not in track.todo:
            dead = any(one.message is message and one.group == verdict.group for one in self.dead)
            if verdict.status == "completed":
                return Answer(None if dead else True)
            return Answer(False, STALE | {"dead_lettered"})
        lease = track.holder.get(message)
        known = lease is not None and lease.expires_at > self.now
        if known and verdict.lease is None:
            known = not required or (lease is not None and lease.id in required)
        elif known and lease is not None:
            known = lease.id == verdict.lease
        return Answer(known, frozenset() if known else STALE)

    def _is_done(self, verdict: Verdict) -> bool:
        place = (verdict.message.partition.queue.name, verdict.message.partition.name, verdict.group)
        return place in self.tracks and verdict.message not in self.tracks[place].todo

    def _apply(self, verdict: Verdict, answer: Answer, before: bool) -> Answer:
        message = verdict.message
        if not answer.success:
            return answer
        track = self.tracks[message.partition.queue.name, message.partition.name, verdict.group]
        lease = track.holder.pop(message, None)
        if lease is None:  # Completed before, or said twice in one request: the first word counts.
            return answer if before else Answer(None)
        if verdict.status == "completed":
            track.settled(message)
        elif verdict.status == "dlq":
            used = track.attempts.get(message, 0) + 1
            answer.dead_lettered = self._bury(track, DeadLetter(message, track.group, used, verdict.error, self.now))
        elif verdict.status == "failed":
            answer.dead_lettered = self._use_attempt(track, message, verdict.error, self.now)
        else:
            track.due[message] = self.now + (verdict.delay_ms or 0) * MILLISECOND
        if message in track.todo and message in track.front:
            track.suspects.add(message)  # What was requeued and failed again comes alone.
        if message in track.todo and track.lease is lease:
            track.lease = None
        answer.lease_released = track.lease is not lease
        return answer

    def _use_attempt(self, track: Track, message: Message, error: str, at: int, at_once: bool = False) -> bool:
        options = track.partition.queue.options
        used = track.attempts[message] = track.attempts.get(message, 0) + 1
        allowed = (options.retry_limit if message.push.backoff_ms is None else len(message.push.backoff_ms)) + 1
        if used >= allowed:
            return self._bury(track, DeadLetter(message, track.group, used, error, at), exhausted=True)
        growth = options.retry_multiplier ** (used - 1)
        delay = min(options.retry_delay * growth, options.retry_max_delay)
        if message.push.backoff_ms is not None:
            delay = message.push.backoff_ms[used - 1]
        track.due[message] = at + (0 if at_once else int(delay) * MILLISECOND)
        return False

    def _bury(self, track: Track, letter: DeadLetter, exhausted: bool = False) -> bool:
        queue = track.partition.queue
        track.settled(letter.message)
        if not queue.options.dead_letter_queue or (exhausted and not queue.options.dlq_after_max_retries):
            self.discarded[queue.name] = self.discarded.get(queue.name, 0) + 1
            return False
        # A message that was replayed and died again is still one dead letter.
        self.dead = [one for one in self.dead if (one.message, one.group) != (letter.message, letter.group)]
        self.dead.append(letter)
        return True
