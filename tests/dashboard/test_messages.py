"""The pages about messages: find one, look at it, see why it is not delivered, cancel it."""

from __future__ import annotations

import re

from playwright.async_api import expect

from tests.dashboard.accessibility import check_tab_reaches_everything
from tests.dashboard.screen import Screen
from tests.http.api import Api, Json, read


def stored(api: Api, queue: str) -> list[str]:
    """The transaction ids of what a queue has."""
    return [message["transactionId"] for message in read(api.get("/messages", queue=queue))["messages"]]


def path_of(message: Json) -> str:
    """The page of a message that was pushed."""
    return f"messages/{message['partition_id']}/{message['message_id']}"


async def test_messages_are_listed_newest_first_each_has_a_page_and_new_ones_appear(
    screen: Screen, api: Api, queue: str
) -> None:
    for number in range(3):
        api.push(queue, {"n": number}, transactionId=f"t{number}", partition=f"p{number}")
    await screen.show("messages")
    await screen.narrow("Queue", queue[:12])
    await expect(screen.page.locator(f"datalist option[value='{queue}']")).to_be_attached()
    await screen.narrow("Queue", queue)
    names = screen.page.get_by_role("table", name="Messages").locator("tbody td.main")
    await expect(names).to_have_text(["t2", "t1", "t0"])
    await screen.look("messages")
    await check_tab_reaches_everything(screen.page, "messages")
    await expect(screen.page.locator("#live")).to_have_text("live")
    api.push(queue, 2, transactionId="new")
    await expect(names).to_have_text(["new", "t2", "t1", "t0"])
    await screen.page.get_by_role("link", name="t1").click()
    await expect(screen.heading).to_have_text("t1")
    await expect(screen.page.locator("pre.json")).to_have_text('{\n  "n": 1\n}')


async def test_filters_by_partition_state_and_time_are_kept_over_a_reload(screen: Screen, api: Api, queue: str) -> None:
    for number in range(3):
        api.push(queue, number, transactionId=f"t{number}", partition=f"p{number}")
    api.pop_one(queue, "p0", autoAck=True)
    await screen.show(f"messages?queue={queue}")
    names = screen.page.get_by_role("table", name="Messages").locator("tbody td.main")
    await screen.narrow("Partition", "p1")
    await expect(names).to_have_text(["t1"])
    await screen.narrow("Partition", "")
    await expect(names).to_have_count(3)
    await screen.page.get_by_label("State").select_option("completed")
    await expect(names).to_have_text(["t0"])
    await screen.page.reload()
    await expect(names).to_have_text(["t0"])
    await expect(screen.page.get_by_label("State")).to_have_value("completed")
    await screen.page.get_by_label("State").select_option("")
    await screen.page.get_by_label("Push time").select_option("custom")
    await screen.page.get_by_label("From").fill("2020-01-01T00:00:00")
    await screen.page.get_by_label("To", exact=True).fill("2020-01-02T00:00:00")
    await expect(screen.page.get_by_text("No message matches.")).to_be_visible()


async def test_rule_28_scheduled_messages_are_found_apart_and_say_why_they_wait(
    screen: Screen, api: Api, queue: str
) -> None:
    api.push(queue, 1, transactionId="ready")
    api.push(queue, 2, transactionId="delayed", delay=3_600_000)
    await screen.show(f"messages?queue={queue}")
    rows = screen.page.get_by_role("table", name="Messages").locator("tbody tr")
    await screen.page.get_by_label("State").select_option("scheduled")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text(["delayed"])
    await expect(rows).to_contain_text(["scheduled delayed"])
    await screen.page.get_by_label("State").select_option("pending")
    await expect(rows).to_contain_text(["ready"])


async def test_the_list_is_paged(screen: Screen, api: Api, queue: str) -> None:
    for number in range(60):
        api.push(queue, number, transactionId=f"t{number}")
    await screen.show(f"messages?queue={queue}")
    rows = screen.page.get_by_role("table", name="Messages").locator("tbody tr")
    await expect(rows).to_have_count(50)
    await screen.button("Next page").click()
    await expect(rows).to_have_count(10)
    await expect(rows.last).to_contain_text("t0")


async def test_a_page_says_why_each_group_does_not_get_the_message(screen: Screen, api: Api, queue: str) -> None:
    api.configure(queue, retryLimit=3, retryDelay=3_600_000)
    first, second = api.push(queue, {"n": 1}, {"n": 2}, transactionId="t")[:1] + api.push(queue, {"n": 2})
    api.ack(api.pop_one(queue, consumerGroup="billing"), "failed", error="the bank said no")
    api.pop(queue, consumerGroup="shipping", batch=2, consumer="worker 7")
    await screen.show(path_of(first))
    why = screen.page.get_by_role("region", name="Delivery status")
    await expect(why.locator(".why").filter(has_text="billing")).to_contain_text("the bank said no")
    await expect(why.locator(".why").filter(has_text="shipping")).to_contain_text("worker 7")
    groups = screen.page.get_by_role("table", name="Groups")
    await expect(groups.get_by_role("row").filter(has_text="billing")).to_contain_text("the bank said no")
    await screen.look("message")
    await screen.show(path_of(second))
    await expect(why.locator(".why").filter(has_text="billing")).to_contain_text("behind")


