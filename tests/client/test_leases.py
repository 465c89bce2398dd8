"""Leases that are kept, by a clock of the test; and the line, the loop beside the user's, that keeps them. How they are
kept while the event loop is blocked is in test_consume.py.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from hark.api.types.messages import ExtendedLease, ExtendedLeases
from hark.client.calling import Answer, Caller, ConnectionFailed, Request
from hark.client.delivery.leases import FIRST_AFTER, LeaseKeeper
from hark.client.http import HttpTransport
from hark.client.io_thread import IoThread
from hark.errors import HarkError
from tests.client.transports import Script, path
from tests.whole import whole

EXTEND = path("lease", "extend")


class _Body(msgspec.Struct, rename="camel"):
    seconds: int
    lease_ids: list[str] = []


class FakeServer(Script):
    """Leases of a server, on a clock that goes on when the keeper waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.renewals: list[tuple[float, list[str], int]] = []
        self.gone: set[str] = set()
        self.away: Callable[[], bool] = lambda: False
        self.has_batch_route = True
        self.slowness = 0.0
        """Seconds between a question and its answer."""
        self.timeouts: list[float] = []
        """How long those who asked would have waited."""
        self.until = math.inf
        """The clock stops here."""
        self.stopped = asyncio.Event()

    async def send(self, request: Request) -> Answer:
        """Renew, if the server is there."""
        assert request.body is not None
        body = msgspec.json.decode(request.body, type=_Body)
        leases = body.lease_ids or [request.path.split("/")[-2]]
        self.renewals.append((self.now - 1000, leases, body.seconds))
        self.timeouts.append(request.timeout)
        self.now += self.slowness
        if self.away():
            raise ConnectionFailed("away", sent=True)
        results = [
            {"leaseId": lease, "success": lease not in self.gone, "code": "lease_not_found", "error": "gone"}
            for lease in leases
        ]
        if request.path != EXTEND:
            return Answer(200, msgspec.json.encode(whole(results[0], ExtendedLease)))
        if not self.has_batch_route:
            return Answer(404, b'{"error": "no such route", "code": "route_not_found"}')
        return Answer(200, msgspec.json.encode(whole({"results": results}, ExtendedLeases)))

    async def wait(self, changed: asyncio.Event, seconds: float) -> None:
        """Let time pass until there is something to do, or until the end of the test."""
        for _ in range(10):  # What was asked is answered first.
            await asyncio.sleep(0)
        if changed.is_set():
            return
        if self.now + seconds <= self.until:
            self.now += seconds
            return
        self.now = max(self.now, self.until)
        self.stopped.set()
        await changed.wait()

    @asynccontextmanager
    async def keeping(self, seconds: float, first_after: float = math.inf) -> AsyncIterator[LeaseKeeper]:
        """A keeper that lives for so many seconds, once the block has said what it holds."""
        self.until = self.now + seconds
        self.stopped.clear()
        keeper = LeaseKeeper(Caller(self), monotonic=lambda: self.now, wait=self.wait, first_after=first_after)
        yield keeper
        running = asyncio.create_task(keeper.run())
        await self.stopped.wait()
        keeper.close()
        await running

    def times(self) -> list[float]:
        """When it was asked."""
        return [round(at, 3) for at, _, _ in self.renewals]


@pytest.fixture
def server() -> FakeServer:
    """A server and its clock."""
    return FakeServer()


@pytest.mark.parametrize(
    ("seconds", "lease", "every", "slowness", "renewals"),
    [
        pytest.param(70, 60, None, 0, [(20, 60), (40, 60), (60, 60)], id="at a third of its time"),
        pytest.param(3.5, 60, 1.0, 0, [(1, 60), (2, 60), (3, 60)], id="at the interval that was said"),
        pytest.param(0.6, 1.5, None, 0, [(0.5, 2)], id="for whole seconds"),
        pytest.param(50, 60, None, 5, [(20, 60), (40, 60)], id="from before the question"),
    ],
)
async def test_a_lease_is_renewed(
    server: FakeServer,
    seconds: float,
    lease: float,
    every: float | None,
    slowness: float,
    renewals: list[tuple[float, int]],
) -> None:
    server.slowness = slowness
    async with server.keeping(seconds) as keeper:
        keeper.hold("a", lease, every=every)
    assert server.renewals == [(at, ["a"], renewed) for at, renewed in renewals]


