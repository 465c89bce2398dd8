"""The dashboard in a real browser: when it paints, what it transfers, and how often it asks."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec
from playwright.async_api import Browser, CDPSession, async_playwright

LOADS = 7
WATCH_SECONDS = 12.0
_PAINT = """() => new Promise(done => {
    const seen = performance.getEntriesByName('first-contentful-paint');
    if (seen.length) return done(seen[0].startTime);
    new PerformanceObserver(list => {
        for (const entry of list.getEntriesByName('first-contentful-paint')) done(entry.startTime);
    }).observe({type: 'paint', buffered: true});
})"""


class Visit(msgspec.Struct, frozen=True):
    """What one load of a page was like."""

    paint_ms: float
    """From the navigation to the first content."""
    kilobytes: float
    """Received until then and a second on, headers included; the cache was empty."""
    per_second: float
    """Requests of the same address, at most, in any second of watching."""


async def visit_all(url: str, loads: int = LOADS, seconds: float = WATCH_SECONDS) -> list[Visit]:
    """Load a page so often, each time in a new browser profile; the last visit stays to watch."""
    async with async_playwright() as playwright:
        path = shutil.which("chromium")
        if path is None:
            raise RuntimeError("no chromium: install it with apt-get install chromium")
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            await _visit(browser, url, 0)  # The first one starts processes of the browser.
            return [await _visit(browser, url, seconds if n == loads - 1 else 1.0) for n in range(loads)]
        finally:
            await browser.close()


async def _visit(browser: Browser, url: str, seconds: float) -> Visit:
    context = await browser.new_context()
    page = await context.new_page()
    session = await context.new_cdp_session(page)
    sizes: list[float] = []
    requests: list[tuple[float, str]] = []
    await _listen(session, sizes)
    page.on("request", lambda request: requests.append((time.perf_counter(), _address(request.method, request.url))))
    await page.goto(url, wait_until="commit")
    paint = await page.evaluate(_PAINT)
    await asyncio.sleep(seconds)
    await context.close()
    return Visit(float(paint), sum(sizes) / 1000, _busiest(requests))


async def _listen(session: CDPSession, sizes: list[float]) -> None:
    await session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))


def _address(method: str, url: str) -> str:
    return f"{method} {urlsplit(url).path}"


def _busiest(requests: Sequence[tuple[float, str]]) -> float:
    """The most requests of one address in one second; not in the first, in which a page gets what it is made of."""
    if not requests:
        return 0
    begin = requests[0][0] + 1
    times: dict[str, list[float]] = {}
    for at, address in requests:
        if at >= begin:
            times.setdefault(address, []).append(at)
    most = 0
    for moments in times.values():
        for first in moments:
            most = max(most, sum(first <= at < first + 0.999 for at in moments))
    return most
