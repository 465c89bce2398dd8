"""Who is no longer waited for while it starts leaves nothing behind: no thread, no files."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from hark.clock import FakeClock
from hark.engine.s3.log import places
from tests.s3.processes import Process
from tests.s3.stub.store import StubStore


def left_in(folder: Path) -> list[str]:
    """What S3 engines have left: threads, and files in a folder."""
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("hark-s3")]
    return [*threads, *(file.name for file in folder.iterdir())]


@pytest.mark.parametrize("place", ["probe/", places.META, places.POINTER, "log/"])
async def test_a_start_that_is_cancelled_leaves_nothing_behind(
    place: str, stub_store: StubStore, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`place`: what it asks for at the moment."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process = Process(stub_store, clock)
    held = process.faults.stop("before", key=place)
    starting = asyncio.ensure_future(process.engine.start(lambda _: None))
    await held.reached()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert left_in(tmp_path) == []
    held.go()
    # And it may be started again.
    await process.start()
    await process.push("orders", "p", 1)
    await process.engine.close()
    assert left_in(tmp_path) == []
