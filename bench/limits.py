"""The machine's own limits: SQLite without a server around it, and the disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import apsw

from bench.figures import Disk, Limit
from bench.table import Value, insert_sql, insert_wide, open_table
from hark.cli.bench import payload_of, percentile

ROWS_PER_TRANSACTION = 1000
PAGE = b"\xa5" * 4096
Batch = list[tuple[Value, ...]]


def _one_by_one(connection: apsw.Connection, rows: Batch) -> None:
    connection.executemany(insert_sql(), rows)


def _wide(connection: apsw.Connection, rows: Batch) -> None:
    insert_wide(connection, list(chain.from_iterable(rows)))


METHODS: dict[str, Callable[[apsw.Connection, Batch], None]] = {
    "executemany": _one_by_one,
    "64 rows a statement": _wide,
}


def insertion(folder: Path, method: str, partitions: int, seconds: float, size: int = 256) -> Limit:
    """Limit (a): 1000 rows a transaction into Hark's table and indexes, each transaction on disk."""
    insert, payload = METHODS[method], payload_of(size)
    connection = open_table(folder / f"insertion-{method.partition(' ')[0]}-{partitions}.db")
    serial, began, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        numbers = range(serial, serial + ROWS_PER_TRANSACTION)
        rows: Batch = [(n % partitions + 1, n // partitions + 1, n, payload) for n in numbers]
        with connection:
            insert(connection, rows)
        serial += ROWS_PER_TRANSACTION
    elapsed, used = time.perf_counter() - began, time.process_time() - cpu
    connection.close()
    title = (
        f"(a) insert, {method}, {ROWS_PER_TRANSACTION} a commit, {partitions} partition{'s' if partitions > 1 else ''}"
    )
    return Limit(title=title, per_second=serial / elapsed, cpu_us=used * 1e6 / serial)


def sync_times(folder: Path, seconds: float, rate: float) -> list[float]:
    """Milliseconds that each of a paced row of 4 KiB appends took to be durable."""
    times = []
    descriptor = os.open(folder / "fdatasync.probe", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for _ in range(int(seconds * rate)):
            began = time.perf_counter()
            os.write(descriptor, PAGE)
            os.fdatasync(descriptor)
            times.append((time.perf_counter() - began) * 1e3)
            time.sleep(max(0.0, 1 / rate - times[-1] / 1e3))
    finally:
        os.close(descriptor)
    return times


def disk_of(times: Sequence[float]) -> Disk:
    """The percentiles of such a row."""
    return Disk(p50_ms=percentile(times, 50), p99_ms=percentile(times, 99), samples=len(times))
