"""The pages about traces: names, and the events of one."""

from __future__ import annotations

from playwright.async_api import expect

from tests.dashboard.screen import Screen
from tests.http.api import Api, read


async def test_names_lead_to_events_and_events_to_messages(screen: Screen, api: Api, queue: str) -> None:
    [message] = api.push(queue, {"n": 1}, transactionId="t1")
    for step in range(2):
        body = {
            "transactionId": "t1",
            "partitionId": message["partition_id"],
            "data": {"step": step},
            "eventType": f"step-{step}",
            "traceNames": [queue],
        }
        read(api.post("/traces", body), 201)
    await screen.show("traces")
    await expect(screen.row(queue)).to_contain_text("2")
    await screen.look("traces")
    await screen.page.get_by_role("link", name=queue).click()
    await expect(screen.heading).to_have_text(queue)
    events = screen.page.get_by_role("table", name=f"Events of {queue}")
    await expect(events.locator("tbody td.main")).to_have_text(["step-1", "step-0"])
    await screen.look("trace")
    await events.get_by_role("link", name="t1").first.click()
    await expect(screen.heading).to_have_text("t1")


async def test_a_name_without_events_says_so(screen: Screen) -> None:
    await screen.show("traces/never-used")
    await expect(screen.page.get_by_text("Nothing was recorded under this name")).to_be_visible()
