"""The reference model, first part: what is stored, who has how much of it open, who gets what within the limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from math import ceil, floor

from hark.api.options import limits_of
from hark.clock import MILLISECOND, SECOND
from hark.model import GroupMode, Limits, QueueOptions

from .model_nouns import (
    NO_LEASE,
    Bucket,
    DeadLetter,
    Group,
    Lease,
    Message,
    Mode,
    Partition,
    PopParams,
    Popped,
    Push,
    Queue,
)
from .model_positions import OrderedPosition, Position, SharedPosition

Answered = dict[tuple[str, str], int]
"""How many messages came from which queue and partition."""


class StoreModel:
    """Queues with their messages, groups with their positions, dead letters."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.queues: dict[str, Queue] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        """By queue and group, those that were seen."""
        self.positions: dict[tuple[str, str, str], Position] = {}
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
        return max(sum(len(one.todo) for one in self.positions_of(queue.name, name)) for name in names)

    def partition(self, queue: Queue, name: str) -> Partition:
        """A partition, made when it is first named."""
        if name not in queue.partitions:
            partition = queue.partitions[name] = Partition(queue, name, next(self.numbers))
            for (known, group), found in self.groups.items():
                if known == queue.name:
                    self.positions[known, name, group] = new_position(found.mode, group, partition, [])
        return queue.partitions[name]

    def append(self, partition: Partition, push: Push, deliver_at: int, only_for: str | None = None) -> Message:
        """Store a message; with `only_for` it was requeued for that group."""
        partition.tail += 1
        message = Message(partition, partition.tail, push, self.now, deliver_at, only_for)
        partition.log.append(message)
        partition.gaps |= only_for is not None
        for position in self.positions_in(partition):
            if only_for is None:
                position.todo.append(message)
            elif only_for == position.group:
                position.add_requeued(message)
        return message

    def contact(self, queue: str, group: str, start: Mode, mode: GroupMode | None) -> None:
        """A group meets a queue; the first time says where it starts and how it shares."""
        if (queue, group) not in self.groups:
            found = self.groups[queue, group] = Group(mode or "ordered")
            for partition in self.queues[queue].partitions.values():
                todo = [one for one in partition.log if start == "all" and one.only_for is None]
                self.positions[queue, partition.name, group] = new_position(found.mode, group, partition, todo)

    def remove(self, message: Message) -> None:
        """Take a message away, from whoever has it."""
        message.partition.log.remove(message)
        message.partition.gaps = True
        for position in self.positions_in(message.partition):
            position.settled(message)

    def drop_settled(self) -> None:
        """Queues that keep nothing lose what all their groups are done with."""
        for queue in self.queues.values():
            if not queue.options.drop_settled:
                continue
            for message in [one for partition in queue.partitions.values() for one in partition.log]:
                positions = [one for one in self.positions_in(message.partition) if one.concerns(message)]
                if positions and not any(message in one.todo for one in positions):
                    self.remove(message)

    def positions_of(self, queue: str, group: str) -> Iterator[Position]:
        """A group's positions in a queue."""
        return (one for key, one in self.positions.items() if (key[0], key[2]) == (queue, group))

    def positions_in(self, partition: Partition) -> Iterator[Position]:
        """All groups' positions in a partition."""
        return (one for one in self.positions.values() if one.partition is partition)


