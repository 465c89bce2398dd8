"""The parts of the benchmark's rows about the client and the worker that can be looked at without servers."""

from __future__ import annotations

import asyncio

import pytest
from bench import must
from bench.__main__ import chosen
from bench.client import polling
from bench.client.program import PUSHERS, Taken, push_at_once
from bench.figures import Run

from hark.polling import PollingStrategy


def test_a_rate_is_by_the_second() -> None:
    assert Taken(500, 2.0).rate == pytest.approx(250)


async def test_each_of_many_pushes_one_message_after_the_other() -> None:
    at_once = most = pushed = 0

    async def push(_payload: object) -> None:
        nonlocal at_once, most, pushed
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        pushed += 1

    taken = await push_at_once(push, 300)
    assert (pushed, taken.number, most) == (300, 300, PUSHERS)


def test_a_quiet_day_costs_what_the_longest_interval_says() -> None:
    day = polling.live(PollingStrategy.adaptive(), seconds=3600, messages=5)
    # Twelve polls a minute while it is idle, and a few more behind each message.
    assert 700 < day.polls < 800
    assert len(day.latencies_ms) == 5
    assert polling.worst(day) <= 5_500


def test_a_fixed_interval_is_never_left() -> None:
    day = polling.live(PollingStrategy.fixed(interval_ms=500), seconds=600, messages=3)
    assert day.polls == pytest.approx(1200, rel=0.05)
    assert polling.worst(day) <= 550


def test_a_month_is_priced_by_its_polls() -> None:
    assert polling.Day(100_000, []).dollars == pytest.approx(1.2)


def test_what_client_and_worker_must_do_is_demanded() -> None:
    values = {"client_push": [2.9], "client_consume": [2.1], "tasks_celery": [5.0], "tasks_p50": [11.0]}
    run = Run(machine={"engine": "sqlite", "generator": "wrk"}, values=values)
    found = {(demand.text, demand.unit): demand.holds for demand in must.demands(run)}
    assert found["single pushes of one client process", "x the official client"] is False
    assert found["consume + ack in batches of 100", "x the official client"] is True
    assert found["tasks that do nothing, per worker process", "x Celery"] is True
    assert found["tasks that do nothing, per worker process", "x procrastinate"] is None
    assert found["push to the start of its handler, idle worker: p50", "ms"] is False
    assert set(chosen("sqlite", None, quick=False)) >= {"client", "libraries", "tasks", "polling"}
