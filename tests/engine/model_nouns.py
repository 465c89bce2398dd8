"""The nouns of the reference model: what `model.py` keeps and answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hark.model import QueueOptions, Status

Mode = Literal["all", "new"]
STALE = frozenset({"lease_expired", "lease_invalid", "not_leased"})
"""The codes that refuse a settlement because of its lease."""


@dataclass(frozen=True)
class Push:
    """A wish to store a message."""

    queue: str
    partition: str
    payload: int
    key: str | None = None
    delay_ms: int = 0
    backoff_ms: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Wish:
    """A wish for messages, of a queue (and partition) or of several queues."""

    queues: list[str]
    partition: str | None
    group: str
    mode: Mode
    batch: int
    partitions: int
    auto_ack: bool


@dataclass(eq=False)
class Message:
    """A stored message."""

    partition: Partition
    offset: int
    push: Push
    created_at: int
    deliver_at: int
    only_for: str | None = None
    """A requeued message is for one group."""

    @property
    def place(self) -> tuple[str, str]:
        """The names of queue and partition."""
        return self.partition.queue.name, self.partition.name

    def __repr__(self) -> str:
        """Short: where it is and what it says."""
        return f"<{self.partition.queue.name}/{self.partition.name}/{self.offset}: {self.push.payload}>"


@dataclass(eq=False)
class Partition:
    """A partition: what it stores, and whether its offsets have holes."""

    queue: Queue
    name: str
    age: int
    log: list[Message] = field(default_factory=list)
    tail: int = 0
    holes: bool = False


@dataclass(eq=False)
class Queue:
    """A queue with its partitions."""

    name: str
    namespace: str
    options: QueueOptions
    paused: bool = False
    partitions: dict[str, Partition] = field(default_factory=dict)


@dataclass(eq=False)
class Lease:
    """A consumer's hold on what one pop gave it."""

    id: int
    expires_at: int


@dataclass(eq=False)
class Track:
    """A group in a partition."""

    group: str
    partition: Partition
    todo: list[Message]
    served: int = 0
    lease: Lease | None = None
    """The one that keeps others out."""
    handed: list[Message] = field(default_factory=list)
    holder: dict[Message, Lease] = field(default_factory=dict)
    """Under which lease a message was last delivered, while its verdict is open."""
    attempts: dict[Message, int] = field(default_factory=dict)
    due: dict[Message, int] = field(default_factory=dict)
    front: set[Message] = field(default_factory=set)
    suspects: set[Message] = field(default_factory=set)
    """The batch that may hold a message that kills its consumers."""

    @property
    def place(self) -> tuple[str, str]:
        """The names of queue and partition."""
        return self.partition.queue.name, self.partition.name

    def not_before(self, message: Message) -> int:
        """When a message may be delivered."""
        return max(message.deliver_at, self.due.get(message, 0))

    def ready(self, now: int) -> list[Message]:
        """What may be delivered now, in order."""
        if self.lease is not None:
            return []
        waiting = (n for n, one in enumerate(self.todo) if self.not_before(one) > now)
        due = self.todo[: next(waiting, len(self.todo))]
        return due[:1] if self.suspects & set(self.todo) else due

    def settled(self, message: Message) -> None:
        """The group is done with a message, or it is gone."""
        if message in self.todo:
            self.todo.remove(message)
        for table in (self.attempts, self.due, self.holder):
            table.pop(message, None)
        if self.lease is not None and not set(self.handed) & set(self.todo):
            self.lease = None

    def restart(self, todo: list[Message]) -> None:
        """Begin anew with these messages; every lease is void."""
        self.todo, self.lease = todo, None
        for table in (self.holder, self.attempts, self.due, self.front, self.suspects):
            table.clear()


@dataclass
class DeadLetter:
    """A message that died, and how."""

    message: Message
    group: str
    attempts: int
    error: str
    failed_at: int


@dataclass
class Verdict:
    """What a consumer says of a message; lease None: it names none, 0: one that never was."""

    message: Message
    group: str
    status: Status
    lease: int | None
    error: str = "boom"
    delay_ms: int | None = None


@dataclass
class Answer:
    """What must come back for a settlement."""

    success: bool | None
    """None: nothing is promised but that nothing changes."""
    codes: frozenset[str] = frozenset()
    dead_lettered: bool = False
    lease_released: bool | None = None
    """None: nothing is promised."""


@dataclass
class Popped:
    """What must come back for a pop."""

    lease: int
    messages: list[tuple[Message, int]]
    reasons: frozenset[str] = frozenset()
