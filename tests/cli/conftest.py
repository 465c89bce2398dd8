"""Fixtures of the command-line tests: a stub of the server, and a way to run `hark`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Protocol

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from hark.cli import app

from .stub import Stub, running_stub


class Run(Protocol):
    """Runs `hark` with these arguments."""

    def __call__(self, *args: str, stdin: str | bytes | None = None) -> Result: ...


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of whoever runs the tests must not matter."""
    monkeypatch.chdir(tmp_path)
    for variable in list(os.environ):
        if variable.startswith("HARK_") or variable in ("PORT", "NUM_WORKERS"):
            monkeypatch.delenv(variable)


@pytest.fixture
def stub() -> Iterator[Stub]:
    """A server that answers what it is told to."""
    with running_stub() as running:
        yield running


@pytest.fixture
def hark(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line, pointed at the stub."""
    monkeypatch.setenv("HARK_URL", stub.url)
    return runner()


_made_once = cache(get_command)
"""To make all commands of the app takes ten times as long as to run one."""


def runner() -> Run:
    """Run `hark` in this process; an exception that is not an exit fails the test."""

    def run(*args: str, stdin: str | bytes | None = None) -> Result:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("typer.testing._get_command", _made_once, raising=False)
            result = CliRunner().invoke(app, list(args), input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@contextmanager
def hark_process(*args: str) -> Iterator[IO[str]]:
    """Run `hark` as a process that goes on until it is interrupted, which it must take for a good end; what it says."""
    command = [sys.executable, "-c", "from hark.cli import main; main()", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()


def words(output: str) -> list[list[str]]:
    """The words of each line: the cells of a table, roughly."""
    return [line.split() for line in output.splitlines()]
