"""One pop on its way through the rounds of a call, and the partitions that it is tried on."""

from __future__ import annotations

from hark.engine.postgres.directory import Group, Place
from hark.engine.postgres.statuses import IN_FLIGHT, RATE, REASONS
from hark.errors import HarkError
from hark.model import Delivery, EmptyReason, PopRequest

MAX_REPLY_BYTES = 64 << 20
"""A pop ends with the message that takes it beyond this, whatever its batch."""


class Job:
    """One request on its way through a call."""

    def __init__(self, request: PopRequest, lease: str) -> None:
        self.request = request
        self.lease = lease
        self.consumer = request.consumer or None
        self.until: int | None = None
        self.groups: list[tuple[int, Group]] = []
        """Where it takes from, with the priority of the queue."""
        self.place: Place | None = None
        """The partition that it names."""
        self.messages: list[Delivery] = []
        self.bytes = 0
        self.tracks = 0
        self.tried_place = False
        self.discovered = False
        self.locked: list[tuple[Group, int]] = []
        self.served: list[tuple[Group, int]] = []
        """What it took and settled at once, and what has more: for those who come after it."""
        self.had: set[tuple[Group, int]] = set()
        """The partitions of ordered groups that it took from: it does so once, whatever is heard of them meanwhile."""
        self.closed: set[Group] = set()
        """Groups that are paused, or may take no more for now."""
        self.stale = False
        self.error: HarkError | None = None
        self.reason: EmptyReason = "nothing_ready"
        self.look_again_at: int | None = None

    def give_up_rest(self) -> None:
        """What it can't take may be taken by others."""
        for group, partition in (*self.locked, *self.served):
            group.ready.found(partition)
        self.locked, self.served = [], []

    def got_nothing(self, status: int) -> None:
        """Why a partition gave nothing; that its group may take no more is the better reason."""
        if not self.closed:
            self.reason = REASONS[status]

    def close(self, group: Group, status: int, due: int | None) -> None:
        """A group is paused, or may take no more until somebody settles or until a time."""
        self.closed.add(group)
        self.reason = REASONS[status]
        group.ready.blocked |= status == IN_FLIGHT
        if status == RATE and due is not None:
            self.look_again_at = due if self.look_again_at is None else min(due, self.look_again_at)

    def take_locked(self, *, shared: bool) -> list[tuple[Group, int]]:
        """What others were at, in groups of one kind; as much of it as there is room for."""
        locked = [one for one in self.locked if (one[0].shared is not None) == shared]
        self.locked = [one for one in self.locked if (one[0].shared is not None) != shared]
        for group, partition in locked[self.room :]:
            group.ready.found(partition)
        return locked[: self.room]

    def is_shared_next(self, now: int) -> bool:
        """Whether the next partition to try is one of a shared group."""
        for _, group in self.groups:
            group.ready.wake_due(now)
        if self.place is not None:
            return bool(self.groups) and self.groups[0][1].shared is not None
        best = self.best_group()
        if best is not None:
            return best[1].shared is not None
        return bool(self.locked) and self.locked[0][0].shared is not None

    def shared_groups(self) -> list[Group]:
        """The shared groups to try next: those with work in queues of the highest priority."""
        if self.place is not None:
            return [group for _, group in self.groups]
        best = self.best_group()
        return [
            group
            for priority, group in self.groups
            if best is not None and priority == best[0] and group.shared is not None and group not in self.closed
        ]

    def goes_on(self, now: int) -> bool:
        """Whether it has somebody left to try."""
        if self.place is not None:
            return bool(self.groups) and not self.tried_place
        if self.room <= 0:
            return False
        for _, group in self.groups:
            group.ready.wake_due(now)
        ready = any(group.ready.first() is not None for _, group in self.groups if group not in self.closed)
        return ready or (bool(self.locked) and not self.messages)

    def best_group(self) -> tuple[int, Group] | None:
        """The group with the next partition to try: highest queue priority, then served longest ago (rule 9)."""
        best: tuple[tuple[int, int, int, int], tuple[int, Group]] | None = None
        for priority, group in self.groups:
            head = group.ready.first() if group not in self.closed else None
            if head is not None and (best is None or (-priority, *head) < best[0]):
                best = (-priority, *head), (priority, group)
        return None if best is None else best[1]

    @property
    def room(self) -> int:
        """How many more partitions it may take from."""
        full = len(self.messages) >= self.request.batch or self.bytes >= MAX_REPLY_BYTES
        return 0 if full else (1 if self.place is not None else self.request.partitions) - self.tracks


class Candidate:
    """A partition that a job is tried on."""

    __slots__ = ("group", "job", "partition", "turn", "wait")

    def __init__(self, job: Job, group: Group, partition: int, *, wait: bool) -> None:
        self.job = job
        self.group = group
        self.partition = partition
        self.turn = group.ready.now()
        self.wait = wait

    @property
    def key(self) -> tuple[int, int]:
        """Group and partition."""
        return self.group.id, self.partition

    @property
    def is_outdated(self) -> bool:
        """Whether something happened to the partition since: what the database answered may have been before that."""
        return self.group.ready.heard_since(self.partition, self.turn)