async def test_the_first_renewal_is_early_because_a_queue_may_have_given_less(server: FakeServer) -> None:
    async with server.keeping(50, FIRST_AFTER) as keeper:
        keeper.hold("a", 60)
        keeper.hold("short", 1.5)
        keeper.drop("short")
    assert server.times() == [1, 21, 41]


async def test_after_a_stream_was_disconnected_all_are_renewed_at_once_and_soon_again_if_that_fails(
    server: FakeServer,
) -> None:
    """The server lets what a broken stream delivered expire after 30 s, however long the lease was."""
    server.away = lambda: server.now < 1012
    async with server.keeping(20) as keeper:
        keeper.hold("a", 300)
        keeper.hold("b", 300, every=250)
        keeper.hurry()
    assert server.times() == [0, 5, 10, 15]
    assert sorted(server.renewals[-1][1]) == ["a", "b"]


async def test_more_leases_than_a_request_holds_go_in_several(server: FakeServer) -> None:
    async with server.keeping(21) as keeper:
        for number in range(2500):
            keeper.hold(str(number), 60)
    assert sorted(len(leases) for _, leases, _ in server.renewals) == [500, 1000, 1000]


async def test_leases_go_together_even_if_they_are_not_due_at_the_same_moment(server: FakeServer) -> None:
    async with server.keeping(50) as keeper:
        keeper.hold("a", 60)
        server.now += 5
        keeper.hold("b", 60)
        keeper.hold("other", 120)
    assert server.renewals == [(20, ["a", "b"], 60), (40, ["a", "b"], 60), (40, ["other"], 120)]


async def test_a_lease_with_many_holders_is_kept_until_the_last_one_drops_it(server: FakeServer) -> None:
    async with server.keeping(30) as keeper:
        for _ in range(3):
            keeper.hold("a", 60)
        keeper.drop("a")
        keeper.drop("a")
    assert server.times() == [20]
    server.renewals.clear()
    async with server.keeping(30) as keeper:
        keeper.hold("a", 60)
        keeper.hold("a", 60)
        keeper.drop("a")
        keeper.drop("a")
        keeper.drop("a")
        assert keeper.kept == 0
    assert server.times() == []


async def test_a_renewal_that_failed_is_tried_again_sooner_and_no_one_is_notified(server: FakeServer) -> None:
    lost: list[str] = []
    server.away = lambda: len(server.renewals) <= 3
    async with server.keeping(60) as keeper:
        keeper.hold("a", 60, lambda: lost.append("a"))
    assert server.times() == [20, 25, 29.375, 33.203, 53.203]
    assert server.timeouts[:2] == [20, 17.5], "one that hangs leaves time for another one"
    assert not lost


async def test_a_lease_is_given_up_when_its_time_is_over_and_not_before(server: FakeServer) -> None:
    lost: list[float] = []
    server.away = lambda: True
    async with server.keeping(70) as keeper:
        keeper.hold("a", 60, lambda: lost.append(server.now - 1000))
    assert lost == [pytest.approx(60)]
    assert len(server.renewals) > 10
    assert server.renewals[-1][0] < 60
    assert keeper.kept == 0


async def test_a_lease_that_the_server_does_not_know_is_lost_at_once_and_the_others_stay(server: FakeServer) -> None:
    lost: list[tuple[str, float]] = []
    server.gone = {"b"}
    async with server.keeping(45) as keeper:
        for lease in ("a", "b", "c"):
            keeper.hold(lease, 60, lambda lease=lease: lost.append((lease, server.now - 1000)))  # type: ignore[misc]
    assert lost == [("b", 20)]
    assert [leases for _, leases, _ in server.renewals] == [["a", "b", "c"], ["a", "c"]]


