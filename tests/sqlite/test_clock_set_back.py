"""The clock of the machine was set back before a restart: durations go on, absolute times wait for the clock."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import apsw
import httpx
import pytest

from hark.broker import Broker
from hark.clock import SECOND, FakeClock, ShiftedClock, SystemClock
from hark.engine.sqlite import SqliteEngine, files
from hark.errors import StoreUnusable
from hark.http.app import App
from hark.model import Explain, GroupMode, KeyMutation, KeyWrite, NewMessage, PopRequest
from hark.model.export import MessageLine
from hark.settings import Settings
from tests.engine.driver import Driver, given, payloads
from tests.engine.test_export import exported
from tests.engine.workers import TICK, Workers

HOUR = 3600


@pytest.fixture
async def q(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Driver]:
    """An empty store in a file."""
    driver = Driver(lambda clock: SqliteEngine(str(tmp_path / "hark.db"), clock=clock), clock)
    await driver.start()
    yield driver
    await driver.engine.close()


@pytest.fixture(params=["ordered", "shared"])
def workers(request: pytest.FixtureRequest, q: Driver) -> Workers:
    """A group of each kind of the queue "orders"."""
    mode: GroupMode = request.param
    return Workers(q, mode=mode)


async def restart(q: Driver, seconds: float) -> None:
    """Shut down, set the clock, and start again."""
    await q.engine.close()
    q.clock.advance(seconds)
    await q.reopen()


async def arrives_after(workers: Workers, seconds: float) -> list[object]:
    """What can be taken after this time, and not a microsecond before; it is completed."""
    workers.q.clock.advance(seconds - TICK)
    assert await workers.take(10) == []
    workers.q.clock.advance(TICK)
    got = await workers.take(10)
    await workers.q.ack_all(got)
    return payloads(got)


# Durations -------------------------------------------------------------------------------------------------


async def test_rule_24_delays_retries_and_leases_go_on_from_the_last_known_time(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", "passed", delay_ms=1000)
    assert await arrives_after(workers, 1) == ["passed"]
    await q.push("orders", "p1", "delayed", delay_ms=10_000)
    q.clock.advance(4)
    await restart(q, -HOUR)
    assert q.engine.ahead == HOUR * SECOND
    assert await arrives_after(workers, 6) == ["delayed"]
    await q.push("orders", "p1", "leased")
    [leased] = await workers.take(lease_ms=5000)
    assert leased.message.created_at == q.clock.now() + HOUR * SECOND, "times are those of the store"
    q.clock.advance(5)
    [leased] = await workers.take()
    await q.fail(leased, delay_ms=7000)
    q.clock.advance(2)
    await restart(q, -HOUR)
    assert q.engine.ahead == 2 * HOUR * SECOND
    assert await arrives_after(workers, 5) == ["leased"]


async def test_rule_25_keys_expire_after_their_time_to_live(q: Driver) -> None:
    for key in ("short", "long"):
        ttl_ms = 3000 if key == "short" else 10_000
        await q.engine.write_keys(
            [KeyWrite(mutations=(KeyMutation(kind="set", key=(key,), value=b"1", ttl_ms=ttl_ms),))]
        )
    q.clock.advance(4)
    await restart(q, -HOUR)
    assert [entry is None for entry in await q.engine.read_keys([("short",), ("long",)])] == [True, False]
    q.clock.advance(6 - TICK)
    assert await q.engine.read_keys([("long",)]) != [None]
    q.clock.advance(TICK)
    assert await q.engine.read_keys([("long",)]) == [None]
    assert await q.engine.sweep_keys() == 2


async def test_a_time_to_live_and_the_age_of_messages_go_on(q: Driver, workers: Workers) -> None:
    await q.configure("orders", delayed_processing=10)
    await q.push("orders", "p1", "old enough later")
    await q.push("orders", "p2", "expires", ttl_ms=8000)
    q.clock.advance(4)
    await restart(q, -HOUR)
    assert await arrives_after(workers, 6) == ["old enough later"]


async def test_the_time_between_two_starts_counts_as_far_as_the_clock_shows_it(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, delay_ms=10_000)
    await restart(q, -HOUR)
    await restart(q, HOUR + 3)
    assert q.engine.ahead == 0, "the clock has caught up"
    assert await arrives_after(workers, 7) == [1]


async def test_the_last_known_time_of_a_server_that_was_killed_is_at_most_seconds_old(
    q: Driver, tmp_path: Path
) -> None:
    q.clock.advance(10)
    await q.push("orders", "p1", 1)
    q.clock.advance(HOUR)
    await q.engine.ping()
    q.clock.advance(9)
    await q.engine.ping()
    (tmp_path / "killed").mkdir()
    for name in ("hark.db", "hark.db-wal"):
        (tmp_path / "killed" / name).write_bytes((tmp_path / name).read_bytes())
    other = SqliteEngine(str(tmp_path / "killed" / "hark.db"), clock=FakeClock(q.clock.now() - 60 * SECOND))
    await other.start(lambda _: None)
    assert other.ahead == 51 * SECOND
    await other.close()


# Absolute times --------------------------------------------------------------------------------------------


async def test_deliver_at_waits_for_the_clock_of_the_machine(q: Driver, workers: Workers) -> None:
    moment = q.clock.now() + 60 * SECOND
    await q.push("orders", "p1", "before", deliver_at=moment)
    await restart(q, -HOUR)
    await q.push("orders", "p1", "after", deliver_at=moment)
    assert await arrives_after(workers, HOUR + 60) == ["before", "after"]


async def test_deliver_at_is_right_again_after_the_clock_was_corrected(q: Driver, workers: Workers) -> None:
    moment = q.clock.now() + 60 * SECOND
    await q.push("orders", "p1", "before", deliver_at=moment)
    await restart(q, -HOUR)
    await q.push("orders", "p1", "after", deliver_at=moment)
    await restart(q, HOUR)
    assert await arrives_after(workers, 60) == ["before", "after"]


async def test_what_is_due_after_the_correction_is_not_behind_what_a_group_has_passed(
    q: Driver, workers: Workers
) -> None:
    moment = q.clock.now() + 60 * SECOND
    await restart(q, -HOUR)
    await q.push("orders", "p1", "absolute", deliver_at=moment)
    await q.push("orders", "p1", "passed", delay_ms=120_000)
    if workers.mode == "shared":
        assert await arrives_after(workers, 120) == ["passed"]
    else:
        q.clock.advance(120)
    await restart(q, HOUR - 30)
    assert q.engine.ahead == 30 * SECOND, "the system clock shows 30 seconds after the moment"
    assert await arrives_after(workers, TICK) == (["absolute"] if workers.mode == "shared" else ["absolute", "passed"])


async def test_what_was_due_stays_due(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, deliver_at=q.clock.now() + SECOND)
    q.clock.advance(1)
    await restart(q, -HOUR)
    assert await workers.drain() == [1]


async def test_an_export_has_the_times_of_the_system_clock(q: Driver) -> None:
    moment = q.clock.now() + 60 * SECOND
    await q.push("orders", "p1", 1, deliver_at=moment)
    await q.push("orders", "p1", 2, delay_ms=10_000, ttl_ms=20_000)
    await restart(q, -HOUR)
    times = [(line.deliver_at, line.expires_at) for line in await exported(q) if isinstance(line, MessageLine)]
    now = q.clock.now()
    assert times == [(moment, None), (now + 10 * SECOND, now + 20 * SECOND)]


async def test_a_start_that_can_not_store_the_difference_is_refused(q: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise apsw.FullError("database or disk is full")

    await q.push("orders", "p1", 1)
    await q.engine.close()
    q.clock.advance(-HOUR)
    monkeypatch.setattr(files, "run", fail)
    with pytest.raises(StoreUnusable, match="no disk space left"):
        await q.reopen()
    monkeypatch.undo()
    await q.reopen()
    assert q.engine.ahead == HOUR * SECOND


# What people see -------------------------------------------------------------------------------------------


async def test_explain_says_how_long_it_takes(q: Driver) -> None:
    delayed = await q.push_id("orders", "p1", 1, delay_ms=10_000)
    absolute = await q.push_id("orders", "p1", 2, deliver_at=q.clock.now() + 60 * SECOND)
    q.clock.advance(4)
    await restart(q, -HOUR)
    left = []
    for answer in await q.engine.explain([Explain(delayed), Explain(absolute)]):
        facts = given(answer)
        assert facts.message.deliver_at is not None
        left.append(facts.message.deliver_at - facts.at)
    assert left == [6 * SECOND, (HOUR + 56) * SECOND]


@asynccontextmanager
async def served(path: Path, back: float) -> AsyncIterator[Broker]:
    """A broker whose clock was set back by some seconds."""
    clock = ShiftedClock(SystemClock())
    clock.ahead = -round(back * SECOND)
    broker = Broker(SqliteEngine(str(path), clock=clock), Settings(), clock)
    await broker.start()
    yield broker
    await broker.close()


async def test_a_waiting_consumer_gets_what_becomes_due(tmp_path: Path) -> None:
    async with served(tmp_path / "hark.db", 0) as broker:
        await broker.push([NewMessage("orders", payload=b"1")])
    async with served(tmp_path / "hark.db", HOUR) as broker:
        [message] = (await broker.pop(PopRequest(queue="orders", lease_ms=20), 60)).messages
        [again] = (await broker.pop(PopRequest(queue="orders"), 60)).messages
        assert (again.id, again.attempt) == (message.id, 2), "its lease has expired"
        await broker.push([NewMessage("later", payload=b"1", delay_ms=20)])
        assert len((await broker.pop(PopRequest(queue="later"), 60)).messages) == 1


@pytest.mark.parametrize(("back", "warns"), [(HOUR, True), (0.0, False)])
async def test_health_and_the_log_say_that_the_clock_was_set_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, back: float, warns: bool
) -> None:
    async with served(tmp_path / "hark.db", 0) as broker:
        await broker.push([NewMessage("orders", payload=b"1")])
    with caplog.at_level(logging.WARNING, "hark.engine.sqlite"):
        async with served(tmp_path / "hark.db", back) as broker:
            transport = httpx.ASGITransport(cast(Any, App(broker, Settings())))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                answer = (await client.get("/health")).json()
    assert answer["status"] == "healthy"
    logged = [record.getMessage() for record in caplog.records if "set back" in record.getMessage()]
    if not warns:
        assert "warnings" not in answer and not logged
        return
    [warning], [line] = answer["warnings"], logged
    assert warning.startswith("clock_set_back: ")
    for text in (warning, line):
        assert "3600 s" in text or "3599 s" in text
        assert "correct the clock" in text and "restart" in text
