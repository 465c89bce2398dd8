"""Type checkers accept right calls of tasks and the examples of the docs, and refuse wrong ones, line by line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.docs.examples import DOCS, blocks_of

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RIGHT, WRONG = HERE / "right_calls.py", HERE / "wrong_calls.py"
SECONDS = 280


PAGES = ("flows", "schedules", "worker")
REJECTED = ("# WRONG", "# type checkers reject this")


def marked_lines(file: Path) -> set[int]:
    """The lines that say that they are wrong."""
    return {number for number, line in enumerate(file.read_text().splitlines(), 1) if line.endswith(REJECTED)}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The calls, and the examples of some pages: each page as one function, since a page awaits at its top level."""
    for page in PAGES:
        code = ""
        for block in blocks_of(DOCS / f"{page}.md"):
            if block.file.endswith(".py"):
                (tmp_path / block.file).write_text(block.code)
            elif block.language == "python" and not block.not_run:
                code += block.code
        text = textwrap.indent(code, "    ")
        (tmp_path / f"page_{page}.py").write_text(f"async def main() -> None:\n{text}")
    return [RIGHT, WRONG, *sorted(tmp_path.glob("*.py"))]


def _marked(files: list[Path]) -> set[tuple[str, int]]:
    return {(file.name, line) for file in files for line in marked_lines(file)}


def _checked(files: list[Path], directory: Path, *command: str) -> str:
    """What a type checker says of the files."""
    quiet = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    checker = [sys.executable, "-m", *command, *map(str, files)]
    done = subprocess.run(
        checker, cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False, env=quiet
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def node() -> None:
    """Pyright runs on node."""
    if shutil.which("node") is None:
        pytest.skip("pyright needs node; scripts/test installs it where it may")


def test_there_are_wrong_lines_to_find(files: list[Path]) -> None:
    assert len(marked_lines(WRONG)) == 53
    assert [name for name, _ in _marked(files) if name != WRONG.name] == ["page_worker.py"]


def test_mypy_accepts_right_calls_and_refuses_exactly_the_wrong_ones(files: list[Path], tmp_path: Path) -> None:
    # A cache of its own: tests of other processes do not write to it.
    output = _checked(files, ROOT, "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "--no-error-summary")
    found = re.findall(r"^(\S+?):(\d+): error: (.*)$", output, re.MULTILINE)
    assert {(Path(file).name, int(line)) for file, line, _ in found} == _marked(files), found


@pytest.mark.usefixtures("node")
def test_pyright_accepts_right_calls_and_refuses_exactly_the_wrong_ones(files: list[Path], tmp_path: Path) -> None:
    # It looks for modules beside the current directory only.
    found = json.loads(_checked(files, tmp_path, "pyright", "--outputjson", "--pythonpath", sys.executable))[
        "generalDiagnostics"
    ]
    errors = [one for one in found if one["severity"] == "error"]
    assert {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in errors} == _marked(files), errors
