"""The page about the server: health, maintenance, settings, audit log, theme."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.async_api import expect

from tests.dashboard.screen import Screen
from tests.http.api import Api, read


@pytest.fixture(autouse=True)
def _no_maintenance_is_left(api: Api) -> Iterator[None]:
    yield
    for path in ("/system/maintenance", "/system/maintenance/pop"):
        read(api.post(path, {"enabled": False}))


def maintenance(api: Api) -> tuple[bool, bool]:
    """Whether pushes and pops are stopped."""
    state = read(api.get("/system/maintenance"))
    return state["maintenanceMode"], state["popMaintenanceMode"]


async def test_health_settings_tokens_and_the_audit_log_are_shown(screen: Screen, api: Api, queue: str) -> None:
    api.configure(queue)
    await screen.show("settings")
    await expect(screen.page.get_by_role("region", name="Health")).to_contain_text("healthy")
    table = screen.page.get_by_role("table", name="Settings")
    await expect(table.get_by_role("row").filter(has_text="max_body_bytes")).to_be_visible()
    await expect(screen.page.get_by_role("region", name="Tokens")).to_contain_text("hark token create")
    await screen.look("settings")
    await screen.page.get_by_label("Search settings").fill("max_body")
    await expect(table.locator("tbody tr:visible")).to_have_count(1)
    log = screen.page.get_by_role("table", name="Audit log")
    await expect(log.get_by_role("row").filter(has_text=queue)).to_contain_text("configure")
    read(api.delete(f"/resources/queues/{queue}"))
    await screen.button("Refresh", screen.page.get_by_role("region", name="Audit log")).click()
    await expect(log.get_by_role("row").filter(has_text=queue).first).to_contain_text("delete queue")
    await screen.page.get_by_label("Dashboard theme").select_option("dark")
    page = screen.page.locator("html")
    await expect(page).to_have_css("color-scheme", "dark")
    await screen.page.reload()
    await expect(page).to_have_css("color-scheme", "dark")
    await expect(screen.page.get_by_label("Dashboard theme")).to_have_value("dark")


async def test_maintenance_is_switched_on_after_a_question_and_off_again_and_seen_when_others_do(
    screen: Screen, api: Api
) -> None:
    await screen.show("settings")
    for index, word in enumerate(("pushes", "pops")):
        await screen.button(f"Stop {word}").click()
        await screen.button("Cancel", screen.dialog).click()
        assert maintenance(api) == (False, False)
        await screen.button(f"Stop {word}").click()
        await screen.button(f"Stop {word}", screen.dialog).click()
        await screen.expect_note(f"Stopped {word}.")
        assert maintenance(api) == (index == 0, index == 1)
        await screen.button(f"Resume {word}").click()
        await screen.button(f"Resume {word}", screen.dialog).click()
        await expect(screen.button(f"Stop {word}")).to_be_visible()
        assert maintenance(api) == (False, False)
    await expect(screen.page.locator("#live")).to_have_text("live")
    read(api.post("/system/maintenance", {"enabled": True}))
    await expect(screen.button("Resume pushes")).to_be_visible()
