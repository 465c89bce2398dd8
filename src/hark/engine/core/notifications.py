"""What a commit makes ready in memory, and the hints that follow from it."""

from __future__ import annotations

import apsw

from hark.engine.core.loader import Loader
from hark.engine.core.position import Position
from hark.engine.core.shared import SharedPosition
from hark.engine.core.state import Bounds, Group, Partition, Queue, State
from hark.engine.hints import HintBook

_NAMED_AT_MOST = 100
MOST_NOTIFIED = 1000
"""Of no more messages than this somebody is told at once."""


class Arrivals:
    """What a transaction pushed to one partition, but for plain messages without a priority."""

    __slots__ = ("due", "others", "plain")

    def __init__(self) -> None:
        self.plain: dict[int, int] = {}
        """Messages without a delay, by priority."""
        self.due: dict[int, int] = {}
        """When the first of those with a delay are due, by priority."""
        self.others = 0
        """How many have a delay, or are for one group only."""

    def add(self, priority: int, deliver_at: int | None) -> None:
        """One more message."""
        if deliver_at is None:
            self.plain[priority] = self.plain.get(priority, 0) + 1
        else:
            self.others += 1
            self.due[priority] = min(deliver_at, self.due.get(priority, deliver_at))

    def complete(self, number: int) -> None:
        """There were so many messages in all."""
        rest = number - self.others - sum(self.plain.values())
        if rest > 0:
            self.plain[0] = rest


class Notifier:
    """Puts partitions where they belong after a commit, and notes what to tell."""

    def __init__(self, hints: HintBook, connection: apsw.Connection, state: State, now: int) -> None:
        self._hints = hints
        self._connection = connection
        self._state = state
        self._now = now

    def changed(self, position: Position) -> None:
        """A place was changed by the transaction."""
        group, name = position.group, position.partition.name
        newly_ready = position.publish(self._now)
        ready = group.refresh(position, self._now)
        if not isinstance(position, SharedPosition):
            if ready:
                self._hints.add(group.queue_name, group.name, (name,))
        elif newly_ready:
            self._hints.add(group.queue_name, group.name, (name,), counts={name: newly_ready})

    def restarted(self, position: SharedPosition) -> None:
        """A place of a shared group was loaded anew, after a seek."""
        group, name = position.group, position.partition.name
        if group.refresh(position, self._now) or position.partition.id in group.waking:
            self._hints.add(group.queue_name, group.name, (name,), counts={name: position.count_ready(MOST_NOTIFIED)})

    def arrived(
        self,
        queue: Queue,
        arrived: dict[Partition, int],
        arrivals: dict[Partition, Arrivals],
        changed: dict[Position, None],
    ) -> None:
        """Messages came to partitions of a queue; the same transaction changed some of its positions.

        Partitions that plain messages came to are not in `arrivals`.
        """
        numbers = {partition.name: number for partition, number in arrived.items()}
        self._hints.arrived(queue.name, numbers, queue.groups, numbers)
        for group in queue.groups.values():
            offered: dict[str, int] = {}
            for partition, number in arrived.items():
                if group.mode == "shared":
                    came = arrivals.setdefault(partition, Arrivals())
                    came.complete(number)
                    count = self._offer_shared(group, partition, came)
                else:
                    count = int(self._offer(group, partition, changed))
                if count:
                    offered[partition.name] = count
            if offered:
                self._hints.add(queue.name, group.name, offered, "message", offered if group.mode == "shared" else None)

    def _offer(self, group: Group, partition: Partition, changed: dict[Position, None]) -> bool:
        """Whether a group may take what came to a partition; if a lease or a time is in the way, that is told of."""
        position = group.positions.get(partition.id)
        if position is not None and (position in changed or position.readiness(self._now).priority is None):
            return False
        if partition.id in group.waking:
            return False
        group.make_ready(partition.id)
        return True

    def _offer_shared(self, group: Group, partition: Partition, came: Arrivals) -> int:
        """About how many of the messages that came to a partition a group may take; 1: or when it may take one."""
        if not came.plain and not came.due:
            return 0
        position = group.positions.get(partition.id)
        number = sum(came.plain.values())
        if not isinstance(position, SharedPosition):
            group.make_ready(partition.id, max(came.plain, default=0))
            late = Loader(self._connection, self._state).position(group, partition.id) if came.due else None
            if late is not None:  # Its rank changes with time.
                group.refresh(late, self._now)
            return max(1, number)
        known = position.readiness(self._now)
        position.arrived(came.plain, came.due)
        if group.waking.get(partition.id, (0, ""))[1] == "window_buffer":
            return 0
        group.refresh(position, self._now)
        found = position.readiness(self._now)
        if found.priority is not None:
            young = partition.queue.info.options.delayed_processing
            return number if number and not young else int(known.priority is None)
        return int(found.due is not None and (known.due is None or found.due < known.due))

    def room(self, queue: Queue, groups: list[Group]) -> None:
        """Something is no longer in flight: those who were refused because of that may look again."""
        if queue.bounds.blocked and _has_room(queue.bounds, queue.in_flight):
            queue.bounds.blocked = False
            groups = list(queue.groups.values())
        else:
            groups = [one for one in groups if one.bounds.blocked and _has_room(one.bounds, one.in_flight)]
        for group in groups:
            group.bounds.blocked = False
            known = [group.positions[one].partition.name for one in group.ready if one in group.positions]
            if not group.ready:
                continue
            if len(known) < len(group.ready) or len(known) > _NAMED_AT_MOST:
                self._hints.add(queue.name, group.name, None)
            else:
                counts = dict.fromkeys(known, 1) if group.mode == "shared" else None
                self._hints.add(queue.name, group.name, known, counts=counts)


def _has_room(bounds: Bounds, in_flight: int) -> bool:
    return not bounds.limits.max_in_flight or in_flight < bounds.limits.max_in_flight


def notify_left(hints: HintBook, position: SharedPosition, now: int) -> None:
    """Of what fell due and a pop did not take; and of when the next will, if nobody has learned that time yet."""
    group, partition = position.group, position.partition
    count = 0
    if partition.id in group.ready:
        count = position.count_ready(MOST_NOTIFIED) if position.fell_due else 0
    elif partition.id in group.waking and not now < group.learned <= group.waking[partition.id][0]:
        count = 1
    if count:
        hints.add(group.queue_name, group.name, (partition.name,), counts={partition.name: count})
    position.fell_due = False
