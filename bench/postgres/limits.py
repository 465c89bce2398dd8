"""What PostgreSQL does on this machine without Hark: rows by COPY, and commits."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from pathlib import Path

from bench.figures import Limit
from bench.postgres.cluster import execute, tool
from bench.postgres.copy import BATCH, Copier, TransactionIds
from bench.procfs import family_us
from bench.stores import StoreLocation

CLIENTS = (1, 8, 32, 64)
"""More need more connections than a server has by default."""
_RATE = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)


def copying(store: StoreLocation, partitions: int, seconds: float) -> Limit:
    """Limit (c), for so long."""

    async def copy() -> Limit:
        copier = await Copier.open(store.url, partitions, TransactionIds(wanted=False))
        rows, began, cpu = 0, time.perf_counter(), family_us(store.store_pid)
        while time.perf_counter() - began < seconds:
            await copier.batch()
            rows += BATCH
        elapsed, used = time.perf_counter() - began, family_us(store.store_pid) - cpu
        await copier.close()
        title = f"(c) binary COPY, {BATCH} a commit, {partitions} partition{'s' if partitions > 1 else ''}"
        return Limit(title=title, per_second=rows / elapsed, cpu_us=used / rows)

    return asyncio.run(copy())


def parse_rate(text: str) -> float:
    """Transactions per second in what pgbench printed."""
    found = _RATE.search(text)
    if found is None:
        raise RuntimeError(f"pgbench printed no rate:\n{text}")
    return float(found[1])


def commit_rate(store: StoreLocation, seconds: float) -> Limit:
    """Limit (d): commits of one small row each, with the number of clients that gives the most."""
    execute(store.url, "create table probe (value int)")
    script = store.folder.with_suffix(".pgbench")
    script.write_text("insert into probe values (1);\n", encoding="ascii")
    best = max((_pgbench(store, script, clients, max(1.0, seconds / len(CLIENTS))), clients) for clients in CLIENTS)
    return Limit(title=f"(d) commits, pgbench with {best[1]} clients", per_second=best[0])


def _pgbench(store: StoreLocation, script: Path, clients: int, seconds: float) -> float:
    threads = min(clients, 2)
    options = ["-n", "-M", "prepared", "-f", str(script), "-T", str(round(seconds))]
    command = [tool("pgbench"), *options, "-c", str(clients), "-j", str(threads), store.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pgbench failed: {done.stderr}")
    return parse_rate(done.stdout)
