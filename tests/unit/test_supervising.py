"""Supervised processes, played by objects: when they are started again, and when they are not."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from hark.cli import working_many
from hark.errors import HarkError
from hark.serving.supervising import STABLE_SECONDS, reason, supervise

SECONDS = 20.0


class Played:
    """A process that ends when the test says so."""

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.serves = False
        self.starts = 0
        self.refuses = False
        """It cannot start."""
        self.signals: list[signal.Signals] = []
        self.started = asyncio.Event()
        self._code: asyncio.Future[int] | None = None

    async def start(self) -> None:
        """Start."""
        self.starts += 1
        if self.refuses:
            raise HarkError("no room")
        self._code = asyncio.get_running_loop().create_future()
        self.serves = True
        self.started.set()

    def send(self, number: signal.Signals) -> bool:
        """A signal ends it."""
        if not self.serves:
            return False
        self.signals.append(number)
        self.exit(0)
        return True

    async def ended(self) -> int:
        """Its exit code."""
        return 0 if self._code is None else await asyncio.shield(self._code)

    def exit(self, code: int) -> None:
        """It ends."""
        assert self._code is not None
        self.serves = False
        self.started.clear()
        if not self._code.done():
            self._code.set_result(code)


class Case:
    """A supervised process, and the pauses before it was started again."""

    def __init__(self) -> None:
        self.process = Played()
        self.failures: list[int] = []
        self.now = 0.0
        self.running = asyncio.create_task(
            supervise([self.process], lambda: None, 5.0, self._pause, lambda code: code == 0, lambda: self.now)
        )

    def _pause(self, failures: int) -> float:
        self.failures.append(failures)
        return 0.001

    async def crash(self, code: int = -9) -> None:
        """Let it crash once it runs, and wait until it runs again."""
        await asyncio.wait_for(self.process.started.wait(), SECONDS)
        self.process.exit(code)
        await asyncio.wait_for(self.process.started.wait(), SECONDS)


async def test_pauses_grow_with_crashes_in_a_row() -> None:
    case = Case()
    for _ in range(3):
        await case.crash()
    case.now += STABLE_SECONDS + 1
    await case.crash()
    assert case.failures == [1, 2, 3, 1]
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(case.running, SECONDS) == [0]
    assert case.process.signals[0] == signal.SIGTERM


async def test_a_process_that_is_done_is_not_started_again() -> None:
    case = Case()
    await asyncio.wait_for(case.process.started.wait(), SECONDS)
    case.process.exit(0)
    assert await asyncio.wait_for(case.running, SECONDS) == [0]
    assert (case.failures, case.process.starts) == ([], 1)


async def test_a_process_that_cannot_start_again_is_tried_again() -> None:
    case = Case()
    await asyncio.wait_for(case.process.started.wait(), SECONDS)
    case.process.refuses = True
    case.process.exit(1)
    async with asyncio.timeout(SECONDS):
        while case.process.starts < 4:  # noqa: ASYNC110  # It tells no event.
            await asyncio.sleep(0)
    case.process.refuses = False
    await asyncio.wait_for(case.process.started.wait(), SECONDS)
    assert case.failures[:3] == [1, 2, 3]
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(case.running, SECONDS)


async def test_one_that_cannot_start_at_first_ends_all() -> None:
    case = Case()
    case.process.refuses = True
    with pytest.raises(HarkError, match="no room"):
        await asyncio.wait_for(case.running, SECONDS)


def test_pauses_of_a_worker_double_up_to_half_a_minute() -> None:
    assert [working_many.pause(failures) for failures in (1, 2, 3, 5, 6, 1000)] == [1, 2, 4, 16, 30, 30]


def test_how_a_process_ended_is_said() -> None:
    assert (reason(3), reason(-9)) == ("exit code 3", "signal SIGKILL")
