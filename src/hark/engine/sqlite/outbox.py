"""Answers and hints on their way from the threads of a store to the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

import apsw

from hark.engine.api import KeyListener, Listener
from hark.engine.sqlite.calls import Call
from hark.errors import EngineFailure, HarkError
from hark.model import Hint, KeyNews

log = logging.getLogger(__name__)


class Outbox:
    """Answers, hints and news of keys in the order in which they came true."""

    def __init__(self, listener: Listener, key_listener: KeyListener) -> None:
        self._listener = listener
        self._key_listener = key_listener
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Sequence[Call], Sequence[Hint], KeyNews | None]] = deque()

    def post(self, answers: Sequence[Call], hints: Sequence[Hint], keys: KeyNews | None = None) -> None:
        """Put in answers and hints; by who holds the state, so that no answer is older than a hint before it."""
        if answers or hints or keys is not None:
            self._waiting.append((answers, hints, keys))

    def deliver(self) -> None:
        """Let the event loop empty it; after the state was let go, as waking the loop can cost a turn."""
        if self._waiting:
            self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        while self._waiting:
            try:
                self._hand_over(*self._waiting.popleft())
            except Exception:
                log.exception("hint listener raised; remaining responses are still sent")

    def _hand_over(self, answers: Sequence[Call], hints: Sequence[Hint], keys: KeyNews | None) -> None:
        for call in answers:
            future = call.future
            if future is None or future.done():
                continue
            if call.error is not None:
                future.set_exception(call.error)
            else:
                future.set_result(call.result)
        if keys is not None:
            self._key_listener(keys)
        if hints:
            self._listener(hints)


def translate(error: Exception) -> HarkError:
    """The error that a caller gets for a failure of the store."""
    if isinstance(error, HarkError):
        return error
    if isinstance(error, apsw.FullError):
        text = "the disk of the store is full; the request had no effect; free disk space"
        return EngineFailure(text, code="disk_full", retry_after=10)
    if isinstance(error, apsw.Error):
        return EngineFailure(f"the store failed: {error}; the request had no effect; see the server log")
    log.exception("the engine failed because of a bug; please report it", exc_info=error)
    text = f"internal error: {type(error).__name__}; the request had no effect; see the server log"
    return EngineFailure(text, code="internal")
