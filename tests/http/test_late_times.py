"""Times after the year 9999: they are refused, and rows that have them do not break lists."""

from __future__ import annotations

import httpx
import pytest

from hark.clock import LATEST, SECOND
from hark.model import NewMessage, PopRequest, Subscription
from tests.http.api import Api
from tests.http.streaming import WAIT_SECONDS, Socket, inside

LATE = "9999-12-31T23:59:59-12:00"
TOO_LATE = LATEST + 86_400 * SECOND
EXPECTED = "expected"
SHOWING = ("/messages", "/consumer-groups")
"""Lists that contain the time."""


def refused(answer: httpx.Response, field: str) -> None:
    """Check that a time was refused by its field."""
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input")
    assert answer.json()["error"].startswith(f"{field}: {EXPECTED}"), answer.json()


def test_a_time_after_the_year_9999_is_refused_wherever_it_is_given(api: Api, queue: str, socket: Socket) -> None:
    api.push(queue, 1)
    refused(api.post("/push", {"items": [{"queue": queue, "deliverAt": LATE}]}), "items[0].deliverAt")
    enqueued = {"value": 1, "options": {"deliverAt": LATE}}
    refused(api.client.post("/keyval/api/queue/enqueue", json=enqueued), "options.deliverAt")
    operations = [{"type": "push", "queue": queue, "deliverAt": LATE}]
    refused(api.post("/transaction", {"operations": operations}), "operations[0].deliverAt")
    refused(api.try_pop(queue, subscriptionFrom=LATE), "subscriptionFrom")
    refused(api.get(f"/listen/queue/{queue}", browse=True, **{"from": LATE}), "from")
    refused(api.post(f"/consumer-groups/g/queues/{queue}/seek", {"timestamp": LATE}), "timestamp")
    refused(api.post("/consumer-groups/g/subscription", {"subscriptionTimestamp": LATE}), "subscriptionTimestamp")
    for path in ("/messages", "/dlq", "/status", "/status/analytics"):
        refused(api.get(path, queue=queue, **{"from": LATE}), "from")
        refused(api.get(path, queue=queue, to=LATE), "to")
    frame = socket.ask("subscribe", id="s", queue=queue, subscriptionFrom=LATE)
    assert frame["error"].startswith(f"subscriptionFrom: {EXPECTED}"), frame


@pytest.mark.parametrize("number", [2**53, 2**63, 10**30])
def test_a_duration_beyond_its_limit_is_refused_in_flows_schedules_and_acknowledgements(
    api: Api, queue: str, number: int
) -> None:
    step = {"queue": queue, "payload": {"task": "t"}}
    for field, value in (("delay", number), ("ttl", number), ("backoffSchedule", [number])):
        where = f"steps[0].{field}" + "[0]" * isinstance(value, list)
        refused(api.post("/flows", {"steps": [step | {field: value}]}), where)
    refused(api.post("/flows", {"steps": [step], "resultTtl": number}), "resultTtl")
    end = {"transactionId": "t", "partitionId": "p", "task": {"transactionId": "t", "resultTtl": number}}
    refused(api.post("/ack", end), "task.resultTtl")
    refused(api.post("/ack/batch", {"acknowledgments": [end]}), "acknowledgments[0].task.resultTtl")
    schedule = {"queue": queue, "every": 60}
    for field in ("ttl", "every", "jitter", "startAt"):
        refused(api.put(f"/schedules/{queue}", schedule | {field: number}), field)
    assert api.get(f"/schedules/{queue}").status_code == 404


@pytest.mark.parametrize("timing", [{"every": "3650d"}, {"cron": "* * * * *", "timezone": "Pacific/Kiritimati"}])
def test_a_schedule_that_begins_at_the_end_of_the_year_9999_is_kept_and_listed(
    api: Api, queue: str, timing: dict[str, str]
) -> None:
    body = {"queue": queue, "startAt": "9999-12-31T23:59:59Z", "jitter": 86_400} | timing
    assert api.put(f"/schedules/{queue}", body).status_code == 201
    for verb in ("pause", "resume"):
        assert api.post(f"/schedules/{queue}/{verb}").status_code == 200
    assert api.post(f"/schedules/{queue}/run").status_code == 201
    [listed] = api.get("/schedules", queue=queue).json()["schedules"]
    assert listed["startAt"] == "9999-12-31T23:59:59.000Z"
    assert (listed["state"], listed["nextRunAt"]) == ("ended", None)


@pytest.mark.parametrize("path", ["/messages", "/consumer-groups", "/consumer-groups/g", "/resources/queues/q"])
def test_a_row_with_a_later_time_is_listed(path: str) -> None:
    with inside() as server, httpx.Client(base_url=server.url, timeout=WAIT_SECONDS, trust_env=False) as client:
        engine = server.broker.engine

        async def store() -> None:
            await engine.push([[NewMessage("q", payload=b"1", deliver_at=TOO_LATE)]])
            await engine.pop([PopRequest(queue="q", group="g", subscription=Subscription("timestamp", TOO_LATE))])

        server.call(store)
        api = Api(client)
        answer = api.get(path, queue="q")
        assert answer.status_code == 200
        assert ("9999-12-31T23:59:59." in answer.text) == (path in SHOWING)
        [message] = api.get("/messages", queue="q").json()["messages"]
        assert api.get(f"/explain/{message['id']}").status_code == 200
