"""The pytest plugin, as somebody meets it who has Hark installed and writes tests of an application."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

TESTS = """
import pytest


def test_without_a_client(hark_server):
    hark_server.assert_not_pushed("orders")


def test_sync(hark_server, hark_sync):
    hark_sync.queue("orders").push({"id": 1})
    hark_server.assert_pushed("orders", {"id": 1})


{mark}
async def test_async(hark_server, hark_client):
    await hark_client.queue("orders").partition("customer-7").push({"id": 2})
    hark_server.assert_pushed("orders", {"id": 2}, partition="customer-7")
    hark_server.assert_not_pushed("orders", {"id": 1})


def test_that_fails(hark_server, hark_sync):
    hark_sync.queue("orders").push({"id": 1})
    hark_server.assert_pushed("orders", {"id": 2})
"""

_ASYNCIO = ("-p", "asyncio", "-o", "asyncio_default_fixture_loop_scope=function")
"""Without the scope pytest-asyncio warns of itself, and here warnings are errors."""


def _run(directory: Path, *arguments: str) -> str:
    """Run pytest there with these plugins alone, without the settings of this run; what it printed."""
    installed = any(entry.value == "hark.testing.plugin" for entry in entry_points(group="pytest11"))
    plugin = "hark" if installed else "hark.testing.plugin"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "HARK_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-p", plugin, *arguments],
        cwd=directory,
        env=environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("mark", "settings"),
    [
        pytest.param("", (*_ASYNCIO, "-o", "asyncio_mode=auto"), id="auto"),
        pytest.param("@pytest.mark.asyncio", (*_ASYNCIO, "-o", "asyncio_mode=strict"), id="strict"),
        pytest.param("@pytest.mark.anyio", ("-p", "anyio"), id="anyio"),
    ],
)
def test_the_fixtures_work_in_the_tests_of_an_application(mark: str, settings: tuple[str, ...], tmp_path: Path) -> None:
    anyio = '\n\n@pytest.fixture\ndef anyio_backend():\n    return "asyncio"\n'
    (tmp_path / "test_app.py").write_text(TESTS.replace("{mark}", mark) + anyio)
    output = _run(tmp_path, *settings)
    assert "1 failed, 3 passed" in output, output
    assert "data: 'id' is 1, expected 2" in output
    assert "hark/testing" not in output, "the traceback of a failed assertion ends in the test"


def test_the_plugin_costs_nothing_until_a_fixture_is_used() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import hark.testing, hark.testing.plugin\n"
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['hark']"


def test_every_public_name_is_there() -> None:
    import hark.testing

    assert {getattr(hark.testing, name).__name__ for name in hark.testing.__all__} == set(hark.testing.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        hark.testing.Nothing  # noqa: B018  # that it can't be read is the point
