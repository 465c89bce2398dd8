"""The page about consumers: who waits, and who holds messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from playwright.async_api import expect

from tests.dashboard.screen import Screen
from tests.http.api import Api
from tests.http.streaming import websocket


@asynccontextmanager
async def waiting_pop(url: str, queue: str) -> AsyncIterator[None]:
    """Somebody who waits for a message, and leaves."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        query = {"wait": "true", "timeout": "60000", "consumerGroup": "billing", "consumer": "host a"}
        pop = asyncio.ensure_future(client.get(f"/api/v1/pop/queue/{queue}", params=query))
        try:
            yield
        finally:
            pop.cancel()
            await asyncio.wait([pop])


async def test_those_who_wait_and_what_streams_have_not_settled_are_shown_as_they_come_and_go(
    screen: Screen, api: Api, queue: str
) -> None:
    api.configure(queue)
    await screen.show(f"consumers?queue={queue}")
    await expect(screen.page.get_by_text("No consumer waits for this queue.")).to_be_visible()
    await expect(screen.page.locator("#live")).to_have_text("live")
    async with waiting_pop(screen.url, queue):
        row = screen.row(queue)
        await expect(row).to_contain_text("pop")
        await expect(row).to_contain_text("billing")
        await expect(row).to_contain_text("host a")
        await screen.look("consumers")
    await expect(screen.page.get_by_text("No consumer waits for this queue.")).to_be_visible()
    api.push(queue, 1)
    with websocket(screen.url, credit=5) as socket:
        socket.subscribe("a", queue)
        assert len(socket.messages()) == 1
        await expect(row).to_contain_text("stream")
        await expect(row.locator("td[data-label=Unsettled]")).to_have_text("1")


async def test_leases_say_who_holds_what_since_when_until_when(screen: Screen, api: Api, queue: str) -> None:
    api.push(queue, 1, 2, transactionId="t")
    api.push(queue, 2)
    api.pop(queue, batch=2, consumerGroup="billing", consumer="worker 7 on host a")
    await screen.show("consumers")
    await screen.page.get_by_role("link", name="Leases").click()
    await screen.narrow("Queue", queue)
    row = screen.row(queue)
    await expect(row).to_contain_text("worker 7 on host a")
    await expect(row.locator("td[data-label=Group]")).to_have_text("billing")
    await expect(row.locator("td[data-label=Expires]")).to_contain_text("in ")
    await screen.look("leases")
    await row.get_by_role("link", name="open").click()
    await expect(screen.page.get_by_role("region", name="Delivery status")).to_be_visible()
