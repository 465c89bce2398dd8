"""One pop on its way through the rounds of a call, and the partitions that it is tried on."""

from __future__ import annotations

from hark.engine.postgres.directory import Group, Place
from hark.errors import HarkError
from hark.model import Delivery, EmptyReason, PopRequest

MAX_REPLY_BYTES = 64 << 20
"""A pop ends with the message that takes it beyond this, whatever its batch."""


class Job:
    """One request on its way through a call."""

    def __init__(self, request: PopRequest, lease: str) -> None:
        self.request = request
        self.lease = lease
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
        self.paused: set[Group] = set()
        self.stale = False
        self.error: HarkError | None = None
        self.reason: EmptyReason = "nothing_ready"
        self.look_again_at: int | None = None

    def give_up_rest(self) -> None:
        """What it can't take may be taken by others."""
        for group, partition in (*self.locked, *self.served):
            group.ready.found(partition)
        self.locked, self.served = [], []

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
    def is_outdated(self) -> bool:
        """Whether something happened to the partition since: what the database answered may have been before that."""
        return self.group.ready.heard_since(self.partition, self.turn)
