"""Merges hints for the peers, so that each subject is sent once."""

from __future__ import annotations

from collections.abc import Iterable

from hark.keys import encode_key
from hark.model import Hint, Key, KeyNews, News

MAX_PARTITIONS = 1000
"""Maximum number of partitions of one queue and group; above it, peers look anywhere in the queue."""
MAX_KEYS = 1000
"""Maximum number of keys; above it, peers assume that any key may have changed."""

_Subject = tuple[News, str, str | None]


class Gathering:
    """The hints of the last few milliseconds, by news, queue and group."""

    def __init__(self) -> None:
        self._subjects: dict[_Subject, _Told] = {}
        self._keys: dict[bytes, Key] | None = {}
        """By their bytes; None: any."""

    def __bool__(self) -> bool:
        return bool(self._subjects) or self._keys != {}

    def add(self, hints: Iterable[Hint]) -> None:
        """Add hints that peers need. Arrivals for one group are left out, because the general hint covers them."""
        for hint in hints:
            if hint.news == "message" and hint.group is not None:
                continue
            subject = (hint.news, hint.queue, hint.group)
            told = self._subjects.get(subject)
            if told is None:
                told = self._subjects[subject] = _Told()
            told.add(hint)

    def add_keys(self, news: KeyNews) -> None:
        """Take which keys were changed."""
        if self._keys is None:
            return
        if news.keys is not None:
            self._keys |= {encode_key(key): key for key in news.keys}
        if news.keys is None or len(self._keys) > MAX_KEYS:
            self._keys = None

    def take_keys(self) -> KeyNews | None:
        """The keys that were gathered; then there are none."""
        keys, self._keys = self._keys, {}
        if keys is None:
            return KeyNews(None)
        return KeyNews(tuple(keys.values())) if keys else None

    def take(self) -> list[Hint]:
        """All hints that were gathered; then there are none."""
        subjects, self._subjects = self._subjects, {}
        return [
            Hint(
                queue,
                group,
                partitions=None if told.partitions is None else tuple(told.partitions),
                news=news,
                ended=tuple(told.ended),
                counts=told.counts(),
            )
            for (news, queue, group), told in subjects.items()
        ]


class _Told:
    """The merged hints of one subject; `ended` is a set that keeps its order."""

    def __init__(self) -> None:
        self.partitions: dict[str, int] | None = {}
        """Partitions with the number of messages that became ready; 0: not counted."""
        self.ended: dict[str, None] = {}

    def add(self, hint: Hint) -> None:
        self.ended |= dict.fromkeys(hint.ended)
        if self.partitions is None or hint.partitions is None:
            self.partitions = None
            return
        if hint.counts:
            for partition, count in zip(hint.partitions, hint.counts, strict=True):
                self.partitions[partition] = self.partitions.get(partition, 0) + count
        else:
            for partition in hint.partitions:
                self.partitions.setdefault(partition, 0)
        if len(self.partitions) > MAX_PARTITIONS:
            self.partitions = None

    def counts(self) -> tuple[int, ...]:
        if self.partitions is None or not any(self.partitions.values()):
            return ()
        return tuple(max(1, count) for count in self.partitions.values())
