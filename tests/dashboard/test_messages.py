"""The pages about messages: find one, look at it, learn why it is not delivered, take it back."""

from __future__ import annotations

import re

from playwright.async_api import expect

from tests.dashboard.accessibility import check_tab_reaches_everything
from tests.dashboard.screen import Screen
from tests.http.api import Api, Json, read


def stored(api: Api, queue: str) -> list[str]:
    """The transaction ids of what a queue has."""
    return [message["transactionId"] for message in read(api.get("/messages", queue=queue))["messages"]]


def place(message: Json) -> str:
    """The page of a message that was pushed."""
    return f"messages/{message['partition_id']}/{message['message_id']}"


async def test_messages_are_listed_newest_first_and_each_has_a_page(screen: Screen, api: Api, queue: str) -> None:
    for number in range(3):
        api.push(queue, {"n": number}, transactionId=f"t{number}", partition=f"p{number}")
    await screen.show(f"messages?queue={queue}")
    names = screen.page.get_by_role("table", name="Messages").locator("tbody td.main")
    await expect(names).to_have_text(["t2", "t1", "t0"])
    await screen.look("messages")
    await check_tab_reaches_everything(screen.page, "messages")
    await screen.page.get_by_role("link", name="t1").click()
    await expect(screen.heading).to_have_text("t1")
    await expect(screen.page.locator("pre.json")).to_have_text('{\n  "n": 1\n}')


async def test_filters_by_partition_state_and_time_are_kept_over_a_reload(screen: Screen, api: Api, queue: str) -> None:
    for number in range(3):
        api.push(queue, number, transactionId=f"t{number}", partition=f"p{number}")
    api.pop_one(queue, "p0", autoAck=True)
    await screen.show(f"messages?queue={queue}")
    names = screen.page.get_by_role("table", name="Messages").locator("tbody td.main")
    await screen.page.get_by_label("Partition").fill("p1")
    await expect(names).to_have_text(["t1"])
    await screen.page.get_by_label("Partition").fill("")
    await expect(names).to_have_count(3)
    await screen.page.get_by_label("State").select_option("completed")
    await expect(names).to_have_text(["t0"])
    await screen.page.reload()
    await expect(names).to_have_text(["t0"])
    await expect(screen.page.get_by_label("State")).to_have_value("completed")
    await screen.page.get_by_label("State").select_option("")
    await screen.page.get_by_label("Time of the push").select_option("custom")
    await screen.page.get_by_label("From").fill("2020-01-01T00:00:00")
    await screen.page.get_by_label("To", exact=True).fill("2020-01-02T00:00:00")
    await expect(screen.page.get_by_text("No message matches these filters.")).to_be_visible()


async def test_the_list_is_paged(screen: Screen, api: Api, queue: str) -> None:
    for number in range(60):
        api.push(queue, number, transactionId=f"t{number}")
    await screen.show(f"messages?queue={queue}")
    rows = screen.page.get_by_role("table", name="Messages").locator("tbody tr")
    await expect(rows).to_have_count(50)
    await screen.button("Next page").click()
    await expect(rows).to_have_count(10)
    await expect(rows.last).to_contain_text("t0")


async def test_a_queue_is_suggested_by_the_server(screen: Screen, api: Api, queue: str) -> None:
    api.configure(queue)
    await screen.show("messages")
    await screen.page.get_by_label("Queue", exact=True).fill(queue[:12])
    await expect(screen.page.locator(f"datalist option[value='{queue}']")).to_be_attached()


async def test_a_page_says_why_each_group_does_not_get_the_message(screen: Screen, api: Api, queue: str) -> None:
    api.configure(queue, retryLimit=3, retryDelay=3_600_000)
    first, second = api.push(queue, {"n": 1}, {"n": 2}, transactionId="t")[:1] + api.push(queue, {"n": 2})
    api.ack(api.pop_one(queue, consumerGroup="billing"), "failed", error="the bank said no")
    api.pop(queue, consumerGroup="shipping", batch=2, consumer="worker 7")
    await screen.show(place(first))
    why = screen.page.get_by_role("region", name="Why is it not delivered?")
    await expect(why.locator(".why").filter(has_text="billing")).to_contain_text("the bank said no")
    await expect(why.locator(".why").filter(has_text="shipping")).to_contain_text("worker 7")
    groups = screen.page.get_by_role("table", name="Groups")
    await expect(groups.get_by_role("row").filter(has_text="billing")).to_contain_text("the bank said no")
    await screen.look("message")
    await screen.show(place(second))
    await expect(why.locator(".why").filter(has_text="billing")).to_contain_text("behind")


