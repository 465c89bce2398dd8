"""The first page, and what is around all pages: navigation, shortcuts, themes, the stream."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, Locator, expect

from tests.dashboard.accessibility import check_page, check_tab_reaches_everything
from tests.dashboard.screen import PHONE, Screen
from tests.http.api import Api, read

NUMBER = re.compile(r"\d")


def number(screen: Screen, label: str) -> Locator:
    """One of the numbers at the top."""
    return screen.page.locator(".stat").filter(has_text=re.compile(f"^{label}")).locator(".stat-value")


async def test_the_numbers_follow_what_happens(screen: Screen, api: Api, queue: str) -> None:
    await screen.show()
    await expect(screen.page.get_by_text("live", exact=True)).to_be_visible()
    await expect(number(screen, "Backlog")).to_have_text(NUMBER)
    await check_tab_reaches_everything(screen.page, "overview")
    api.push(queue, 1, 2, 3)
    api.kill(queue, "bad", group="billing", partition="p")
    await expect(number(screen, "Dead letters")).to_have_text(re.compile("[1-9]"))
    await expect(number(screen, "Backlog")).to_have_text(re.compile("[1-9]"))
    await expect(screen.page.get_by_text(re.compile(r"\d+ queues?, \d+ partitions?"))).to_be_visible()
    await screen.look("overview")


async def test_the_busiest_queues_are_named(screen: Screen, api: Api, queue: str) -> None:
    await screen.show()
    api.push(queue, *range(200))
    row = screen.page.get_by_role("table", name="Busiest queues").get_by_role("row").filter(has_text=queue)
    await expect(row).to_be_visible()
    await row.get_by_role("link").click()
    await expect(screen.heading).to_have_text(queue)


async def test_the_plots_are_there_after_a_reload(screen: Screen, api: Api, queue: str) -> None:
    await screen.show()
    api.push(queue, 1)
    await expect(number(screen, "Pushed")).to_have_text(NUMBER)
    await screen.page.reload()
    await expect(
        screen.page.get_by_role("img", name=re.compile("^Per second, last hour. Now: pushed [0-9]"))
    ).to_be_visible()
    assert any(request.startswith("GET /api/v1/status/history") for request in screen.requests)


async def test_plots_are_read_by_keyboard(screen: Screen) -> None:
    await screen.show()
    plot = screen.page.get_by_role("img", name=re.compile("^Messages, last hour. Now: backlog [0-9]"))
    await plot.focus()
    readout = screen.page.locator("figure").filter(has=plot).locator("output")
    await expect(readout).to_have_text("")
    await screen.page.keyboard.press("Home")
    await expect(readout).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))
    await screen.page.keyboard.press("Escape")
    await expect(readout).to_have_text("")


async def test_maintenance_is_warned_of(screen: Screen, api: Api) -> None:
    await screen.show()
    await expect(number(screen, "Backlog")).to_have_text(NUMBER)
    try:
        read(api.post("/system/maintenance", {"enabled": True}))
        read(api.post("/system/maintenance/pop", {"enabled": True}))
        await expect(screen.page.get_by_text("Pushes are stopped by maintenance.")).to_be_visible()
        await expect(screen.page.get_by_text("Deliveries are stopped by maintenance.")).to_be_visible()
    finally:
        read(api.post("/system/maintenance", {"enabled": False}))
        read(api.post("/system/maintenance/pop", {"enabled": False}))
    await expect(screen.page.get_by_text("Pushes are stopped by maintenance.")).to_have_count(0)


async def test_new_dead_letters_are_warned_of(screen: Screen, api: Api, queue: str) -> None:
    await screen.show()
    await expect(screen.page.get_by_text("live", exact=True)).to_be_visible()
    api.kill(queue, 1)
    warning = screen.page.get_by_role("status").filter(has_text="dead letters in the last hour")
    await expect(warning).to_be_visible()
    await warning.get_by_role("link").click()
    await expect(screen.heading).to_have_text("Dead letters")


async def test_a_server_without_queues_says_what_to_do(browser: Browser, fresh_server_url: str) -> None:
    async with Screen.opened(browser, fresh_server_url) as screen:
        await screen.show()
        await expect(screen.page.get_by_text("No queues yet")).to_be_visible()
        await expect(screen.page.get_by_text("hark push orders")).to_be_visible()
        await screen.button("Copy").click()
        await screen.expect_note("Copied.")
        await screen.look("overview-empty")
        await screen.show("queues")
        await expect(screen.page.get_by_text("No queues yet")).to_be_visible()


async def test_the_first_page_is_small(screen: Screen) -> None:
    await screen.show()
    await expect(number(screen, "Backlog")).to_have_text(NUMBER)
    sizes = "performance.getEntriesByType('navigation').concat(performance.getEntriesByType('resource'))"
    transferred = await screen.page.evaluate(f"{sizes}.reduce((sum, one) => sum + one.transferSize, 0)")
    assert 10_000 < transferred < 100_000


async def test_shortcuts_go_to_pages_and_are_listed(screen: Screen) -> None:
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


async def test_shortcuts_are_off_while_somebody_types(screen: Screen) -> None:
    await screen.show("queues")
    await screen.page.keyboard.press("/")
    await screen.page.keyboard.type("go?")
    await expect(screen.page.get_by_label("Search queues")).to_have_value("go?")
    await expect(screen.heading).to_have_text("Queues")


@pytest.mark.parametrize(("theme", "scheme"), [("Dark", "dark"), ("Light", "light")])
async def test_a_chosen_theme_is_kept(screen: Screen, theme: str, scheme: str) -> None:
    await screen.page.emulate_media(color_scheme="light" if scheme == "dark" else "dark")
    await screen.show()
    await screen.page.get_by_label("Theme").select_option(theme)
    current = "getComputedStyle(document.documentElement).colorScheme"
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


async def test_a_page_that_is_not_there_says_so(screen: Screen) -> None:
    await screen.show("nowhere")
    await expect(screen.page.get_by_text("There is no such page.")).to_be_visible()
