"""The benchmark's arithmetic: percentiles, medians, CPU readings, reports, demands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from bench import must, report
from bench.backlog import cost
from bench.figures import Figure, Run, compared, figure_of, median_of, medians
from bench.limits import METHODS, insertion
from bench.peers import compare
from bench.peers.peer import Span, batches
from bench.postgres import cost as postgres_cost
from bench.postgres.cluster import database_url
from bench.postgres.copy import BATCH, TransactionIds
from bench.postgres.limits import parse_rate
from bench.postgres.mixed import Together
from bench.procfs import Cpu, cpu_of, family_us, parse_stat, peak_mb, rss_mb
from bench.rows import ALL, ROWS
from bench.servers import command
from bench.stores import SqliteStores, StoreLocation
from bench.wrk import Sample, parse_report

from hark.cli.bench import Load, Mode, Outcome, ack_body, payload_of, percentile, plan, push_bodies


def sample(**changes: float) -> Sample:
    plain = Sample(messages=100, seconds=2, errors=0, empty=0, p50_ms=1, p99_ms=2, generator_cpu=0.5)
    return msgspec.structs.replace(plain, **changes)


def figure(**changes: float | str | None) -> Figure:
    return msgspec.structs.replace(Figure(row="push1", title="t", server="hark", throughput=100), **changes)


def together(pushed: int, popped: int, backlogs: tuple[int, int]) -> Together:
    sample = Sample(messages=pushed, seconds=10, errors=0, empty=0, p50_ms=1, p99_ms=2, generator_cpu=0.5)
    outcome = Outcome(kind="pop", messages=popped, requests=1, errors=0, empty=0, seconds=10, latencies_ms=[])
    return Together(sample, outcome, backlogs)


# Loads ----------------------------------------------------------------------------------------------------


def test_a_percentile_is_the_smallest_value_that_covers_its_share() -> None:
    values = list(range(100, 0, -1))
    assert [percentile(values, percent) for percent in (0, 50, 99, 99.5, 100)] == [1, 50, 99, 100, 100]
    assert percentile([], 99) == 0
    assert percentile([7.0], 50) == 7


def test_a_payload_is_json_of_exactly_its_size() -> None:
    assert len(payload_of(256)) == 256
    assert msgspec.json.decode(payload_of(10)) == {"pad": ""}


@pytest.mark.parametrize(
    ("batch", "spread", "expected"),
    [
        (2, False, [["p0", "p0"], ["p1", "p1"], ["p2", "p2"], ["p3", "p3"], ["p0", "p0"]]),
        (2, True, [["p0", "p1"], ["p2", "p3"], ["p0", "p1"]]),
    ],
    ids=["one a request", "each once a turn"],
)
def test_push_bodies_turn_through_the_partitions(batch: int, spread: bool, expected: list[list[str]]) -> None:
    bodies = push_bodies(Load(kind="push", queue="q", batch=batch, partitions=4, spread=spread))
    seen = [[item["partition"] for item in msgspec.json.decode(next(bodies))["items"]] for _ in expected]
    assert seen == expected


def test_pushes_say_their_delay_and_never_repeat_a_transaction_id() -> None:
    bodies = push_bodies(Load(kind="push", queue="q", batch=5, partitions=2, transaction_ids=True, delay_ms=5))
    items = [item for _ in range(20) for item in msgspec.json.decode(next(bodies))["items"]]
    assert len({item["transactionId"] for item in items}) == 100
    assert {item["delay"] for item in items} == {5}
    ids = TransactionIds(wanted=True)
    made = [*ids.batch(), *ids.batch()]
    assert len(set(made)) == 2 * BATCH
    assert {len(each or "") for each in made} == {36}
    assert set(TransactionIds(wanted=False).batch()) == {None}


def test_an_ack_names_transaction_partition_and_lease_of_each_message() -> None:
    messages = [
        {"id": "m", "transactionId": f"t{n}", "partitionId": "p", "leaseId": "l", "data": {"leaseId": 1}}
        for n in range(2)
    ]
    body, count = ack_body(msgspec.json.encode({"success": True, "messages": messages}))
    assert count == 2
    assert msgspec.json.decode(body) == {
        "acknowledgments": [
            {"transactionId": "t0", "partitionId": "p", "leaseId": "l"},
            {"transactionId": "t1", "partitionId": "p", "leaseId": "l"},
        ]
    }


def test_both_halves_the_connections_and_pop_fills_a_backlog_first() -> None:
    shape = Load(kind="push", queue="q", connections=9)
    first, timed = plan(Mode.both, shape, 500)
    assert (first, [(load.kind, load.connections) for load in timed]) == ([], [("push", 4), ("pop", 4)])
    first, timed = plan(Mode.pop, shape, 450)
    assert [load.requests for load in first] == [5]
    assert [load.kind for load in timed] == ["pop"]


# Readings and reports --------------------------------------------------------------------------------------


def test_a_stat_line_is_read_whatever_the_name_of_the_thread() -> None:
    fields = " ".join(["S", *map(str, range(1, 30))])
    stat = parse_stat(f"12 (odd) name) {fields}")
    tick = 1_000_000 // os.sysconf("SC_CLK_TCK")
    assert stat == ("odd) name", (11 + 12) * tick, (13 + 14) * tick)


def test_cpu_and_memory_of_this_process_can_be_read() -> None:
    assert cpu_of(os.getpid()).total_us > 0
    assert rss_mb(os.getpid()) > 1
    assert peak_mb(os.getpid()) >= rss_mb(os.getpid()) - 1
    assert Cpu(30, 20).since(Cpu(10, 5)) == Cpu(20, 15)


def test_what_children_used_counts_also_after_they_ended() -> None:
    before = family_us(os.getpid())
    burn = "import time\nwhile time.process_time() < 0.1: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert family_us(os.getpid()) - before >= 90_000


def test_reports_of_wrk_and_pgbench_are_read_or_refused() -> None:
    line = '{"requests":50,"seconds":2.0,"errors":10,"consumed":0,"empty":0,"p50_ms":1.5,"p99_ms":9}'
    got = parse_report(f"Running\n\nBENCH {line}\n", "push", 100, 0.3)
    assert (got.messages, got.throughput, got.p50_ms, got.generator_cpu) == (4000, 2000, 1.5, 0.3)
    line = '{"requests":50,"seconds":2.0,"errors":0,"consumed":7,"empty":3,"p50_ms":1,"p99_ms":9}'
    assert parse_report(f"BENCH {line}", "pop", 100, 0).messages == 7
    with pytest.raises(RuntimeError, match="no report"):
        parse_report("unable to connect", "push", 1, 0)
    printed = "number of clients: 8\nlatency average = 0.5 ms\ntps = 14370.447880 (without initial connection time)\n"
    assert parse_rate(printed) == pytest.approx(14370.44788)
    with pytest.raises(RuntimeError, match="no rate"):
        parse_rate("connection refused")


def test_a_figure_is_per_message_and_says_when_the_generator_was_the_limit() -> None:
    made = figure_of("r", "t", "hark", sample(generator_cpu=0.97), cpu=Cpu(1000, 400), rss=50)
    assert (made.throughput, made.cpu_us, made.store_us) == (50, 10, 4)
    assert "97% of a core" in made.note


def test_the_median_is_taken_field_by_field_and_errors_are_the_worst() -> None:
    rounds = [
        figure(throughput=10, ratio_l=3, errors=0),
        figure(throughput=30, ratio_l=1, errors=4),
        figure(throughput=20, ratio_l=2, errors=1),
    ]
    middle = median_of(rounds)
    assert (middle.throughput, middle.ratio_l, middle.ratio_floor, middle.errors) == (20, 2, None, 4)


def test_medians_are_by_title_and_server_in_the_order_they_came() -> None:
    first = [figure(server="bare", throughput=1), figure(throughput=10)]
    second = [figure(server="bare", throughput=3), figure(throughput=30)]
    got = [(each.server, each.throughput) for each in medians([*first, *second])]
    assert got == [("bare", 2), ("hark", 20)]


def test_the_cost_of_a_history_is_the_worse_of_clock_and_cpu() -> None:
    assert cost(figure(throughput=200, cpu_us=10), figure(throughput=100, cpu_us=12)) == 2
    assert cost(figure(throughput=100, cpu_us=10), figure(throughput=100, cpu_us=13)) == pytest.approx(1.3)


def test_ratios_are_to_l_around_the_row_and_to_the_floor_of_the_round() -> None:
    figures = [figure(server="floor", throughput=50), figure(throughput=40)]
    floor, hark = compared(figures, figure(throughput=110), figure(throughput=90))
    assert (floor.ratio_l, floor.ratio_floor) == (0.5, None)
    assert (hark.ratio_l, hark.ratio_floor) == (0.4, 0.8)
    assert "drifted by 20%" in hark.note


def test_the_cpu_of_the_server_alone_is_compared_with_that_of_l() -> None:
    used = Cpu(1000, 600, 600)
    assert used.server_us == 400
    assert used.since(Cpu(100, 50, 50)) == Cpu(900, 550, 550)
    made = figure_of("push1", "t", "hark", sample(messages=10), cpu=used, rss=50)
    [shown] = compared([made], figure(cpu_us=8), figure(cpu_us=12))
    assert shown.ratio_l == pytest.approx(5 / ((1e6 / 8 + 1e6 / 12) / 2)), "as if L had filled its core"
    assert (shown.cpu_us, shown.server_us, shown.cpu_l) == (100, 40, 4)
    run = Run(machine={"generator": "wrk", "engine": "postgres"}, figures=[shown])
    assert [demand.holds for demand in must.demands(run) if "CPU of the server" in demand.text] == [True, None]


def test_of_both_sides_the_slower_counts_and_consumers_are_behind_by_what_the_backlog_grew() -> None:
    assert together(1000, 900, (0, 0)).throughput == 90
    assert together(1000, 1100, (0, 0)).throughput == 100
    assert together(1000, 1000, (50, 95)).left_behind == pytest.approx(0.1)
    assert together(1000, 1000, (50, 10)).left_behind == 0


def test_peers_are_timed_in_batches_without_their_start_and_by_their_best_settings() -> None:
    assert batches(2500) == [1000, 1000, 500]
    assert compare.rate(Span(100, 101), [Span(110.5, 112), Span(110, 113)], 80) == 20
    figures = [
        figure(server=server, throughput=throughput)
        for server, throughput in (("hark, 100", 9.0), ("hark, 1000", 8.0), ("pgqueuer, 10", 3.0))
    ]
    assert (compare.best(figures, "hark"), compare.best(figures, "pgqueuer")) == (9, 3)


# Stores ----------------------------------------------------------------------------------------------------


def test_another_database_of_a_server_keeps_the_rest_of_its_url() -> None:
    assert database_url("postgresql://me:@/postgres?host=/run/pg", "x-1") == "postgresql://me:@/x-1?host=/run/pg"
    assert database_url("postgresql://h:1/a", "b") == "postgresql://h:1/b"


def test_servers_get_a_folder_or_the_url_of_a_database(tmp_path: Path) -> None:
    database = StoreLocation(tmp_path, "postgresql://h/b", 1)
    assert command("hark", 80, StoreLocation(tmp_path))[1:] == ["serve", "--port", "80", "--data", str(tmp_path)]
    assert command("hark", 80, database)[1:] == ["serve", "--port", "80"], "HARK_ENGINE has the URL"
    assert command("floor", 80, StoreLocation(tmp_path))[2:] == ["bench.floor", "80", str(tmp_path)]
    assert command("floor", 80, database)[2:] == ["bench.postgres.floor", "80", "postgresql://h/b"]


def test_a_copy_of_a_folder_outlives_it(tmp_path: Path) -> None:
    stores = SqliteStores()
    first = stores.create(tmp_path / "first")
    first.folder.mkdir()
    (first.folder / "data").write_text("kept")
    second = stores.copy(first, tmp_path / "second")
    stores.remove(first)
    assert not first.folder.exists()
    assert (second.folder / "data").read_text() == "kept"


@pytest.mark.parametrize("method", METHODS)
def test_the_insertion_limit_fills_the_table_of_hark(tmp_path: Path, method: str) -> None:
    limit = insertion(tmp_path, method, 10, 0.01)
    assert limit.per_second > 0


# Demands ---------------------------------------------------------------------------------------------------


def test_demands_pass_fail_or_were_not_timed() -> None:
    figures = [figure(ratio_l=0.5, ratio_floor=0.7)]
    values = {"rss": [79.9], "start": [0.9, 1.2, 9.0], "backlog_push1": [1.6]}
    run = Run(machine={"generator": "wrk"}, figures=figures, values=values)
    outcomes = {(demand.text, demand.unit): demand.holds for demand in must.demands(run)}
    title = ROWS["push1"].title
    assert outcomes[title, "x floor"] is False
    assert outcomes["push 1, 64 connections", "L"] is True
    assert outcomes["memory of an idle server", "MB"] is True
    assert outcomes["start to first answer, empty store", "s"] is False
    assert outcomes["push1 with a long history", "x empty store"] is False
    assert outcomes["pop 100 + ack", "L"] is None


def test_without_wrk_only_what_is_no_ratio_of_loads_is_checked() -> None:
    values = {"rss": [79.9], "backlog_push1": [1.6]}
    run = Run(machine={"generator": "hark bench"}, figures=[figure(ratio_l=9, ratio_floor=9)], values=values)
    assert [demand.text for demand in must.demands(run) if demand.holds is not None] == ["memory of an idle server"]


def test_demands_are_those_of_the_engine() -> None:
    values = {"pinned": [0.6], "cost_10": [2.0], "peer_pgqueuer": [5.5], "together_p99": [90.0]}
    run = Run(machine={"generator": "wrk", "engine": "postgres"}, values=values)
    outcomes = {demand.unit: demand.holds for demand in must.demands(run) if demand.holds is not None}
    assert outcomes == {"x the first": True, "x COPY": False, "x pgqueuer": True, "ms": True}
    without_wrk = msgspec.structs.replace(run, machine=run.machine | {"generator": "hark bench"})
    assert "ms" not in {demand.unit for demand in must.demands(without_wrk) if demand.holds is not None}


def test_every_demand_names_a_row_of_the_benchmark() -> None:
    for engine, wanted in must.AT_LEAST_L.items():
        assert {name for name, _, _ in wanted} <= set(ROWS) & set(ALL[engine])
    for engine in ("sqlite", "postgres"):
        assert set(ROWS) < set(ALL[engine])
    assert {case.name for case in postgres_cost.CASES} <= {bound.name for bound in must.SINGLE["postgres"]}


def test_tables_show_figures_and_dashes_for_what_is_missing() -> None:
    assert report.cells(figure(row="idle", p50_ms=1.234))[:7] == ["t", "hark", "100", "-", "-", "1.23", "-"]
    assert report.figures_table([figure()]).row_count == 1
    assert report.demands_table(must.demands(Run(machine={}, values={"rss": [1.0]}))).row_count == 1
