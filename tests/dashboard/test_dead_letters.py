"""The pages about dead letters: search, look, requeue one or many, delete, purge."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Locator, expect

from tests.dashboard.accessibility import check_tab_reaches_everything
from tests.dashboard.screen import Screen
from tests.http.api import Api, data

ERRORS = ["Timeout of the bank", "timeout of the post", "no such account"]


@pytest.fixture
def dead(api: Api, queue: str) -> str:
    """A queue with a dead letter for each of the errors, each in a partition of its own."""
    for number, error in enumerate(ERRORS):
        api.push(queue, {"n": number}, partition=f"p{number}", transactionId=f"t{number}")
        api.ack(api.pop_one(queue, f"p{number}", consumerGroup="billing"), "dlq", error=error)
    return queue


def errors(screen: Screen) -> Locator:
    """The cells with the errors of the list."""
    return screen.page.get_by_role("table", name="Dead letters").locator("tbody td.main")


def left(api: Api, queue: str) -> list[int]:
    """Which of them are still there, oldest failure first."""
    return [letter["n"] for letter in reversed(data(api.dead_letters(queue)))]


async def test_they_are_listed_and_searched_by_error_id_and_time(screen: Screen, api: Api, dead: str) -> None:
    await screen.show(f"dead-letters?queue={dead}")
    await expect(errors(screen)).to_have_text(list(reversed(ERRORS)))
    await screen.look("dead-letters")
    await check_tab_reaches_everything(screen.page, "dead letters")
    await screen.narrow("Search error texts", "TIMEOUT")
    await expect(errors(screen)).to_have_text(["timeout of the post", "Timeout of the bank"])
    await screen.narrow("Partition", "p0")
    await expect(errors(screen)).to_have_text(["Timeout of the bank"])
    await screen.page.reload()
    await expect(errors(screen)).to_have_text(["Timeout of the bank"])
    await screen.narrow("Group", "nobody")
    await expect(screen.page.get_by_text("No dead letter matches.")).to_be_visible()
    newest = api.dead_letters(dead)[0]
    await screen.show("dead-letters")
    await screen.narrow("Message id", newest["deadLetterId"])
    await expect(errors(screen)).to_have_text([ERRORS[2]])
    await screen.narrow("Message id", newest["id"])
    await expect(errors(screen)).to_have_text([ERRORS[2]])
    await screen.narrow("Message id", "")
    await screen.narrow("Queue", dead)
    await screen.page.get_by_label("Failure time").select_option("3600")
    await expect(errors(screen)).to_have_count(3)
    await screen.page.get_by_label("Failure time").select_option("custom")
    await screen.page.get_by_label("To", exact=True).fill("2020-01-02T00:00:00")
    await expect(screen.page.get_by_text("No dead letter matches.")).to_be_visible()


async def test_one_is_inspected_requeued_and_deleted(screen: Screen, api: Api, dead: str) -> None:
    await screen.show(f"dead-letters?queue={dead}")
    await screen.page.get_by_role("link", name=ERRORS[0]).click()
    await expect(screen.page.locator("pre.error-text")).to_have_text(ERRORS[0])
    await expect(screen.page.locator("pre.json")).to_have_text('{\n  "n": 0\n}')
    await screen.look("dead-letter")
    await screen.button("Requeue").click()
    await screen.button("Cancel", screen.dialog).click()
    assert left(api, dead) == [0, 1, 2]
    await screen.button("Requeue").click()
    await screen.button("Requeue", screen.dialog).click()
    await screen.expect_note("Requeued the dead letter.")
    assert left(api, dead) == [1, 2]
    assert data(api.pop(dead, "p0", consumerGroup="billing")) == [{"n": 0}]
    newest = api.dead_letters(dead)[0]["deadLetterId"]
    await screen.show(f"dead-letters/{newest}")
    await screen.button("Delete").click()
    await screen.button("Cancel", screen.dialog).click()
    assert left(api, dead) == [1, 2]
    await screen.button("Delete").click()
    await screen.button("Delete", screen.dialog).click()
    await screen.expect_note("Deleted the dead letter.")
    assert left(api, dead) == [1]
    await screen.show(f"dead-letters/{newest}")
    await expect(screen.page.get_by_text("This dead letter does not exist")).to_be_visible()


async def test_selected_ones_are_deleted_after_a_question_and_requeued(screen: Screen, api: Api, dead: str) -> None:
    await screen.show(f"dead-letters?queue={dead}")
    await screen.page.get_by_label("Select all rows on this page").check()
    await screen.row(ERRORS[1]).get_by_role("checkbox").uncheck()
    await expect(screen.page.get_by_text("2 selected")).to_be_visible()
    await screen.button("Delete selected").click()
    await screen.button("Cancel", screen.dialog).click()
    assert left(api, dead) == [0, 1, 2]
    await screen.button("Delete selected").click()
    await screen.button("Delete", screen.dialog).click()
    await screen.expect_note("Deleted 2 dead letters.")
    await expect(errors(screen)).to_have_text([ERRORS[1]])
    assert left(api, dead) == [1]
    await screen.row(ERRORS[1]).get_by_role("checkbox").check()
    await screen.button("Requeue selected").click()
    await screen.button("Requeue", screen.dialog).click()
    await screen.expect_note("Requeued 1 dead letter.")
    await expect(errors(screen)).to_have_count(0)
    assert left(api, dead) == []
    assert data(api.pop(dead, "p1", consumerGroup="billing")) == [{"n": 1}]


async def test_all_that_match_are_requeued_and_a_purge_wants_a_queue_and_its_name_typed(
    screen: Screen, api: Api, dead: str
) -> None:
    await screen.show("dead-letters")
    await screen.button("Purge").click()
    await screen.expect_note(re.compile("Enter a queue in the filter first"))
    await screen.narrow("Queue", dead)
    await expect(errors(screen)).to_have_count(3)
    await screen.narrow("Search error texts", "timeout")
    await expect(errors(screen)).to_have_count(2)
    await screen.button("Requeue all matching").click()
    await expect(screen.dialog).to_contain_text("Requeue all 2 dead letters that match?")
    await screen.button("Requeue all", screen.dialog).click()
    await screen.expect_note("Requeued 2 dead letters.")
    assert left(api, dead) == [2]
    await screen.narrow("Search error texts", "")
    await expect(errors(screen)).to_have_text([ERRORS[2]])
    await screen.button("Purge").click()
    purge = screen.button("Purge", screen.dialog)
    await expect(purge).to_be_disabled()
    await screen.dialog.get_by_role("textbox").fill(dead[:-1])
    await expect(purge).to_be_disabled()
    await screen.page.keyboard.press("Escape")
    assert left(api, dead) == [2]
    await screen.button("Purge").click()
    await screen.dialog.get_by_role("textbox").fill(dead)
    await purge.click()
    await screen.expect_note("Purged 1 dead letter.")
    assert left(api, dead) == []
