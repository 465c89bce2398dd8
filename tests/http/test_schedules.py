"""The routes of schedules: what they accept, answer and refuse."""

from __future__ import annotations

import pytest

from tests.http.api import Api, read, refusal


def put(api: Api, name: str, *, status: int = 200, **body: object) -> dict[str, object]:
    """Put a schedule."""
    return dict(read(api.put(f"/schedules/{name}", {"queue": "q", "every": "1h"} | body), status))


def test_a_schedule_is_created_shown_listed_changed_and_deleted(fresh_api: Api) -> None:
    api = fresh_api
    response = api.put("/schedules/b", {"queue": "q", "payload": {"x": [1.5]}, "every": "1h30m", "jitter": 2.5})
    assert response.status_code == 201
    assert b'"payload":{"x": [1.5]}' in response.content, "byte for byte"
    shown = response.json()
    assert (shown["every"], shown["jitter"], shown["state"], shown["overlap"]) == (5400, 2.5, "active", "allow")
    assert (
        api.put("/schedules/b", {"queue": "q", "payload": {"x": [1.5]}, "every": 5400, "jitter": "2s500ms"}).json()
        == shown
    )
    zone = "Europe/Berlin"
    changed = put(api, "b", cron="@daily", every=None, timezone=zone, overlap="skip", catchUp="none", ttl=60_000)
    assert (changed["cron"], changed["every"], changed["timezone"]) == ("0 0 * * *", None, "Europe/Berlin")
    assert changed["createdAt"] == shown["createdAt"]
    put(api, "a", queue="other", status=201)
    page = read(api.get("/schedules"))
    assert ([one["name"] for one in page["schedules"]], page["total"]) == (["a", "b"], 2)
    assert "payload" not in page["schedules"][0]
    assert [one["name"] for one in read(api.get("/schedules", queue="q"))["schedules"]] == ["b"]
    assert [one["name"] for one in read(api.get("/schedules", limit=1, offset=1))["schedules"]] == ["b"]
    assert read(api.get("/schedules", search="zz"))["total"] == 0
    assert read(api.post("/schedules/b/pause"))["state"] == "paused"
    assert read(api.post("/schedules/b/resume"))["state"] == "active"
    run = api.post("/schedules/b/run")
    assert run.status_code == 201
    [message] = api.pop("q")
    assert message["id"] == run.json()["messageId"]
    [ran] = read(api.get("/schedules/b"))["lastRuns"]
    assert ran == run.json()
    assert read(api.delete("/schedules/b")) == {"deleted": True, "name": "b"}
    for missing in (api.get("/schedules/b"), api.delete("/schedules/b"), api.post("/schedules/b/run")):
        refusal(missing, 404, "schedule_not_found")


def test_a_misspelt_schedule_is_not_found_and_a_similar_name_is_shown(fresh_api: Api) -> None:
    put(fresh_api, "nightly", status=201)
    for missing in (
        fresh_api.get("/schedules/nigthly"),
        fresh_api.delete("/schedules/nigthly"),
        *(fresh_api.post(f"/schedules/nigthly/{verb}") for verb in ("pause", "resume", "run")),
    ):
        assert refusal(missing, 404, "schedule_not_found") == "Schedule not found; did you mean nightly?"
    assert refusal(fresh_api.get("/schedules/zzz"), 404, "schedule_not_found") == "Schedule not found"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"every": None}, "cron, every: expected exactly one of them"),
        ({"cron": "* * * * *"}, "cron, every: expected exactly one of them"),
        ({"every": "0.5s"}, "every: expected 1 to 316224000 seconds"),
        ({"every": "5 minutes"}, "'90s', got '5 minutes'"),
        ({"every": "m"}, "every: expected"),
        ({"every": -1}, "every: expected"),
        ({"every": True}, "every: expected a number or a string"),
        ({"every": None, "cron": "* *"}, "cron: expected five fields"),
        ({"every": None, "cron": "* * * * *", "timezone": "Mars"}, "timezone: expected a time zone"),
        ({"timezone": "UTC"}, "timezone: allowed only with cron"),
        ({"jitter": "2d"}, "jitter: expected 0 to 86400 seconds"),
        ({"overlap": "queue"}, "overlap: expected allow or skip, got 'queue'"),
        ({"catchUp": "some"}, "catchUp: expected none, latest or all, got 'some'"),
        ({"catchup": "all"}, "unknown field `catchup`"),
        ({"startAt": "soon"}, "startAt: expected a time such as"),
        ({"queue": None}, "queue: expected a string"),
        ({"queue": ""}, "queue: must not be empty"),
        ({"partition": "x" * 300}, "partition: must be at most 255 bytes"),
        ({"priority": 10}, "priority: expected an integer from 0 to 9"),
        ({"ttl": 0}, "ttl: expected an integer from 1"),
        ({"backoffSchedule": [-1]}, "backoffSchedule[0]: expected an integer"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_stored(api: Api, body: dict[str, object], text: str) -> None:
    response = api.put("/schedules/wrong", {"queue": "q", "every": 60} | body)
    assert response.status_code == 400
    assert text in response.json()["error"]
    refusal(api.get("/schedules/wrong"), 404, "schedule_not_found")


def test_a_name_is_limited_and_can_contain_a_slash(api: Api, queue: str) -> None:
    assert put(api, "a%2Fb", queue=queue, status=201)["name"] == "a/b"
    assert read(api.delete("/schedules/a%2Fb"))["deleted"]
    refusal(api.put("/schedules/" + "x" * 201, {"queue": queue, "every": 60}), 400, "invalid_input")
