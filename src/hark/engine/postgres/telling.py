"""What a call made ready, as beliefs of this server and as hints for those who wait."""

from __future__ import annotations

from collections.abc import Iterable

from hark.engine.hints import HintBook
from hark.engine.postgres.directory import Directory, Group, Place
from hark.engine.postgres.push import Arrival
from hark.engine.postgres.shared_ready import SharedReady
from hark.model import Hint, Key

_FEW = 16
"""So many partitions at most are named when there is room for more messages in flight."""


class Telling:
    """The news of one call."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.book = HintBook()
        self.keys: dict[bytes, Key] = {}
        """Keys that were written, by their bytes (1 and True are the same to a dict)."""

    def hints(self) -> list[Hint]:
        """Whom to tell."""
        return self.book.hints()

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Partitions got messages: their groups may take them."""
        queues: dict[str, list[Arrival]] = {}
        for arrival in arrivals:
            queues.setdefault(arrival.place.queue, []).append(arrival)
        for queue, pushed in queues.items():
            groups = self._directory.groups_of(queue)
            came = {one.place.name: max(1, one.number) for one in pushed}
            self.book.arrived(queue, came, [group.name for group in groups], came)
            for group in groups:
                if group.shared is not None:
                    self._offer(group, group.shared, pushed)
                    continue
                offered = [one.place.name for one in pushed if group.ready.offer(one.place.id)]
                if offered:
                    self.book.add(queue, group.name, offered, "message")

    def _offer(self, group: Group, ready: SharedReady, pushed: Iterable[Arrival]) -> None:
        """Tell a shared group of as many messages as it may take, and of those whose time nobody knows of."""
        counts = {}
        for one in pushed:
            ready.prioritized |= one.prioritized
            if one.number:
                ready.arrived(one.place.id, one.number, one.top)
                counts[one.place.name] = one.number
            elif one.due is not None and ready.later(one.place.id, one.due):
                counts[one.place.name] = 1
        if counts:
            self.book.add(group.queue, group.name, counts, "message", counts)

    def free(self, group: Group, partitions: Iterable[int]) -> None:
        """Partitions may be taken by a group."""
        for partition in partitions:
            group.ready.add(partition)
            self._tell(group, partition)

    def given_back(self, group: Group, partition: int, number: int, due: int | None = None) -> None:
        """So many messages of a shared group may be taken again, or one may be at a time."""
        if group.shared is None:
            return
        if number:
            group.shared.arrived(partition, number, 0)
            self._tell(group, partition, number)
        elif due is not None and group.shared.later(partition, due):
            self._tell(group, partition)

    def has_room(self, group: Group) -> None:
        """Fewer messages are in flight: groups of the queue that could not take more may do so."""
        for one in self._directory.groups_of(group.queue):
            if one.ready.blocked:
                one.ready.blocked = False
                for _, _, partition in one.ready.heads(_FEW):
                    self._tell(one, partition)

    def drained(self, group: Group, partition: int) -> None:
        """A lease ended and left nothing behind it."""
        if group.ready.drained(partition):
            self._tell(group, partition)

    def left(self, groups: Iterable[Group]) -> None:
        """Tell others of what pops made ready and did not take."""
        for group in groups:
            for partition, number in group.ready.take_untold().items():
                self._tell(group, partition, number)

    def looked_behind(self) -> None:
        """Messages were removed: what groups wait for may be among them."""
        for group in self._directory.groups.values():
            for partition in group.ready.look_behind():
                self._tell(group, partition)

    def anywhere(self, group: Group) -> None:
        """Nobody knows what a group may take."""
        self.book.add(group.queue, group.name, None)

    def removed(self, places: Iterable[Place]) -> None:
        """Messages of partitions were removed: what comes after them need not wait for them."""
        for place in places:
            groups = list(self._directory.groups_of(place.queue))
            alone = all(group.shared is None for group in groups)
            for name in [None] if alone else [group.name for group in groups if group.shared is None]:
                self.book.add(place.queue, name, (place.name,))
            for group in groups:
                self.has_room(group)
                if group.shared is None and place.id in group.ready.waking:
                    group.ready.add(place.id)

    def ended(self, group: Group, lease: str) -> None:
        """A lease is over."""
        self.book.ended(group.queue, group.name, lease)

    def _tell(self, group: Group, partition: int, number: int = 1) -> None:
        place = self._directory.places_by_id.get(partition)
        if place is None:
            self.book.add(group.queue, group.name, None)
        elif group.shared is None:
            self.book.add(group.queue, group.name, (place.name,))
        else:
            self.book.add(group.queue, group.name, (place.name,), counts={place.name: number})
