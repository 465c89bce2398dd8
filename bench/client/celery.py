"""Celery's worker on a Redis of its own: fill the queue, let it run dry, and add up what its children ran."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.servers import ROOT

CHILDREN = (1, 2)
"""Processes that run tasks; the best per process counts."""
POLL_SECONDS = 0.05
LIMIT_SECONDS = 300.0


class Ran(msgspec.Struct):
    """What one process ran."""

    tasks: int
    first: float
    last: float


def rate(folder: Path, tasks: int, children: int) -> float:
    """Tasks a second and child."""
    if shutil.which("redis-server") is None:
        raise RuntimeError("there is no redis-server; scripts/bench installs it where it may")
    folder.mkdir()
    with _redis(folder) as port:
        environment = {**os.environ, "BENCH_REDIS": f"redis://127.0.0.1:{port}/0", "BENCH_FOLDER": str(folder)}
        _run([sys.executable, "-m", "bench.client.celery_worker", str(tasks)], environment)
        command = [sys.executable, "-m", "celery", "-A", "bench.client.celery_worker", "worker", "--pool", "prefork"]
        options = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "warning"]
        with (folder / "celery.log").open("wb") as log:
            worker = subprocess.Popen(
                [*command, "--concurrency", str(children), *options], cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        try:
            _wait_until_dry(port, worker)
        finally:
            worker.terminate()
            worker.wait(60)
    ran = [msgspec.json.decode(file.read_bytes(), type=Ran) for file in sorted(folder.glob("*.json"))]
    if sum(one.tasks for one in ran) != tasks:
        raise RuntimeError(f"celery ran {sum(one.tasks for one in ran):,} of {tasks:,} tasks")
    return tasks / (max(one.last for one in ran) - min(one.first for one in ran)) / children


@contextmanager
def _redis(folder: Path) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except ConnectionRefusedError:
                time.sleep(POLL_SECONDS)
        yield port
    finally:
        process.terminate()
        process.wait()


def _wait_until_dry(port: int, worker: subprocess.Popen[bytes]) -> None:
    """Until nothing waits and nothing is unacknowledged."""
    end = time.monotonic() + LIMIT_SECONDS
    with socket.create_connection(("127.0.0.1", port)) as redis:
        while True:
            redis.sendall(b"LLEN celery\r\nHLEN unacked\r\n")
            answer = b""
            while answer.count(b"\r\n") < 2:
                answer += redis.recv(100)
            if answer == b":0\r\n:0\r\n":
                return
            if worker.poll() is not None or time.monotonic() > end:
                raise RuntimeError("celery's worker did not get through its tasks")
            time.sleep(POLL_SECONDS)


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"celery failed; is it installed (pip install 'hark[bench]')?\n{done.stderr[-2000:]}")
