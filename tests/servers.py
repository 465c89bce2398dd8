"""Servers for tests: in a thread of the test process, or as a process of their own, each with a store of its own.

`running_server` is the cheap one and the usual one. `server_process` is for tests about signals, crashes, ports, TLS or
what a whole process does.
"""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

import httpx
import pytest

from hark.access.authenticator import Authenticator
from hark.broker import Broker
from hark.clock import SystemClock
from hark.http.app import App
from hark.serving.listening import endpoints, make_peers
from hark.serving.server import make_engine
from hark.settings import Settings, load
from hark.testing.server import ServerThread
from tests.s3.credentials import AWS_ENVIRONMENT
from tests.s3.stub.server import StubServer, serving_in_thread
from tests.s3.stub.store import StubStore

START_SECONDS = 20.0
STOP_SECONDS = 20.0
SERVER_ENGINE = os.environ.get("HARK_TEST_SERVER_ENGINE", "memory")
"""`s3`: whatever is tested over HTTP is tested on a bucket."""
_LISTENING = re.compile(r"https?://127\.0\.0\.1:(\d+)")


class LocalServer(ServerThread):
    """The parts that `hark serve` runs, on the machine's clock, in a thread of this process."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._system_clock = SystemClock()

    async def _serve(self) -> None:
        settings, clock = self._settings, self._system_clock
        endpoint = next(iter(endpoints(settings)), None)
        peers = None if endpoint is None else make_peers(endpoint, settings, clock)
        self.broker = Broker(make_engine(settings, clock), settings, clock, peers=peers)
        await super()._serve()

    def _app(self) -> App:
        return App(self.broker, self._settings, authenticator=Authenticator(self._settings, self._system_clock))


@contextmanager
def running_server(
    directory: Path, *, engine: str = "memory", settings: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Serve from `directory` (its only store and configuration) in a thread, and yield the URL; stopped at the end."""
    if engine.startswith("sqlite:///"):
        engine = f"sqlite:///{directory / engine.removeprefix('sqlite:///')}"
    variables = {**(settings or {}), "HARK_ENGINE": engine}
    loaded = load({"data": str(directory / "hark-data")}, variables, toml_path=None)
    server = LocalServer(loaded.settings)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


@contextmanager
def server_process(
    directory: Path,
    *,
    engine: str = "memory",
    arguments: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    authority: Path | None = None,
    hark: Sequence[str] = (sys.executable, "-c", "from hark.cli import main; main()"),
) -> Iterator[str]:
    """Run `hark serve` in `directory` (its only store and configuration) and yield the URL; stopped at the end.

    `authority` is whom to trust when the arguments give the server a certificate. `hark` is the command, if it is to be
    that of another environment.
    """
    # Settings of the developer's shell must not reach the server under test.
    keep = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT", "PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    process = subprocess.Popen(
        [*hark, "serve", "--port", "0", *arguments],
        cwd=directory,
        env=environment | {"HARK_ENGINE": engine} | dict(settings or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    transcript: list[str] = []
    try:
        url = _wait_until_ready(process, transcript, authority)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            pytest.fail(f"the server did not stop within {STOP_SECONDS} s; it said:\n{''.join(transcript)}")


def _wait_until_ready(process: subprocess.Popen[str], transcript: list[str], authority: Path | None) -> str:
    """Read what the server says until it names its address, then ask for its health."""
    lines: SimpleQueue[str | None] = SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                transcript.append(line)
                lines.put(line)
        lines.put(None)

    # Reads on after the start too: a full pipe would stop the server.
    threading.Thread(target=read, daemon=True).start()
    try:
        while (line := lines.get(timeout=START_SECONDS)) is not None:
            if match := _LISTENING.search(line):
                url = match[0]
                tls = ssl.create_default_context(cafile=authority)
                with httpx.Client(transport=httpx.HTTPTransport(retries=3, verify=tls)) as client:
                    client.get(f"{url}/health", timeout=START_SECONDS).raise_for_status()
                return url
    except Empty:
        pytest.fail(f"the server did not start within {START_SECONDS} s; it said:\n{''.join(transcript)}")
    pytest.fail(f"the server stopped with code {process.wait()}; it said:\n{''.join(transcript)}")


@contextmanager
def server_on(engine: str, directory: Path, *, process: bool = False) -> Iterator[str]:
    """A server on an engine, or on "s3": then it has a bucket of its own."""
    serve = server_process if process else running_server
    if engine != "s3":
        with serve(directory, engine=engine) as url:
            yield url
        return
    with serving_in_thread(StubServer(StubStore(SystemClock()))) as stub, pytest.MonkeyPatch.context() as patch:
        for name, value in AWS_ENVIRONMENT.items():
            patch.setenv(name, value)
        with serve(directory, engine=stub.bucket_url("server"), settings=AWS_ENVIRONMENT) as url:
            yield url
