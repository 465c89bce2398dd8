"""A server that goes away and comes back, while a worker works."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from hark.worker import Worker
from tests.conftest import running_server
from tests.worker.workers import SECONDS, running


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def test_a_worker_goes_on_by_itself_when_its_server_is_back(tmp_path: Path, queue: str) -> None:
    arguments = ("--port", str(free_port()))
    worker = Worker(f"http://127.0.0.1:{arguments[1]}", queue=queue)
    started, release = asyncio.Event(), asyncio.Event()

    @worker.task
    async def slow() -> None:
        started.set()
        await release.wait()

    @worker.task
    async def quick() -> None: ...

    server = running_server(tmp_path, engine="sqlite:///hark.db", arguments=arguments)
    await asyncio.to_thread(server.__enter__)
    try:
        await slow.push()
        async with running(worker) as found:
            async with asyncio.timeout(SECONDS):
                await started.wait()
            await asyncio.to_thread(server.__exit__, None, None, None)
            release.set()  # It ends while there is nobody to tell.
            await asyncio.sleep(0)
            server = running_server(tmp_path, engine="sqlite:///hark.db", arguments=arguments)
            await asyncio.to_thread(server.__enter__)
            await quick.push()
            async with asyncio.timeout(SECONDS):
                while not {"slow", "quick"} <= {event.task for event in found.events if event.ending == "done"}:
                    await found.ended(len(found.events) + 1)
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)
