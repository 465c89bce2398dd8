"""What a call made ready, as beliefs of this server and as hints for those who wait."""

from __future__ import annotations

from collections.abc import Iterable

from hark.engine.hints import HintBook
from hark.engine.postgres.directory import Directory, Group, Place
from hark.model import Hint


class Telling:
    """The news of one call."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.book = HintBook()

    def hints(self) -> list[Hint]:
        """Whom to tell."""
        return self.book.hints()

    def arrived(self, places: Iterable[Place]) -> None:
        """Partitions got messages: their groups may take them."""
        queues: dict[str, list[Place]] = {}
        for place in places:
            queues.setdefault(place.queue, []).append(place)
        for queue, pushed in queues.items():
            groups = self._directory.groups_of(queue)
            self.book.arrived(queue, [place.name for place in pushed], [group.name for group in groups])
            for group in groups:
                offered = [place.name for place in pushed if group.ready.offer(place.id)]
                if offered:
                    self.book.add(queue, group.name, offered, "message")

    def free(self, group: Group, partitions: Iterable[int]) -> None:
        """Partitions may be taken by a group."""
        for partition in partitions:
            group.ready.add(partition)
            self._tell(group, partition)

    def drained(self, group: Group, partition: int) -> None:
        """A lease ended and left nothing behind it."""
        if group.ready.drained(partition):
            self._tell(group, partition)

    def left(self, groups: Iterable[Group]) -> None:
        """Tell others of what pops made ready and did not take."""
        for group in groups:
            for partition in group.ready.take_untold():
                self._tell(group, partition)

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
            self.book.add(place.queue, None, (place.name,))
            for group in self._directory.groups_of(place.queue):
                if place.id in group.ready.waking:
                    group.ready.add(place.id)

    def ended(self, group: Group, lease: str) -> None:
        """A lease is over."""
        self.book.ended(group.queue, group.name, lease)

    def _tell(self, group: Group, partition: int) -> None:
        place = self._directory.places_by_id.get(partition)
        self.book.add(group.queue, group.name, None if place is None else (place.name,))
