"""The interface of a waiting consumer, a pop or a stream, to the pump."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from hark.errors import HarkError
from hark.model import PopRequest, PopResult


class Consumer(Hashable, Protocol):
    """A waiting consumer. The pump calls these methods; they must not raise."""

    @property
    def priority(self) -> int:
        """Consumers with a higher priority are notified first."""

    @property
    def partition(self) -> str | None:
        """The partition that it wants, if not any."""

    @property
    def batch(self) -> int:
        """How many messages it takes at once, if it can."""

    def next_pull(self) -> PopRequest | None:
        """What to pop for it now; None: it wants nothing after all."""

    def deliver(self, result: PopResult) -> bool:
        """Take what came; False: it is not there any more, and what came goes back."""

    def came_up_empty(self) -> None:
        """There was nothing for it; it keeps its turn."""

    def failed(self, failure: HarkError) -> None:
        """The look failed, for a reason that passes; it is looked for again later."""

    def refuse(self, error: HarkError) -> None:
        """What it wants can't be."""
