"""A window of a browser with the dashboard in it, that remembers all that went wrong."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, Self

from playwright.async_api import Browser, ConsoleMessage, Locator, Page, Request, Response

from tests.dashboard.accessibility import check_page

SCREENSHOTS = Path(__file__).parents[2] / ".artifacts" / "screenshots"
DESKTOP = {"width": 1280, "height": 1000}
PHONE = {"width": 360, "height": 1000}
Theme = Literal["light", "dark"]
_THEMES: tuple[Theme, ...] = ("light", "dark")
_WAIT_MS = 15_000
_FREE = "about:blank#free"
"""Where a window is that a test may take."""
_HURRY = """
const patient = window.setTimeout;
window.setTimeout = (act, ms = 0, ...rest) => patient(act, ms <= 1000 ? ms / 20 : ms, ...rest);
"""
"""Nobody types here, and nobody has to be spared: the page waits a twentieth of its pauses of up to a second.

The pauses themselves are tested with a clock that belongs to the test, in windows that are not hurried.
"""
_STATUS = re.compile(r"the server responded with a status of (\d+)")


class Screen:
    """One page of one context."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        self.requests: list[str] = []
        """All that the page asked for, as `GET /path?query`."""
        self._expected: set[int] = set()
        self._listeners: dict[str, Callable[..., None]] = {
            "console": self._on_console,
            "pageerror": lambda error: self.problems.append(f"error in a script: {error}"),
            "request": lambda request: self.requests.append(f"{request.method} {_path(request.url)}"),
            "requestfailed": self._failed,
            "response": self._answered,
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)  # type: ignore[call-overload]  # Each event has an overload of its own.

    @classmethod
    @asynccontextmanager
    async def opened(cls, browser: Browser, url: str, *, hurried: bool = True) -> AsyncIterator[Self]:
        """A clean window, checked for problems when it is left.

        Windows are used again, as a new one costs more than most tests; after a failure, or when the test wanted one
        whose time is not hurried, a window is closed.
        """
        page = next((page for context in browser.contexts for page in context.pages if page.url == _FREE), None)
        if page is None or not hurried:
            page = await _new_page(browser)
            if hurried:
                await page.add_init_script(_HURRY)
        await page.bring_to_front()  # Of several windows only the one in front has the focus.
        screen = cls(page, url)
        fine = False
        try:
            yield screen
            assert not screen.problems, "\n".join(screen.problems)
            fine = hurried
        finally:
            if fine:
                await screen._clean()
            else:
                await page.context.close()

    async def _clean(self) -> None:
        """Leave nothing behind for the next test."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        await self.page.evaluate("() => { if (location.host) { localStorage.clear(); sessionStorage.clear() } }")
        await self.page.context.clear_cookies()
        await self.page.emulate_media(color_scheme="light")
        await self.page.set_viewport_size({"width": DESKTOP["width"], "height": DESKTOP["height"]})
        await self.page.goto(_FREE)

    async def forget_what_was_loaded(self) -> None:
        """Load all of the next page from the server, as a new window does."""
        console = await self.page.context.new_cdp_session(self.page)
        await console.send("Network.clearBrowserCache")
        await console.detach()

    def expect_status(self, *statuses: int) -> None:
        """From now on such answers are what the test wants to see."""
        self._expected.update(statuses)

    async def show(self, path: str = "") -> None:
        """Go to a page of the dashboard, such as `queues/orders?tab=groups`."""
        await self.page.goto(f"{self.url}/#/{path}")
        await self.heading.wait_for()

    async def narrow(self, filter_name: str, text: str) -> None:
        """Type into a filter, and wait for the answer to what the page asks for then."""
        async with self.page.expect_response(lambda response: _path(response.url) != "/api/v1/events"):
            await self.page.get_by_label(filter_name, exact=True).fill(text)

    @property
    def heading(self) -> Locator:
        """The title of the page. The frame that the server sends has an empty title, outside any `.page`."""
        return self.page.get_by_role("main").locator(".page").get_by_role("heading", level=1)

    def button(self, name: str | re.Pattern[str], inside: Locator | None = None) -> Locator:
        """A button by its whole name."""
        return (inside or self.page).get_by_role("button", name=name, exact=True)

    def row(self, text: str) -> Locator:
        """The row of a table in which a text is."""
        return self.page.get_by_role("main").get_by_role("row").filter(has_text=text)

    @property
    def dialog(self) -> Locator:
        """The question that is being asked."""
        return self.page.get_by_role("dialog")

    async def expect_note(self, text: str | re.Pattern[str]) -> None:
        """Wait for a note at the edge of the page."""
        await self.page.locator(".toast").filter(has_text=text).first.wait_for()

    async def look(self, name: str) -> None:
        """Keep pictures of the page in both themes and on a phone, and check that everybody can use it."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        for theme in _THEMES:
            await self.page.emulate_media(color_scheme=theme)
            await self.page.screenshot(path=SCREENSHOTS / f"{name}-{theme}.png")
            await check_page(self.page, f"{name}, {theme}")
        await self.page.emulate_media(color_scheme="light")
        await self.page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
        await self.page.screenshot(path=SCREENSHOTS / f"{name}-phone.png")
        await check_page(self.page, f"{name}, on a phone")
        await self.page.set_viewport_size({"width": DESKTOP["width"], "height": DESKTOP["height"]})

    # What goes wrong ---------------------------------------------------------------------------------------

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type not in {"error", "warning"}:
            return
        status = _STATUS.search(message.text)
        if status is None or int(status[1]) not in self._expected:
            self.problems.append(f"console {message.type}: {message.text} {message.location.get('url', '')}")

    def _failed(self, request: Request) -> None:
        # Aborted: the page itself no longer wants it, as it shows something else.
        if request.failure and "ERR_ABORTED" not in request.failure:
            self.problems.append(f"{request.method} {request.url}: {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self._expected:
            self.problems.append(f"{response.request.method} {response.url}: status {response.status}")


async def _new_page(browser: Browser) -> Page:
    context = await browser.new_context(
        viewport={"width": DESKTOP["width"], "height": DESKTOP["height"]},
        color_scheme="light",
        reduced_motion="reduce",
        timezone_id="UTC",
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(_WAIT_MS)
    return await context.new_page()


def _path(url: str) -> str:
    return "/" + url.split("/", 3)[-1]
