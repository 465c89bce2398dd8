"""The audit log: who did what to what, and how it ended."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import pytest

from hark.clock import FakeClock
from hark.errors import StoreUnusable
from hark.http.audit import AUDITED, KEPT, Audit
from hark.http.exchange import Exchange
from hark.settings import Audit as AuditSettings
from hark.settings import Settings
from tests.http.edge.app_client import AppClient, Json, serving

SECRET = "the-payload-of-a-message"


def request() -> Exchange:
    """A request."""
    return Exchange("POST", b"/api/v1/push", b"", {}, ("10.0.0.9", 1), secure=False)


async def records(ask: AppClient) -> list[Json]:
    """What the server shows of the log, oldest first."""
    found: list[Json] = (await ask("GET", "/api/v1/system/audit", "admin")).json["records"]
    return found[::-1]


async def test_actions_are_written_down_with_who_what_and_how_it_ended(
    ask: AppClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "hark.audit"):
        await ask("POST", "/api/v1/configure", "writer", {"queue": "q", "options": {"leaseTime": 5}})
        await ask("POST", "/api/v1/push", "writer", {"items": [{"queue": "q", "payload": SECRET}]})
        await ask("POST", "/api/v1/resources/queues/q/pause", "writer", headers={"x-request-id": "r1"})
        await ask("POST", "/api/v1/system/maintenance", "admin", {"enabled": False})
        await ask("DELETE", "/api/v1/dlq", "admin", query={"queue": "q", "consumerGroup": "g"})
        await ask("DELETE", "/api/v1/resources/queues/q", "admin")
        await ask("POST", "/api/v1/resources/queues/q/resume", "writer")
    found = await records(ask)
    assert [(one["action"], one["subject"], one["role"], one["status"], one["result"]) for one in found] == [
        ("configure", "writer", "read-write", 200, "done"),
        ("pause_queue", "writer", "read-write", 200, "done"),
        ("set_maintenance", "admin", "admin", 200, "done"),
        ("purge_dead_letters", "admin", "admin", 200, "done"),
        ("delete_queue", "admin", "admin", 200, "done"),
        ("resume_queue", "writer", "read-write", 404, "failed"),
    ]
    assert found[0]["target"] == {"queue": "q"}
    assert found[1]["requestId"] == "r1"
    assert found[2]["target"] == {"enabled": False}
    assert found[3]["target"] == {"queue": "q", "consumerGroup": "g"}
    assert {one["client"] for one in found} == {"10.0.0.9"}
    logged = [vars(record)["fields"] for record in caplog.records if record.name == "hark.audit"]
    assert logged == found
    assert SECRET not in str(logged)


async def test_names_that_are_much_too_long_are_not_kept_whole(ask: AppClient) -> None:
    assert (await ask("DELETE", f"/api/v1/resources/queues/{'x' * 5000}", "admin")).status == 400
    assert (await records(ask))[-1]["target"] == {"queue": "x" * 255}


async def test_who_is_not_let_in_is_written_down_without_the_token(ask: AppClient) -> None:
    await ask("POST", "/api/v1/push", "wrong-token")
    await ask("DELETE", "/api/v1/resources/queues/q", "reader")
    await ask("POST", "/api/v1/push", "mine-writer", {"items": [{"queue": "theirs"}]})
    await ask("POST", "/api/v1/session", body={"token": "wrong-token"})
    await ask("POST", "/api/v1/session", body={"token": "admin"})
    await ask("DELETE", "/api/v1/session", headers={"cookie": "hark_session=admin"})
    found = await records(ask)
    assert [(one["action"], one["subject"], one["role"], one["status"], one["result"]) for one in found] == [
        ("refused", "", "", 401, "unauthorized"),
        ("refused", "reader", "read-only", 403, "forbidden"),
        ("refused", "mine-writer", "read-write", 403, "queue_not_allowed"),
        ("refused", "", "", 401, "unauthorized"),
        ("login", "admin", "admin", 200, "done"),
        ("logout", "admin", "admin", 200, "done"),
    ]
    assert "wrong-token" not in str(found)


async def test_who_comes_without_any_token_is_counted_but_not_written_down(
    ask: AppClient, caplog: pytest.LogCaptureFixture
) -> None:
    evil = {"origin": "https://evil.example"}
    with caplog.at_level(logging.INFO, "hark.audit"):
        for headers in ({}, {"authorization": ""}, {"cookie": "theme=dark; hark_session="}, evil):
            for method, path in (("POST", "/api/v1/push"), ("DELETE", "/api/v1/resources/queues/q")):
                assert (await ask(method, path, headers=headers)).status in (401, 403)
        for cookie in ({}, {"cookie": "hark_session=wrong"}):
            assert (await ask("DELETE", "/api/v1/session", headers=cookie)).status == 200, "nobody logs out"
    assert (await records(ask), caplog.records) == ([], [])
    shown = (await ask("GET", "/metrics", "reader")).body.decode()
    [counter] = [line for line in shown.splitlines() if "/api/v1/push" in line and 'status="401"' in line]
    assert counter.endswith(" 3.0")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"authorization": "Bearer wrong"}, "unauthorized"),
        ({"authorization": "Basic dXNlcjpwYXNz"}, "unauthorized"),
        ({"cookie": "theme=dark; hark_session=expired"}, "unauthorized"),
        ({"authorization": "Bearer admin", "origin": "https://evil.example"}, "cross_origin"),
        ({"cookie": "hark_session=admin", "origin": "https://evil.example"}, "cross_origin"),
    ],
    ids=str,
)
async def test_who_comes_with_a_token_and_is_refused_is_written_down(
    ask: AppClient, headers: dict[str, str], code: str
) -> None:
    await ask("POST", "/api/v1/push", headers=headers)
    assert [(one["action"], one["result"]) for one in await records(ask)] == [("refused", code)]


async def test_without_authentication_actions_are_written_down_without_a_subject_and_refusals_are_not(
    ask_open: AppClient,
) -> None:
    await ask_open("DELETE", "/api/v1/resources/queues/q")
    await ask_open("DELETE", "/api/v1/resources/queues/q", headers={"host": "evil.example"})
    await ask_open("DELETE", "/api/v1/resources/queues/q", headers={"origin": "https://evil.example"})
    await ask_open("POST", "/api/v1/session", body={"token": "x"})
    await ask_open("DELETE", "/api/v1/session")
    [record] = await records(ask_open)
    assert (record["action"], record["subject"], record["role"], record["client"]) == (
        "delete_queue",
        "",
        "admin",
        "10.0.0.9",
    )


async def test_every_name_of_an_audited_endpoint_is_one(ask: AppClient) -> None:
    names = {operation.endpoint.__name__ for methods in ask.app.table.values() for operation in methods.values()}
    assert names >= AUDITED


def test_refusals_that_never_end_are_counted_instead_of_written() -> None:
    now = 0.0
    audit = Audit(FakeClock(0), now=lambda: now)
    for _ in range(100):
        audit.refused(request(), 401, "unauthorized")
    written = len(audit.last)
    assert written == 20
    now = 1.0
    audit.refused(request(), 401, "unauthorized")
    assert (len(audit.last), audit.last[-1].suppressed) == (written + 1, 80)


def test_the_last_ones_are_kept_and_no_more() -> None:
    audit = Audit(FakeClock(0))
    for number in range(KEPT + 5):
        audit.record(request(), "pause_queue", 200, "done", {"number": number})
    assert len(audit.last) == KEPT
    assert audit.last[-1].target == {"number": KEPT + 4}


async def test_records_go_to_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"earlier": true}\n')
    path.chmod(0o600)
    async with serving(Settings(audit=AuditSettings(file=str(path)))) as ask:
        await ask("DELETE", "/api/v1/resources/queues/q", "admin")
        shown = await records(ask)
    earlier, record = map(json.loads, path.read_text().splitlines())
    assert (earlier, [record]) == ({"earlier": True}, shown)
    fresh = tmp_path / "fresh.jsonl"
    Audit(FakeClock(0), str(fresh))
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o600


def test_a_file_that_can_not_be_written_keeps_the_server_from_starting(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match=r"audit\.file"):
        Audit(FakeClock(0), str(tmp_path / "nowhere" / "audit.jsonl"))
