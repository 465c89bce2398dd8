"""The page with all queues: search, order, pages, create, pause."""

from __future__ import annotations

import re

from playwright.async_api import Locator, expect

from tests.dashboard.accessibility import check_page, check_tab_reaches_everything
from tests.dashboard.screen import Screen
from tests.http.api import Api, read


def names(screen: Screen) -> Locator:
    """The links to the queues of the list."""
    return screen.page.get_by_role("table", name="Queues").locator("tbody td.main a")


async def test_queues_are_listed_with_their_numbers_followed_and_paused(screen: Screen, api: Api, queue: str) -> None:
    api.push(queue, 1, 2, 3)
    api.push(queue, 4, partition="p")
    api.pop(queue, "p")
    await screen.show(f"queues?search={queue}")
    row = screen.row(queue)
    await expect(row.locator("[data-label=Partitions]")).to_have_text("2")
    await expect(row.locator("[data-label=Backlog]")).to_have_text("3")
    await expect(row.locator("[data-label='In flight']")).to_have_text("1")
    await expect(row.locator("[data-label=Stored]")).to_have_text("4")
    await screen.look("queues")
    await check_tab_reaches_everything(screen.page, "queues")
    api.push(queue, 5, 6)
    await expect(row.locator("[data-label=Backlog]")).to_have_text("5")
    await screen.button(f"Pause {queue}").click()
    await screen.expect_note(f"Paused {queue}.")
    await expect(row.get_by_text("paused", exact=True)).to_be_visible()
    assert read(api.get(f"/resources/queues/{queue}"))["paused"] is True
    await screen.button(f"Resume {queue}").click()
    await expect(screen.button(f"Pause {queue}")).to_be_visible()
    assert read(api.get(f"/resources/queues/{queue}"))["paused"] is False
    await screen.page.get_by_role("link", name=queue).click()
    await expect(screen.heading).to_have_text(queue)


async def test_the_server_searches_sorts_and_filters_and_a_reload_keeps_it_all(
    screen: Screen, api: Api, queue: str
) -> None:
    for name in (f"{queue}-b", f"{queue}-c", f"{queue}-a"):
        api.configure(name)
    api.push(f"{queue}-c", 1)
    read(api.post(f"/resources/queues/{queue}-a/pause"))
    await screen.show("queues")
    await screen.page.keyboard.press("/")
    await screen.page.keyboard.type(f"{queue}-")
    await expect(names(screen)).to_have_text([f"{queue}-a", f"{queue}-c", f"{queue}-b"])
    while read(api.get("/resources/queues", search=f"{queue}-", sort="backlog"))["queues"][0]["name"] != f"{queue}-c":
        pass  # The server looks at all backlogs now and then.
    await screen.button("Backlog").click()
    await expect(names(screen).first).to_have_text(f"{queue}-c")
    await screen.button("Queue").click()
    await expect(names(screen)).to_have_text([f"{queue}-a", f"{queue}-b", f"{queue}-c"])
    await screen.page.reload()
    await expect(names(screen)).to_have_text([f"{queue}-a", f"{queue}-b", f"{queue}-c"])
    await screen.page.get_by_label("Queues to show").select_option("Paused queues")
    await expect(names(screen)).to_have_text([f"{queue}-a"])
    await screen.page.reload()
    await expect(names(screen)).to_have_text([f"{queue}-a"])
    await screen.narrow("Search queues", f"{queue}-no")
    await expect(screen.page.get_by_text("No queue matches.")).to_be_visible()


async def test_there_are_fifty_on_a_page(screen: Screen, api: Api, queue: str) -> None:
    for number in range(52):
        api.configure(f"{queue}-{number:02}")
    await screen.show(f"queues?search={queue}-&sort=name")
    await expect(names(screen)).to_have_count(50)
    await expect(screen.page.get_by_text("1–50 of 52")).to_be_visible()
    await screen.button("Next page").click()
    await expect(names(screen)).to_have_text([f"{queue}-50", f"{queue}-51"])
    await screen.page.reload()
    await expect(names(screen)).to_have_text([f"{queue}-50", f"{queue}-51"])
    await screen.button("Previous page").click()
    await expect(names(screen)).to_have_count(50)


async def test_a_queue_is_created_with_options_unless_it_is_there(screen: Screen, api: Api, queue: str) -> None:
    await screen.show("queues")
    await screen.button("Create queue").click()
    await screen.page.get_by_label("Name", exact=True).fill(queue)
    await screen.page.get_by_label("Namespace").fill("shop")
    await screen.page.get_by_text("Options", exact=True).click()
    await screen.page.get_by_label("Lease time (s)").fill("30")
    await screen.page.get_by_label("Keep dead letters").uncheck()
    await check_page(screen.page, "create a queue")
    screen.expect_status(404)  # Whether the name is free.
    await screen.button("Create", screen.dialog).click()
    await screen.expect_note(f"Created queue {queue}.")
    await expect(screen.heading).to_have_text(queue)
    made = read(api.get(f"/resources/queues/{queue}"))
    assert (made["namespace"], made["task"]) == ("shop", "")
    assert (made["options"]["leaseTime"], made["options"]["deadLetterQueue"]) == (30, False)
    await screen.show("queues")
    await screen.button("Create queue").click()
    await screen.page.get_by_label("Name", exact=True).fill(queue)
    await screen.button("Create", screen.dialog).click()
    await expect(screen.dialog.get_by_role("alert")).to_have_text(re.compile("A queue named .* already exists"))
    await screen.button("Cancel", screen.dialog).click()
    assert read(api.get(f"/resources/queues/{queue}"))["options"]["leaseTime"] == 30
