"""Real processes that are stopped (SIGSTOP) for longer than removed records are kept, while another one goes on.

Whoever wakes up must not win a number that was removed, must catch up by the snapshot, and must go on. Judged by the
process that never slept: what was acknowledged is there once, what was refused is not.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import msgspec
import pytest

from hark.engine.s3.log import places
from hark.engine.s3.log.pointer import Pointer
from tests.s3.stub.faults import Point
from tests.s3.stub.server import StubServer

PREFIX = "slept"
SECONDS = 60.0
SETTINGS = {
    "HARK_S3_SNAPSHOT_RECORDS": "3",
    "HARK_S3_GRACE_SECONDS": "1",
    "HARK_POLLING_STRATEGY": "fixed",
    "HARK_POLLING_INTERVAL_MS": "20",
}
# As long as to be kept in the record and not in its row.
LONG = "a long payload that is kept in its record: "


class Reply(NamedTuple):
    """A status and what came with it."""

    status: int
    body: Any


class Process:
    """A `tests.s3.racing` that is steered."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._line = asyncio.Lock()
        self.queue = "orders"

    async def ask(self, method: str, path: str, body: object = None) -> Reply:
        """Send a request and wait for the answer."""
        assert self._process.stdin is not None
        async with self._line:
            self._process.stdin.write(msgspec.json.encode([method, path, body]) + b"\n")
            return Reply(*msgspec.json.decode(await self.hear()))

    async def hear(self) -> bytes:
        """The next line that it says."""
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), SECONDS)
        assert line, "it ended"
        return line

    async def push(self, value: str, before: str = LONG) -> int:
        """Push a message; the status of the answer."""
        item = {"queue": self.queue, "payload": before + value, "transactionId": value}
        reply = await self.ask("POST", "/api/v1/push", {"items": [item]})
        assert reply.status in {201, 503}, reply
        assert reply.status == 503 or reply.body[0]["status"] == "queued", reply
        return reply.status

    async def pop(self, *, group: str, wait_ms: int = 0) -> list[str]:
        """What a group has not seen yet."""
        wait = f"&wait=true&timeout={wait_ms}" if wait_ms else ""
        how = f"consumerGroup={group}&subscriptionMode=all&autoAck=true&batch=1000{wait}"
        reply = await self.ask("GET", f"/api/v1/pop/queue/{self.queue}?{how}")
        assert reply.status in {200, 204}, reply
        return [one["data"].removeprefix(LONG) for one in reply.body["messages"]] if reply.status == 200 else []

    async def everything(self) -> list[str]:
        """All messages, in order."""
        return await self.pop(group=uuid.uuid4().hex)

    def fall_asleep(self) -> None:
        """Stop."""
        self._process.send_signal(signal.SIGSTOP)

    def wake_up(self) -> None:
        """Go on."""
        self._process.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        """End it, however it is."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


Start = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start(stub_server: StubServer) -> AsyncIterator[Start]:
    """Starts a process on the bucket; its settings may be others than those above."""
    async with AsyncExitStack() as stack:

        async def begin(**settings: str) -> Process:
            process = Process(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.s3.racing", "steer", stub_server.bucket_url(PREFIX)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    limit=1 << 24,
                    env=os.environ | SETTINGS | settings,
                )
            )
            stack.push_async_callback(process.end)
            assert await process.hear() == b"ready\n"
            return process

        yield begin


def pointer_of(server: StubServer) -> Pointer:
    """What is said of snapshots and of what is removed."""
    body = server.store.read(f"{PREFIX}/{places.POINTER}")
    return Pointer("") if body is None else msgspec.json.decode(body, type=Pointer)


def head_of(server: StubServer) -> int:
    """The last record of the log."""
    return max(int(key.rpartition("/")[2]) for key in server.store.keys(f"{PREFIX}/log/"))


async def go_on(server: StubServer, process: Process, beyond: int, before: str = LONG) -> list[str]:
    """Push until the log is removed beyond a record: what was pushed. Records with long payloads stay."""
    pushed: list[str] = []
    while pointer_of(server).removed <= beyond + 1:
        value = f"on-{beyond}-{len(pushed)}"
        assert await process.push(value, before) == 201
        pushed.append(value)
    return pushed


async def push_asleep(
    server: StubServer, sleeper: Process, other: Process, point: Point, before: str
) -> tuple[int, list[str]]:
    """Stop a process in the middle of an append until its number is removed; its answer, and what the other pushed.

    Its request reaches the store only when it wakes up ("before"), or it is only the answer that is late ("after").
    """
    held = server.faults.stop(point, kind="put", key=f"{PREFIX}/log/")
    pushing = asyncio.ensure_future(sleeper.push("late", before))
    number = int((await held.reached()).key.rpartition("/")[2])
    sleeper.fall_asleep()
    pushed = await go_on(server, other, number, before)
    is_there = server.store.read(f"{PREFIX}/{places.record(number)}") is not None
    assert is_there == (before == LONG), "a record stays as long as somebody needs a payload in it"
    held.go()
    sleeper.wake_up()
    return await pushing, pushed


# It sleeps before its request reaches the store or after it; its payload; what it is answered; what there is then.
CASES: dict[str, tuple[Point, str, int, list[str]]] = {
    # It wins a number that was removed: nobody will ever read that.
    "number-removed": ("before", "", 503, ["early", "..."]),
    # The number is still taken: it is done again, where the log ends now.
    "number-taken": ("before", LONG, 201, ["early", "...", "late"]),
    # It was in time, and that can't be seen any more: no answer would be right but that nobody knows.
    "answer-late": ("after", "", 503, ["early", "late", "..."]),
    "answer-late-record-stays": ("after", LONG, 503, ["early", "late", "..."]),
}


async def test_who_slept_in_the_middle_of_an_append_acknowledges_only_what_is_in_the_log(
    stub_server: StubServer, start: Start
) -> None:
    sleeper, other = await asyncio.gather(start(), start())
    for name, (point, before, status, found) in CASES.items():
        sleeper.queue = other.queue = name
        assert await sleeper.push("early") == 201
        answered, pushed = await push_asleep(stub_server, sleeper, other, point, before)
        hole = found.index("...")
        expected = [*found[:hole], *pushed, *found[hole + 1 :]]
        assert (answered, await other.everything()) == (status, expected), name
        assert await sleeper.push("afterwards") == 201
        assert await other.everything() == [*expected, "afterwards"], name
        assert await sleeper.everything() == [*expected, "afterwards"], name


async def test_two_who_slept_through_the_removal_win_no_removed_number_and_go_on_both(
    stub_server: StubServer, start: Start
) -> None:
    *sleepers, other = await asyncio.gather(start(), start(), start())
    for number, sleeper in enumerate(sleepers):
        assert await sleeper.push(f"before-{number}") == 201
    slept_at = head_of(stub_server)
    for sleeper in sleepers:
        sleeper.fall_asleep()
    pushed = await go_on(stub_server, other, slept_at)
    asleep = [asyncio.ensure_future(sleeper.push(f"after-{number}")) for number, sleeper in enumerate(sleepers)]
    for sleeper in sleepers:
        sleeper.wake_up()
    assert await asyncio.gather(*asleep) == [201, 201]
    assert await sleepers[0].push("later") == 201
    found = await other.everything()
    assert found[: 2 + len(pushed)] == ["before-0", "before-1", *pushed]
    assert sorted(found[2 + len(pushed) : -1]) == ["after-0", "after-1"]
    assert found[-1] == "later"
    for sleeper in sleepers:
        assert await sleeper.everything() == found


async def test_who_waits_for_messages_gets_those_whose_records_are_removed_already(
    stub_server: StubServer, start: Start
) -> None:
    """Whether it slept meanwhile, or looks more rarely than records are kept."""
    sleeper, rare, other = await asyncio.gather(start(), start(HARK_POLLING_INTERVAL_MS="1500"), start())
    assert await other.push("first") == 201
    waiting: dict[Process, asyncio.Future[list[str]]] = {}
    for reader, group in ((sleeper, "sleepers"), (rare, "rare")):
        assert await reader.pop(group=group) == ["first"]
        waiting[reader] = asyncio.ensure_future(reader.pop(group=group, wait_ms=30_000))
    slept_at = head_of(stub_server)
    sleeper.fall_asleep()
    pushed = await go_on(stub_server, other, slept_at)
    sleeper.wake_up()
    for reader, group in ((sleeper, "sleepers"), (rare, "rare")):
        found = await waiting[reader]
        while len(found) < len(pushed):
            found += await reader.pop(group=group, wait_ms=30_000)
        assert found == pushed
