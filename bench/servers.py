"""Starts and stops the servers under test: Hark, the floor, and the empty app."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

Kind = Literal["hark", "floor", "empty"]
ROOT = Path(__file__).parent.parent
START_LIMIT = 60.0
STOP_LIMIT = 30.0
PROBES: dict[Kind, bytes] = {
    "hark": b"GET /health HTTP/1.1\r\nHost: bench\r\n\r\n",
    "floor": b'POST / HTTP/1.1\r\nHost: bench\r\nContent-Length: 12\r\n\r\n{"items":[]}',
    "empty": b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n",
}
"""What each answers with a success once it is up."""


class Server(msgspec.Struct, frozen=True):
    """A server that answers."""

    pid: int
    port: int
    start_seconds: float
    """From the start of the process to its first answer."""


def command(kind: Kind, port: int, folder: Path) -> list[str]:
    """How a server is started."""
    if kind == "hark":
        return [
            str(Path(sys.executable).parent / "hark"),
            "serve",
            "--port",
            str(port),
            "--data",
            str(folder),
        ]
    return [sys.executable, "-m", f"bench.{kind}", str(port), str(folder)]


@contextmanager
def running(kind: Kind, folder: Path) -> Iterator[Server]:
    """A server on a data folder, stopped at the end; raises with its log if it does not come up."""
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    log = folder.parent / f"{folder.name}.log"
    with log.open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(command(kind, port, folder), cwd=ROOT, stdout=output, stderr=output)
    try:
        while not _answers(port, PROBES[kind]):
            if process.poll() is not None or time.perf_counter() - began > START_LIMIT:
                raise RuntimeError(f"{kind} did not start:\n{log.read_text(encoding='utf-8')[-2000:]}")
            time.sleep(0.005)
        yield Server(process.pid, port, time.perf_counter() - began)
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int, probe: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=START_LIMIT) as connection:
            connection.sendall(probe)
            return connection.recv(64).startswith(b"HTTP/1.1 20")
    except OSError:
        return False
