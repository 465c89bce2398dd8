"""A group in a partition, as the reference model keeps it: a list of open messages, and who holds them."""

from __future__ import annotations

from dataclasses import dataclass, field

from .model_nouns import Bucket, Lease, Message, Partition


@dataclass(eq=False)
class Position:
    """What both kinds of groups have; subclasses say who may have what."""

    group: str
    partition: Partition
    todo: list[Message]
    served: int = 0
    beside: bool = False
    """It was served by one of several pops in one call: which of them came first, their answers do not tell."""
    holder: dict[Message, Lease] = field(default_factory=dict)
    """Under which lease a message was last delivered, while its verdict is open."""
    attempts: dict[Message, int] = field(default_factory=dict)
    due: dict[Message, int] = field(default_factory=dict)
    requeued: set[Message] = field(default_factory=set)
    done: dict[Message, int] = field(default_factory=dict)
    """What was completed, and under which lease; it stays so when the message is removed."""
    bucket: Bucket | None = None
    """What the rate of the partition allows."""
    unsure: set[Message] = field(default_factory=set)
    """What was completed, and its lease may be forgotten: not by a transaction, or before a seek."""

    @property
    def address(self) -> tuple[str, str]:
        """The names of queue and partition."""
        return self.partition.queue.name, self.partition.name

    def not_before(self, message: Message) -> int:
        """When a message may be delivered."""
        return max(message.deliver_at, self.due.get(message, 0))

    def concerns(self, message: Message) -> bool:
        """Whether a message is for this group."""
        return message.only_for in (None, self.group)

    def ready(self, now: int) -> list[Message]:
        """What may be delivered now, in order."""
        raise NotImplementedError

    def leases(self) -> list[Lease]:
        """Those that are live."""
        raise NotImplementedError

    def in_flight(self) -> list[Message]:
        """What live leases hold."""
        raise NotImplementedError

    def add_requeued(self, message: Message) -> None:
        """A requeued message comes before all others."""
        self.todo.insert(sum(one in self.requeued for one in self.todo), message)
        self.requeued.add(message)

    def hand_out(self, taken: list[Message], lease: Lease) -> None:
        """A consumer got these."""
        self.holder.update(dict.fromkeys(taken, lease))

    def given_back(self, lease: Lease) -> None:
        """A message that it held comes again."""

    def expire(self, lease: Lease) -> list[Message]:
        """The time of a lease is up; the messages that this costs an attempt."""
        raise NotImplementedError

    def release(self, lease_id: int) -> None:
        """Give back, uncounted."""
        for message in [one for one, lease in self.holder.items() if lease.id == lease_id]:
            del self.holder[message]

    def settled(self, message: Message) -> None:
        """The group is done with a message, or it is gone."""
        if message in self.todo:
            self.todo.remove(message)
        for table in (self.attempts, self.due, self.holder):
            table.pop(message, None)

    def restart(self, todo: list[Message]) -> None:
        """Begin anew with these messages; every lease is void."""
        self.todo = todo
        self.unsure |= set(self.done)
        for table in (self.holder, self.attempts, self.due, self.requeued, self.done):
            table.clear()

    def forget_leases(self) -> None:
        """A restart of a store that does not keep them."""
        self.holder.clear()


@dataclass(eq=False)
class OrderedPosition(Position):
    """One lease on the whole partition; the list is in the order of delivery."""

    lease: Lease | None = None
    """The one that keeps others out."""
    handed: list[Message] = field(default_factory=list)
    suspects: set[Message] = field(default_factory=set)
    """The batch that may hold a message that kills its consumers."""

    def ready(self, now: int) -> list[Message]:
        """Everything up to the first message that is not due."""
        if self.lease is not None:
            return []
        waiting = (n for n, one in enumerate(self.todo) if self.not_before(one) > now)
        due = self.todo[: next(waiting, len(self.todo))]
        return due[:1] if self.suspects & set(self.todo) else due

    def leases(self) -> list[Lease]:
        """The one that keeps others out."""
        return [] if self.lease is None else [self.lease]

    def in_flight(self) -> list[Message]:
        """The open ones of the batch."""
        return [] if self.lease is None else [one for one in self.handed if one in self.todo]

    def hand_out(self, taken: list[Message], lease: Lease) -> None:
        """Keep others out."""
        super().hand_out(taken, lease)
        self.lease, self.handed = lease, taken

    def given_back(self, lease: Lease) -> None:
        """The lease stops blocking."""
        if self.lease is lease:
            self.lease = None

    def expire(self, lease: Lease) -> list[Message]:
        """A batch costs nothing, but its messages come one by one from now on."""
        self.lease = None
        if len(self.handed) > 1:
            self.suspects |= set(self.handed)
            return []
        return [one for one in self.handed if self.holder.get(one) is lease]

    def release(self, lease_id: int) -> None:
        """Keep nobody out."""
        super().release(lease_id)
        if self.lease is not None and self.lease.id == lease_id:
            self.lease = None

    def settled(self, message: Message) -> None:
        """The lease ends with the last of its messages."""
        super().settled(message)
        if self.lease is not None and not set(self.handed) & set(self.todo):
            self.lease = None

    def restart(self, todo: list[Message]) -> None:
        """Nobody is kept out, nobody is a suspect."""
        super().restart(todo)
        self.lease = None
        self.suspects.clear()

    def forget_leases(self) -> None:
        """Nobody is kept out."""
        super().forget_leases()
        self.lease = None


@dataclass(eq=False)
class SharedPosition(Position):
    """A lease on each message by itself; the order is made when somebody asks."""

    def ready(self, now: int) -> list[Message]:
        """What nobody holds and what is due, sorted."""
        free = [one for one in self.todo if one not in self.holder and self.not_before(one) <= now]
        return sorted(free, key=self.rank)

    def rank(self, message: Message) -> tuple[bool, int, int, int]:
        """Requeued ones first, then by priority, then by the time it became available, then by offset."""
        available_at = self.due.get(message, max(message.created_at, message.deliver_at))
        return message not in self.requeued, -message.push.priority, available_at, message.offset

    def leases(self) -> list[Lease]:
        """Each that holds something."""
        return list(dict.fromkeys(self.holder.values()))

    def in_flight(self) -> list[Message]:
        """What is held."""
        return list(self.holder)

    def expire(self, lease: Lease) -> list[Message]:
        """Each message pays."""
        leased = [one for one, holder in self.holder.items() if holder is lease]
        for message in leased:
            del self.holder[message]
        return leased
