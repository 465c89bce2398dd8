"""The benchmark's arithmetic that only PostgreSQL needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import typer
from bench import must
from bench.__main__ import chosen
from bench.figures import Figure, Run
from bench.peers import compare
from bench.peers.peer import Span, batches
from bench.postgres import cost
from bench.postgres.cluster import database_url
from bench.postgres.copy import BATCH, TransactionIds
from bench.postgres.limits import parse_rate
from bench.postgres.mixed import Together
from bench.procfs import family_us
from bench.servers import command
from bench.stores import Place, SqliteStores
from bench.wrk import Sample

from hark.cli.load import Outcome


def together(pushed: int, popped: int, backlogs: tuple[int, int]) -> Together:
    sample = Sample(messages=pushed, seconds=10, errors=0, empty=0, p50_ms=1, p99_ms=2, generator_cpu=0.5)
    outcome = Outcome(kind="pop", messages=popped, requests=1, errors=0, empty=0, seconds=10, latencies_ms=[])
    return Together(sample, outcome, backlogs)


def test_what_children_used_counts_also_after_they_ended() -> None:
    before = family_us(os.getpid())
    burn = "import time\nwhile time.process_time() < 0.1: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert family_us(os.getpid()) - before >= 90_000


def test_pgbench_says_its_rate() -> None:
    printed = "number of clients: 8\nlatency average = 0.5 ms\ntps = 14370.447880 (without initial connection time)\n"
    assert parse_rate(printed) == pytest.approx(14370.44788)
    with pytest.raises(RuntimeError, match="no rate"):
        parse_rate("connection refused")


def test_another_database_of_a_server_keeps_the_rest_of_its_url() -> None:
    assert database_url("postgresql://me:@/postgres?host=/run/pg", "x-1") == "postgresql://me:@/x-1?host=/run/pg"
    assert database_url("postgresql://h:1/a", "b") == "postgresql://h:1/b"


def test_servers_get_a_folder_or_the_url_of_a_database(tmp_path: Path) -> None:
    database = Place(tmp_path, "postgresql://h/b", 1)
    assert command("hark", 80, Place(tmp_path))[1:] == ["serve", "--port", "80", "--data", str(tmp_path)]
    assert command("hark", 80, database)[1:] == ["serve", "--port", "80", "--engine", "postgresql://h/b"]
    assert command("floor", 80, Place(tmp_path))[2:] == ["bench.floor", "80", str(tmp_path)]
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


def test_transaction_ids_of_batches_are_new_and_as_long_as_a_uuid() -> None:
    ids = TransactionIds(wanted=True)
    made = [*ids.batch(), *ids.batch()]
    assert len(set(made)) == 2 * BATCH
    assert {len(each or "") for each in made} == {36}
    assert set(TransactionIds(wanted=False).batch()) == {None}


def test_what_went_through_is_what_the_slower_side_moved() -> None:
    assert together(1000, 900, (0, 0)).throughput == 90
    assert together(1000, 1100, (0, 0)).throughput == 100


def test_consumers_are_behind_by_what_the_backlog_grew() -> None:
    assert together(1000, 1000, (50, 95)).left_behind == pytest.approx(0.1)
    assert together(1000, 1000, (50, 10)).left_behind == 0


def test_jobs_are_enqueued_in_batches_with_a_rest() -> None:
    assert batches(2500) == [1000, 1000, 500]


def test_the_rate_of_a_peer_is_without_the_start_of_its_processes() -> None:
    enqueued, workers = Span(100, 101), [Span(110.5, 112), Span(110, 113)]
    assert compare.rate(enqueued, workers, 80) == 20


def test_the_best_settings_of_a_queue_count() -> None:
    figures = [
        Figure(row="peers", title="t", server=server, throughput=throughput)
        for server, throughput in (("hark, 100", 9.0), ("hark, 1000", 8.0), ("pgqueuer, 10", 3.0))
    ]
    assert (compare.best(figures, "hark"), compare.best(figures, "pgqueuer")) == (9, 3)


def test_rows_are_those_of_the_engine() -> None:
    assert chosen("postgres", "pinned,push1", quick=False) == ["push1", "pinned"]
    with pytest.raises(typer.BadParameter, match="pinned"):
        chosen("sqlite", "pinned", quick=False)
    assert set(chosen("postgres", None, quick=True)) > set(chosen("sqlite", None, quick=True))


def test_demands_are_those_of_the_engine() -> None:
    values = {"pinned": [0.6], "cost_10": [2.0], "peer_pgqueuer": [5.5], "together_p99": [90.0]}
    run = Run(machine={"generator": "wrk", "engine": "postgres"}, values=values)
    verdicts = {demand.unit: demand.holds for demand in must.demands(run) if demand.holds is not None}
    assert verdicts == {"x the first": True, "x COPY": False, "x pgqueuer": True, "ms": True}
    without_wrk = msgspec.structs.replace(run, machine=run.machine | {"generator": "hark bench"})
    assert "ms" not in {demand.unit for demand in must.demands(without_wrk) if demand.holds is not None}


def test_every_case_of_the_cost_row_is_demanded() -> None:
    assert {case.name for case in cost.CASES} <= {bound.name for bound in must.SINGLE["postgres"]}
