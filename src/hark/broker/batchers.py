"""The batchers of a broker: those that wait for the same verb at the same moment share a call of the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from hark.batching import Batcher, BatchSizes
from hark.engine.api import Engine
from hark.errors import HarkError
from hark.model import (
    NewMessage,
    PopRequest,
    PopResult,
    PushOutcome,
    Renewal,
    RenewOutcome,
    Settlement,
    SettleOutcome,
    Transaction,
    TransactionOutcome,
)
from hark.settings import Settings

Q = TypeVar("Q")
A = TypeVar("A")

_CALLS = 2
"""Calls of one verb at a time, in a store of many servers: one is prepared or answered while the other runs."""


class Batchers:
    """One batcher for each verb that many use at once."""

    def __init__(self, engine: Engine, settings: Settings, give_back: Callable[[PopResult], None]) -> None:
        self._engine = engine
        self._settings = settings
        # In a store of many servers calls that push to the same partitions wait for each other, so all that waits goes
        # with one call; those of the other verbs pass each other by.
        self.push: Batcher[Sequence[NewMessage], list[PushOutcome]] = self.make("push", engine.push, max_calls=1)
        # Pops that settle wait for the disk, those that only lease do not: they must not share a call.
        self.pop: Batcher[PopRequest, PopResult] = self.make("pop", engine.pop, give_back)
        self.pop_auto_ack: Batcher[PopRequest, PopResult] = self.make("pop", engine.pop)
        self.settle: Batcher[Sequence[Settlement], list[SettleOutcome]] = self.make("ack", engine.settle)
        self.transact: Batcher[Transaction, TransactionOutcome] = self.make("transaction", engine.transact)
        self.renew: Batcher[Renewal, RenewOutcome] = self.make("renew", engine.renew)

    def make(
        self,
        name: str,
        call: Callable[[Sequence[Q]], Awaitable[Sequence[A | HarkError]]],
        orphaned: Callable[[A], None] | None = None,
        max_calls: int = _CALLS,
    ) -> Batcher[Q, A]:
        """A batcher of one verb; `orphaned` gets answers that no caller waits for any more."""
        batching, limits = self._settings.batching, self._settings.limits
        return Batcher(
            name,
            call,
            max_items=batching.max_items,
            max_wait=batching.max_wait_ms / 1000,
            max_pending=limits.max_pending,
            max_calls=max_calls if self._engine.shared and not self._engine.follows else None,
            orphaned=orphaned,
        )

    async def drain(self) -> None:
        """Wait until all that was accepted is answered."""
        for batcher in (self.push, self.pop, self.pop_auto_ack, self.settle, self.transact, self.renew):
            await batcher.drain()

    def sizes(self) -> dict[str, BatchSizes]:
        """By verb, how many requests shared a call."""
        return {
            "push": self.push.sizes,
            "pop": self.pop.sizes,
            "pop_auto_ack": self.pop_auto_ack.sizes,
            "ack": self.settle.sizes,
            "transaction": self.transact.sizes,
            "renew": self.renew.sizes,
        }
