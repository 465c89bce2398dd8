"""How a task ended, and how its message is settled."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType
from typing import Literal

from hark.client.delivery.settling import Verdict
from hark.client.delivery.sources import Delivered
from hark.worker.retrying import Discard, Retry, RetryPolicy

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


def judge(message: Delivered, error: BaseException, policy: RetryPolicy, own_schedule: bool) -> tuple[Ending, Verdict]:
    """How to settle a message after its handler raised."""
    if isinstance(error, Discard):
        return "discarded", Verdict(message, "completed")
    after = None if own_schedule else policy.delay(message.delivery_attempt)
    if isinstance(error, Retry):
        after = error.after if error.after is not None else after
        if not error.counted:
            return "retried", Verdict(message, "retry", None, _milliseconds(after))
        return "retried", Verdict(message, "failed", text_of(error), _milliseconds(after))
    return "failed", Verdict(message, "failed", text_of(error), _milliseconds(after))


def text_of(error: BaseException) -> str:
    """`Type: message` and the traceback. The end of a long traceback is kept, because the error is there."""
    head = _head(error)[:_MAX_HEAD]
    trace = "".join(_lines(error)).rstrip()
    room = MAX_TEXT - len(head) - 1
    if len(trace) > room:
        mark = "...\n"
        trace = mark + trace[len(trace) - room + len(mark) :]
    return f"{head}\n{trace}" if trace else head


def trace_of(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
    """The traceback for the log: only the frames of the handler. None if there are none."""
    if isinstance(error, TimedOut) and error.__cause__ is None:
        return None
    return type(error), error, _outside(error.__traceback__)


def _head(error: BaseException) -> str:
    if isinstance(error, TimedOut):
        return str(error)
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as failure:  # An exception whose text fails must not hide the failure.
        return f"{type(error).__name__}: (its text is not available: {type(failure).__name__})"


def _lines(error: BaseException) -> list[str]:
    if isinstance(error, TimedOut) and error.__cause__ is None:
        return []
    try:
        return traceback.format_exception(type(error), error, _outside(error.__traceback__))
    except Exception:
        return []


def _outside(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of the worker."""
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_HERE):
        inner = inner.tb_next
    return inner if inner is not None else trace


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
