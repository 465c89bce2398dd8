"""Server processes that the crash tests kill, and how often they do."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from tests.crash.moved_clock import WallClock

ROUNDS = int(os.environ.get("HARK_TEST_CRASH_ROUNDS", "8"))
SEED = int(os.environ.get("HARK_TEST_CRASH_SEED", "1"))
START_SECONDS = 60.0
"""Where many processes start at once, on a busy machine."""


class Server:
    """A server process that can be killed and started again on the same store and port.

    `clock`: its wall clock, which a test can move.
    """

    def __init__(
        self, *arguments: str, settings: Mapping[str, str] | None = None, clock: WallClock | None = None
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.clock = clock
        self._program = ["hark"] if clock is None else ["tests.crash.moved_clock", str(clock.file)]
        self._arguments = arguments
        self._settings = dict(settings or {})

    async def start(self) -> None:
        """Start, and wait until it has opened its store."""
        command = [sys.executable, "-m", *self._program, "serve", "--port", str(self._port), *self._arguments]
        self._process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, env=os.environ | self._settings
        )
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), START_SECONDS)
        assert line.startswith(b"Hark"), f"the server did not come up: exit code {self._process.returncode}"

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._port

    async def freeze(self, seconds: float) -> None:
        """Suspend it for a time."""
        await freeze(self._process, seconds)

    async def end(self, number: signal.Signals) -> None:
        """Stop it in the given way."""
        if self._process.returncode is None:
            self._process.send_signal(number)
        await self._process.wait()
        if self._process.stdout is not None:
            await self._process.stdout.read()


async def freeze(process: asyncio.subprocess.Process, seconds: float) -> None:
    """Suspend a process for a time."""
    process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def running(*servers: Server) -> AsyncIterator[None]:
    """Start servers, and stop them at the end, whatever happened."""
    async with AsyncExitStack() as stack:

        async def start(server: Server) -> None:
            await server.start()
            stack.push_async_callback(server.end, signal.SIGTERM)

        await asyncio.gather(*map(start, servers))
        yield
