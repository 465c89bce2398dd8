"""The references, the client on a plain socket, the attacks, and the comparison of two checkouts."""

from __future__ import annotations

import ast
import asyncio
import contextlib
from pathlib import Path

import httptools
import pytest
import typer
from bench import compare, must
from bench.compare import Pair
from bench.figures import Figure, Run
from bench.hostile.attacks import ATTACKS, CALM, Attack, Plan, attack
from bench.raw import RawClient, get, lone_pushes, post
from bench.rows import ALL, ROWS
from bench.servers import ROOT, Kind, running
from bench.stores import StoreLocation


def pair(metric: str, before: list[float], after: list[float], required: float | None = None) -> Pair:
    return Pair(row="push1", title="t", metric=metric, before=before, after=after, required=required)


def test_nothing_in_the_benchmark_imports_what_hark_no_longer_uses() -> None:
    for path in (ROOT / "bench").rglob("*.py"):
        names = [
            name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name,)
        ]
        assert not [name for name in names if name.split(".")[0] == "uvicorn"], path


# The references, at a client on a plain socket -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bare", "floor"])
def test_a_reference_answers_pushes(tmp_path: Path, kind: Kind) -> None:
    with running(kind, StoreLocation(tmp_path / kind)) as server:
        with RawClient(server.port) as client:
            body = b'{"items":[{"queue":"q","payload":1}]}'
            assert [client.ask(post(b"/api/v1/push", body)) for _ in range(3)] == [201, 201, 201]
        sample = lone_pushes(server.port, 0.1)
        assert sample.messages > 0
        assert sample.errors == 0
        assert 0 < sample.p50_ms <= sample.p99_ms


async def test_a_raw_client_reads_an_answer_in_parts_and_says_when_there_is_none() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for chunk in (b"HTTP/1.1 20", b"3 x\r\nContent-Len", b"gth: 4\r\n\r\nab", b"cd"):
            writer.write(chunk)
            await asyncio.sleep(0.01)
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]

        def ask() -> int:
            with RawClient(port) as client:
                status = client.ask(get(b"/"))
                with contextlib.suppress(ConnectionResetError):
                    client.ask(get(b"/"))
                    pytest.fail("an answer came from nowhere")
                return status

        assert await asyncio.to_thread(ask) == 203


# Attacks -----------------------------------------------------------------------------------------------------


def test_each_attack_has_two_bounds_on_both_engines() -> None:
    for engine in ("sqlite", "postgres"):
        names = {bound.name for bound in must.SINGLE[engine] if bound.name.startswith("hostile_")}
        assert names == {f"hostile_{each.name}_{what}" for each in ATTACKS for what in ("p99", "mb")}
        assert "hostile" in ALL[engine]


@pytest.mark.parametrize("each", ATTACKS, ids=lambda each: each.name)
async def test_what_an_attack_sends_is_http_that_goes_on_and_on(each: Attack) -> None:
    sent = 0
    parser = httptools.HttpRequestParser(object())
    async for chunk in each.stream(0):
        with contextlib.suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):  # Some are too large for it.
            parser.feed_data(chunk)
        sent += len(chunk)
        if sent > 100_000 or each.name == "slow":
            break
    assert parser.get_method() in (b"GET", b"POST") or each.name == "slow"
    assert sent > 100_000 or each.name == "slow"


async def test_an_attack_ends_in_time_and_connects_again_where_it_is_thrown_out() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        sent = await attack(Plan("heads", port, 3.0))
        calm = await attack(Plan(CALM.name, port, 0.01))
    assert sent.connections > 1
    assert sent.ended - sent.began >= 3.0
    assert (calm.connections, calm.megabytes) == (0, 0)


# Two checkouts -------------------------------------------------------------------------------------------------


def test_more_is_better_only_for_throughput() -> None:
    assert pair("throughput", [10, 10, 30], [15, 14, 14], 1.4).outcome == "pass"
    assert pair("throughput", [10], [13], 1.4).outcome == "FAIL"
    assert pair("p50_ms", [10], [7], 0.75).outcome == "pass"
    assert pair("p50_ms", [10], [8], 0.75).outcome == "FAIL"
    assert pair("rss_mb", [10], [80]).outcome == ""


def test_rounds_that_disagree_do_not_show_that_something_is_worse() -> None:
    assert pair("p99_ms", [10, 10, 10], [9, 11, 12], 1.0).outcome == "noise"
    assert pair("p99_ms", [10, 10, 10], [11, 12, 13], 1.0).outcome == "FAIL"


def test_nothing_before_has_no_ratio() -> None:
    lost = pair("", [0, 0], [0, 1])
    assert (lost.ratio, lost.ratios, lost.outcome) == (None, [], "")
    assert compare.table([lost, pair("throughput", [1], [2], 1.4)]).row_count == 2


def test_what_both_timed_is_paired_by_title_and_the_rest_is_left_out() -> None:
    def run(throughput: float, cpu_l: float) -> Run:
        figure = Figure(row="push1", title="t", server="hark", throughput=throughput, cpu_l=cpu_l)
        return Run(machine={}, figures=[figure, figure], values={"end_lost": [0, 0]})

    found = list(compare.pairs("postgres", run(100, 9), run(150, 6)))
    assert [(each.metric, each.demand, each.outcome) for each in found] == [
        ("throughput", ">= 1.4 x", "pass"),
        ("cpu_l", "<= 5", "FAIL"),
        ("", "", ""),
    ]
    assert compare.requirement("sqlite", "end", "server_us") == 0.6
    assert compare.requirement("postgres", "end", "server_us") == 0.7
    assert compare.requirement("postgres", "pop100", "throughput") == 1


def test_only_rows_and_checkouts_that_can_be_compared_are(tmp_path: Path) -> None:
    assert set(compare.chosen("sqlite", None)) == set(compare.DEFAULT)
    assert compare.chosen("postgres", "hostile,push1") == ["push1", "hostile"]
    assert set(compare.OTHERS) <= set(ALL["sqlite"]) - set(ROWS)
    with pytest.raises(typer.BadParameter, match="backlog"):
        compare.chosen("sqlite", "backlog")
    with pytest.raises(typer.BadParameter, match="SQLite and PostgreSQL"):
        compare.chosen("s3", None)
    with pytest.raises(typer.BadParameter, match="not a checkout"):
        compare.sides(tmp_path)
    before, after = compare.sides(ROOT)
    assert (before.name, after.name) == ("before", "after")
    assert after.environment == {"PYTHONPATH": str(ROOT / "src")}