async def test_a_message_is_found_by_its_id_alone(screen: Screen, api: Api, queue: str) -> None:
    [message] = api.push(queue, {"n": 1}, transactionId="t")
    await screen.show(f"messages/{message['message_id']}")
    await expect(screen.heading).to_have_text("t")


async def test_the_payload_keeps_every_digit_and_can_be_copied(screen: Screen, api: Api, queue: str) -> None:
    body = f'{{"items":[{{"queue":"{queue}","payload":{{"big":12345678901234567890}}}}]}}'
    [message] = read(api.post("/push", content=body.encode()), 201)
    await screen.show(place(message))
    await expect(screen.page.locator("pre.json")).to_contain_text('"big": 12345678901234567890')
    await screen.button("Copy").click()
    await screen.expect_note("Copied.")
    assert await screen.page.evaluate("navigator.clipboard.readText()") == '{\n  "big": 12345678901234567890\n}'


async def test_what_consumers_recorded_is_shown(screen: Screen, api: Api, queue: str) -> None:
    [message] = api.push(queue, 1)
    ids = {"transactionId": message["transaction_id"], "partitionId": message["partition_id"]}
    read(api.post("/traces", ids | {"data": {"step": "charged"}, "traceNames": [f"run-{queue}"]}), 201)
    await screen.show(place(message))
    events = screen.page.get_by_role("region", name="Recorded events")
    await expect(events).to_contain_text('"step": "charged"')
    await events.get_by_role("link", name=f"run-{queue}").click()
    await expect(screen.heading).to_have_text(f"run-{queue}")


async def test_taking_a_message_back_asks_first(screen: Screen, api: Api, queue: str) -> None:
    [message] = api.push(queue, 1, transactionId="t", delay=3_600_000)
    await screen.show(place(message))
    await screen.button("Take back").click()
    await screen.button("Cancel", screen.dialog).click()
    await expect(screen.dialog).to_have_count(0)
    assert stored(api, queue) == ["t"]
    await screen.button("Take back").click()
    await screen.button("Take back", screen.dialog).click()
    await screen.expect_note("Taken back.")
    assert stored(api, queue) == []


async def test_what_a_group_holds_is_not_taken_back_and_the_dialog_says_so(
    screen: Screen, api: Api, queue: str
) -> None:
    [message] = api.push(queue, 1, transactionId="t")
    api.pop_one(queue)
    screen.expect_status(409)
    await screen.show(place(message))
    await screen.button("Take back").click()
    await screen.button("Take back", screen.dialog).click()
    await expect(screen.dialog.get_by_role("alert")).to_have_text(re.compile("too late to cancel"))
    assert stored(api, queue) == ["t"]


async def test_deleting_a_message_asks_first(screen: Screen, api: Api, queue: str) -> None:
    [message] = api.push(queue, 1, transactionId="t")
    await screen.show(place(message))
    await screen.button("Delete").click()
    await screen.page.keyboard.press("Escape")
    await expect(screen.dialog).to_have_count(0)
    assert stored(api, queue) == ["t"]
    await screen.button("Delete").click()
    await expect(screen.button("Cancel", screen.dialog)).to_be_focused()
    await screen.button("Delete", screen.dialog).click()
    await screen.expect_note("Deleted.")
    await expect(screen.heading).to_have_text("Messages")
    assert stored(api, queue) == []


async def test_a_new_message_appears_by_itself(screen: Screen, api: Api, queue: str) -> None:
    api.push(queue, 1, transactionId="old")
    await screen.show(f"messages?queue={queue}")
    await expect(screen.page.get_by_role("link", name="old")).to_be_visible()
    await expect(screen.page.locator("#live")).to_have_text("live")
    api.push(queue, 2, transactionId="new")
    await expect(screen.page.get_by_role("link", name="new")).to_be_visible()
