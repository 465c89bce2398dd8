"""The server of the testing kit: time, what was pushed, what is taken, and workers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest

import hark
from hark.errors import HarkError
from hark.testing import HarkServer
from hark.worker import RetryPolicy, Worker
from tests.http.api import WAIT, Api, data


@pytest.fixture
def api(hark_server: HarkServer) -> Iterator[Api]:
    """The server's HTTP API."""
    with httpx.Client(base_url=hark_server.url, timeout=30) as client:
        yield Api(client)


def _payloads(server: HarkServer, queue: str | None = None) -> list[object]:
    return [message.data for message in server.drain(queue)]


# Pushed ----------------------------------------------------------------------------------------------------


def test_what_was_pushed_is_notified_in_order_whatever_became_of_it(hark_server: HarkServer, api: Api) -> None:
    api.push("orders", 1, partition="b")
    api.push("orders", 2, partition="a", priority=3)
    api.push("mails", "hi", delay=60_000)
    api.push("orders", 3, partition="b")
    api.ack(api.pop_one("orders", "a"))
    assert [message.data for message in hark_server.pushed()] == [1, 2, "hi", 3]
    assert [message.data for message in hark_server.pushed("orders")] == [1, 2, 3]
    assert [message.data for message in hark_server.pushed("orders", partition="b")] == [1, 3]
    second = hark_server.pushed("orders")[1]
    assert (second.state, second.partition, second.priority) == ("completed", "a", 3)
    [mail] = hark_server.pushed("mails")
    assert mail.deliver_at == hark_server.clock.now() + timedelta(seconds=60)
    assert mail.deliver_at - mail.created_at == timedelta(seconds=60)


def test_assert_pushed_answers_the_messages_that_were_meant(hark_server: HarkServer, api: Api) -> None:
    api.push("orders", {"id": 1}, partition="a", transactionId="order-1")
    api.push("orders", {"id": 1}, {"id": 2}, None, partition="b")
    assert [message.partition for message in hark_server.assert_pushed("orders", {"id": 1}, times=2)] == ["a", "b"]
    assert hark_server.assert_pushed("orders", {"id": 1}, key="order-1", partition="a")
    assert hark_server.assert_pushed("orders", None)
    assert len(hark_server.assert_pushed("orders", times=None)) == 4
    assert hark_server.assert_pushed("orders", lambda value: value is not None and value["id"] > 1)
    hark_server.assert_not_pushed("orders", {"id": 3})
    hark_server.assert_not_pushed("mails")


def test_a_task_is_found_by_its_name_and_arguments(hark_server: HarkServer, api: Api) -> None:
    api.push("emails", {"task": "send", "arguments": {"to": "ada"}})
    hark_server.assert_pushed("emails", task="send", arguments={"to": "ada"})
    hark_server.assert_not_pushed("emails", task="send", arguments={"to": "bob"})
    hark_server.assert_not_pushed("emails", task="receive")
    api.push("emails", {"task": "tidy"})
    hark_server.assert_pushed("emails", task="tidy", arguments={})


def test_a_failure_shows_what_was_pushed_with_the_nearest_first(hark_server: HarkServer, api: Api) -> None:
    api.push("orders", "something else", {"id": 1, "total": 5}, partition="a")
    with pytest.raises(AssertionError) as failure:
        hark_server.assert_pushed("orders", {"id": 1, "total": 6}, partition="a")
    lines = str(failure.value).splitlines()
    assert lines[0] == (
        """expected 1 message in queue 'orders' with data={"id": 1, "total": 6}, partition="a", """
        "but 0 of 2 pushed messages match"
    )
    assert '{"id": 1, "total": 5}' in lines[2]
    assert lines[3].strip() == "data: 'total' is 5, expected 6"
    assert '"something else"' in lines[4]


def test_none_and_too_many_are_failures_too(hark_server: HarkServer, api: Api) -> None:
    with pytest.raises(AssertionError, match="no message was pushed to queue 'orders'"):
        hark_server.assert_pushed("orders", 1, times=None)
    api.push("orders", 1, 1)
    with pytest.raises(AssertionError, match="expected 1 message in queue 'orders' with data=1, but 2 of 2 pushed"):
        hark_server.assert_pushed("orders", 1)
    with pytest.raises(AssertionError, match="expected no messages in queue 'orders', but 2 of 2 pushed"):
        hark_server.assert_not_pushed("orders")


# Time ------------------------------------------------------------------------------------------------------


