"""Type checkers accept right calls of tasks and refuse wrong ones, line by line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RIGHT, WRONG = HERE / "right_calls.py", HERE / "wrong_calls.py"
SECONDS = 280


def marked_lines(file: Path) -> set[int]:
    """The lines that say that they are wrong."""
    return {number for number, line in enumerate(file.read_text().splitlines(), 1) if line.endswith("# WRONG")}


def mypy_errors(file: Path, cache: Path) -> dict[int, str]:
    """What mypy has against a file, by line."""
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), "--no-error-summary", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    found = re.findall(r"^(\S+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    elsewhere = [line for line in found if Path(line[0]).name != file.name]
    assert elsewhere == []
    return {int(number): text for _, number, text in found}


def pyright_errors(file: Path) -> dict[int, str]:
    """What pyright has against a file, by line."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(file)]
    quiet = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False, env=quiet)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    diagnostics = json.loads(done.stdout)["generalDiagnostics"]
    return {one["range"]["start"]["line"] + 1: one["message"] for one in diagnostics if one["severity"] == "error"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of mypy that tests of other processes do not write to."""
    return tmp_path_factory.mktemp("mypy")


@pytest.fixture
def node() -> None:
    """Pyright runs on node."""
    if shutil.which("node") is None:
        pytest.skip("pyright needs node; scripts/test installs it where it may")


def test_there_are_wrong_lines_to_find() -> None:
    assert len(marked_lines(WRONG)) == 15
    assert marked_lines(RIGHT) == set()


def test_mypy_accepts_right_calls_and_refuses_exactly_the_wrong_ones(cache: Path) -> None:
    assert mypy_errors(RIGHT, cache) == {}
    errors = mypy_errors(WRONG, cache)
    assert set(errors) == marked_lines(WRONG), errors


@pytest.mark.usefixtures("node")
def test_pyright_accepts_right_calls_and_refuses_exactly_the_wrong_ones() -> None:
    assert pyright_errors(RIGHT) == {}
    errors = pyright_errors(WRONG)
    assert set(errors) == marked_lines(WRONG), errors
