"""How pages follow the server: one stream, closed while nobody looks, and never more than one request a second."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, Route, expect

from tests.dashboard.screen import Screen
from tests.http.api import Api

# Streams that the test speaks for. All that were opened are kept.
FAKE_STREAMS = """
window.streams = [];
window.EventSource = class {
  constructor() { this.closed = false; this.listeners = {}; window.streams.push(this); }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  close() { this.closed = true; }
};
"""
OPEN = "streams.filter((stream) => !stream.closed).length"


@pytest_asyncio.fixture(loop_scope="session")
async def faked(browser: Browser, server_url: str) -> AsyncIterator[Screen]:
    """A window whose clock and stream belong to the test."""
    async with Screen.opened(browser, server_url, hurried=False) as screen:
        await screen.page.add_init_script(FAKE_STREAMS)
        await screen.page.clock.install()
        yield screen


async def send_sample(screen: Screen, *changed: str, more: bool = False) -> None:
    """The stream tells of a change."""
    sample = json.dumps({"at": "2026-01-31T12:00:00.000Z", "changed": changed, "more": more})
    await screen.page.evaluate("(data) => streams.findLast((one) => !one.closed).listeners.sample({ data })", sample)


async def set_hidden(screen: Screen, hidden: str) -> None:
    """Somebody goes to another tab, or comes back."""
    await screen.page.evaluate(f"Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }})")
    await screen.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


async def stand_still(screen: Screen) -> None:
    """From now on time passes only as the test says."""
    await screen.page.clock.pause_at(await screen.page.evaluate("Date.now() / 1000 + 0.5"))


async def let_it_ask(screen: Screen) -> None:
    """Let time pass until the page asks for the list again, and no longer: an answer that takes long makes it wait."""
    requests = len(screen.requests)
    async with screen.page.expect_response("**/resources/queues?*"):
        for _ in range(100):
            if len(screen.requests) == requests:
                await screen.page.clock.run_for(50)


async def shown(screen: Screen, queue: str) -> int:
    """Show the list of queues with one queue in it, and let the stream begin; how many requests there were then."""
    await screen.show(f"queues?search={queue}")
    await expect(screen.row(queue)).to_be_visible()
    await stand_still(screen)
    # What happened between the first look and the first sample is looked for once.
    await send_sample(screen)
    await let_it_ask(screen)
    return len(screen.requests)


async def test_changes_are_one_request_a_second_and_fewer_if_it_takes_long(faked: Screen, api: Api, queue: str) -> None:
    api.push(queue, 1)
    before = await shown(faked, queue)
    for number in (2, 3):
        api.push(queue, number)
        for _ in range(20):
            await send_sample(faked, queue)
        await faked.page.clock.run_for(900)
        await let_it_ask(faked)
        await expect(faked.row(queue).locator("[data-label=Backlog]")).to_have_text(str(number))
    assert len(faked.requests) == before + 2
    # What happens to other queues is not asked for, unless it was too much to name.
    await send_sample(faked, "another")
    await faked.page.clock.run_for(5000)
    assert len(faked.requests) == before + 2
    await send_sample(faked, more=True)
    await let_it_ask(faked)
    assert len(faked.requests) == before + 3
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        arrived.set()
        await go_on.wait()
        await route.continue_()

    await faked.page.route("**/resources/queues?*", hold)
    await send_sample(faked, queue)
    async with faked.page.expect_response("**/resources/queues?*"):
        await faked.page.clock.run_for(1000)
        await arrived.wait()
        await faked.page.clock.run_for(2000)
        go_on.set()
    await send_sample(faked, queue)
    await faked.page.clock.run_for(7000)
    assert len(faked.requests) == before + 4
    await let_it_ask(faked)


async def test_a_hidden_page_asks_for_nothing_and_what_was_missed_is_requested_when_the_stream_is_back(
    faked: Screen, api: Api, queue: str
) -> None:
    api.push(queue, 1)
    before = await shown(faked, queue)
    await set_hidden(faked, "true")
    assert await faked.page.evaluate(OPEN) == 0
    await faked.page.clock.run_for(600_000)
    assert await faked.page.evaluate(OPEN) == 0
    await set_hidden(faked, "false")
    assert await faked.page.evaluate(OPEN) == 1
    await faked.page.evaluate("streams.at(-1).listeners.error()")
    await faked.page.clock.run_for(1000)
    assert len(faked.requests) == before
    api.push(queue, 2)
    await send_sample(faked)
    await let_it_ask(faked)
    await expect(faked.row(queue).locator("[data-label=Backlog]")).to_have_text("2")


async def test_pages_share_a_stream_that_is_opened_again_less_and_less_often_and_given_up_when_silent(
    faked: Screen,
) -> None:
    for path in ("", "messages", "consumers", "queues"):
        await faked.show(path)
    assert await faked.page.evaluate("streams.length") == await faked.page.evaluate(OPEN) == 1
    await stand_still(faked)
    for opened, seconds in enumerate((1, 2, 4, 8, 16, 30, 30), start=1):
        await faked.page.evaluate("streams.at(-1).listeners.error()")
        await expect(faked.page.get_by_text("offline", exact=True)).to_be_visible()
        await faked.page.clock.run_for(seconds * 1000 - 1)
        assert await faked.page.evaluate("streams.length") == opened
        await faked.page.clock.run_for(1)
        assert await faked.page.evaluate("streams.length") == opened + 1
    assert await faked.page.evaluate(OPEN) == 1
    await send_sample(faked)
    await expect(faked.page.get_by_text("live", exact=True)).to_be_visible()
    await faked.page.clock.run_for(10_000)
    await expect(faked.page.get_by_text("offline", exact=True)).to_be_visible()
