"""Tests of the dashboard in a real browser, against a real server."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from tests.dashboard.screen import Screen
from tests.http.api import Api
from tests.servers import SERVER_ENGINE, server_on

_HERE = Path(__file__).parent
_SWITCHES = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
_WAIT_MS = 15_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them share the loop that the browser lives on."""
    shared_loop = pytest.mark.asyncio(loop_scope="session")
    for item in items:
        if _HERE in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(shared_loop, append=False)


def find_chromium() -> str:
    """Where the browser is; a machine without one can't tell whether the dashboard works."""
    found = os.environ.get("HARK_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.fail(
            "the tests of the dashboard need Chromium: run scripts/test as root, or apt-get install chromium,"
            " or set HARK_TEST_CHROMIUM to the path of one"
        )
    return found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all tests of a process."""
    expect.set_options(timeout=_WAIT_MS)
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=find_chromium(), args=_SWITCHES)
        yield found
        await found.close()


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that all tests of a process share: use queue names of your own, and leave no switch thrown."""
    with server_on(SERVER_ENGINE, tmp_path_factory.mktemp("server"), process=True) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="session")
async def screen(browser: Browser, server_url: str) -> AsyncIterator[Screen]:
    """The dashboard in a fresh window, as nobody has used it before; whatever it complains of fails the test."""
    async with Screen.opened(browser, server_url) as opened:
        yield opened


@pytest.fixture(scope="session")
def api(server_url: str) -> Iterator[Api]:
    """The server that the screen shows, for what a test needs to be there and for what came of it."""
    with httpx.Client(base_url=server_url, timeout=30) as client:
        yield Api(client)
