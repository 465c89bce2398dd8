"""Signals: the first one stops a worker gracefully, the second one immediately, the third one kills the process."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_signals(enabled: bool, stop: Callable[[], None], stop_now: Callable[[], None]) -> Iterator[None]:
    """Handle signals until the end of the block. Works only in the main thread, as Python requires.

    Python's own signal handlers are used, not those of the event loop, so that signals work while a handler blocks the
    loop. Both callbacks must be safe to call from anywhere. Call it in the event loop.
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
        with _waking_the_loop():
            yield
    finally:
        for number, handler in before.items():
            # None is a handler that was not installed from Python. It cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def _waking_the_loop() -> Iterator[None]:
    """Let each signal wake the event loop.

    Python runs signal handlers in the main thread. A signal that another thread receives, or that arrives just before
    the loop begins to wait, would otherwise be handled only when something else wakes the loop.
    """
    loop = asyncio.get_running_loop()
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if before != -1:  # The loop handles signals of its own, so they wake it.
            signal.set_wakeup_fd(before)
            yield
            return
        loop.add_reader(reader, reader.recv, 4096)
        try:
            yield
        finally:
            loop.remove_reader(reader)
            signal.set_wakeup_fd(-1)
