"""Signals: the first one stops a worker gracefully, the second one at once, the third one kills."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_signals(enabled: bool, stop: Callable[[], None], stop_now: Callable[[], None]) -> Iterator[None]:
    """Handle signals until the end of the block; only in the main thread, since Python allows it nowhere else.

    They are handled by Python itself, not by the event loop: so they are heard while a handler blocks that loop.
    Both callbacks must be safe to call from anywhere.
    """
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heard = 0

    def hear(_number: int, _frame: FrameType | None) -> None:
        nonlocal heard
        heard += 1
        if heard == 1:
            stop()
            return
        stop_now()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    for number in SIGNALS:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            # None is a handler that was not made in Python; it can't be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
