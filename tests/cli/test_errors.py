"""How commands fail: one line that says what to do, and an exit code."""

from __future__ import annotations

import socket

import pytest

from .conftest import Run
from .stub import Stub


def test_an_error_of_the_server_is_passed_on_with_its_code(hark: Run, stub: Stub) -> None:
    stub.answer(404, {"error": "there is no queue orders", "code": "not_found"})
    result = hark("queue", "show", "orders")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "hark: there is no queue orders (not_found)\n"


def test_an_error_goes_to_stderr_even_with_json(hark: Run, stub: Stub) -> None:
    stub.answer(429, {"error": "too much is waiting", "code": "overloaded"})
    result = hark("queue", "list", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "hark: too much is waiting (overloaded)\n"


def test_without_a_server_the_url_and_the_remedy_are_named(hark: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = hark("queue", "list", "--url", url)
    assert result.exit_code == 1
    assert url in result.stderr
    assert "start one with: hark serve" in result.stderr


def test_a_bucket_is_no_server_and_the_remedy_is_named(hark: Run) -> None:
    result = hark("queue", "list", "--url", "s3://my-bucket/shop")
    assert result.exit_code == 2
    assert "hark serve --engine s3://" in result.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:6632", "ftp://x", "http://[::1", "nonsense"])
def test_a_url_that_is_none_is_wrong_usage(hark: Run, url: str) -> None:
    result = hark("queue", "list", "--url", url)
    assert result.exit_code == 2
    assert "HARK_URL" in result.stderr


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>"), (200, b"[]"), (200, b"\xff"), (302, b"")])
def test_a_server_that_is_not_hark_is_recognised(hark: Run, stub: Stub, status: int, body: bytes) -> None:
    stub.answer(status, body)
    result = hark("queue", "list")
    assert result.exit_code == 1
    assert "the server's answer is not Hark's" in result.stderr


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


def test_arguments_that_are_not_utf8_are_wrong_usage(hark: Run) -> None:
    result = hark("queue", "show", "\udcff")
    assert (result.exit_code, result.stderr) == (2, "hark: arguments must be valid UTF-8\n")


def test_an_unknown_command_or_option_is_wrong_usage(hark: Run) -> None:
    assert hark("qeue", "list").exit_code == 2
    assert hark("queue", "list", "--colour").exit_code == 2
