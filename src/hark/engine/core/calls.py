"""Calls on their way to the threads of a store, and their answers and hints on the way back to the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import apsw

from hark.engine.api import KeyListener, Listener
from hark.engine.core.state import State
from hark.engine.core.transaction import WriteTransaction
from hark.errors import DiskFull, EngineFailure, HarkError
from hark.model import Expired, Hint, KeyNotification, PopRequest, PopResult

log = logging.getLogger(__name__)


class Call:
    """A verb on its way: what to do, and who waits for it."""

    result: Any = None
    error: Exception | None = None

    def __init__(self, future: asyncio.Future[Any] | None) -> None:
        self.future = future


class Write(Call):
    """A call that changes the store; answered after the commit."""

    def __init__(self, future: asyncio.Future[Any] | None, body: Callable[[WriteTransaction], object]) -> None:
        self.future = future
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
        self.future = future
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


class Outbox:
    """Answers, hints and news of keys in the order in which they came true."""

    def __init__(self, listener: Listener, key_listener: KeyListener) -> None:
        self._listener = listener
        self._key_listener = key_listener
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Sequence[Call], Sequence[Hint], KeyNotification | None]] = deque()

    def post(self, answers: Sequence[Call], hints: Sequence[Hint], keys: KeyNotification | None = None) -> None:
        """Put in answers and hints; by who holds the state, so that no answer is older than a hint before it."""
        if answers or hints or keys is not None:
            self._waiting.append((answers, hints, keys))

    def deliver(self) -> None:
        """Let the event loop empty it; after the state was let go, as waking the loop can cost a turn."""
        if self._waiting:
            self._loop.call_soon_threadsafe(self._empty)

    def deliver_soon(self) -> None:
        """Do as `deliver`, from the event loop itself."""
        if self._waiting:
            self._loop.call_soon(self._empty)

    def _empty(self) -> None:
        while self._waiting:
            answers, hints, keys = self._waiting.popleft()
            for call in answers:
                future = call.future
                if future is None or future.done():
                    continue
                if call.error is not None:
                    future.set_exception(call.error)
                else:
                    future.set_result(call.result)
            try:
                if keys is not None:
                    self._key_listener(keys)
                if hints:
                    self._listener(hints)
            except Exception:
                log.exception("hint listener raised; remaining responses are still sent")


def translate(error: Exception) -> HarkError:
    """The error that a caller gets for a failure of the store."""
    if isinstance(error, HarkError):
        return error
    if isinstance(error, apsw.FullError):
        return DiskFull("the disk of the store is full; the request had no effect; free disk space")
    if isinstance(error, apsw.Error):
        return EngineFailure(f"the store failed: {error}; the request had no effect; see the server log")
    log.exception("the engine failed because of a bug; please report it", exc_info=error)
    text = f"internal error: {type(error).__name__}; the request had no effect; see the server log"
    return EngineFailure(text, code="internal")
