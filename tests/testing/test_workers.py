"""Workers in tests: the application's own, for a while with the server of the test."""

from __future__ import annotations

import pytest

from hark.testing import HarkServer
from hark.worker import RetryPolicy, Worker


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
