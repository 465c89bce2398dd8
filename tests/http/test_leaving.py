"""Clients that leave while their answer is on its way."""

from __future__ import annotations

import asyncio

from hark.http.responses import Event, send_if_there

PART = 256 * 1024


class Connection:
    """A connection that fails at a write, as event loops do it: the write returns, and they tell in their next turn."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.written: list[bytes] = []
        self.complete = False
        self._fails_at = fails_at
        self.left = asyncio.Event()

    async def send(self, event: Event) -> None:
        """Write a part of the answer; without waiting, as long as the buffers of the system take it."""
        if event["type"] != "http.response.body":
            return
        if len(self.written) == self._fails_at:
            asyncio.get_running_loop().call_soon(self.left.set)
        self.written.append(event["body"])
        self.complete = not event.get("more_body", False)

    async def receive(self) -> Event:
        """Wait for the end of the connection."""
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_a_client_that_left_is_noticed_at_the_write_that_failed() -> None:
    connection = Connection(fails_at=1)
    assert not await send_if_there(connection.send, connection.receive, 200, b"x" * (10 * PART))
    assert len(connection.written) == 2


async def test_a_client_that_left_just_before_the_last_part_is_noticed() -> None:
    connection = Connection(fails_at=1)
    assert not await send_if_there(connection.send, connection.receive, 200, b"x" * (3 * PART))
    assert not connection.complete


async def test_a_client_that_leaves_with_the_whole_answer_has_got_it() -> None:
    """It may be gone before the server's next turn: what it has must not be given to somebody else."""
    connection = Connection(fails_at=2)
    assert await send_if_there(connection.send, connection.receive, 200, b"x" * (3 * PART))


async def test_a_client_that_stays_gets_everything_in_order() -> None:
    for size in (1, PART, PART + 1, 3 * PART):
        connection = Connection()
        body = bytes(n % 251 for n in range(size))
        assert await send_if_there(connection.send, connection.receive, 200, body)
        assert b"".join(connection.written) == body
        assert connection.complete


async def test_who_left_before_the_answer_gets_nothing() -> None:
    connection = Connection()
    connection.left.set()
    assert not await send_if_there(connection.send, connection.receive, 200, b"{}")
    assert connection.written == []
