"""The flow in the page of a message: the state of each step, and a button that cancels it."""

from __future__ import annotations

import json

from playwright.async_api import expect

from tests.dashboard.screen import Screen
from tests.http.api import Api, read


def pushed_flow(api: Api, queue: str) -> str:
    """A chain of two steps, of which the first one is done; returns the page of the second one."""
    steps = [{"queue": queue, "payload": {"task": name}} for name in ("download", "resize")]
    flow = read(api.post("/flows", {"id": f"f-{queue}", "steps": steps}), 201)
    first = api.pop_one(queue)
    ref = first["data"]["flow"]
    assert ref == {"queue": queue, "id": flow["id"], "path": "0"}
    ack = {"transactionId": first["id"], "leaseId": first["leaseId"], "partitionId": first["partitionId"]}
    api.post("/ack", {**ack, "task": {"transactionId": first["transactionId"], "result": 7, "flow": ref}})
    second = next(
        message for message in read(api.get("/messages", queue=queue))["messages"] if message["id"] != first["id"]
    )
    return f"messages/{second['partitionId']}/{second['id']}"


async def test_the_page_of_a_step_shows_its_flow_and_cancels_it(screen: Screen, api: Api, queue: str) -> None:
    await screen.show(pushed_flow(api, queue))
    rows = screen.page.get_by_role("table", name="Flow").locator("tbody tr")
    await expect(rows).to_have_count(2)
    await expect(rows.nth(0)).to_contain_text("download")
    await expect(rows.nth(0)).to_contain_text("done")
    await expect(rows.nth(1)).to_contain_text("1 (this message)")
    await expect(rows.nth(1)).to_contain_text("pending")
    await expect(screen.page.locator("pre.json")).to_contain_text(json.dumps("resize"))
    await screen.look("flow")
    screen.expect_status(404)  # The message is gone then.
    await screen.button("Cancel flow").click()
    await screen.button("Cancel flow", screen.page.get_by_role("dialog")).click()
    await expect(screen.page.get_by_text("Cancelled the flow.")).to_be_visible()
    flow = read(api.get(f"/flows/{queue}/f-{queue}"))
    assert [step["state"] for step in flow["steps"]] == ["done", "cancelled"]
