"""Joins hints on their way to the peers: what is about the same thing is told once."""

from __future__ import annotations

from collections.abc import Iterable

from hark.model import Hint, News

MAX_PARTITIONS = 1000
"""Of one queue and group; beyond that the peers are told to look anywhere in the queue."""

_Subject = tuple[News, str, str | None]


class Gathering:
    """The hints of the last few milliseconds, by news, queue and group."""

    def __init__(self) -> None:
        self._subjects: dict[_Subject, _Told] = {}

    def __bool__(self) -> bool:
        return bool(self._subjects)

    def add(self, hints: Iterable[Hint]) -> None:
        """Take what peers need: arrivals for one group are left out, since the general hint tells of them too."""
        for hint in hints:
            if hint.news == "message" and hint.group is not None:
                continue
            subject = (hint.news, hint.queue, hint.group)
            told = self._subjects.get(subject)
            if told is None:
                told = self._subjects[subject] = _Told()
            told.add(hint)

    def take(self) -> list[Hint]:
        """All that was gathered; then there is nothing."""
        subjects, self._subjects = self._subjects, {}
        return [
            Hint(
                queue,
                group,
                partitions=None if told.partitions is None else tuple(told.partitions),
                news=news,
                ended=tuple(told.ended),
            )
            for (news, queue, group), told in subjects.items()
        ]


class _Told:
    """What was said about one subject; dicts as sets that keep their order."""

    def __init__(self) -> None:
        self.partitions: dict[str, None] | None = {}
        self.ended: dict[str, None] = {}

    def add(self, hint: Hint) -> None:
        self.ended |= dict.fromkeys(hint.ended)
        if self.partitions is None or hint.partitions is None:
            self.partitions = None
            return
        self.partitions |= dict.fromkeys(hint.partitions)
        if len(self.partitions) > MAX_PARTITIONS:
            self.partitions = None
