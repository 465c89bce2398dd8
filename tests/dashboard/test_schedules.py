"""The pages of schedules: the list, one schedule, create, run, pause and delete."""

from __future__ import annotations

import re

from playwright.async_api import expect

from tests.dashboard.accessibility import check_page, check_tab_reaches_everything
from tests.dashboard.screen import Screen
from tests.http.api import Api, read

FOLLOWED = 30_000
"""Milliseconds within which a page has surely read again, on a busy machine too."""


async def test_schedules_are_listed_created_run_paused_and_deleted(screen: Screen, api: Api, queue: str) -> None:
    name = f"{queue}-nightly"
    await screen.show("schedules")
    await screen.button("Create schedule").click()
    await screen.page.get_by_label("Name", exact=True).fill(name)
    await screen.page.get_by_label("Queue", exact=True).last.fill(queue)
    await screen.page.get_by_label("Kind").select_option("cron")
    await screen.page.get_by_label("When").fill("every day")
    await screen.page.get_by_label("Time zone").fill("Europe/Berlin")
    await screen.page.get_by_label("If runs overlap").select_option("skip")
    await screen.page.get_by_label("Payload (JSON)").fill('{"id": 12345678901234567890}')
    await check_page(screen.page, "create a schedule")
    screen.expect_status(400)
    await screen.button("Create", screen.dialog).click()
    await expect(screen.dialog.get_by_role("alert")).to_have_text(re.compile("cron: expected five fields"))
    await screen.page.get_by_label("When").fill("0 2 * * *")
    await screen.button("Create", screen.dialog).click()
    await screen.expect_note(f"Created schedule {name}.")
    await expect(screen.heading).to_have_text(name)
    assert b'"payload":{"id": 12345678901234567890}' in api.get(f"/schedules/{name}").content
    await expect(screen.page.get_by_text("0 2 * * * (Europe/Berlin)")).to_be_visible()

    await screen.button("Run now").click()
    await screen.expect_note(f"Pushed a message of {name}.")
    runs = screen.page.get_by_role("table", name="Last runs").locator("tbody tr")
    await expect(runs).to_have_count(1)
    await screen.look("schedule")
    await screen.button("Pause").click()
    await expect(screen.button("Resume")).to_be_visible()
    assert read(api.get(f"/schedules/{name}"))["state"] == "paused"
    await runs.get_by_role("link").click()
    await expect(screen.page.get_by_text("12345678901234567890")).to_be_visible()

    await screen.show(f"schedules?search={queue}")
    row = screen.row(name)
    await expect(row.get_by_text("paused", exact=True)).to_be_visible()
    await expect(row.locator("[data-label=Runs]")).to_have_text("1")
    await screen.look("schedules")
    await check_tab_reaches_everything(screen.page, "schedules")
    await screen.button(f"Actions for {name}").click()
    await screen.page.get_by_role("menuitem", name="Resume").click()
    await screen.expect_note(f"Resumed {name}.")
    await expect(row.get_by_text("paused", exact=True)).to_have_count(0)
    await screen.button(f"Actions for {name}").click()
    await screen.page.get_by_role("menuitem", name="Delete").click()
    await screen.button("Delete", screen.dialog).click()
    await screen.expect_note(f"Deleted schedule {name}.")
    await expect(screen.page.get_by_text("No schedule matches.")).to_be_visible()
    assert api.get(f"/schedules/{name}").status_code == 404


async def test_a_schedule_that_fails_or_skips_says_why_and_the_page_follows_it(
    screen: Screen, api: Api, queue: str
) -> None:
    api.configure(queue, maxSize=1)
    api.push(queue, 1)
    failing, skipping = f"{queue}-failing", f"{queue}-skipping"
    read(api.put(f"/schedules/{failing}", {"queue": queue, "every": 1}), 201)
    read(api.put(f"/schedules/{skipping}", {"queue": f"{queue}-2", "every": 1, "overlap": "skip"}), 201)
    await screen.show(f"schedules/{failing}")
    await expect(screen.page.get_by_role("alert").get_by_text("could not be pushed and is tried again")).to_be_visible(
        timeout=FOLLOWED
    )
    await screen.look("schedule-failing")
    await screen.show(f"schedules/{skipping}")
    await expect(screen.page.get_by_text("of the run before is pending")).to_be_visible(timeout=FOLLOWED)
    await screen.show(f"schedules?search={queue}")
    await expect(screen.row(failing).get_by_text("failing", exact=True)).to_be_visible(timeout=FOLLOWED)
    for name in (failing, skipping):
        read(api.delete(f"/schedules/{name}"))


async def test_the_page_of_a_schedule_follows_changes_without_a_change_of_its_queue(
    screen: Screen, api: Api, queue: str
) -> None:
    name = f"{queue}-idle"
    read(api.put(f"/schedules/{name}", {"queue": queue, "every": 3600}), 201)
    await screen.show(f"schedules/{name}")
    await expect(screen.button("Pause")).to_be_visible()
    read(api.post(f"/schedules/{name}/pause"))
    await expect(screen.button("Resume")).to_be_visible(timeout=FOLLOWED)
    await screen.show(f"schedules?search={queue}")
    row = screen.row(name)
    await expect(row.get_by_text("paused", exact=True)).to_be_visible()
    read(api.post(f"/schedules/{name}/resume"))
    await expect(row.get_by_text("paused", exact=True)).to_have_count(0, timeout=FOLLOWED)
    read(api.delete(f"/schedules/{name}"))
