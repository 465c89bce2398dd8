"""A TCP proxy that misbehaves: it cuts, stalls and delays connections at random points in either direction."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_CHUNK = 4096


class Proxy:
    """Passes connections on to a port of this machine, with a fault after every so many bytes, on average."""

    def __init__(self, port: int, seed: int, bytes_per_fault: int) -> None:
        self.happened: Counter[str] = Counter()
        self.url = ""
        self._target = port
        self._chance = random.Random(seed)
        self._bytes = bytes_per_fault
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listen."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            try:
                yield
            finally:
                for task in self._tasks:
                    task.cancel()

    def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connected(client, to_client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        writers = [to_client]
        try:
            upstream, to_upstream = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(to_upstream)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(client, to_upstream, writers))
                tasks.create_task(self._pump(upstream, to_client, writers))
        except* OSError:
            pass  # The server is down, or either side hung up.
        finally:
            for writer in writers:
                writer.transport.abort()

    def _next_fault(self) -> tuple[str, int]:
        """Return what happens next in one direction of a connection, and after how many bytes."""
        return self._chance.choice(("cut", "stall", "drip")), int(self._chance.expovariate(1 / self._bytes))

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, writers: list[asyncio.StreamWriter]
    ) -> None:
        fault, left = self._next_fault()
        while data := await reader.read(_CHUNK):
            if len(data) >= left:
                self.happened[fault] += 1
                writer.write(data[:left])
                data = data[left:]
                if fault == "cut":
                    for each in writers:
                        with suppress(OSError):
                            await each.drain()
                        each.transport.abort()
                    return
                await writer.drain()
                if fault == "stall":
                    await asyncio.sleep(self._chance.uniform(0.1, 2))
                else:
                    for at in range(0, len(data), 50):
                        writer.write(data[at : at + 50])
                        await writer.drain()
                        await asyncio.sleep(0.001)
                    data = b""
                fault, left = self._next_fault()
            left -= len(data)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
