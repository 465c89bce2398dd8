"""The floor (f): a push server without rules, to compare Hark's with. `python -m bench.floor PORT DIR`.

One batcher, one writer thread, one INSERT path into Hark's table, a full fsync before the answer. No checks,
no duplicates, no groups, no limits: what is missing here is what Hark's rules may cost.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import defaultdict
from itertools import count
from pathlib import Path
from queue import SimpleQueue

import msgspec

from bench.serving import PushServer, answer, serve
from bench.table import Value, insert_wide, open_table
from hark.http.exchange import Exchange

Job = tuple[list["Item"], Exchange]


class Item(msgspec.Struct, gc=False):
    """A message to push."""

    queue: str
    payload: msgspec.Raw
    partition: str = "Default"


class Body(msgspec.Struct):
    """The body of a push."""

    items: list[Item]


class Answer(msgspec.Struct, gc=False):
    """What became of a message."""

    index: int
    status: str
    partition: int
    offset: int


class Floor(PushServer):
    """The server: requests that arrive during a commit share the next one."""

    def __init__(self, folder: Path) -> None:
        self._decode = msgspec.json.Decoder(Body).decode
        self._encode = msgspec.json.Encoder().encode
        self._connection = open_table(folder / "floor.db")
        self._ids: defaultdict[tuple[str, str], int] = defaultdict(count(1).__next__)
        self._offsets: defaultdict[int, int] = defaultdict(int)
        self._waiting: list[Job] = []
        self._busy = False
        self._batches: SimpleQueue[list[Job]] = SimpleQueue()
        threading.Thread(target=self._write, daemon=True).start()

    def take(self, exchange: Exchange) -> None:
        """Answer a push when it is on disk."""
        self._loop = asyncio.get_running_loop()
        self._waiting.append((self._decode(exchange.body).items, exchange))
        if not self._busy:
            self._flush([])

    def _flush(self, answered: list[tuple[Exchange, bytes]]) -> None:
        self._busy = bool(self._waiting)
        if self._busy:
            self._batches.put(self._waiting)
            self._waiting = []
        for exchange, body in answered:
            answer(exchange, body)

    def _write(self) -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("hark-store", encoding="ascii")
        while True:
            jobs, answered = self._batches.get(), []
            flat: list[Value] = []
            now = time.time_ns() // 1000
            for items, exchange in jobs:
                answers = []
                for index, item in enumerate(items):
                    partition = self._ids[item.queue, item.partition]
                    self._offsets[partition] = offset = self._offsets[partition] + 1
                    flat += (partition, offset, now, bytes(item.payload))
                    answers.append(Answer(index, "queued", partition, offset))
                answered.append((exchange, self._encode(answers)))
            with self._connection:
                insert_wide(self._connection, flat)
            self._loop.call_soon_threadsafe(self._flush, answered)


if __name__ == "__main__":
    serve(Floor(Path(sys.argv[2])), int(sys.argv[1]))
