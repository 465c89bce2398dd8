"""Retry policies, how a task ended, and how its message is settled."""

from __future__ import annotations

import math
import random as _random
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec

from hark.api.types.delivery import Delivered
from hark.client.arguments import MAX_DELAY, MAX_RETRY_DELAYS, seconds_of
from hark.client.delivery.settling import SettleDecision
from hark.errors import InvalidInput


class Retry(Exception):
    """Raise this in a handler to run the task again later: `raise Retry(after=60)`.

    `after` is the delay in seconds (or a `timedelta`). The default is the next delay of the task's retry policy. It
    counts as an attempt, unless `counted` is False. `reason` is the error text.
    """

    def __init__(
        self, after: float | timedelta | None = None, *, reason: str = "asked for", counted: bool = True
    ) -> None:
        self.after = None if after is None else seconds_of(after, "Retry(after)")
        self.counted = counted
        super().__init__(reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return _retry, (self.after, str(self), self.counted)


def _retry(after: float | None, reason: str, counted: bool) -> Retry:
    return Retry(after, reason=reason, counted=counted)


class Discard(Exception):
    """Raise this in a handler to drop the task: `raise Discard("the user was deleted")`.

    The message is acknowledged and counted as discarded. It is neither retried nor dead-lettered.
    """

    def __init__(self, reason: str = "discarded") -> None:
        self.reason = reason
        super().__init__(reason)


class RetryPolicy(msgspec.Struct, frozen=True):
    """The delays in seconds before each retry. After the last retry fails, the task is dead-lettered.

    Create one with `exponential`, `schedule` or `never`: `@worker.task(retry=RetryPolicy.schedule([1, 10, 60]))`.
    """

    delays: tuple[float, ...]
    """Seconds before each retry, at most 100 delays."""
    jitter: float = 0.0
    """Share by which each delay is lengthened or shortened at random, 0 to 1."""

    def __post_init__(self) -> None:
        if len(self.delays) > MAX_RETRY_DELAYS:
            raise InvalidInput(f"delays: expected at most {MAX_RETRY_DELAYS}, got {len(self.delays)}")
        for index, delay in enumerate(self.delays):
            seconds_of(delay, f"delays[{index}]")
        if not 0 <= self.jitter <= 1:
            raise InvalidInput(f"jitter: expected 0 to 1, got {self.jitter!r}")

    @classmethod
    def exponential(
        cls,
        *,
        max_retries: int = 5,
        first: float = 1.0,
        factor: float = 2.0,
        max_delay: float = 3600.0,
        jitter: float = 0.2,
    ) -> RetryPolicy:
        """Retry with growing delays: `first` seconds, then `factor` times the previous delay, `max_delay` at most.

        The defaults give 5 retries, after 1, 2, 4, 8 and 16 seconds. `max_retries` is 0 to 100. `jitter` varies each
        delay at random, by 20 % by default.
        """
        if not 0 <= max_retries <= MAX_RETRY_DELAYS:
            raise InvalidInput(f"max_retries: expected 0 to {MAX_RETRY_DELAYS}, got {max_retries!r}")
        if not (math.isfinite(factor) and factor >= 1):
            raise InvalidInput(f"factor: expected a number of at least 1, got {factor!r}")
        begin, most = seconds_of(first, "first"), seconds_of(max_delay, "max_delay")
        delays: list[float] = []
        delay = min(begin, most)
        for _ in range(max_retries):
            delays.append(delay)
            delay = min(delay * factor, most)
        return cls(tuple(delays), jitter)

    @classmethod
    def schedule(cls, delays: Sequence[float | timedelta], *, jitter: float = 0.0) -> RetryPolicy:
        """Retry after these delays, one after the other: seconds or `timedelta` values, at most 100."""
        return cls(tuple(seconds_of(delay, f"delays[{index}]") for index, delay in enumerate(delays)), jitter)

    @classmethod
    def never(cls) -> RetryPolicy:
        """Do not retry: a task that fails is dead-lettered immediately."""
        return cls(())

    def delay(self, attempt: int, random: Callable[[], float] = _random.random) -> float | None:
        """Seconds to wait after this attempt (from 1) failed. None if there are no retries."""
        if not self.delays:
            return None
        delay = self.delays[min(max(attempt, 1), len(self.delays)) - 1]
        return self._shaken(delay, random)

    def jittered(self, random: Callable[[], float] = _random.random) -> tuple[float, ...]:
        """All delays, each with its jitter."""
        return tuple(self._shaken(delay, random) for delay in self.delays)

    def _shaken(self, delay: float, random: Callable[[], float]) -> float:
        return min(delay * (1 + self.jitter * (2 * random() - 1)), MAX_DELAY)


def policy_of(retry: RetryPolicy | int) -> RetryPolicy:
    """Check a retry policy. A number of retries means exponential delays."""
    if isinstance(retry, RetryPolicy):
        return retry
    if isinstance(retry, bool) or not isinstance(retry, int):
        raise InvalidInput(f"retry: expected a RetryPolicy or a number of retries, got {retry!r}")
    return RetryPolicy.exponential(max_retries=retry)


Ending = Literal["done", "discarded", "failed", "retried", "refused", "handed_back", "lost"]
"""refused: dead-lettered immediately. handed_back: released without counting an attempt."""

MAX_TEXT = 10_000
"""Maximum number of characters of the error in a dead letter."""
_MAX_HEAD = 2_000
_HERE = str(Path(__file__).parent)


class TimedOut(Exception):
    """A handler exceeded the time limit of its task."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"timed out after {seconds:g} s")


def decide(
    message: Delivered, error: BaseException, policy: RetryPolicy, own_schedule: bool
) -> tuple[Ending, SettleDecision]:
    """How to settle a message after its handler raised."""
    if isinstance(error, Discard):
        return "discarded", SettleDecision(message, "completed")
    after = None if own_schedule else policy.delay(message.delivery_attempt)
    if isinstance(error, Retry) and error.after is not None:
        after = error.after
    delay_ms = None if after is None else round(after * 1000)
    if not isinstance(error, Retry):
        return "failed", SettleDecision(message, "failed", text_of(error), delay_ms)
    if not error.counted:
        return "retried", SettleDecision(message, "retry", None, delay_ms)
    return "retried", SettleDecision(message, "failed", text_of(error), delay_ms)


def text_of(error: BaseException) -> str:
    """`Type: message` and the traceback. The end of a long traceback is kept, because the error is there."""
    head, trace = str(error) if isinstance(error, TimedOut) else _head(error), ""
    if (found := trace_of(error)) is not None:
        with suppress(Exception):
            trace = "".join(traceback.format_exception(*found)).rstrip()
    head = head[:_MAX_HEAD]
    room = MAX_TEXT - len(head) - 1
    if len(trace) > room:
        mark = "...\n"
        trace = mark + trace[len(trace) - room + len(mark) :]
    return f"{head}\n{trace}" if trace else head


def _head(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as failure:  # An exception whose text fails must not hide the failure.
        return f"{type(error).__name__}: (its text is not available: {type(failure).__name__})"


def trace_of(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
    """The traceback for the log, without the frames of the worker. None if there are only those."""
    if isinstance(error, TimedOut) and error.__cause__ is None:
        return None
    inner = error.__traceback__
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_HERE):
        inner = inner.tb_next
    return type(error), error, inner or error.__traceback__


class InFlight(msgspec.Struct, eq=False):
    """Messages that were delivered together, under one lease."""

    lease_id: str
    messages: list[Delivered]
    left: int = 0
    """Number of messages that are not settled yet."""
    ended: set[str] = set()
    """Ids of messages whose handling has ended, settled or not."""
    is_lost: bool = False

    def __post_init__(self) -> None:
        self.left = len(self.messages)


class Ended(msgspec.Struct, eq=False):
    """How the handling of one message ended, and how to settle it; None if there is nothing to settle."""

    in_flight: InFlight
    message: Delivered
    decision: SettleDecision | None
    ending: Ending
    task: str
    seconds: float = 0.0
    error: str | None = None
