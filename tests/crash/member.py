"""A process on a bucket without a server: it produces and consumes, and the crash test kills it.

    python -m tests.crash.member BUCKET JOURNAL NAME SEED

It says `ready` when it has opened the bucket, and a line for each push that was acknowledged. SIGTERM ends it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import hark
from tests.crash.journal import Journal
from tests.crash.load import Load
from tests.crash.ways import through

WIDEST = 60


async def work(bucket: str, journal: Path, name: str, seed: int) -> None:
    """Produce and consume until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    history = Journal(journal)
    async with hark.connect(bucket) as client:
        load = Load(through(client.caller.transport), history, seed, WIDEST)
        await load.prepare()
        print("ready", flush=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.produce(name, history.last_number(name), history.open_batch(name)))
            tasks.create_task(load.consume(name))
            telling = tasks.create_task(tell(load))
            await stopping.wait()
            load.stop()
            telling.cancel()


async def tell(load: Load) -> None:
    """Say so whenever a push was acknowledged."""
    while True:
        await load.wait_for_pushes(1)
        print("pushed", flush=True)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