async def test_a_page_has_payload_and_recorded_events_which_lead_to_their_names(
    screen: Screen, api: Api, queue: str
) -> None:
    body = f'{{"items":[{{"queue":"{queue}","transactionId":"t1","payload":{{"big":12345678901234567890}}}}]}}'
    [message] = read(api.post("/push", content=body.encode()), 201)
    for step in range(2):
        event = {"data": {"step": step}, "eventType": f"step-{step}", "traceNames": [queue]}
        read(api.post("/traces", event | {"transactionId": "t1", "partitionId": message["partition_id"]}), 201)
    await screen.show(f"messages/{message['message_id']}")  # Its id alone is enough.
    await expect(screen.heading).to_have_text("t1")
    await expect(screen.page.locator("pre.json").first).to_contain_text('"big": 12345678901234567890')
    await screen.button("Copy").first.click()
    await screen.expect_note("Copied.")
    assert await screen.page.evaluate("navigator.clipboard.readText()") == '{\n  "big": 12345678901234567890\n}'
    events = screen.page.get_by_role("region", name="Recorded events")
    await expect(events).to_contain_text('"step": 1')
    await events.get_by_role("link", name=queue).first.click()
    await expect(screen.heading).to_have_text(queue)
    table = screen.page.get_by_role("table", name=f"Events of {queue}")
    await expect(table.locator("tbody td.main")).to_have_text(["step-1", "step-0"])
    await screen.look("trace")
    await table.get_by_role("link", name="t1").first.click()
    await expect(screen.heading).to_have_text("t1")
    await screen.show("traces")
    await expect(screen.row(queue)).to_contain_text("2")
    await screen.look("traces")
    await screen.page.get_by_role("link", name=queue).click()
    await expect(screen.heading).to_have_text(queue)
    await screen.show("traces/never-used")
    await expect(screen.page.get_by_text("No event has this trace name")).to_be_visible()


async def test_taking_a_message_back_asks_first_and_says_so_if_a_group_holds_it(
    screen: Screen, api: Api, queue: str
) -> None:
    [message] = api.push(queue, 1, transactionId="t", delay=3_600_000)
    await screen.show(path_of(message))
    await screen.button("Cancel message").click()
    await screen.button("Keep message", screen.dialog).click()
    await expect(screen.dialog).to_have_count(0)
    assert stored(api, queue) == ["t"]
    screen.expect_status(404)  # The page may look again before it is left.
    await screen.button("Cancel message").click()
    await screen.button("Cancel message", screen.dialog).click()
    await screen.expect_note("Cancelled the message.")
    assert stored(api, queue) == []
    [leased] = api.push(queue, 1, transactionId="held")
    message = api.pop_one(queue)
    await screen.show(path_of(leased))
    await screen.button("Cancel message").click()
    await screen.button("Cancel message", screen.dialog).click()
    await screen.expect_note("The worker stops the task when it next renews its lease.")
    assert read(api.post("/lease/extend", {"leaseIds": [message["leaseId"]]}))["results"][0]["cancelled"] == [
        message["id"]
    ]
    api.ack(message)
    screen.expect_status(409)
    await screen.button("Cancel message").click()
    await screen.button("Cancel message", screen.dialog).click()
    await expect(screen.dialog.get_by_role("alert")).to_have_text(re.compile("cannot be cancelled"))
    assert stored(api, queue) == ["held"]


async def test_the_page_of_a_task_shows_its_progress_its_result_and_its_error(
    screen: Screen, api: Api, queue: str
) -> None:
    api.configure(queue, retryLimit=0)
    [task] = api.push(queue, {"task": "resize", "arguments": {"width": 640}}, transactionId="t")
    message = api.pop_one(queue)
    read(
        api.post(
            f"/messages/{message['partitionId']}/t/progress",
            {"leaseId": message["leaseId"], "progress": 0.4, "note": "resizing"},
        )
    )
    await screen.show(path_of(task))
    panel = screen.page.get_by_role("region", name="Task")
    await expect(panel).to_contain_text("running")
    await expect(panel).to_contain_text("40 %")
    await expect(panel).to_contain_text("resizing")
    await screen.look("task-running")
    end = {"transactionId": "t", "resultTtl": 60, "state": "done", "result": {"bytes": 1234}}
    api.ack(message, task=end)
    await expect(panel).to_contain_text("done")
    await expect(panel.locator("pre.json")).to_have_text('{\n  "bytes": 1234\n}')
    await screen.look("task-done")
    [failing] = api.push(queue, {"task": "resize"}, transactionId="f")
    api.ack(api.pop_one(queue), "failed", error="ValueError: no fuel\nTraceback: line 7")
    await screen.show(path_of(failing))
    await expect(panel).to_contain_text("failed")
    await expect(panel.get_by_label("Error")).to_contain_text("line 7")
    await screen.look("task-failed")
    [plain] = api.push(queue, {"n": 1}, transactionId="plain")
    await screen.show(path_of(plain))
    await expect(screen.page.get_by_role("region", name="Details")).to_contain_text("plain")
    await expect(panel).to_have_count(0)


async def test_deleting_a_message_asks_first(screen: Screen, api: Api, queue: str) -> None:
    [message] = api.push(queue, 1, transactionId="t")
    await screen.show(path_of(message))
    await screen.button("Delete").click()
    await screen.page.keyboard.press("Escape")
    await expect(screen.dialog).to_have_count(0)
    assert stored(api, queue) == ["t"]
    await screen.button("Delete").click()
    await expect(screen.button("Cancel", screen.dialog)).to_be_focused()
    screen.expect_status(404)  # The page may look again before it is left.
    await screen.button("Delete", screen.dialog).click()
    await screen.expect_note("Deleted the message.")
    await expect(screen.heading).to_have_text("Messages")
    assert stored(api, queue) == []
