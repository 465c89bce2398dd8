"""Clients that misbehave in every state leave nothing behind; `scripts/bench --rows leaks` does it for longer."""

from __future__ import annotations

from pathlib import Path

from bench.delivery.leaks import SETTINGS, Leaks, Plan, growth, misbehave
from bench.servers import running
from bench.stores import StoreLocation

ROUNDS = 100
WAVE = 25
POOL = 8
"""Connections to the database that may have been opened meanwhile."""
MUCH_MB = 8
"""Caches fill during so short a run; it would take 4 KB of each client to get there."""


async def leaks_at(store: StoreLocation) -> Leaks:
    with running("hark", store, SETTINGS) as server:
        return await misbehave(Plan(port=server.port, pid=server.pid, rounds=ROUNDS, wave=WAVE))


def check(leaks: Leaks) -> None:
    assert leaks.unsettled == {}, "every message is settled by somebody in the end"
    assert leaks.messages >= leaks.clients
    assert leaks.left == 0, "no waiting pop, stream, browser or subscription outlives its client"
    assert leaks.leases == 0, "no lease outlives what it is about"
    assert growth(leaks.open_files) <= POOL, leaks.open_files
    assert leaks.growth_mb < MUCH_MB, leaks.rss_mb


async def test_clients_that_leave_or_stall_in_any_state_leave_nothing_behind_on_sqlite(tmp_path: Path) -> None:
    check(await leaks_at(StoreLocation(tmp_path / "store")))


async def test_clients_that_leave_or_stall_in_any_state_leave_nothing_behind_on_postgres(
    tmp_path: Path, postgres_url: str
) -> None:
    check(await leaks_at(StoreLocation(tmp_path / "store", postgres_url)))
