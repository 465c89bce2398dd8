"""The directory: names are found in the background, whenever that is possible."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from hark.broker.peers.directory import Directory, SocketAddress
from hark.settings import Address

SECONDS = 10.0


class Names:
    """A name server, and a pause that ends when the test says so."""

    def __init__(self, **known: Sequence[SocketAddress]) -> None:
        self.known = known
        self.pauses: asyncio.Queue[float] = asyncio.Queue()
        self._over = asyncio.Event()

    async def look_up(self, name: str) -> Sequence[SocketAddress]:
        try:
            return self.known[name]
        except KeyError:
            raise OSError(f"no such name: {name}") from None

    async def pause(self, seconds: float) -> None:
        self.pauses.put_nowait(seconds)
        await self._over.wait()

    async def next_pause(self) -> float:
        """Wait until a name was looked up; the seconds until the next time."""
        async with asyncio.timeout(SECONDS):
            return await self.pauses.get()

    def end_pauses(self) -> None:
        self._over.set()
        self._over = asyncio.Event()


@asynccontextmanager
async def looking(names: Names, *peers: Address) -> AsyncIterator[Directory]:
    """A directory that looks for names."""
    directory = Directory(peers, socket.AF_INET, names.look_up, names.pause)
    task = asyncio.create_task(directory.keep_looking())
    yield directory
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_numeric_addresses_are_known_at_once() -> None:
    four = Directory([("127.0.0.1", 1), ("127.0.0.1", 2), ("127.0.0.1", 1)], socket.AF_INET)
    assert four.found == (("127.0.0.1", 1), ("127.0.0.1", 2))
    six = Directory([("::1", 1), ("127.0.0.1", 2)], socket.AF_INET6)
    assert six.found == (("::1", 1, 0, 0), ("::ffff:127.0.0.1", 2, 0, 0))


def test_a_directory_without_peers_is_empty() -> None:
    assert not Directory([], socket.AF_INET)
    assert Directory([("somewhere", 1)], socket.AF_INET)


async def test_a_name_is_asked_of_the_system() -> None:
    names = Names()
    directory = Directory([("localhost", 6633)], socket.AF_INET, pause=names.pause)
    assert not directory.found
    task = asyncio.create_task(directory.keep_looking())
    await names.next_pause()
    assert list(directory.found) == [("127.0.0.1", 6633)]
    task.cancel()


async def test_a_name_with_several_addresses_is_several_peers() -> None:
    names = Names(all=[("10.0.0.1", 0), ("10.0.0.2", 0)])
    async with looking(names, ("all", 1), ("all", 2)) as directory:
        await names.next_pause()
        assert list(directory.found) == [("10.0.0.1", 1), ("10.0.0.1", 2), ("10.0.0.2", 1), ("10.0.0.2", 2)]


async def test_a_name_that_is_not_found_is_tried_again_soon_and_holds_nobody_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = Names(known=[("10.0.0.1", 0)])
    async with looking(names, ("missing", 1), ("known", 2)) as directory:
        assert {await names.next_pause(), await names.next_pause()} == {5, 60}
        assert list(directory.found) == [("10.0.0.1", 2)]
        names.end_pauses()
        assert {await names.next_pause(), await names.next_pause()} == {5, 60}
        names.known["missing"] = [("10.0.0.9", 0)]
        names.end_pauses()
        assert [await names.next_pause(), await names.next_pause()] == [60, 60]
        assert list(directory.found) == [("10.0.0.9", 1), ("10.0.0.1", 2)]
    [record] = caplog.records
    assert "the peer missing is not found, trying again" in record.getMessage()


async def test_a_name_that_comes_to_mean_another_machine_is_followed() -> None:
    names = Names(moving=[("10.0.0.1", 0)])
    async with looking(names, ("moving", 1)) as directory:
        await names.next_pause()
        names.known["moving"] = [("10.0.0.2", 0)]
        names.end_pauses()
        await names.next_pause()
        assert list(directory.found) == [("10.0.0.2", 1)]


async def test_what_was_found_stays_while_the_name_server_is_away() -> None:
    names = Names(known=[("10.0.0.1", 0)])
    async with looking(names, ("known", 1)) as directory:
        await names.next_pause()
        del names.known["known"]
        names.end_pauses()
        assert await names.next_pause() == 5
        assert list(directory.found) == [("10.0.0.1", 1)]
