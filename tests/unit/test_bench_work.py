"""The parts of the benchmark's rows about work queues and keys that can be looked at without a server."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from bench import must
from bench.__main__ import chosen
from bench.figures import Figure, Run
from bench.work.keys import change_events
from bench.work.shared import CONSUMERS, Cycle, rows_of
from bench.wrk import lua_script

from hark.cli.load import Load, push_bodies


def figure(throughput: float, cpu_us: float) -> Figure:
    """Half of a message's life."""
    return Figure(row="shared", title="", server="hark", throughput=throughput, cpu_us=cpu_us)


def test_a_message_takes_the_time_of_both_halves() -> None:
    assert Cycle(figure(1000, 5), figure(1000, 5)).throughput == pytest.approx(500)
    assert Cycle(figure(3000, 5), figure(1500, 5)).throughput == pytest.approx(1000)


def test_the_cost_of_a_cycle_is_by_the_clock_or_by_cpu_whichever_is_worse() -> None:
    plain = Cycle(figure(1000, 10), figure(1000, 10))
    assert Cycle(figure(500, 10), figure(500, 10)).cost_over(plain) == pytest.approx(2)
    assert Cycle(figure(1000, 30), figure(1000, 30)).cost_over(plain) == pytest.approx(3)


@pytest.mark.parametrize("batch", [1, 100])
def test_a_shared_row_has_one_partition_and_all_its_consumers(batch: int) -> None:
    push, pop = rows_of(batch, shared=True)
    assert (push.load.partitions, pop.load.partitions, pop.load.connections) == (1, 1, CONSUMERS)
    assert pop.load.shared
    assert "shared = true" in lua_script(pop.load)
    assert not rows_of(batch, shared=False)[1].load.shared


def test_a_delayed_push_says_so() -> None:
    body = msgspec.json.decode(next(push_bodies(Load(kind="push", queue="q", partitions=1, delay_ms=5))))
    assert body["items"][0]["delay"] == 5


def test_only_the_data_of_changes_is_taken_from_a_stream() -> None:
    async def read() -> list[bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n1f\r\nevent: ping\ndata:\n\n\r\nevent: change\ndata: [1]\n\n")
        reader.feed_eof()
        return [data async for data in change_events(reader)]

    assert asyncio.run(read()) == [b"[1]"]


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_what_work_queues_must_do_is_demanded_of_both_engines(engine: str) -> None:
    run = Run(machine={"engine": engine, "generator": "wrk"}, values={"due_p99": [25.0], "shared1": [0.6]})
    found = {demand.text: demand.holds for demand in must.demands(run)}
    assert found["a message due at T reaches a waiting consumer: p99 behind T"] is False
    assert found["shared group, one partition, 64 consumers: push 1, pop 1, ack"] is True
    assert set(chosen("sqlite", None, quick=False)) >= {"shared", "due", "keys", "watch"}
