"""Consumers that wait as the broker's do: they look only when a hint or a time that the engine named says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from hark.model import GroupMode, Hint

PartitionKey = tuple[str, str]
"""A queue and a partition."""


@dataclass
class Waiting:
    """One subscription, and where it believes that there is work."""

    queues: tuple[str, ...]
    group: str
    mode: GroupMode
    partition: str | None
    partitions: Counter[PartitionKey] = field(default_factory=Counter)
    """How many messages of a shared group; of an ordered one a look takes the partition, so any number is one."""
    anywhere: bool = False
    """Nobody knows: it has to look until it finds nothing."""
    look_again_at: int | None = None

    def __repr__(self) -> str:
        """Short: whose work it waits for."""
        return f"waiting of {self.group} for {self.partition or 'any partition'} of {'+'.join(self.queues)}"

    def on_hints(self, hints: Iterable[Hint]) -> None:
        """Believe hints."""
        for hint in hints:
            concerns = hint.group == self.group or (hint.group is None and self.group not in hint.excluded)
            if hint.queue not in self.queues or not concerns:
                continue
            if hint.partitions is None:
                self.anywhere = True
                continue
            for name, number in zip(hint.partitions, hint.counts or [1] * len(hint.partitions), strict=True):
                if self.partition in (None, name):
                    self.partitions[hint.queue, name] += number

    def note_time(self, now: int) -> None:
        """Look when the time has come that the last empty look named."""
        if self.look_again_at is not None and now >= self.look_again_at:
            self.anywhere, self.look_again_at = True, None

    @property
    def is_idle(self) -> bool:
        """Whether it believes that there is nothing to take."""
        return not self.anywhere and not self.partitions.total()

    def looked(self, before: Counter[PartitionKey], taken: Counter[PartitionKey], look_again_at: int | None) -> None:
        """A look has ended that began with these beliefs: hints that came during it are not answered by it."""
        if not taken:
            self.look_again_at = look_again_at
        elif self.mode == "shared":
            self.partitions += before - taken
        else:
            self.partitions += Counter({key: number for key, number in before.items() if key not in taken})
