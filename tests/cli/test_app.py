"""The command line as a whole: help, versions, and how fast it starts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hark import __version__

from .conftest import Run

COMMANDS = {
    (): ["serve", "work", "push", "pop", "ack", "queue", "group", "dlq", "message", "doctor", "bench", "version"],
    ("queue",): ["list", "show", "create", "delete", "pause", "resume", "purge"],
    ("group",): ["list", "show", "seek", "delete", "pause", "resume"],
    ("dlq",): ["list", "requeue", "delete", "purge"],
    ("message",): ["list", "show", "delete"],
}
EVERY = [(), *((*path, name) for path, names in COMMANDS.items() for name in names)]


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_help_has_examples(hark: Run, path: tuple[str, ...]) -> None:
    result = hark(*path, "--help")
    assert result.exit_code == 0
    assert "Examples:\n    hark " in result.stdout
    assert hark(*path, "-h").stdout == result.stdout


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_lists_every_command(hark: Run, path: tuple[str, ...]) -> None:
    listed = [line.split()[0] for line in hark(*path, "--help").stdout.splitlines() if line.startswith("  ")]
    assert set(COMMANDS[path]) <= set(listed)


@pytest.mark.parametrize("path", [path for path in EVERY if path and path not in COMMANDS], ids=" ".join)
def test_every_command_speaks_json(hark: Run, path: tuple[str, ...]) -> None:
    assert "--json" in hark(*path, "--help").stdout


def test_help_explains_the_exit_codes(hark: Run) -> None:
    assert "Exit codes: 0" in hark("--help").stdout


def test_version_is_told_by_command_and_by_option(hark: Run) -> None:
    assert hark("version").stdout == hark("--version").stdout == f"hark {__version__}\n"
    assert json.loads(hark("version", "--json").stdout)["version"] == __version__


def test_help_does_not_load_what_only_commands_need() -> None:
    code = (
        "import sys, hark.cli\n"
        "try: hark.cli.app(['--help'])\n"
        "except SystemExit: pass\n"
        "print({'rich', 'httpx', 'uvicorn', 'apsw', 'asyncio'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "set()"


def test_the_installed_command_runs() -> None:
    code = "import sys; sys.argv = ['hark', 'version']; from hark.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"hark {__version__}\n")
