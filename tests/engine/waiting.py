"""Consumers that wait as the broker's do: they look only when a hint or a time that the engine named says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hark.model import Hint

Place = tuple[str, str]
"""A queue and a partition."""


@dataclass
class Waiting:
    """One subscription, and where it believes that there is work."""

    queues: tuple[str, ...]
    group: str
    partition: str | None
    places: set[Place] = field(default_factory=set)
    anywhere: bool = False
    """Nobody knows: it has to look until it finds nothing."""
    look_again_at: int | None = None

    def __repr__(self) -> str:
        """Short: whose work it waits for."""
        return f"waiting of {self.group} for {self.partition or 'any partition'} of {'+'.join(self.queues)}"

    def hear(self, hints: Iterable[Hint]) -> None:
        """Believe hints."""
        for hint in hints:
            concerns = hint.group == self.group or (hint.group is None and self.group not in hint.told)
            if hint.queue not in self.queues or not concerns:
                continue
            if hint.partitions is None:
                self.anywhere = True
                continue
            named = hint.partitions if self.partition is None else {self.partition}.intersection(hint.partitions)
            self.places |= {(hint.queue, name) for name in named}

    def note_time(self, now: int) -> None:
        """Look when the time has come that the last empty look named."""
        if self.look_again_at is not None and now >= self.look_again_at:
            self.anywhere, self.look_again_at = True, None

    @property
    def is_idle(self) -> bool:
        """Whether it believes that there is nothing to take."""
        return not self.anywhere and not self.places

    def looked(self, before: set[Place], taken: set[Place], look_again_at: int | None) -> None:
        """A look has ended that began with these beliefs: hints that came during it are not answered by it."""
        if taken:
            self.places |= before - taken
        else:
            self.look_again_at = look_again_at