class PopModel(StoreModel):
    """Deliveries."""

    def __init__(self, now: int) -> None:
        super().__init__(now)
        self.order_is_known = True
        self.one_server = True
        """False after a restart, which may forget who was served when."""
        self.buckets: dict[tuple[str, str | None], Bucket] = {}

    def pop(self, params: PopParams, answered: Answered) -> Popped:
        """Lease messages.

        What the rules leave open is as `answered`: the order of partitions after a restart, and how a batch is shared
        out among its partitions.
        """
        self.meet(params)
        lease = Lease(next(self.numbers), self.now + (1 << 60))
        popped = Popped(lease.id, [])
        for position, share in self._plan(params, answered):
            taken = position.ready(self.now)[:share]
            popped.messages += [(one, position.attempts.get(one, 0) + 1) for one in taken]
            position.served, position.beside = next(self.numbers), False
            self._spend(position, len(taken))
            if params.auto_ack:
                for one in taken:
                    position.settled(one)
                    position.done[one] = NO_LEASE
                continue
            position.hand_out(taken, lease)
            lease.expires_at = min(lease.expires_at, self.now + _lease_time(position.partition.queue, params))
        if not popped.messages and len(params.queues) == 1:
            popped.reasons = self._reasons(params)
        self.drop_settled()
        return popped

    def popped_beside(self, addresses: set[tuple[str, str]], group: str) -> None:
        """Several pops of one call got these: after a restart, their answers do not tell which was served first."""
        number = next(self.numbers)
        for queue, partition in addresses if not self.order_is_known else ():
            position = self.positions[queue, partition, group]
            position.served, position.beside = number, True

    def meet(self, params: PopParams) -> None:
        """A pop is a contact, whatever it gets."""
        for name in params.queues:
            self.contact(name, params.group, params.mode, params.group_mode)

    def would_give(self, params: PopParams, answered: Answered) -> list[Message]:
        """What a pop would get now."""
        self.meet(params)
        plan = self._plan(params, answered)
        return [message for position, share in plan for message in position.ready(self.now)[:share]]

    def _plan(self, params: PopParams, answered: Answered) -> list[tuple[Position, int]]:
        """Which partitions give how many: as answered if that is as much as there is to get."""
        most = self._shares(params, answered, {})
        expected = self._shares(params, answered, answered)
        return expected if sum(share for _, share in expected) == sum(share for _, share in most) else most

    def _shares(self, params: PopParams, answered: Answered, expected: Answered) -> list[tuple[Position, int]]:
        """One partition after the other, each as much as it can give, or as was asked."""
        used: Counter[str] = Counter()
        plan: list[tuple[Position, int]] = []
        while len(plan) < params.partitions and used.total() < params.batch:
            open_positions = [
                (position, room)
                for position in self._candidates(params)
                if all(position is not one for one, _ in plan)
                and (
                    room := self.room(position.address[0], params.group, params.auto_ack)[0] - used[position.address[0]]
                )
                > 0
                and self.room_in(position, params.auto_ack)[0] > 0
            ]
            if not open_positions:
                break
            position, room = min(open_positions, key=lambda one: self._turn(one[0], answered))
            here = self.room_in(position, params.auto_ack)[0]
            share = int(min(len(position.ready(self.now)), room, here, params.batch - used.total()))
            share = min(share, expected.get(position.address, share))
            plan.append((position, share))
            used[position.address[0]] += share
        return plan

    def _candidates(self, params: PopParams) -> list[Position]:
        return [
            position
            for name in params.queues
            if not (self.queues[name].paused or self.groups[name, params.group].paused)
            for position in self.positions_of(name, params.group)
            if params.partition in (None, position.partition.name) and position.ready(self.now)
        ]

    def _turn(self, position: Position, answered: Answered) -> tuple[int, int, int, int, int]:
        # Each of several servers has its own order of service, so then nobody can say whose turn it is.
        served = position.served if self.one_server else 0
        known = (self.order_is_known and self.one_server) or (served and not position.beside)
        known = known or position.address not in answered
        rank = len(answered) if known else list(answered).index(position.address)
        shared = isinstance(position, SharedPosition)
        highest = max(one.push.priority for one in position.ready(self.now)) if shared else 0
        return (-position.partition.queue.options.priority, -highest, served, rank, position.partition.age)

    # Limits ------------------------------------------------------------------------------------------------

    def limits(self, queue: str, group: str) -> list[tuple[tuple[str, str | None], Limits]]:
        """What bounds a group in a queue: the queue's limits and its own."""
        options = self.queues[queue].options
        return [((queue, None), limits_of(options)), ((queue, group), self.groups[queue, group].limits)]

    def room(self, queue: str, group: str, auto_ack: bool) -> tuple[float, frozenset[str]]:
        """How many messages a group may take now, and what stands in the way of any."""
        left, reasons = float("inf"), set()
        for owner, limits in self.limits(queue, group):
            if limits.max_in_flight and not auto_ack:
                free = limits.max_in_flight - len(self.in_flight(*owner))
                left = min(left, free)
                reasons |= {"max_in_flight"} if free <= 0 else set()
            if limits.rate_limit:
                tokens = floor(self._bucket(owner, limits).tokens)
                left = min(left, tokens)
                reasons |= {"rate_limited"} if tokens <= 0 else set()
        return left, frozenset(reasons)

    def in_flight(self, queue: str, group: str | None = None) -> list[Message]:
        """What is on leases of one group, or of all."""
        positions = [one for key, one in self.positions.items() if key[0] == queue and group in (None, key[2])]
        return [message for position in positions for message in position.in_flight()]

    def room_in(self, position: Position, auto_ack: bool) -> tuple[float, frozenset[str]]:
        """The same for the limits of a partition: at its limit in flight, no consumer receives anything."""
        left, reasons = float("inf"), set()
        bounds = [limits for _, limits in self.limits(position.address[0], position.group)]
        most = min((one.max_in_flight_per_partition for one in bounds if one.max_in_flight_per_partition), default=0)
        if most:
            free = most - len(position.in_flight())
            left = free if free <= 0 or not auto_ack else left
            reasons |= {"max_in_flight"} if free <= 0 else set()
        bucket = self._bucket_in(position)
        if bucket is not None:
            tokens = floor(bucket.tokens)
            left = min(left, tokens)
            reasons |= {"rate_limited"} if tokens <= 0 else set()
        return left, frozenset(reasons)

    def _bucket_in(self, position: Position) -> Bucket | None:
        bounds = [limits for _, limits in self.limits(position.address[0], position.group)]
        each = [
            (one.rate_limit_per_partition, _size(one.rate_limit_per_partition, one.rate_burst_per_partition))
            for one in bounds
            if one.rate_limit_per_partition
        ]
        if not each:
            return None
        rate, size = min(rate for rate, _ in each), min(size for _, size in each)
        position.bucket = position.bucket or Bucket(size, self.now)
        return position.bucket.filled(rate, size, self.now)

    def _bucket(self, owner: tuple[str, str | None], limits: Limits) -> Bucket:
        size = _size(limits.rate_limit, limits.rate_burst)
        return self.buckets.setdefault(owner, Bucket(size, self.now)).filled(limits.rate_limit, size, self.now)

    def _spend(self, position: Position, number: int) -> None:
        for owner, limits in self.limits(position.address[0], position.group):
            if limits.rate_limit:
                self._bucket(owner, limits).tokens -= number
        bucket = self._bucket_in(position)
        if bucket is not None:
            bucket.tokens -= number

    # Reasons -----------------------------------------------------------------------------------------------

    def _reasons(self, params: PopParams) -> frozenset[str]:
        """Why a pop of one queue is empty; empty itself where the rules do not say."""
        [queue], name, group = params.queues, params.partition, params.group
        paused = self.queues[queue].paused or self.groups[queue, group].paused
        limited = self.room(queue, group, params.auto_ack)[1]
        if name is None:
            candidates = self._candidates(params)
            if not candidates or limited:
                return limited if candidates else frozenset()
            if any(one.todo and one not in candidates for one in self.positions_of(queue, group)):
                return frozenset()
            return frozenset().union(*(self.room_in(one, params.auto_ack)[1] for one in candidates))
        if name not in self.queues[queue].partitions:
            return limited | ({"partition_not_found", "paused"} if paused else {"partition_not_found"})
        if paused:
            return limited | {"paused"}
        position = self.positions[queue, name, group]
        limited |= self.room_in(position, params.auto_ack)[1]
        return limited if position.ready(self.now) else limited | _waits_for(position)


def _size(rate: float, burst: int) -> int:
    return burst or max(1, ceil(rate))


def _waits_for(position: Position) -> set[str]:
    """Why nothing of a partition is ready."""
    if isinstance(position, OrderedPosition) and position.lease is not None:
        return {"lease_held"}
    free = [one for one in position.todo if not (isinstance(position, SharedPosition) and one in position.holder)]
    if len(free) < len(position.todo):
        return {"lease_held", "waiting"} if free else {"lease_held"}
    return {"waiting"} if free else {"nothing_ready"}


def _lease_time(queue: Queue, params: PopParams) -> int:
    """How long a pop holds what it gets of a queue."""
    if params.lease_ms is None:
        return queue.options.lease_time * SECOND
    return (queue.options.lock_duration or params.lease_ms) * MILLISECOND


def new_position(mode: GroupMode, group: str, partition: Partition, todo: list[Message]) -> Position:
    """A position of either kind."""
    return (SharedPosition if mode == "shared" else OrderedPosition)(group, partition, todo)