def test_a_delayed_message_comes_when_the_clock_says_so(hark_server: HarkServer, api: Api) -> None:
    api.push("mails", "now")
    api.push("mails", "later", delay=3_600_000)
    assert _payloads(hark_server) == ["now"]
    hark_server.clock.advance(3599.999)
    assert _payloads(hark_server) == []
    hark_server.clock.advance(0.001)
    assert _payloads(hark_server) == ["later"]


def test_the_clock_starts_at_the_time_of_day_and_goes_only_forward(hark_server: HarkServer) -> None:
    start = hark_server.clock.now()
    assert abs(start - datetime.now(UTC)) < timedelta(minutes=1)
    assert hark_server.clock.advance(1.5) == start + timedelta(seconds=1.5) == hark_server.clock.now()
    assert hark_server.clock.advance_to(start + timedelta(days=1)) == start + timedelta(days=1)
    with pytest.raises(ValueError, match="expected 0 seconds or more, got -1"):
        hark_server.clock.advance(-1)
    with pytest.raises(ValueError, match="expected a datetime with a time zone"):
        hark_server.clock.advance_to(datetime(2030, 1, 1))  # noqa: DTZ001  # that is the point


def test_a_lease_ends_when_the_clock_says_so(hark_server: HarkServer, api: Api) -> None:
    api.configure("orders", leaseTime=30)
    api.push("orders", 1)
    api.pop_one("orders")
    hark_server.clock.advance(29)
    assert hark_server.drain("orders") == []
    hark_server.clock.advance(1)
    [again] = hark_server.drain("orders")
    assert (again.data, again.attempt) == (1, 2)


async def test_a_waiting_pop_gets_what_falls_due_before_its_time_is_over(hark_server: HarkServer, api: Api) -> None:
    api.push("mails", "later", delay=5000)
    pop = asyncio.create_task(asyncio.to_thread(api.pop, "mails", wait=True, timeout=20_000))
    await _until_waiting(hark_server, 1)
    hark_server.clock.advance(60)
    assert data(await pop) == ["later"]


async def test_a_waiting_pop_gives_up_when_the_clock_says_so(hark_server: HarkServer, api: Api) -> None:
    pop = asyncio.create_task(asyncio.to_thread(api.pop, "mails", wait=True, timeout=20_000))
    await _until_waiting(hark_server, 1)
    hark_server.clock.advance(19)
    assert hark_server.waiting == 1
    hark_server.clock.advance(1)
    assert await pop == []


def test_a_year_passes_in_no_time(hark_server: HarkServer, api: Api) -> None:
    api.push("mails", 1)
    hark_server.clock.advance(365 * 86400)
    assert _payloads(hark_server) == [1]
    assert hark_server.assert_pushed("mails", 1)[0].state == "completed"


async def _until_waiting(server: HarkServer, count: int) -> None:
    async with asyncio.timeout(20):
        while server.waiting != count:  # noqa: ASYNC110  # the server has no event for it
            await asyncio.sleep(0.001)


# Taking ----------------------------------------------------------------------------------------------------


def test_drain_takes_all_there_is_and_acknowledges_it(hark_server: HarkServer, api: Api) -> None:
    for start in range(0, 2500, 500):
        api.push("orders", *range(start, start + 500), partition=f"p{start // 1000}")
    api.push("mails", "hi")
    assert _payloads(hark_server, "orders") == list(range(2500))
    assert _payloads(hark_server) == ["hi"]
    assert _payloads(hark_server) == []
    assert api.pop("orders") == []


def test_each_group_is_drained_on_its_own(hark_server: HarkServer, api: Api) -> None:
    api.push("orders", 1)
    assert len(hark_server.drain("orders", group="billing")) == 1
    assert len(hark_server.drain("orders", group="audit")) == 1
    assert hark_server.drain("orders", group="billing") == []


def test_dead_letters_say_what_died_of_what(hark_server: HarkServer, api: Api) -> None:
    api.kill("orders", {"id": 1})
    api.kill("orders", {"id": 2}, group="billing")
    first, second = hark_server.dead_letters("orders")
    assert (first.data, first.error, second.group) == ({"id": 1}, "boom", "billing")
    assert hark_server.dead_letters("orders", group="billing") == [second]
    assert hark_server.dead_letters("mails") == []
    assert hark_server.assert_pushed("orders", {"id": 1})[0].state == "dead_letter"


# The server itself -----------------------------------------------------------------------------------------


