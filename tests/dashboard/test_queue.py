"""The page of one queue: partitions, groups, options, a push, and what can be done to all of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import Locator, expect

from tests.dashboard.accessibility import check_page, check_tab_reaches_everything
from tests.dashboard.screen import Screen
from tests.http.api import Api, data, read

Json = Any


def number(screen: Screen, label: str) -> Locator:
    """A number at the top of the page."""
    return screen.page.locator(".stat").filter(has_text=label).locator(".stat-value")


def cell(screen: Screen, row: str, label: str) -> Locator:
    """A cell of the row of that name."""
    return screen.row(row).locator(f"[data-label='{label}']")


def group_of(api: Api, queue: str, group: str) -> Json:
    """A group of a queue as the server has it; None: there is none."""
    return next((one for one in read(api.get("/consumer-groups", queue=queue)) if one["name"] == group), None)


async def act(screen: Screen, group: str, action: str) -> None:
    """Choose an action on a group."""
    await screen.button(f"Actions on {group}").click()
    await screen.page.get_by_role("menuitem", name=action, exact=True).click()


@pytest.fixture
def busy(api: Api, queue: str) -> str:
    """A queue with five messages in two partitions, of which one is leased and one settled."""
    api.push(queue, 1, 2, 3, partition="p")
    api.push(queue, 4, 5, partition="q")
    api.pop(queue, "p", consumerGroup="billing", autoAck=True)
    api.pop(queue, "p", consumerGroup="billing")
    return queue


async def test_a_queue_is_shown_with_its_partitions_followed_and_paused(screen: Screen, api: Api, busy: str) -> None:
    await screen.show(f"queues/{busy}")
    await expect(number(screen, "Backlog")).to_have_text("3")
    await expect(number(screen, "In flight")).to_have_text("1")
    await expect(number(screen, "Settled")).to_have_text("1")
    await expect(number(screen, "Partitions")).to_have_text("2")
    await expect(cell(screen, "p", "Backlog").first).to_have_text("1")
    await expect(screen.page.locator("tbody tr")).to_have_count(2)
    row = screen.page.locator("tbody tr").first
    await expect(row.locator("[data-label=Group]")).to_have_text("billing")
    await expect(row.locator("[data-label=Cursor]")).to_have_text("1")
    await expect(row.locator("[data-label=Lag]")).to_have_text("1")
    await expect(row.locator("[data-label=Lease]")).to_have_text("leased")
    await screen.look("queue-partitions")
    await check_tab_reaches_everything(screen.page, "a queue")
    api.push(busy, 6, partition="another", delay=3_600_000)
    await expect(number(screen, "Stored")).to_have_text("6")
    await expect(number(screen, "Scheduled")).to_have_text("1")
    await expect(number(screen, "Backlog")).to_have_text("3")
    await expect(screen.row("another")).to_be_visible()
    await screen.button(f"Pause {busy}").click()
    await expect(screen.button(f"Resume {busy}")).to_be_visible()
    assert read(api.get(f"/resources/queues/{busy}"))["paused"] is True
    await screen.button(f"Resume {busy}").click()
    await expect(screen.button(f"Pause {busy}")).to_be_visible()
    assert read(api.get(f"/resources/queues/{busy}"))["paused"] is False


async def test_partitions_are_paged_and_searched_by_the_server(screen: Screen, api: Api, queue: str) -> None:
    items = [{"queue": queue, "partition": f"customer-{number:03}", "payload": 1} for number in range(60)]
    read(api.post("/push", {"items": items}), 201)
    await screen.show(f"queues/{queue}")
    rows = screen.page.locator("tbody tr")
    await expect(rows).to_have_count(50)
    await expect(screen.page.get_by_text("1–50 of 60")).to_be_visible()
    await screen.button("Next page").click()
    await expect(rows).to_have_count(10)
    await screen.narrow("Search partitions", "-03")
    await expect(rows.first).to_contain_text("customer-030")
    await expect(rows).to_have_count(10)


async def test_groups_are_shown_with_lag_and_limits_and_their_positions(screen: Screen, api: Api, busy: str) -> None:
    api.pop(busy, "q", consumerGroup="audit", autoAck=True, batch=2)
    read(api.put(f"/consumer-groups/billing/queues/{busy}/limits", {"maxInFlight": 10, "rateLimit": 0.5}))
    await screen.show(f"queues/{busy}/groups")
    await expect(cell(screen, "billing", "Lag")).to_have_text("3")
    await expect(cell(screen, "billing", "Lagging partitions")).to_have_text("2")
    await expect(cell(screen, "billing", "In flight")).to_have_text("1")
    await expect(cell(screen, "billing", "Leases")).to_have_text("1")
    await expect(cell(screen, "billing", "Limits")).to_have_text("10 in flight, 0.5/s")
    await screen.look("queue-groups")
    await cell(screen, "audit", "Lagging partitions").get_by_role("link").click()
    await expect(screen.page.get_by_label("Group for cursor and lag")).to_have_value("audit")
    rows = screen.page.locator("tbody tr")
    await expect(rows.locator("[data-label=Group]")).to_have_text(["audit", "audit"])
    await expect(rows.locator("[data-label=Lag]")).to_have_text(["3", "0"])
    await screen.page.get_by_label("Group for cursor and lag").select_option("billing")
    await expect(rows.locator("[data-label=Group]")).to_have_text(["billing", "billing"])


async def test_a_group_is_paused_and_resumed_and_its_limits_changed(screen: Screen, api: Api, busy: str) -> None:
    await screen.show(f"queues/{busy}/groups")
    # The menu by keyboard.
    opener = screen.button("Actions on billing")
    await opener.focus()
    await screen.page.keyboard.press("Enter")
    await expect(screen.page.get_by_role("menuitem", name="Pause")).to_be_focused()
    await screen.page.keyboard.press("ArrowDown")
    await expect(screen.page.get_by_role("menuitem", name="Seek")).to_be_focused()
    await screen.page.keyboard.press("Escape")
    await expect(screen.page.get_by_role("menu")).to_have_count(0)
    await expect(opener).to_be_focused()
    assert group_of(api, busy, "billing")["paused"] is False
    await act(screen, "billing", "Pause")
    await expect(screen.row("billing").get_by_text("paused", exact=True)).to_be_visible()
    assert group_of(api, busy, "billing")["paused"] is True
    await act(screen, "billing", "Resume")
    await expect(screen.row("billing").get_by_text("paused", exact=True)).to_have_count(0)
    assert group_of(api, busy, "billing")["paused"] is False
    # What the server refuses is said in the dialog.
    screen.expect_status(400)
    await act(screen, "billing", "Limits")
    await screen.page.get_by_label("Rate burst (messages)").fill("5")
    await screen.button("Save", screen.dialog).click()
    await expect(screen.dialog.get_by_role("alert")).to_contain_text("rateBurst")
    await screen.button("Cancel", screen.dialog).click()
    assert group_of(api, busy, "billing")["limits"]["rateBurst"] == 0
    await act(screen, "billing", "Limits")
    await screen.page.get_by_label("Maximum in flight (messages)").fill("7")
    await screen.page.get_by_label("Rate limit per partition (messages/s)").fill("2.5")
    await screen.button("Save", screen.dialog).click()
    await expect(cell(screen, "billing", "Limits")).to_have_text("7 in flight, 2.5/s per partition")
    limits = group_of(api, busy, "billing")["limits"]
    assert (limits["maxInFlight"], limits["rateLimitPerPartition"]) == (7, 2.5)


async def test_a_group_is_moved_to_the_end_to_an_offset_and_to_a_time(screen: Screen, api: Api, busy: str) -> None:
    await screen.show(f"queues/{busy}/groups")
    await act(screen, "billing", "Seek")
    await check_page(screen.page, "seek")
    await screen.button("Cancel", screen.dialog).click()
    assert group_of(api, busy, "billing")["totalLag"] == 3
    await act(screen, "billing", "Seek")
    await screen.button("Seek", screen.dialog).click()
    await expect(cell(screen, "billing", "Lag")).to_have_text("0")
    assert group_of(api, busy, "billing")["totalLag"] == 0
    await act(screen, "billing", "Seek")
    await screen.page.get_by_label("Offset", exact=True).fill("3")
    await screen.page.get_by_label("Only in partition").fill("p")
    await screen.button("Seek", screen.dialog).click()
    await screen.expect_note("Moved billing in 1 partition.")
    assert data(api.pop(busy, "p", consumerGroup="billing")) == [3]
    await act(screen, "billing", "Seek")
    await screen.page.get_by_label("After a time").check()
    await screen.button("Seek", screen.dialog).click()
    await expect(screen.dialog.get_by_role("alert")).to_have_text(re.compile("Enter the time"))
    await screen.page.get_by_label("Time", exact=True).fill("2020-01-01T00:00:00")
    await screen.button("Seek", screen.dialog).click()
    await expect(screen.dialog).to_have_count(0)
    await screen.expect_note("Moved billing in 2 partitions.")
    assert data(api.pop(busy, "p", consumerGroup="billing", batch=9)) == [1, 2, 3]


async def test_all_is_settled_for_a_group_and_it_is_deleted_when_its_name_was_typed(
    screen: Screen, api: Api, busy: str
) -> None:
    await screen.show(f"queues/{busy}/groups")
    await act(screen, "billing", "Settle all")
    await screen.button("Cancel", screen.dialog).click()
    assert group_of(api, busy, "billing")["totalLag"] == 3
    await act(screen, "billing", "Settle all")
    await screen.button("Settle all", screen.dialog).click()
    await screen.expect_note("Settled 4 messages for billing.")
    assert group_of(api, busy, "billing")["totalLag"] == 0
    await act(screen, "billing", "Delete")
    remove = screen.button("Delete group", screen.dialog)
    await expect(remove).to_be_disabled()
    await screen.page.get_by_label("Type billing to confirm").fill("billing")
    await remove.click()
    await screen.expect_note("Deleted billing.")
    await expect(screen.page.get_by_text("No groups yet")).to_be_visible()
    assert group_of(api, busy, "billing") is None


async def test_a_group_named_like_a_step_up_in_a_path_does_not_make_its_queue_purged(
    screen: Screen, api: Api, busy: str
) -> None:
    api.pop(busy, "q", consumerGroup="..")
    await screen.show(f"queues/{busy}/groups")
    await act(screen, "..", "Settle all")
    await screen.button("Settle all", screen.dialog).click()
    await expect(screen.dialog.get_by_role("alert")).to_contain_text("A web browser cannot request a name")
    assert read(api.get(f"/resources/queues/{busy}"))["totals"]["total"] == 5


async def test_options_are_changed_and_the_others_kept(screen: Screen, api: Api, queue: str) -> None:
    body = {"queue": queue, "namespace": "shop", "task": "mail", "options": {"retryLimit": 9, "rateLimit": 0.5}}
    read(api.post("/configure", body))
    await screen.show(f"queues/{queue}/options")
    await screen.look("queue-options")
    offered = await screen.page.locator("main input[name]").evaluate_all("(all) => all.map((input) => input.name)")
    assert sorted(offered) == sorted(read(api.get(f"/resources/queues/{queue}"))["options"])
    await screen.page.get_by_label("Lease time (s)").fill("0")
    await screen.button("Save").click()
    await expect(screen.page.locator("input[name=leaseTime]:invalid")).to_be_focused()
    await screen.button("Undo changes").click()
    await expect(screen.page.get_by_label("Lease time (s)")).to_have_value("300")
    assert "POST /api/v1/configure" not in screen.requests
    await screen.page.get_by_label("Lease time (s)").fill("45")
    await screen.page.get_by_label("Remove when settled").check()
    await screen.button("Save").click()
    await screen.expect_note("Saved the options.")
    saved = read(api.get(f"/resources/queues/{queue}"))
    assert (saved["namespace"], saved["task"]) == ("shop", "mail")
    options = saved["options"]
    assert (options["leaseTime"], options["dropSettled"]) == (45, True)
    assert (options["retryLimit"], options["rateLimit"]) == (9, 0.5)


async def test_messages_are_pushed_and_delayed_but_not_if_they_are_no_json(
    screen: Screen, api: Api, queue: str
) -> None:
    api.configure(queue)
    await screen.show(f"queues/{queue}")
    await screen.button("Push message").click()
    await screen.page.get_by_label("Payload").fill("{hello")
    await expect(screen.page.get_by_text("Invalid JSON").first).to_be_visible()
    await screen.button("Push").click()
    await expect(screen.page.get_by_role("main").get_by_role("alert")).to_contain_text("Invalid JSON")
    assert "POST /api/v1/push" not in screen.requests
    await screen.page.get_by_label("Payload").fill('{"big": 12345678901234567890, "text": "ä"}')
    await screen.page.get_by_label("Partition", exact=True).fill("p")
    await screen.page.get_by_label("Idempotency key").fill("t-1")
    await screen.page.get_by_label("Priority").fill("3")
    await screen.look("queue-push")
    await screen.button("Push").click()
    await expect(screen.page.get_by_text("Pushed as message")).to_be_visible()
    await expect(number(screen, "Stored")).to_have_text("1")
    message = api.pop_one(queue, "p", autoAck=True)
    assert message["data"] == {"big": 12345678901234567890, "text": "ä"}
    assert (message["transactionId"], message["priority"]) == ("t-1", 3)
    await screen.button("Push").click()
    await expect(screen.page.get_by_text("Not pushed.")).to_be_visible()
    await screen.page.get_by_label("Idempotency key").fill("t-2")
    await screen.page.get_by_label("Delay (s)").fill("1000")
    await screen.button("Push").click()
    await expect(screen.page.get_by_text("Pushed as message")).to_be_visible()
    assert api.pop(queue) == []
    assert read(api.get(f"/resources/queues/{queue}"))["totals"]["total"] == 2


async def test_a_queue_is_purged_and_deleted_when_its_name_was_typed(screen: Screen, api: Api, busy: str) -> None:
    await screen.show(f"queues/{busy}")
    await screen.button("Purge").click()
    purge = screen.button("Purge queue", screen.dialog)
    await screen.page.get_by_label(f"Type {busy} to confirm").fill("something else")
    await expect(purge).to_be_disabled()
    await check_page(screen.page, "purge a queue")
    await expect(screen.dialog).to_contain_text("You cannot undo this.")
    await screen.page.keyboard.press("Escape")
    await expect(screen.dialog).to_have_count(0)
    await expect(screen.button("Purge")).to_be_focused()
    assert read(api.get(f"/resources/queues/{busy}"))["totals"]["total"] == 5
    await screen.button("Purge").click()
    await screen.page.get_by_label(f"Type {busy} to confirm").fill(busy)
    await purge.click()
    await screen.expect_note(f"Removed 5 messages from {busy}.")
    await expect(number(screen, "Stored")).to_have_text("0")
    await screen.button("Delete").click()
    await screen.button("Cancel", screen.dialog).click()
    assert api.get(f"/resources/queues/{busy}").status_code == 200
    await screen.button("Delete").click()
    await screen.page.get_by_label(f"Type {busy} to confirm").fill(busy)
    screen.expect_status(404)  # A live refresh of this page may arrive after the deletion.
    await screen.button("Delete queue", screen.dialog).click()
    await screen.expect_note(f"Deleted queue {busy}.")
    await expect(screen.heading).to_have_text("Queues")
    assert api.get(f"/resources/queues/{busy}").status_code == 404
    await screen.show(f"queues/{busy}")
    await expect(screen.page.get_by_text(f"hark push {busy}")).to_be_visible()
    await screen.look("queue-missing")


async def test_names_of_all_kinds_are_only_names(screen: Screen, api: Api) -> None:
    for name in ("a/b c?d#e", "<img src=x onerror=alert(1)>", "Ünï'\"; drop"):
        api.push(name, 1, partition=name)
        await screen.show("queues")
        await screen.page.get_by_role("link", name=name, exact=True).click()
        await expect(screen.heading).to_have_text(name)
        await expect(screen.page.locator("tbody td.main")).to_have_text([name])
