"""`scripts/serve` installs once, and starts without network with what it has installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
START = 'set -euo pipefail; source scripts/_environment; environment "$1"; .venv/bin/python -c "print(6632)"'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the tree with an environment that has Hark, its dependencies and pip, but no stamp."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(TREE / "scripts" / "_environment", tmp_path / "scripts")
    shutil.copy(TREE / "pyproject.toml", tmp_path)
    shutil.copy(TREE / "README.md", tmp_path)
    (tmp_path / "src").symlink_to(TREE / "src")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    packages = next((tmp_path / ".venv" / "lib").glob("python*/site-packages"))
    (packages / "hark.pth").write_text(f"{TREE / 'src'}\n{sysconfig.get_path('purelib')}\n")
    return tmp_path


def start(tree: Path, extras: str = "") -> subprocess.CompletedProcess[str]:
    """Make the environment and run a program in it, without network."""
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PATH": os.environ["PATH"]}
    command = ["bash", "-c", START, "bash", extras]
    return subprocess.run(command, cwd=tree, env=offline, capture_output=True, text=True, check=False)


def stamp(tree: Path, name: str) -> None:
    """Leave what a successful installation leaves."""
    text = (tree / "pyproject.toml").read_bytes()
    checksum = subprocess.run(["cksum"], input=text, capture_output=True, check=True)
    (tree / ".venv" / name).write_bytes(checksum.stdout)


@pytest.mark.parametrize("name", [".hark-core", ".hark-dev"])
def test_what_is_installed_is_not_installed_again(tree: Path, name: str) -> None:
    stamp(tree, name)
    started = start(tree)
    assert (started.returncode, started.stdout, started.stderr) == (0, "6632\n", "")


@pytest.mark.parametrize("changed", [False, True], ids=["no stamp", "other requirements"])
def test_without_network_it_starts_with_what_is_installed_and_tries_again_next_time(tree: Path, changed: bool) -> None:
    if changed:
        (tree / ".venv" / ".hark-core").write_text("1 2\n")
    started = start(tree)
    assert (started.returncode, started.stdout) == (0, "6632\n")
    assert "cannot install; using what is in .venv" in started.stderr
    assert [one.read_text() for one in (tree / ".venv").glob(".hark-*")] == ["1 2\n"] * changed


def test_without_network_it_fails_if_hark_or_a_tool_for_development_may_be_missing(tree: Path) -> None:
    assert start(tree, "dev").returncode == 1
    [hark] = (tree / ".venv" / "lib").glob("python*/site-packages/hark.pth")
    hark.write_text(f"{sysconfig.get_path('purelib')}\n")
    started = start(tree)
    assert (started.returncode, started.stdout) == (1, "")
