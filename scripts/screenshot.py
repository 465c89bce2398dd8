"""Takes a picture of the dashboard of a web shop.

The server of `hark.testing` runs on a free port, with a store in memory and a clock that this script moves: the clock
starts an hour ago, catches up with the time of day within a minute, and then follows it. So the plots show an hour of
traffic. Producers and consumers use the HTTP API and the client, as in a real shop.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import math
import os
import random
import re
import shutil
import struct
import sys
import time
import traceback
import zlib
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from playwright.async_api import Page, async_playwright, expect

import hark
from hark.broker import Broker
from hark.broker.observer import Observer
from hark.clock import SECOND
from hark.settings import Settings
from hark.testing.server import ServerThread

TARGET = Path(__file__).parent.parent / "docs/images/dashboard.png"
HEIGHT = 990
SCALE = 1.5
"""For screens with a high resolution."""
SWITCHES = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"]
WAIT_MS = 15_000
STEP_SECONDS = 10
"""The history of the server has a point every ten seconds."""
HOUR_SECONDS = 3650
LIVE_SECONDS = 12
CUSTOMERS = 40


class Flow(NamedTuple):
    """A group that pops from a queue."""

    queue: str
    group: str
    mode: str
    leased: bool
    """The consumers work for one step on each message: it is in flight meanwhile."""


PER_SECOND = {"orders": 11.0, "payments": 6.5, "inventory": 4.0}
FLOWS = (
    Flow("orders", "shipping", "shared", True),
    Flow("orders", "analytics", "ordered", False),
    Flow("payments", "billing", "shared", True),
    Flow("inventory", "warehouse", "ordered", False),
)
EMAILS_PER_SECOND = 7.5
INVOICES_PER_SECOND = 0.19
INVOICES_PER_STEP = 2
"""Accounting is slow: it has a backlog that grows and shrinks."""
DEAD_STEPS = (95, 96, 214, 305)
STUCK_STEP = 318
"""From this step on, a consumer of the warehouse holds a lease and blocks a partition."""
RATES = re.compile("[1-9]")
QUANTISE = """
async (picture) => {
  const bitmap = await createImageBitmap(await (await fetch(`data:image/png;base64,${picture}`)).blob());
  const { width, height } = bitmap;
  const context = new OffscreenCanvas(width, height).getContext("2d");
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, width, height);
  const colour = (at) => data[at] << 16 | data[at + 1] << 8 | data[at + 2];
  const colours = Array.from({ length: width * height }, (_, pixel) => colour(4 * pixel));
  const counts = new Map();
  for (const one of colours) counts.set(one, (counts.get(one) ?? 0) + 1);
  const parts = (one) => [one >> 16, one >> 8 & 255, one & 255];
  const distance = (one, other) => Math.hypot(...parts(one).map((part, at) => part - parts(other)[at]));
  const frequent = [...counts].sort((one, other) => other[1] - one[1]).map(([one]) => one);
  const kept = [];
  for (const one of frequent) if (kept.length < 256 && kept.every((other) => distance(one, other) > 6)) kept.push(one);
  const nearest = (one) => {
    const distances = kept.map((other) => distance(one, other));
    return distances.indexOf(Math.min(...distances));
  };
  const places = new Map(frequent.map((one) => [one, String.fromCharCode(nearest(one))]));
  const pixels = colours.map((one) => places.get(one)).join("");
  return { width, height, palette: kept.flatMap(parts), pixels: btoa(pixels) };
}
"""
"""Keeps up to 256 frequent colours that differ, and replaces each other colour by the nearest of them."""


class CardDeclined(Exception):
    """The bank refused a payment."""


class ObservedBroker(Broker):
    """A broker whose history follows the clock of the server, and not the time of day."""

    async def start(self) -> None:
        """Start with another observer."""
        await super().start()
        await self.observed.close()
        most = self._settings.limits.max_streams
        self.observed = Observer(self.engine, self.tallies, self._timers, self._standing, most)
        self.observed.start()


class Server(ServerThread):
    """The server, with a clock that starts an hour ago."""

    def __init__(self) -> None:
        super().__init__(Settings())
        self.clock.advance(-HOUR_SECONDS)
        self.broker = ObservedBroker(self.engine, self._settings, self.clock, timers=self._timers)

    @property
    def late(self) -> float:
        """How many seconds the clock is behind the time of day."""
        return time.time() - self.clock.now() / SECOND


class Shop:
    """The producers and consumers."""

    def __init__(self, server: Server, http: httpx.AsyncClient, worker: hark.Client) -> None:
        self._server = server
        self._http = http
        self._worker = worker
        self._random = random.Random(17)
        self._orders = 48_000
        self._steps = 0
        self._leased: dict[str, list[dict[str, Any]]] = {}
        self._stuck: list[dict[str, Any]] = []
        self._mailed = 0
        self._sent = asyncio.Condition()
        self.settled = asyncio.Event()
        """Rates over the last ten seconds contain only live traffic."""

    async def open(self) -> None:
        """Configure the queues."""
        options = {"payments": {"retryLimit": 4, "retryDelay": 8000}, "emails": {"rateLimit": 200}}
        for queue in ("orders", "payments", "inventory", "emails", "invoices", "refunds"):
            body = {"queue": queue, "namespace": "shop", "options": options.get(queue, {})}
            await self._post("/configure", body)
        await self._push("invoices", 12, "Default")
        # The samples of the server are taken within steps, not between them.
        await self._advance(STEP_SECONDS / 2 + 0.4)

    def mailing(self) -> AbstractAsyncContextManager[None]:
        """A worker that sends the emails."""
        mailer = self._worker.queue("emails").group("mailer").consumer("mailer-1").batch(100).each()
        return _meanwhile(_run(mailer.consume(self._mail)))

    def waiting(self) -> AbstractAsyncContextManager[None]:
        """Consumers that wait for refunds."""
        query = {"wait": "true", "timeout": "600000", "consumerGroup": "support", "groupMode": "shared"}
        return _meanwhile(*(_run(self._http.get("/api/v1/pop/queue/refunds", params=query)) for _ in range(3)))

    def trading(self) -> AbstractAsyncContextManager[None]:
        """Traffic from now on, a second at a time."""
        return _meanwhile(self._trade())

    async def _mail(self, _message: hark.Message) -> None:
        async with self._sent:
            self._mailed += 1
            self._sent.notify_all()

    async def catch_up(self) -> None:
        """The traffic of an hour."""
        while self._server.late > 2 * STEP_SECONDS:
            await self._step(STEP_SECONDS)
        # The server counts the whole traffic of a step at its beginning: this is for the second half of the last one.
        await self._traffic(STEP_SECONDS / 2)

    async def _trade(self) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(max(0.0, 1 - self._server.late))
            await self._step(1)
            if number % 5 == 0:
                await self._push("invoices", 1, "Default")
            if number == LIVE_SECONDS:
                self.settled.set()

    async def _step(self, seconds: float) -> None:
        self._steps += seconds == STEP_SECONDS
        spent = await self._traffic(seconds)
        if seconds == STEP_SECONDS:
            await self._invoice()
        await self._advance(seconds - spent)

    async def _traffic(self, seconds: float) -> float:
        """The traffic of some seconds, all of it at their beginning; returns how much the clock moved."""
        demand = _demand(self._steps, self._random)
        await self._settle(seconds)
        for queue, rate in PER_SECOND.items():
            await self._push(queue, self._count(rate * demand * seconds))
        invoices = INVOICES_PER_SECOND * seconds * (1 + 0.7 * math.sin(self._steps / 21))
        await self._push("invoices", self._count(invoices), "Default")
        emails = self._mailed + self._count(EMAILS_PER_SECOND * demand * seconds)
        await self._push("emails", emails - self._mailed)
        async with self._sent:
            await self._sent.wait_for(lambda: self._mailed >= emails)
        if self._steps >= STUCK_STEP and not self._stuck:
            query = {"consumerGroup": "warehouse", "consumer": "warehouse-2", "leaseTime": "3600"}
            self._stuck = await self._receive("inventory/partition/customer-12", 1, query)
        spent = 0.0
        for share, wait in ((0.5, 0.002 + 0.002 * demand), (0.45, 0.004 * demand), (1.0, 0.009 * demand**2)):
            wait *= self._random.uniform(0.8, 1.2)
            await self._advance(wait)
            spent += wait
            for flow in FLOWS:
                expected = PER_SECOND[flow.queue] * demand * seconds
                await self._pop(flow, math.ceil(expected * share) if share < 1 else 2000)
        return spent

    async def _advance(self, seconds: float) -> None:
        await asyncio.to_thread(self._server.call, lambda: self._server.advance(seconds))

    async def schedule(self) -> None:
        """Emails for later."""
        emails = self._worker.queue("emails").partition("newsletter")
        for number in range(12):
            await emails.push({"to": f"customer-{number}"}, delay=timedelta(hours=14))

    def _count(self, mean: float) -> int:
        return max(0, math.floor(self._random.gauss(mean, math.sqrt(mean) / 3) + self._random.random()))

    async def _push(self, queue: str, count: int, partition: str | None = None) -> None:
        items = []
        for _ in range(count):
            self._orders += 1
            customer = f"customer-{self._random.randint(1, CUSTOMERS)}"
            payload = {"order": self._orders, "customer": customer, "total": self._random.randint(500, 20_000) / 100}
            key = f"{queue.removesuffix('s')}-{self._orders}"
            path = {"queue": queue, "partition": partition or customer}
            items.append(path | {"payload": payload, "transactionId": key})
        if items:
            await self._post("/push", {"items": items})

    async def _pop(self, flow: Flow, batch: int) -> None:
        query = {"consumerGroup": flow.group, "groupMode": flow.mode, "consumer": f"{flow.group}-1"}
        messages = await self._receive(flow.queue, batch, query)
        if flow.leased:
            self._leased.setdefault(flow.group, []).extend(messages)
        else:
            await self._ack(flow.group, messages)

    async def _settle(self, seconds: float) -> None:
        """Finish the work of the last step; a payment fails now and then."""
        dead = self._steps in DEAD_STEPS
        fails = dead or self._random.random() < seconds / 14
        for group, messages in self._leased.items():
            count = math.ceil(len(messages) * seconds / STEP_SECONDS)
            settled, self._leased[group] = messages[:count], messages[count:]
            failing = settled[:1] if group == "billing" and fails else []
            await self._ack(group, failing, "dlq" if dead else "failed", _error())
            await self._ack(group, settled[len(failing) :])

    async def _invoice(self) -> None:
        messages = await self._receive("invoices", INVOICES_PER_STEP, {"consumerGroup": "accounting"})
        await self._ack("accounting", messages)

    async def _receive(self, queue: str, batch: int, query: dict[str, str]) -> list[dict[str, Any]]:
        parameters: dict[str, str | int] = {"batch": batch, "partitions": CUSTOMERS, **query}
        response = await self._http.get(f"/api/v1/pop/queue/{queue}", params=parameters)
        response.raise_for_status()
        messages: list[dict[str, Any]] = (
            [] if response.status_code == httpx.codes.NO_CONTENT else response.json()["messages"]
        )
        return messages

    async def _ack(
        self, group: str, messages: list[dict[str, Any]], status: str = "completed", error: str | None = None
    ) -> None:
        fields = ("transactionId", "partitionId", "leaseId")
        settled = [{name: one[name] for name in fields} | {"status": status, "error": error} for one in messages]
        if settled:
            await self._post("/ack/batch", {"acknowledgments": settled, "consumerGroup": group})

    async def _post(self, path: str, body: object) -> None:
        (await self._http.post(f"/api/v1{path}", json=body)).raise_for_status()


async def _run(work: Awaitable[object]) -> None:
    await work


@asynccontextmanager
async def _meanwhile(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do some work until the block ends."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _demand(step: int, draw: random.Random) -> float:
    """How busy the shop is: waves, some noise, and a sale."""
    sale = 0.9 * math.exp(-(((step - 230) / 26) ** 2))
    return 1 + 0.18 * math.sin(step / 40) + 0.08 * math.sin(step / 9) + sale + draw.gauss(0, 0.04)


def _error() -> str:
    """An error with its traceback, as the client sends it."""
    try:
        raise CardDeclined("card_declined: insufficient funds (request req_8Qm2)")
    except CardDeclined as error:
        return "".join([*traceback.format_exception_only(error), *traceback.format_tb(error.__traceback__)])


@asynccontextmanager
async def window(theme: str, width: int) -> AsyncIterator[Page]:
    """A window of a web browser."""
    found = os.environ.get("HARK_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        sys.exit("scripts/screenshot: Chromium was not found: install it, or set HARK_TEST_CHROMIUM to its path")
    expect.set_options(timeout=WAIT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=SWITCHES)
        page = await browser.new_page(
            viewport={"width": width, "height": HEIGHT}, device_scale_factor=SCALE, reduced_motion="reduce"
        )
        await page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        yield page
        await browser.close()


async def take(server: Server, path: str, theme: str, width: int) -> bytes:
    """Run the shop, and take the picture while messages flow; a PNG."""
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=None) as http,
        hark.connect(server.url.replace("http", "ws", 1)) as worker,
        window(theme, width) as page,
    ):
        shop = Shop(server, http, worker)
        await shop.open()
        async with shop.mailing():
            await shop.catch_up()
            await shop.schedule()
            async with shop.waiting(), shop.trading():
                await shop.settled.wait()
                await page.goto(f"{server.url}/#/{path}")
                await expect(page.locator("#live")).to_have_text("live")
                await expect(page.locator("main .page")).to_be_visible()
                await expect(page.locator("main .loading")).to_have_count(0)
                if path == "":
                    await expect(page.locator(".stat-value").first).to_have_text(RATES)
                    await expect(page.get_by_role("table", name="Busiest queues").locator("tbody tr")).to_have_count(5)
                    await expect(page.get_by_role("table", name="Lagging groups")).to_be_visible()
                picture = await page.screenshot()
        return await quantised(page, picture)


async def quantised(page: Page, picture: bytes) -> bytes:
    """The same picture as a PNG with a palette of 256 colours, which is a third as large."""
    await page.goto("about:blank")
    found = await page.evaluate(QUANTISE, base64.b64encode(picture).decode())
    width, height, pixels = found["width"], found["height"], base64.b64decode(found["pixels"])
    rows = b"".join(b"\0" + pixels[start : start + width] for start in range(0, width * height, width))
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", header), (b"PLTE", bytes(found["palette"])), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def main() -> None:
    """Read the arguments and take the picture."""
    parser = argparse.ArgumentParser(prog="scripts/screenshot", description="Take a picture of the dashboard.")
    parser.add_argument("file", nargs="?", type=Path, default=TARGET, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--page", default="", help="for example queues/orders; the default is the overview")
    parser.add_argument("--theme", default="light", choices=["light", "dark"])
    parser.add_argument("--width", default=1280, type=int, help="in CSS pixels; default: %(default)s")
    options = parser.parse_args()
    server = Server()
    server.start()
    try:
        picture = asyncio.run(take(server, options.page, options.theme, options.width))
    finally:
        server.stop()
    options.file.parent.mkdir(parents=True, exist_ok=True)
    options.file.write_bytes(picture)
    print(f"{options.file}: {options.file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
