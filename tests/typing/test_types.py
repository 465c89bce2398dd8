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


def _checked(*command: str) -> str:
    """What a type checker says of both files."""
    quiet = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    checker = [sys.executable, "-m", *command, str(RIGHT), str(WRONG)]
    done = subprocess.run(checker, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False, env=quiet)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def node() -> None:
    """Pyright runs on node."""
    if shutil.which("node") is None:
        pytest.skip("pyright needs node; scripts/test installs it where it may")


EXPECTED = {(WRONG.name, line) for line in marked_lines(WRONG)}


def test_there_are_wrong_lines_to_find() -> None:
    assert len(marked_lines(WRONG)) == 46
    assert marked_lines(RIGHT) == set()


def test_mypy_accepts_right_calls_and_refuses_exactly_the_wrong_ones(tmp_path: Path) -> None:
    # A cache of its own: tests of other processes do not write to it.
    output = _checked("mypy", "--strict", "--cache-dir", str(tmp_path), "--no-error-summary")
    found = re.findall(r"^(\S+?):(\d+): error: (.*)$", output, re.MULTILINE)
    assert {(Path(file).name, int(line)) for file, line, _ in found} == EXPECTED, found


@pytest.mark.usefixtures("node")
def test_pyright_accepts_right_calls_and_refuses_exactly_the_wrong_ones() -> None:
    found = json.loads(_checked("pyright", "--outputjson", "--pythonpath", sys.executable))["generalDiagnostics"]
    errors = [one for one in found if one["severity"] == "error"]
    assert {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in errors} == EXPECTED, errors
