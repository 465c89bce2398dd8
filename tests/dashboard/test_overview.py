"""The first page, and what is around all pages: navigation, shortcuts, themes, the stream."""

from __future__ import annotations

import re

import httpx
from playwright.async_api import Browser, Locator, expect

from tests.dashboard.accessibility import check_page, check_tab_reaches_everything
from tests.dashboard.screen import PHONE, Screen
from tests.http.api import Api, read

NUMBER = re.compile(r"\d")


def number(screen: Screen, label: str) -> Locator:
    """One of the numbers at the top."""
    return screen.page.locator(".stat").filter(has_text=re.compile(f"^{label}")).locator(".stat-value")


async def test_the_page_follows_a_server_from_its_first_message_on(
    browser: Browser, fresh_server_url: str, queue: str
) -> None:
    async with Screen.opened(browser, fresh_server_url) as screen:
        await screen.show("queues")
        await expect(screen.page.get_by_text("No queues yet")).to_be_visible()
        await screen.show()
        await expect(screen.page.get_by_text("No queues yet")).to_be_visible()
        await expect(screen.page.get_by_text("hark push orders")).to_be_visible()
        await screen.button("Copy").click()
        await screen.expect_note("Copied.")
        await screen.look("overview-empty")
        with httpx.Client(base_url=fresh_server_url) as client:
            Api(client).push(queue, *range(200))
            Api(client).kill(queue, "bad", group="billing", partition="p")
        await expect(number(screen, "Backlog")).to_have_text(re.compile("[1-9]"))
        await expect(number(screen, "Dead letters")).to_have_text("1")
        await expect(screen.page.get_by_text("1 queue, 2 partitions")).to_be_visible()
        await check_tab_reaches_everything(screen.page, "overview")
        await screen.look("overview")
        warning = screen.page.get_by_role("status").filter(has_text="dead-lettered in the last hour")
        await warning.get_by_role("link").click()
        await expect(screen.heading).to_have_text("Dead letters")
        await screen.show()
        row = screen.page.get_by_role("table", name="Busiest queues").get_by_role("row").filter(has_text=queue)
        await row.get_by_role("link").click()
        await expect(screen.heading).to_have_text(queue)


async def test_the_page_is_small_and_its_plots_are_there_after_a_reload_and_read_by_keyboard(
    screen: Screen, api: Api, queue: str
) -> None:
    await screen.forget_what_was_loaded()
    api.push(queue, 1)
    await screen.show()
    await expect(number(screen, "Backlog")).to_have_text(NUMBER)
    await expect(number(screen, "Pushed")).to_have_text(NUMBER)
    sizes = "performance.getEntriesByType('navigation').concat(performance.getEntriesByType('resource'))"
    transferred = await screen.page.evaluate(f"{sizes}.reduce((sum, one) => sum + one.transferSize, 0)")
    assert 10_000 < transferred < 100_000
    screen.requests.clear()
    await screen.page.reload()
    pushed = re.compile("^Messages per second, last hour. Now: pushed [0-9]")
    await expect(screen.page.get_by_role("img", name=pushed)).to_be_visible()
    assert any(request.startswith("GET /api/v1/status/history") for request in screen.requests)
    plot = screen.page.get_by_role("img", name=re.compile("^Unsettled messages, last hour. Now: backlog [0-9]"))
    await plot.focus()
    readout = screen.page.locator("figure").filter(has=plot).locator("output")
    await expect(readout).to_have_text("")
    await screen.page.keyboard.press("Home")
    await expect(readout).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))
    await screen.page.keyboard.press("Escape")
    await expect(readout).to_have_text("")


async def test_maintenance_is_warned_of(screen: Screen, api: Api) -> None:
    pushes = screen.page.get_by_text("Maintenance mode: the server rejects pushes.")
    try:
        read(api.post("/system/maintenance", {"enabled": True}))
        read(api.post("/system/maintenance/pop", {"enabled": True}))
        await screen.show()
        await expect(pushes).to_be_visible()
        await expect(screen.page.get_by_text("Maintenance mode: the server delivers no messages.")).to_be_visible()
    finally:
        read(api.post("/system/maintenance", {"enabled": False}))
        read(api.post("/system/maintenance/pop", {"enabled": False}))
    await expect(pushes).to_have_count(0)


async def test_shortcuts_go_to_pages_are_listed_and_are_off_while_someone_types(screen: Screen) -> None:
    await screen.show()
    for letter, title in (("q", "Queues"), ("m", "Messages"), ("d", "Dead letters"), ("o", "Overview")):
        await screen.page.keyboard.press("g")
        await screen.page.keyboard.press(letter)
        await expect(screen.heading).to_have_text(title)
        await expect(screen.heading).to_be_focused()
    await screen.page.keyboard.press("?")
    await expect(screen.dialog).to_contain_text("Keyboard shortcuts")
    await check_page(screen.page, "shortcuts")
    await screen.page.keyboard.press("g")
    await screen.page.keyboard.press("q")
    await screen.page.keyboard.press("Escape")
    await expect(screen.dialog).to_have_count(0)
    await expect(screen.heading).to_have_text("Overview")
    await screen.show("queues")
    await screen.page.keyboard.press("/")
    await screen.page.keyboard.type("go?")
    await expect(screen.page.get_by_label("Search queues")).to_have_value("go?")
    await expect(screen.heading).to_have_text("Queues")
    await screen.show("nowhere")
    await expect(screen.page.get_by_text("This page does not exist.")).to_be_visible()


async def test_a_chosen_theme_is_kept(screen: Screen) -> None:
    current = "getComputedStyle(document.documentElement).colorScheme"
    await screen.show()
    for theme, scheme in (("Dark", "dark"), ("Light", "light")):
        await screen.page.emulate_media(color_scheme="light" if scheme == "dark" else "dark")
        await screen.page.get_by_label("Theme").select_option(theme)
        assert await screen.page.evaluate(current) == scheme
        await screen.page.reload()
        await expect(screen.page.get_by_label("Theme")).to_have_value(scheme)
        assert await screen.page.evaluate(current) == scheme
    await screen.page.get_by_label("Theme").select_option("System")
    assert await screen.page.evaluate(current) == "light dark"


async def test_the_navigation_folds_on_a_phone(screen: Screen) -> None:
    await screen.page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    await screen.show()
    queues = screen.page.get_by_role("navigation", name="Pages").get_by_role("link", name="Queues")
    await expect(queues).to_be_hidden()
    await screen.button("Menu").click()
    await check_page(screen.page, "navigation on a phone")
    await queues.click()
    await expect(screen.heading).to_have_text("Queues")
    await expect(queues).to_be_hidden()
