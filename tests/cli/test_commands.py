"""What holds for each command: help, JSON, and how it fails, with a line that says what to do and an exit code."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys

import pytest

from hark import __version__
from hark.cli.output import say_folded

from .commands import ALL, LEAVES, OTHERS, REMOTE_COMMANDS, STREAMS, options
from .conftest import Run
from .stub import Stub

LINES = {name: (*name.split(), *shlex.split(arguments)) for name, (arguments, _) in REMOTE_COMMANDS.items()}
EVERY = pytest.mark.parametrize("name", REMOTE_COMMANDS)
WITHOUT_JSON = {"migrate", "backup", "restore", "export", "import", "bench", "token revoke"}


# Help ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", *ALL])
def test_every_help_has_examples_and_lists_the_commands(hark: Run, name: str) -> None:
    result = hark(*name.split(), "--help")
    assert result.exit_code == 0
    assert "Examples:\n    hark " in result.stdout
    assert hark(*name.split(), "-h").stdout == result.stdout
    listed = {line.split()[0] for line in result.stdout.splitlines() if line.startswith("  ")}
    inside = {each.removeprefix(name).split()[0] for each in ALL if each.startswith(f"{name} " if name else "")}
    assert inside <= listed


def test_the_commands_that_ask_a_server_are_known_to_these_tests() -> None:
    assert {name for name in LEAVES if "--url" in options(name)} == {*REMOTE_COMMANDS, *OTHERS}


def test_every_command_speaks_json(hark: Run) -> None:
    assert {name for name in LEAVES if "--json" not in options(name)} == WITHOUT_JSON
    assert "--json" in hark("bench", "--help").stdout, "which has its options elsewhere"


def test_help_explains_the_exit_codes(hark: Run) -> None:
    assert "Exit codes: 0" in hark("--help").stdout


def test_version_is_notified_by_command_and_by_option(hark: Run) -> None:
    assert hark("version").stdout == hark("--version").stdout == f"hark {__version__}\n"
    assert json.loads(hark("version", "--json").stdout)["version"] == __version__


def test_the_command_starts_and_loads_nothing_that_only_some_commands_need() -> None:
    code = (
        "import sys, hark.cli\n"
        "try: hark.cli.app(['--help'])\n"
        "except SystemExit: pass\n"
        "print({'rich', 'httpx', 'httptools', 'starlette', 'apsw', 'asyncio'} & set(sys.modules), file=sys.stderr)\n"
        "sys.argv = ['hark', 'version']; hark.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "set()\n")
    assert done.stdout.endswith(f"\nhark {__version__}\n")


# Answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in REMOTE_COMMANDS if name not in STREAMS])
def test_json_is_the_servers_byte_for_byte_and_nothing_else(hark: Run, stub: Stub, name: str) -> None:
    stub.indent = 3
    stub.answer(200, REMOTE_COMMANDS[name][1])
    result = hark(*LINES[name], "--json")
    assert (result.exit_code, result.stdout_bytes, result.stderr) == (0, stub.sent + b"\n", "")
    stub.answer(200, REMOTE_COMMANDS[name][1])
    result = hark(*LINES[name])
    assert result.exit_code == 0, result.output
    assert result.stdout_bytes != stub.sent + b"\n", "people get something else"


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["people", "json"])
@EVERY
def test_an_error_of_the_server_is_passed_on_with_its_code(
    hark: Run, stub: Stub, name: str, flags: tuple[str, ...]
) -> None:
    stub.answer(429, {"error": "too much is waiting", "code": "overloaded"})
    result = hark(*LINES[name], *flags)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "hark: too much is waiting (overloaded)\n"
    assert len(stub.seen) == 1


@EVERY
def test_without_a_server_the_url_and_the_remedy_are_named(hark: Run, name: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = hark(*LINES[name], "--url", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert url in result.stderr
    assert "start a server with `hark serve`" in result.stderr


SILENT = ("queue pause", "queue resume", "dlq delete", "cancel")
"""Commands that show nothing of an answer."""
STRANGE = [(name, 200, b"<html>") for name in REMOTE_COMMANDS if name not in (*STREAMS, *SILENT)]


@pytest.mark.parametrize(
    ("name", "status", "body"),
    [*STRANGE, ("queue list", 200, b"[]"), ("queue list", 200, b"\xff"), ("queue list", 302, b"")],
)
def test_a_server_that_is_not_hark_is_recognised(hark: Run, stub: Stub, name: str, status: int, body: bytes) -> None:
    stub.answer(status, body)
    result = hark(*LINES[name])
    assert result.exit_code == 1
    assert "not from a Hark server" in result.stderr


def test_an_error_page_of_another_server_is_not_shown(hark: Run, stub: Stub) -> None:
    stub.answer(502, b"<html>Bad Gateway</html>")
    result = hark("queue", "list")
    assert result.exit_code == 1
    assert "502" in result.stderr
    assert "<html>" not in result.stderr


def test_a_proxy_in_the_environment_does_not_stand_before_this_machine(
    hark: Run, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    stub.answer(200, {"queues": []})
    assert hark("queue", "list").exit_code == 0


def test_a_path_in_the_url_is_kept(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"queues": []})
    hark("queue", "list", "--url", f"{stub.url}/queue/")
    assert stub.last.target == "/queue/api/v1/resources/queues"


def test_control_characters_of_others_do_not_reach_the_terminal(hark: Run, stub: Stub) -> None:
    message = {"id": "m1", "transactionId": "t1", "partition": "\x1b]0;owned\x07", "data": "\x9b31m"}
    stub.answer(200, {"messages": [message]})
    result = hark("pop", "orders")
    assert not set("\x1b\x07\x9b") & set(result.stdout)
    assert "\\x1b]0;owned\\x07" in result.stdout


def test_a_long_sentence_is_folded_between_words_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Leased to a consumer whose name is long, since yesterday until tomorrow, and so on for a while longer."
    say_folded(text, indent="  ")
    assert capsys.readouterr().out == f"  {text}\n"

    monkeypatch.setattr("hark.cli.output._terminal_width", lambda: 80)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    say_folded(text, indent="  ")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("  ") and len(line) <= 80 for line in lines)
    assert " ".join(line.strip() for line in lines) == text
