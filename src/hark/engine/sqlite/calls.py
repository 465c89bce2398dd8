"""Calls on their way to the threads of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from hark.engine.sqlite.state import State
from hark.engine.sqlite.transaction import WriteTransaction
from hark.errors import HarkError
from hark.model import Expired, PopRequest, PopResult


class Call:
    """A verb on its way: what to do, and who waits for it."""

    def __init__(self, future: asyncio.Future[Any] | None) -> None:
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None


class Write(Call):
    """A call that changes the store; answered after the commit."""

    def __init__(self, future: asyncio.Future[Any] | None, body: Callable[[WriteTransaction], object]) -> None:
        super().__init__(future)
        self.body = body


class Expire(Write):
    """The verb expire: does what every transaction does first, but no more of it than it was asked to."""

    def __init__(self, future: asyncio.Future[Any], limit: int) -> None:
        super().__init__(future, lambda transaction: Expired(transaction.expired, transaction.state.next_expiry()))
        self.limit = limit


class Look(Call):
    """A call that only needs memory, such as a renewal; answered at once."""

    def __init__(self, future: asyncio.Future[Any] | None, body: Callable[[State, int], object]) -> None:
        super().__init__(future)
        self.body = body


class Claim(Call):
    """Pops; answered at once, or with auto-ack after the commit that settles them."""

    def __init__(self, future: asyncio.Future[Any], requests: Sequence[PopRequest]) -> None:
        super().__init__(future)
        self.requests = requests
        self.answers: list[PopResult | HarkError | None] = [None] * len(requests)
        self.uncommitted: dict[int, PopResult | HarkError | None] = {}
        """Answers of pops with auto-ack, good once their transaction is."""

    @property
    def open(self) -> list[int]:
        """Positions without an answer."""
        return [index for index, answer in enumerate(self.answers) if answer is None]


class Stop(Call):
    """The last call."""


class Nudge(Write):
    """Nothing but a reason to write down what claims have noted."""

    def __init__(self) -> None:
        super().__init__(None, lambda _: None)
