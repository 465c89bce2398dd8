"""Starts and stops the servers under test: Hark, the floors, and the bare protocol."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from bench.procfs import Cpu, cpu_of, family_us
from bench.stores import StoreLocation

Kind = Literal["hark", "floor", "bare"]
ROOT = Path(__file__).parent.parent
START_LIMIT = 60.0
STOP_LIMIT = 30.0
PROBES: dict[Kind, bytes] = {
    "hark": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "floor": b'POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n\r\n{"items":[]}',
    "bare": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}
"""What each answers with a success once it is up."""


class Server(msgspec.Struct, frozen=True):
    """A server that answers."""

    pid: int
    port: int
    start_seconds: float
    """From the start of the process to its first answer."""
    store_pid: int = 0
    """The database server behind it, if it has one."""

    def cpu(self) -> Cpu:
        """What it has used until now, with the database behind it; that counts as its store."""
        own = cpu_of(self.pid)
        if not self.store_pid:
            return own
        store = family_us(self.store_pid)
        return Cpu(own.total_us + store, store, store)


def command(kind: Kind, port: int, location: StoreLocation) -> list[str]:
    """How a server is started."""
    if kind == "hark":
        store = [] if location.url else ["--data", str(location.folder)]
        return [str(Path(sys.executable).parent / "hark"), "serve", "--port", str(port), *store]
    module = "bench.postgres.floor" if kind == "floor" and location.url else f"bench.{kind}"
    return [sys.executable, "-m", module, str(port), location.url or str(location.folder)]


@contextmanager
def running(kind: Kind, location: StoreLocation, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server on a place for its data, stopped at the end; raises with its log if it does not come up.

    `settings` are variables of its environment, beside those of ours.
    """
    engine = {"HARK_ENGINE": location.url} if location.url else {}
    folder = location.folder
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    log = folder.parent / f"{folder.name}.log"
    with log.open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            command(kind, port, location),
            cwd=ROOT,
            stdout=output,
            stderr=output,
            env={**os.environ, **engine, **(settings or {})},
        )
    try:
        while not _answers(port, PROBES[kind]):
            if process.poll() is not None or time.perf_counter() - began > START_LIMIT:
                raise RuntimeError(f"{kind} did not start:\n{log.read_text(encoding='utf-8')[-2000:]}")
            time.sleep(0.005)
        yield Server(process.pid, port, time.perf_counter() - began, location.store_pid)
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
