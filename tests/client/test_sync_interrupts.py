"""Ctrl-C while a sync client waits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import pytest

from hark.sync.parts import Portal


def test_ctrl_c_cancels_the_call_that_it_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupt(_future: object, _timeout: float | None = None) -> None:
        assert begun.wait(10)
        raise KeyboardInterrupt

    portal = Portal()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(concurrent.futures.Future, "result", interrupt)
        portal.run(work())
    try:
        assert cancelled.wait(10), "nobody waits for it, and it goes on"
    finally:
        portal.close()
