"""The thread of the bucket: its loop runs what other threads give it, and ends without leaving anything behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

import pytest

from hark.engine.s3.bucket.thread import IoThread


@pytest.fixture
def io() -> Iterator[IoThread]:
    """A thread that runs."""
    thread = IoThread()
    thread.start()
    yield thread
    thread.stop()


async def name_of_thread() -> str:
    """Where a coroutine runs."""
    return threading.current_thread().name


async def fail() -> None:
    """Raise what only this test raises."""
    raise LookupError("as asked")


class Endless:
    """A coroutine that runs until it is cancelled, and says so."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.cancelled = threading.Event()

    async def run(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            # Whatever cleans up may wait itself.
            await asyncio.sleep(0)
            self.cancelled.set()


def test_coroutines_run_in_a_thread_of_their_own(io: IoThread) -> None:
    assert io.run(name_of_thread()) == "hark-s3-io"
    assert io.submit(name_of_thread()).result(10) == "hark-s3-io"


def test_functions_are_called_there(io: IoThread) -> None:
    names: Future[str] = Future()
    io.call(lambda: names.set_result(threading.current_thread().name))
    assert names.result(10) == "hark-s3-io"


def test_an_error_reaches_whoever_waits(io: IoThread) -> None:
    with pytest.raises(LookupError, match="as asked"):
        io.run(fail())


def test_what_takes_too_long_is_cancelled(io: IoThread) -> None:
    endless = Endless()
    with pytest.raises(TimeoutError):
        io.run(endless.run(), timeout=0.01)
    # It may not even have begun; whatever begins later is cancelled, too.
    assert not endless.started.is_set() or endless.cancelled.wait(10)


def test_cancelling_a_future_cancels_its_coroutine(io: IoThread) -> None:
    endless = Endless()
    future = io.submit(endless.run())
    assert endless.started.wait(10)
    assert future.cancel()
    assert endless.cancelled.wait(10)


def test_stopping_cancels_what_runs_and_waits_for_its_end(io: IoThread) -> None:
    endless = Endless()
    future = io.submit(endless.run())
    assert endless.started.wait(10)
    io.stop()
    assert endless.cancelled.is_set()
    with pytest.raises(CancelledError):
        future.result(10)
    assert "hark-s3-io" not in {thread.name for thread in threading.enumerate()}


def test_a_second_stop_and_a_stop_before_the_start_do_nothing(io: IoThread) -> None:
    io.stop()
    io.stop()
    IoThread().stop()


def test_nothing_runs_after_the_end_nor_before_the_start(io: IoThread) -> None:
    io.stop()
    for idle in (io, IoThread()):
        with pytest.raises(RuntimeError, match="does not run"):
            idle.run(name_of_thread())
        with pytest.raises(RuntimeError, match="does not run"):
            idle.call(list)


def test_it_does_not_wait_for_itself(io: IoThread) -> None:
    async def wait_for_itself() -> None:
        io.run(name_of_thread())

    async def stop_itself() -> None:
        io.stop()

    with pytest.raises(RuntimeError, match="for ever"):
        io.run(wait_for_itself())
    with pytest.raises(RuntimeError, match="for ever"):
        io.run(stop_itself())
