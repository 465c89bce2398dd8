"""The nouns of the reference model: what `model.py` keeps and answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hark.clock import SECOND
from hark.model import CancelOutcome, GroupMode, Limits, QueueOptions, Status

Mode = Literal["all", "new"]
STALE = frozenset({"lease_expired", "lease_invalid", "not_leased"})
"""The codes that refuse a settlement because of its lease."""
NO_LIMITS = Limits()
NO_LEASE = -1
"""Stands for the lease of what was settled at delivery."""


@dataclass(frozen=True)
class Push:
    """A wish to store a message."""

    queue: str
    partition: str
    payload: int
    key: str | None = None
    priority: int = 0
    delay_ms: int = 0
    backoff_ms: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PopParams:
    """A wish for messages, of a queue (and partition) or of several queues."""

    queues: list[str]
    partition: str | None
    group: str
    mode: Mode
    batch: int
    partitions: int
    auto_ack: bool
    group_mode: GroupMode | None = None
    lease_ms: int | None = None


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
    def address(self) -> tuple[str, str]:
        """The names of queue and partition."""
        return self.partition.queue.name, self.partition.name

    def __repr__(self) -> str:
        """Short: where it is and what it says."""
        return f"<{self.partition.queue.name}/{self.partition.name}/{self.offset}: {self.push.payload}>"


@dataclass(eq=False)
class Partition:
    """A partition: what it stores, and whether its offsets have gaps."""

    queue: Queue
    name: str
    age: int
    log: list[Message] = field(default_factory=list)
    tail: int = 0
    gaps: bool = False


@dataclass(eq=False)
class Queue:
    """A queue with its partitions."""

    name: str
    namespace: str
    options: QueueOptions
    paused: bool = False
    partitions: dict[str, Partition] = field(default_factory=dict)


@dataclass
class Bucket:
    """How many messages a rate allows at a time; it fills up as time passes."""

    tokens: float
    at: int

    def filled(self, rate: float, size: int, now: int) -> Bucket:
        """The same bucket, as it is now."""
        self.tokens, self.at = min(size, self.tokens + rate * (now - self.at) / SECOND), now
        return self


@dataclass
class Group:
    """A group of a queue."""

    mode: GroupMode
    paused: bool = False
    limits: Limits = NO_LIMITS


@dataclass(eq=False)
class Lease:
    """A consumer's hold on what one pop gave it."""

    id: int
    expires_at: int


@dataclass
class DeadLetter:
    """A message that died, and how."""

    message: Message
    group: str
    attempts: int
    error: str
    failed_at: int


@dataclass
class SettleDecision:
    """What a consumer says of a message; lease None: it names none, 0: one that never was."""

    message: Message
    group: str
    status: Status
    lease: int | None
    error: str = "boom"
    delay_ms: int | None = None
    by_id: bool = False
    """Whether it names the message by its id; else by its key, if it has one."""


@dataclass
class Answer:
    """What must come back for a settlement."""

    success: bool | None
    """None: nothing is promised but that nothing changes."""
    codes: frozenset[str] = frozenset()
    dead_lettered: bool = False
    lease_released: bool | None = None
    """None: nothing is promised."""
    lease: int | None = None
    """The one that the message was held under."""


@dataclass
class Popped:
    """What must come back for a pop."""

    lease: int
    messages: list[tuple[Message, int]]
    reasons: frozenset[str] = frozenset()


Cancelled = frozenset[CancelOutcome]
"""What may come back for a wish to cancel."""
