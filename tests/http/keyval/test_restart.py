"""What a work queue was told outlives the server, also one that is killed."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx

from tests.crash.server import Server, running
from tests.http.api import read
from tests.http.keyval.work import WAIT, Work


async def test_a_server_that_is_killed_keeps_everything_it_answered(tmp_path: Path) -> None:
    server = Server("--data", str(tmp_path / "data"))
    async with running(server):
        with httpx.Client(base_url=server.url, timeout=30) as client:
            work = Work(client)
            work.enqueue("dead", backoffSchedule=[], priority=9)
            work.nack(work.take(), error="boom")
            work.enqueue("retried", backoffSchedule=[0, 0, 0], priority=8)
            work.nack(work.take())
            work.nack(work.take())
            work.enqueue("acked", priority=9)
            work.ack(work.take())
            work.enqueue("locked", priority=9)
            locked = work.take()
            work.enqueue("delayed", delay=3_600_000)
            work.enqueue("plain")
            read(work.put("/settings", {"lockDuration": 77_000}))
            [letter] = work.dead()

        await server.end(signal.SIGKILL)
        await server.start()

        with httpx.Client(base_url=server.url, timeout=30) as client:
            work = Work(client)
            assert work.dead() == [letter]
            assert read(work.get("/settings"))["lockDuration"] == 77_000
            # A lock need not survive: then the message comes again, as it was.
            taken = [work.take(**WAIT) for _ in range(3)]
            assert [message["value"] for message in taken] == ["locked", "retried", "plain"]
            assert taken[0]["id"] == locked["id"]
            assert taken[1]["attempts"] == 3
            assert work.poll() is None
            assert work.stats() == (1, 3, 1)
            read(work.post(f"/dlq/{letter['id']}/requeue"))
            assert work.take()["value"] == "dead"
            for message in taken:
                work.ack(message)
            assert work.stats() == (1, 1, 0)