async def test_all_holders_are_notified_even_if_one_of_them_fails(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[int] = []

    def fail() -> None:
        raise RuntimeError("deaf")

    def dropped() -> None:
        lost.append(-1)

    server.gone = {"a"}
    async with server.keeping(30) as keeper:
        keeper.hold("a", 60, fail)
        keeper.hold("a", 60, lambda: lost.append(2))
        keeper.hold("a", 60, dropped)
        keeper.drop("a", dropped)
    assert lost == [2]
    assert "deaf" in caplog.text


async def test_an_older_server_is_requested_one_by_one(server: FakeServer) -> None:
    server.has_batch_route = False
    server.gone = {"b"}
    lost: list[str] = []
    async with server.keeping(45) as keeper:
        keeper.hold("a", 60)
        keeper.hold("b", 60, lambda: lost.append("b"))
    assert server.renewals == [(20, ["a", "b"], 60), (20, ["a"], 60), (20, ["b"], 60), (40, ["a"], 60)]
    assert lost == ["b"]


async def test_a_shorter_lease_wakes_a_keeper_that_waits_for_a_longer_one(url: str) -> None:
    transport = HttpTransport(url)
    waits: asyncio.Queue[float] = asyncio.Queue()

    async def wait(changed: asyncio.Event, seconds: float) -> None:
        waits.put_nowait(seconds)
        await changed.wait()

    keeper = LeaseKeeper(Caller(transport), wait=wait, first_after=math.inf)
    running = asyncio.create_task(keeper.run())
    async with asyncio.timeout(20):
        assert await waits.get() == math.inf
        await asyncio.to_thread(keeper.hold, "long", 300)
        assert await waits.get() == pytest.approx(100, abs=5)
        await asyncio.to_thread(keeper.hold, "short", 30)
        assert await waits.get() == pytest.approx(10, abs=5)
        keeper.close()
        await running
    await transport.close()


# The line ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def io_thread(url: str) -> AsyncIterator[IoThread]:
    """A line to the shared server."""
    io_thread = IoThread(HttpTransport(url))
    io_thread.start()
    yield io_thread
    await io_thread.close()


class _Inline(Script):
    """A server that lives in the loop of its user."""

    closed = False

    async def send(self, _request: Request) -> Answer:
        """Answer with the name of the thread."""
        return Answer(200, threading.current_thread().name.encode())

    async def close(self) -> None:
        """Note that it was closed."""
        self.closed = True


async def test_calls_run_in_a_thread_of_the_io_thread_in_their_order_and_are_answered_here(io_thread: IoThread) -> None:
    seen: list[tuple[int, str]] = []
    for number in range(100):
        io_thread.post(lambda number=number: seen.append((number, threading.current_thread().name)))  # type: ignore[misc]

    async def ask() -> tuple[int, str]:
        answer = await io_thread.caller.call("GET", path("resources", "queues"))
        return answer.status, threading.current_thread().name

    assert await io_thread.run(ask) == (200, "hark-io")
    assert seen == [(number, "hark-io") for number in range(100)]
    assert not io_thread.is_inline
    with pytest.raises(HarkError) as refusal:
        await io_thread.run(lambda: io_thread.caller.call("GET", path("no", "such", "route")))
    assert refusal.value.code == "route_not_found"


async def test_the_io_thread_goes_on_while_the_users_loop_is_blocked(io_thread: IoThread) -> None:
    done = threading.Event()

    async def ask_often() -> None:
        for _ in range(3):
            await io_thread.caller.call("GET", path("resources", "queues"))
        done.set()

    asked_often = asyncio.create_task(io_thread.run(ask_often))
    await asyncio.sleep(0)  # It is on the line now.
    assert done.wait(20), "this blocks the loop of the test; the calls were made nevertheless"
    await asked_often


@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_cancelling_here_cancels_there_and_closing_ends_what_waits_and_says_why(
    io_thread: IoThread, how: str
) -> None:
    here = asyncio.get_running_loop()
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def for_ever() -> None:
        here.call_soon_threadsafe(started.set)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            here.call_soon_threadsafe(cancelled.set)
            raise

    task = asyncio.create_task(io_thread.run(for_ever))
    await started.wait()
    if how == "cancelled":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        await io_thread.close()
        with pytest.raises(HarkError) as refusal:
            await task
        assert refusal.value.code == "io_thread_closed"
        assert "hark-io" not in {thread.name for thread in threading.enumerate()}
    async with asyncio.timeout(20):
        await cancelled.wait()


async def test_an_io_thread_that_is_not_open_says_so(url: str) -> None:
    io_thread = IoThread(HttpTransport(url))
    with pytest.raises(HarkError, match="start"):
        await io_thread.run(lambda: io_thread.caller.call("GET", "/health"))
    io_thread.start()
    with pytest.raises(HarkError, match="already"):
        io_thread.start()
    await io_thread.close()
    await io_thread.close()
    with pytest.raises(HarkError, match="close"):
        io_thread.post(lambda: None)


async def test_a_server_in_this_loop_is_requested_in_this_loop() -> None:
    transport = _Inline()
    io_thread = IoThread(transport)
    io_thread.start()
    assert io_thread.is_inline
    answer = await io_thread.run(lambda: io_thread.caller.call("GET", "/"))
    assert answer.body.decode() == threading.current_thread().name
    posted = asyncio.Event()
    io_thread.post(posted.set)
    await posted.wait()
    await io_thread.close()
    assert not transport.closed, "it is the user's"