def test_servers_side_by_side_know_nothing_of_each_other(hark_server: HarkServer, api: Api) -> None:
    api.push("orders", 1)
    with HarkServer() as other:
        assert other.url != hark_server.url
        assert other.pushed() == []
        other.clock.advance(60)
        assert other.clock.now() > hark_server.clock.now()


def test_it_stops_although_someone_waits_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with HarkServer() as server, httpx.Client(base_url=server.url, timeout=30) as client:
        answers: list[list[object]] = []
        waiter = threading.Thread(target=lambda: answers.append(Api(client).pop("orders", **WAIT)))
        waiter.start()
        while not server.waiting:
            pass
        server.__exit__(None, None, None)
        waiter.join(20)
        assert answers == [[]]
    assert set(threading.enumerate()) <= before
    with pytest.raises(RuntimeError, match="not running"):
        server.drain()


# Workers: the application's own, for a while with the server of the test --------------------------------------


class Application:
    """What is tested: a worker that talks to a server which is not there."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.worker = Worker("http://127.0.0.1:1", queue="emails")
        self.send = self.worker.task("send")(self._send)
        self.fail = self.worker.task("fail", retry=RetryPolicy.schedule([60]))(self._fail)
        self.many = self.worker.task("many")(self._many)

    async def _send(self, to: str) -> None:
        self.sent.append(to)

    async def _fail(self) -> None:
        raise ValueError("no")

    async def _many(self, count: int) -> None:
        for index in range(count):
            await self.send.push(to=f"number {index}")


@pytest.fixture
def application() -> Application:
    """An application that knows nothing of tests."""
    return Application()


async def test_a_pushed_task_is_seen_and_run(hark_server: HarkServer, application: Application) -> None:
    async with hark_server.serving(application.worker):
        await application.send.push(to="ada")
        hark_server.assert_pushed("emails", task="send", arguments={"to": "ada"})
        assert application.sent == []
        summary = await hark_server.run_worker(application.worker)
    assert application.sent == ["ada"]
    assert summary.totals.done == 1
    assert hark_server.drain("emails") == []


async def test_the_worker_ends_when_nothing_is_left_to_do_now(
    hark_server: HarkServer, application: Application
) -> None:
    async with hark_server.serving(application.worker):
        await application.many.push(count=30)
        await application.send.push(to="later", delay=3600)
        await hark_server.run_worker(application.worker, concurrency=3)
        assert sorted(application.sent) == sorted(f"number {index}" for index in range(30))
        hark_server.clock.advance(3600)
        await hark_server.run_worker(application.worker)
    assert application.sent[-1] == "later"


async def test_retries_and_dead_letters_come_when_the_clock_says_so(
    hark_server: HarkServer, application: Application
) -> None:
    async with hark_server.serving(application.worker):
        await application.fail.push()
        first = await hark_server.run_worker(application.worker)
        assert (first.totals.failed, first.totals.retried) == (1, 1)
        assert (await hark_server.run_worker(application.worker)).totals.failed == 0
        hark_server.clock.advance(60 * 1.5)  # The delay has some chance in it.
        second = await hark_server.run_worker(application.worker)
    assert (second.totals.failed, second.totals.dead) == (1, 1)
    [letter] = hark_server.dead_letters("emails")
    assert letter.error.startswith("ValueError: no")


async def test_afterwards_the_worker_is_where_it_was(hark_server: HarkServer, application: Application) -> None:
    async with hark_server.serving(application.worker):
        pass
    with HarkServer() as other:
        async with other.serving(application.worker):
            await application.send.push(to="ada")
        assert other.assert_pushed("emails", task="send")
    hark_server.assert_not_pushed("emails")


async def test_a_handle_asks_no_other_server_after_the_test_server(
    hark_server: HarkServer, application: Application
) -> None:
    """A worker of an application usually has the address of a real server."""
    with HarkServer() as real, application.worker.connect_to(real.url):
        async with hark_server.serving(application.worker):
            handle = await application.send.push(to="ada")
            flow = await hark.chain(application.send.s("a"), application.send.si("b")).push()
            await hark_server.run_worker(application.worker)
            assert (await handle.state()).state == "done"
        for call in (handle.state, handle.cancel, flow.state):
            with pytest.raises(HarkError, match=r"use the handle within `async with hark_server\.serving\(worker\)`"):
                await call()
        async with hark_server.serving(application.worker):
            assert (await handle.state()).state == "done"
