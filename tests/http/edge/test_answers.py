"""What every answer has beside its content."""

from __future__ import annotations

import logging

import pytest

from hark.http.edge.request_ids import RequestIds
from hark.http.routes.table import WEBSOCKET
from tests.http.edge.asking import Asking, Json

PUSH = {"items": [{"queue": "q", "payload": 1}]}


async def test_no_answer_of_any_route_may_be_taken_for_something_else_or_kept(ask: Asking) -> None:
    for pattern, methods in ask.app.table.items():
        for method in methods:
            if method == WEBSOCKET:
                continue
            for token in ("admin", None):
                answer = await ask(method, pattern.replace("{", "").replace("}", ""), token)
                if answer.status != 204:
                    assert answer.headers["x-content-type-options"] == "nosniff", (method, pattern, token)
                if method == "GET" and pattern.startswith(("/api/", "/keyval/")):
                    assert answer.headers["cache-control"].startswith(("no-store", "no-cache")), (pattern, token)


async def test_pages_may_load_nothing_but_their_own_files_and_show_in_no_frame(ask: Asking) -> None:
    answer = await ask("GET", "/")
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "strict-transport-security" not in answer.headers


async def test_browsers_are_told_to_stay_with_tls_where_there_is_tls(ask: Asking) -> None:
    answer = await ask("GET", "/", scheme="https")
    assert answer.headers["strict-transport-security"] == "max-age=31536000"


# Request ids -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["abc", "A.b_c-1", "x" * 128], ids=["short", "signs", "long"])
async def test_the_clients_request_id_comes_back_in_every_answer(ask: Asking, given: str) -> None:
    for method, path, token in (
        ("POST", "/api/v1/push", "writer"),
        ("GET", "/api/v1/pop/queue/q", "writer"),
        ("GET", "/api/v1/resources/queues", "reader"),
        ("GET", "/api/v1/resources/queues", None),
        ("GET", "/api/v1/nothing", "reader"),
        ("POST", "/api/v1/ack", "writer"),
        ("GET", "/", None),
    ):
        answer = await ask(method, path, token, PUSH, headers={"x-request-id": given})
        assert answer.headers["x-request-id"] == given, path


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\tb", "ä", "<b>", "a,b"], ids=ascii)
async def test_an_id_that_is_no_id_is_replaced(ask: Asking, given: str) -> None:
    answers = [
        await ask("GET", "/api/v1/resources/queues", "reader", headers={"x-request-id": given}) for _ in range(2)
    ]
    first, second = (answer.headers["x-request-id"] for answer in answers)
    assert first != given
    assert len({first, second}) == 2


async def test_a_bug_is_answered_with_the_id_that_its_lines_in_the_log_have(
    ask: Asking, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_arguments: object) -> Json:
        raise ZeroDivisionError

    monkeypatch.setattr(ask.broker, "push", broken)
    caplog.handler.addFilter(RequestIds())
    with caplog.at_level(logging.ERROR):
        answer = await ask("POST", "/api/v1/push", "writer", PUSH, headers={"x-request-id": "look-for-me"})
    assert (answer.status, answer.json["requestId"]) == (500, "look-for-me")
    assert "ZeroDivisionError" not in answer.body.decode()
    [record] = [record for record in caplog.records if record.exc_info]
    assert vars(record)["request_id"] == "look-for-me"
    answer = await ask("POST", "/api/v1/push", "writer", PUSH)
    assert answer.json["requestId"] == answer.headers["x-request-id"]
