"""Peers on loopback sockets: told once, heard once, disturbed by nothing that arrives, and found by their names."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from hark.broker.datagrams import MAX_BYTES
from hark.broker.peers import Directory, Peers, SocketAddress
from hark.clock import FakeClock
from hark.model import Hint, KeyNotification
from hark.settings import Address
from tests.broker.peers.ports import udp_socket

SECRET = b"a secret that is shared"
SECONDS = 10.0


class End:
    """One server's peers, and what it heard of them."""

    def __init__(self, name: str) -> None:
        self.udp = udp_socket()
        self.address: Address = self.udp.getsockname()
        self.clock = FakeClock()
        self._sender = name.encode().ljust(16)
        self._hints: asyncio.Queue[Hint] = asyncio.Queue()
        self.keys: asyncio.Queue[KeyNotification] = asyncio.Queue()
        self.calls = 0

    def prepare(self, *others: Address, siblings: Sequence[Address] = ()) -> Peers:
        """Know the others, and neither tell nor hear yet."""
        directory = Directory((*siblings, *others), self.udp.family)
        self.peers = Peers(self.udp, directory, self.clock, sender=self._sender, linger_seconds=0, siblings=siblings)
        return self.peers

    async def start(self, *others: Address, secret: bytes = SECRET, siblings: Sequence[Address] = ()) -> Peers:
        """Tell and hear the others."""
        await self.prepare(*others, siblings=siblings).start(secret, self._on_hints, self.keys.put_nowait)
        return self.peers

    def _on_hints(self, hints: Sequence[Hint]) -> None:
        self.calls += 1
        for hint in hints:
            self._hints.put_nowait(hint)

    async def next(self) -> Hint:
        """The next hint that is heard."""
        async with asyncio.timeout(SECONDS):
            return await self._hints.get()

    @property
    def silent(self) -> bool:
        """Whether nothing more was heard."""
        return self._hints.empty()


@pytest.fixture
async def ends() -> AsyncIterator[tuple[End, End]]:
    """Two ends; closed when the test is over."""
    made = End("one"), End("other")
    yield made
    for end in made:
        await end.peers.close()


@pytest.fixture
async def linked(ends: tuple[End, End]) -> tuple[End, End]:
    """Two ends that tell and hear each other."""
    one, other = ends
    await one.start(other.address)
    await other.start(one.address)
    return ends


async def test_a_server_receives_what_another_reports_and_which_keys_it_changed(linked: tuple[End, End]) -> None:
    one, other = linked
    arrival, free = Hint("q", None, ("a",), "message"), Hint("q", "g", ("a",), ended=("lease",))
    one.peers.notify([arrival, free])
    one.peers.notify_keys(KeyNotification((("user", 1), ("user", True))))
    one.peers.notify_keys(KeyNotification((("user", 1), ("user", "1"))))
    async with asyncio.timeout(SECONDS):
        assert (await other.keys.get()).keys == (("user", 1), ("user", True), ("user", "1"))
    assert [await other.next(), await other.next()] == [arrival, free]
    assert one.peers.metrics()["datagrams_sent"] == other.peers.metrics()["datagrams_received"] == 1
    assert one.peers.metrics()["hints_sent"] == other.peers.metrics()["hints_received"] == 3


@pytest.mark.parametrize("known", [1, 2, 3], ids=["the first process", "two processes", "every process"])
async def test_every_process_of_a_server_receives_a_peer_that_knows_some_of_them(
    known: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    processes, peer = [End(f"process {number}") for number in range(3)], End("peer")
    try:
        for one in processes:
            await one.start(peer.address, siblings=[other.address for other in processes if other is not one])
        await peer.start(*(one.address for one in processes[:known]))
        peer.peers.notify([Hint("q", None, ("a",), "message")])
        for one in processes:
            assert await one.next() == Hint("q", None, ("a",), "message")
        processes[1].peers.notify([Hint("own")])
        for one in (processes[0], processes[2], peer):
            assert await one.next() == Hint("own")
        assert all(one.silent for one in (*processes, peer)), "each hint is heard once"
        assert caplog.messages == []
    finally:
        for one in (*processes, peer):
            await one.peers.close()


async def test_a_name_notified_a_thousand_times_is_one_hint_and_what_was_received_is_not_notified_on(
    linked: tuple[End, End],
) -> None:
    one, other = linked
    for _ in range(1000):
        one.peers.notify([Hint("q", None, ("a",), "message")])
    assert await other.next() == Hint("q", None, ("a",), "message")
    assert one.peers.metrics()["hints_sent"] == 1
    other.peers.notify([Hint("last")])
    assert await one.next() == Hint("last")
    assert other.peers.metrics()["hints_sent"] == 1
    assert one.silent


async def test_a_thousand_hints_within_the_linger_are_few_datagrams_and_received_in_few_calls(
    linked: tuple[End, End],
) -> None:
    one, other = linked
    wanted = {f"p{number:03}" for number in range(1000)}
    for name in sorted(wanted):
        one.peers.notify([Hint("q", None, (name,), "message"), Hint("q", "g", (name,), "message")])
    received: set[str] = set()
    while received < wanted:
        received |= set((await other.next()).partitions or ())
    assert received == wanted
    assert one.peers.metrics()["datagrams_sent"] <= 5
    assert other.calls <= 5


async def test_malformed_datagrams_are_counted_and_dropped_and_receiving_goes_on(
    linked: tuple[End, End], caplog: pytest.LogCaptureFixture
) -> None:
    one, other = linked
    with udp_socket() as stranger, caplog.at_level(logging.WARNING):
        for rubbish in (b"", b"x", b"x" * 100, b"y" * 100, b"x" * (MAX_BYTES + 1), b"x" * 60_000):
            stranger.sendto(rubbish, other.address)
        one.peers.notify([Hint("q")])
        assert await other.next() == Hint("q")
    metrics = other.peers.metrics()
    assert (metrics["refused_size"], metrics["refused_magic"], metrics["datagrams_refused"]) == (4, 2, 6)
    assert (metrics["datagrams_received"], metrics["hints_received"]) == (7, 1)
    # Each reason once: whoever can reach the port must not be able to fill the log.
    logged = [record.getMessage() for record in caplog.records]
    assert ["(size)" in logged[0], "(magic)" in logged[1], len(logged)] == [True, True, 2]


async def test_a_peer_with_another_secret_is_refused(ends: tuple[End, End]) -> None:
    one, other = ends
    await one.start(other.address, secret=b"another secret")
    await other.start()
    third = End("third")
    await third.start(other.address)
    one.peers.notify([Hint("forged")])
    await one.peers.close()
    third.peers.notify([Hint("q")])
    assert await other.next() == Hint("q")
    assert other.peers.metrics()["refused_signature"] == 1
    await third.peers.close()


async def test_a_list_of_peers_may_name_the_server_itself(
    ends: tuple[End, End], caplog: pytest.LogCaptureFixture
) -> None:
    one, other = ends
    addresses = (one.address, other.address)
    await one.start(*addresses)
    await other.start(*addresses)
    one.peers.notify([Hint("q")])
    assert await other.next() == Hint("q")
    other.peers.notify([Hint("answer")])
    assert await one.next() == Hint("answer")
    assert one.silent
    assert one.peers.metrics()["refused_own"] == 1
    assert caplog.records == []


async def test_a_peer_that_is_not_there_disturbs_no_one(ends: tuple[End, End]) -> None:
    one, other = ends
    with udp_socket() as gone:
        nowhere: Address = gone.getsockname()
    await one.start(nowhere, other.address)
    await other.start(one.address)
    for number in range(20):  # The system says of each that nobody was there.
        one.peers.notify([Hint(f"q{number}")])
        assert await other.next() == Hint(f"q{number}")
    other.peers.notify([Hint("back")])
    assert await one.next() == Hint("back")


async def test_what_cannot_be_sent_is_counted_and_complained_of_once_a_minute(
    ends: tuple[End, End], caplog: pytest.LogCaptureFixture
) -> None:
    one, other = ends
    await other.start()
    await one.start(("127.0.0.1", 0), other.address)  # Nobody can send to port 0.
    for seconds, complaints in ((0, 1), (59, 1), (1, 2)):
        one.clock.advance(seconds)
        one.peers.notify([Hint(f"after {seconds}")])
        other.clock.advance(seconds)
        await other.next()
        assert len(caplog.records) == complaints
    assert one.peers.metrics()["send_errors"] == 3
    assert "cannot notify peer 127.0.0.1:0" in caplog.records[0].getMessage()


async def test_closing_shows_what_is_left(linked: tuple[End, End]) -> None:
    one, other = linked
    one.peers.notify([Hint("q", "g")])
    await one.peers.close()
    await one.peers.close()
    assert await other.next() == Hint("q", "g")
    one.peers.notify([Hint("too late")])
    assert one.peers.metrics()["hints_sent"] == 1


async def test_nothing_is_notified_before_the_start_or_without_peers(ends: tuple[End, End]) -> None:
    one, other = ends
    one.prepare(other.address).notify([Hint("q")])
    await one.peers.start(SECRET, lambda _: None, lambda _: None)
    await other.start()
    other.peers.notify([Hint("q")])
    await one.peers.close()
    await other.peers.close()
    assert one.peers.metrics()["hints_sent"] == other.peers.metrics()["hints_sent"] == 0


# The directory: names are found in the background, whenever that is possible -------------------------------


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
async def resolving(names: Names, *peers: Address) -> AsyncIterator[Directory]:
    """A directory that looks for names."""
    directory = Directory(peers, socket.AF_INET, names.look_up, names.pause)
    task = asyncio.create_task(directory.keep_resolving())
    yield directory
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_numeric_addresses_are_known_at_once_and_a_name_is_requested_of_the_system() -> None:
    assert not Directory([], socket.AF_INET)
    four = Directory([("127.0.0.1", 1), ("127.0.0.1", 2), ("127.0.0.1", 1)], socket.AF_INET)
    assert four.found == (("127.0.0.1", 1), ("127.0.0.1", 2))
    six = Directory([("::1", 1), ("127.0.0.1", 2)], socket.AF_INET6)
    assert six.found == (("::1", 1, 0, 0), ("::ffff:127.0.0.1", 2, 0, 0))
    names = Names()
    named = Directory([("localhost", 6633)], socket.AF_INET, pause=names.pause)
    assert named
    assert not named.found
    task = asyncio.create_task(named.keep_resolving())
    await names.next_pause()
    assert list(named.found) == [("127.0.0.1", 6633)]
    task.cancel()


async def test_a_name_with_several_addresses_is_several_peers() -> None:
    names = Names(all=[("10.0.0.1", 0), ("10.0.0.2", 0)])
    async with resolving(names, ("all", 1), ("all", 2)) as directory:
        await names.next_pause()
        assert list(directory.found) == [("10.0.0.1", 1), ("10.0.0.1", 2), ("10.0.0.2", 1), ("10.0.0.2", 2)]


async def test_a_name_that_is_not_found_is_tried_again_soon_and_holds_no_one_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = Names(known=[("10.0.0.1", 0)])
    async with resolving(names, ("missing", 1), ("known", 2)) as directory:
        assert {await names.next_pause(), await names.next_pause()} == {5, 60}
        assert list(directory.found) == [("10.0.0.1", 2)]
        names.end_pauses()
        assert {await names.next_pause(), await names.next_pause()} == {5, 60}
        names.known["missing"] = [("10.0.0.9", 0)]
        names.end_pauses()
        assert [await names.next_pause(), await names.next_pause()] == [60, 60]
        assert list(directory.found) == [("10.0.0.9", 1), ("10.0.0.1", 2)]
    [record] = caplog.records
    assert "cannot resolve peer missing; retrying" in record.getMessage()


async def test_a_name_that_comes_to_mean_another_machine_is_followed_and_kept_while_the_name_server_is_away() -> None:
    names = Names(moving=[("10.0.0.1", 0)])
    async with resolving(names, ("moving", 1)) as directory:
        await names.next_pause()
        names.known["moving"] = [("10.0.0.2", 0)]
        names.end_pauses()
        await names.next_pause()
        assert list(directory.found) == [("10.0.0.2", 1)]
        del names.known["moving"]
        names.end_pauses()
        assert await names.next_pause() == 5
        assert list(directory.found) == [("10.0.0.2", 1)]
